"""A partition's state, rebuilt from the steps of its log.

This is a second implementation of `daemons/partition/machine.py`, written from its description and
the protocol's. Steps of one replica come in, sorted by index. Out go the rows that the daemon's
store should hold at the applied index, and findings about producers' sequences. The invariant:
for each producer and epoch, sequences begin at 0 and rise by one, without a gap or a repetition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field
from typing import Any, Final, NamedTuple

from myqueue.analytics.log.msgpack_values import BadPack, pack, unpack
from myqueue.analytics.verify.inspection_rows import (
    WRONG,
    BatchRun,
    Finding,
    Step,
)

FORM, COMMIT, TAKE, START, FORGET, KEY_STEP = 1, 1, 2, 3, 4, 5
PRODUCERS_MAX: Final = 10_000
RUNS_MAX: Final = 64
CONSUMERS_MAX: Final = 100_000
KEYS_MAX: Final = 16
OLDER_TAKES_MAX: Final = 4_096
NO_OFFSET: Final = 2**64 - 1
# The epoch of batches with a key of their own, which stands in the fields producer and sequence.
KEYED_EPOCH: Final = 2**32 - 1
BATCH_KEYS_MAX: Final = 50_000
BATCH_KEY_AGE_MS: Final = 15 * 60 * 1000
# A key is forgotten when this many steps, and one more, came after it; in a log without any step,
# by its stamp.
BATCH_KEY_STEPS: Final = 15


class Rebuilt(NamedTuple):
    """One row of the state at the applied index. Without a key, the state could not be rebuilt and
    `value` says why.
    """

    disk: str
    group: int
    key: bytes
    value: bytes


@dataclass(slots=True)
class SequenceRun:
    """Messages of one producer whose sequences and offsets follow each other."""

    sequence: int
    offset: int
    count: int


@dataclass(slots=True)
class Session:
    """One producer, as the partition remembers it."""

    epoch: int
    index: int  # of its last entry
    runs: list[SequenceRun]


@dataclass(slots=True)
class Position:
    """One consumer's position, and its last takes by key."""

    offset: int | None
    member: int = 0
    assignment: int = 0
    takes: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # key → (first, next)


class OldTake(NamedTuple):
    """A take that is older than the last KEYS_MAX of its consumer."""

    first: int
    next: int
    number: int


class BatchKey(NamedTuple):
    """A batch with a key of its own."""

    offset: int
    messages: int
    time_ms: int


class Rebuilder:
    """The state of one partition on one replica."""

    def __init__(self) -> None:
        self.end = self.start = self.bytes_total = self.bytes_gone = self.time_ms = 0
        self.start_index = 1
        self.sessions: OrderedDict[int, Session] = OrderedDict()  # least recently written first
        self.positions: dict[str, Position] = {}  # by consumer
        # by key and consumer, oldest first
        self.takes: OrderedDict[tuple[bytes, str], OldTake] = OrderedDict()
        self.keys: OrderedDict[int, BatchKey] = OrderedDict()  # by key, oldest first
        # ends of the partition at the last steps by which keys age, oldest first
        self.steps: list[int] = []

    # -- batches -------------------------------------------------------------------------------

    def batches(self, batches: BatchRun) -> str:
        """Apply batches that continue each other; return "" or how their sequence is wrong."""
        self.end = batches.offset + batches.count
        self.bytes_total += batches.bytes
        self.time_ms = max(self.time_ms, batches.time_ms)
        producer, epoch = batches.producer, batches.epoch
        if epoch == KEYED_EPOCH:
            key = producer << 64 | batches.sequence
            return self._keyed(key, batches.offset, batches.count)
        if not producer:
            return ""
        session = self.sessions.get(producer)
        problem = _problem(session, epoch, batches.sequence)
        if session is not None and epoch < session.epoch:
            return problem
        run = SequenceRun(batches.sequence, batches.offset, batches.count)
        if session is not None and epoch == session.epoch:
            _lengthen(session.runs, run)
            session.index = batches.index
        else:
            if session is None and len(self.sessions) >= PRODUCERS_MAX:
                self.sessions.popitem(last=False)
            self.sessions[producer] = Session(epoch, batches.index, [run])
        self.sessions.move_to_end(producer)
        return problem

    def _keyed(self, key: int, offset: int, count: int) -> str:
        if key in self.keys:
            return f"the batch of key {key:032x} is there twice"
        self.keys[key] = BatchKey(offset, count, self.time_ms)
        while len(self.keys) > BATCH_KEYS_MAX:
            self.keys.popitem(last=False)
        if not self.steps:
            too_old = self.time_ms - BATCH_KEY_AGE_MS
            while next(iter(self.keys.values())).time_ms < too_old:
                self.keys.popitem(last=False)
        return ""

    def _step(self, end: int) -> None:
        """Let batch keys age by one step."""
        self.steps = [*self.steps, end][-BATCH_KEY_STEPS - 1 :]
        if len(self.steps) > BATCH_KEY_STEPS:
            before, *_ = self.steps
            expired = [key for key, batch in self.keys.items() if batch.offset < before]
            for key in expired:
                del self.keys[key]

    # -- commands ------------------------------------------------------------------------------

    def command(self, payload: bytes, end: int) -> None:
        """Apply a command; `end` is the partition's end offset there. BadPack if it is unknown."""
        operation, *fields = unpack(payload)
        if operation == COMMIT:
            (commits,) = fields
            for consumer, offset, member, assignment in commits:
                self._commit(consumer, offset, member, assignment, end)
        elif operation == TAKE:
            (takes,) = fields
            for consumer, key, most, *more in takes:
                self._take(consumer, key, most, end, any(more))
        elif operation == START:
            offset, index, size = fields
            if self.start < offset <= end:
                self.start, self.start_index = offset, index
                self.bytes_gone += size
        elif operation == FORGET:
            (forgotten,) = fields
            for consumer, member, assignment in forgotten:
                position = self.positions.get(consumer)
                if position is not None and (assignment, member) >= _owner(position):
                    del self.positions[consumer]
                    for key in [key for key, name in self.takes if name == consumer]:
                        del self.takes[key, consumer]
        elif operation == KEY_STEP:
            self._step(end)
        else:
            raise BadPack(f"operation {operation} is of a newer version")

    def _commit(self, consumer: str, offset: int, member: int, assignment: int, end: int) -> None:
        """Move a consumer's position. NO_OFFSET moves nothing and only fences older owners."""
        position, fences = self.positions.get(consumer), offset == NO_OFFSET
        if offset > end and not fences:
            return
        if position is None:
            if len(self.positions) >= CONSUMERS_MAX:
                return
            position = self.positions[consumer] = Position(None)
        elif (assignment, member) < _owner(position):
            return
        before = position.offset
        if not fences and (before is None or offset > before or assignment > position.assignment):
            position.offset = offset
        position.member, position.assignment = member, assignment

    def _take(self, consumer: str, key: bytes, most: int, end: int, nothing_too: bool) -> None:
        position = self.positions.get(consumer)
        if (position is not None and key in position.takes) or (key, consumer) in self.takes:
            return
        first = self.start if position is None else max(position.offset or 0, self.start)
        behind = max(first, min(first + most, end))
        if behind == first and not nothing_too:
            return
        if position is None:
            if len(self.positions) >= CONSUMERS_MAX:
                return
            position = self.positions[consumer] = Position(behind)
        position.offset = behind
        position.takes[key] = (first, behind)
        if len(position.takes) > KEYS_MAX:
            oldest = next(iter(position.takes))
            number = next(reversed(self.takes.values())).number + 1 if self.takes else 0
            self.takes[oldest, consumer] = OldTake(*position.takes.pop(oldest), number)
            if len(self.takes) > OLDER_TAKES_MAX:
                self.takes.popitem(last=False)

    # -- state ---------------------------------------------------------------------------------

    def restore(self, snapshot: bytes) -> int:
        """Take the state from the joined parts of a SNAPSHOT; return its applied index."""
        _, _, state, *_start = unpack(snapshot)
        form, applied, meta, sessions, positions, *more = unpack(state)
        if form != FORM:
            raise BadPack(f"a state of form {form}")
        (
            self.end,
            self.start,
            self.start_index,
            self.bytes_total,
            self.bytes_gone,
            self.time_ms,
        ) = meta
        by_producer = {
            producer: Session(epoch, index, [SequenceRun(*run) for run in runs])
            for producer, epoch, index, runs in sessions
        }
        self.sessions = OrderedDict(sorted(by_producer.items(), key=lambda row: row[1].index))
        self.positions = {
            name: Position(offset, member, assignment, {key: (a, b) for key, a, b in taken})
            for name, offset, member, assignment, taken in positions
        }
        # A state of an older version ends before the keys, the takes or the steps.
        keys, takes, steps = (*more, [], [], [])[:3]
        batches = {int.from_bytes(name, "big"): BatchKey(*fields) for name, *fields in keys}
        self.keys = OrderedDict(sorted(batches.items(), key=lambda row: row[1].offset))
        self.steps = list(steps)
        old_takes = {(name[:16], name[16:].decode()): OldTake(*fields) for name, *fields in takes}
        self.takes = OrderedDict(sorted(old_takes.items(), key=lambda row: row[1].number))
        return int(applied)

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The rows as the store holds them, in the order of their keys."""
        for name in sorted(self.positions, key=str.encode):
            at = self.positions[name]
            keys = [[key, first, behind] for key, (first, behind) in at.takes.items()]
            yield b"c" + name.encode(), pack([at.offset, at.member, at.assignment, keys])
        for batch in sorted(self.keys):
            yield b"k" + batch.to_bytes(16, "big"), pack(list(self.keys[batch]))
        meta = [
            self.end,
            self.start,
            self.start_index,
            self.bytes_total,
            self.bytes_gone,
            self.time_ms,
        ]
        yield b"m", pack([FORM, *meta])
        for producer in sorted(self.sessions):
            yield b"p" + producer.to_bytes(8, "big"), pack(_as_list(self.sessions[producer]))
        if self.steps:
            yield b"s", pack(self.steps)
        takes = {key + name.encode(): take for (key, name), take in self.takes.items()}
        for row_key in sorted(takes):
            yield b"t" + row_key, pack(list(takes[row_key]))


def _as_list(session: Session) -> list[Any]:
    """A session as the store holds it."""
    return [session.epoch, session.index, [list(astuple(run)) for run in session.runs]]


def _owner(position: Position) -> tuple[int, int]:
    return position.assignment, position.member


def _problem(session: Session | None, epoch: int, sequence: int) -> str:
    """How the sequence is wrong for this producer's session; "" if it is right."""
    if session is None or epoch > session.epoch:
        return "" if sequence == 0 else f"epoch {epoch} begins at sequence {sequence}, not at 0"
    if epoch < session.epoch:
        return f"epoch {epoch} after epoch {session.epoch}"
    last = session.runs[-1]
    expected = last.sequence + last.count
    if sequence == expected:
        return ""
    what = "is there twice" if sequence < expected else "comes too early"
    return f"sequence {sequence} {what}: {expected} would follow"


def _lengthen(runs: list[SequenceRun], run: SequenceRun) -> None:
    last = runs[-1]
    if run.sequence == last.sequence + last.count and run.offset == last.offset + last.count:
        last.count += run.count
        return
    runs.append(run)
    if len(runs) > RUNS_MAX:
        del runs[0]


def replay(
    disk: str,
    group: int,
    steps: Iterable[Step],
    names: Any,
    *,
    after: int,
    split: int,
    wants_state: bool,
) -> Iterator[Finding | Rebuilt]:
    """Replay the steps of one group on one disk; yield findings, and the state at index `split`.

    Steps are sorted by first index; parts of the snapshot to begin with come before all others.
    """
    state, done, is_yielded = Rebuilder(), after, False
    problem = ""
    parts: dict[int, bytes] = {}
    for step in steps:
        if step.part is not None:
            if step.part.number == 0:
                parts.clear()
            parts[step.part.number] = step.part.payload
            continue
        if parts and done == after:
            problem = problem or _restored(state, parts, after)
            parts = {}
        if step.last <= done:
            continue  # reclaim appended these entries again elsewhere
        if step.first > done + 1 and not problem:
            problem = f"entries {done + 1} to {step.first - 1} are not there"
        if wants_state and not is_yielded and step.first > split:
            is_yielded = True
            yield from _told(disk, group, state, problem)
        for rule, what, index in _applied(state, step, done):
            if problem:
                continue  # a consequence of entries that are missing
            yield Finding(
                WRONG,
                rule,
                what,
                names.daemons.get(disk, disk),
                names.segments.get((disk, step.number), str(step.number)),
                step.position,
                group,
                index,
            )
        done = max(done, step.last)
    if parts and done == after:
        problem = problem or _restored(state, parts, after)
    if wants_state and not is_yielded:
        if done < split and not problem:
            problem = f"the log ends at index {done}, the state is of index {split}"
        yield from _told(disk, group, state, problem)


def _restored(state: Rebuilder, parts: dict[int, bytes], after: int) -> str:
    try:
        applied = state.restore(b"".join(parts[one] for one in sorted(parts)))
    except (BadPack, ValueError, TypeError) as error:
        return f"the snapshot at index {after} can't be read: {error}"
    return "" if applied == after else f"the snapshot at index {after} is of index {applied}"


def _told(disk: str, group: int, state: Rebuilder, problem: str) -> Iterator[Rebuilt]:
    if problem:
        yield Rebuilt(disk, group, b"", problem.encode())
        return
    for key, value in state.rows():
        yield Rebuilt(disk, group, key, value)


def _applied(state: Rebuilder, step: Step, done: int) -> Iterator[tuple[str, str, int]]:
    for change in step.changes:
        if change.index <= done:
            continue
        if isinstance(change, BatchRun):
            problem = state.batches(change)
            if problem:
                yield "sequence", f"producer {change.producer}: {problem}", change.index
        else:
            try:
                state.command(change.payload, change.offset)
            except (BadPack, ValueError, TypeError) as error:
                yield "command", f"a command that can't be read: {error}", change.index
