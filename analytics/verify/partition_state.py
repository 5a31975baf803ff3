"""A partition's state, rebuilt from the steps of its log.

This is a second implementation of `daemons/partition/machine.py`, written from its description and
the protocol's. Steps of one replica come in, sorted by index. Out go the rows that the daemon's
store should hold at the applied index, and findings about producers' sequences. The invariant:
for each producer and epoch, sequences begin at 0 and rise by one, without a gap or a repetition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from myqueue.analytics.log.msgpack_values import BadPack, pack, unpack
from myqueue.analytics.verify.inspection_rows import WRONG, Finding, Step

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


class Rebuilder:
    """The state of one partition on one replica."""

    def __init__(self) -> None:
        self.end = self.start = self.bytes_total = self.bytes_gone = self.time_ms = 0
        self.start_index = 1
        # producer → [epoch, index of its last entry, runs], least recently written first
        self.sessions: OrderedDict[int, list[Any]] = OrderedDict()
        # consumer → [offset, member, assignment, {key: (first, next)}]
        self.positions: dict[str, list[Any]] = {}
        # (key, consumer) of takes older than the last KEYS_MAX of their consumer
        # → (first, next, number), oldest first
        self.takes: OrderedDict[tuple[bytes, str], tuple[int, int, int]] = OrderedDict()
        # key of a batch → (offset, messages, stamp), oldest first
        self.keys: OrderedDict[int, tuple[int, int, int]] = OrderedDict()
        # ends of the partition at the last steps by which keys age, oldest first
        self.steps: list[int] = []

    # -- batches -------------------------------------------------------------------------------

    def batches(
        self,
        producer: int,
        epoch: int,
        sequence: int,
        offset: int,
        count: int,
        index: int,
        size: int,
        time_ms: int,
    ) -> str:
        """Apply batches that continue each other; return "" or how their sequence is wrong."""
        self.end = offset + count
        self.bytes_total += size
        self.time_ms = max(self.time_ms, time_ms)
        if epoch == KEYED_EPOCH:
            return self._keyed(producer << 64 | sequence, offset, count)
        if not producer:
            return ""
        known = self.sessions.get(producer)
        problem = _problem(known, epoch, sequence)
        if known is None:
            if len(self.sessions) >= PRODUCERS_MAX:
                self.sessions.popitem(last=False)
            self.sessions[producer] = [epoch, index, [[sequence, offset, count]]]
        elif epoch < known[0]:
            return problem
        elif epoch > known[0]:
            known[:] = [epoch, index, [[sequence, offset, count]]]
        else:
            _lengthen(known[2], sequence, offset, count)
            known[1] = index
        self.sessions.move_to_end(producer)
        return problem

    def _keyed(self, key: int, offset: int, count: int) -> str:
        if key in self.keys:
            return f"the batch of key {key:032x} is there twice"
        self.keys[key] = offset, count, self.time_ms
        while len(self.keys) > BATCH_KEYS_MAX:
            self.keys.popitem(last=False)
        if not self.steps:
            too_old = self.time_ms - BATCH_KEY_AGE_MS
            while next(iter(self.keys.values()))[2] < too_old:
                self.keys.popitem(last=False)
        return ""

    def _step(self, end: int) -> None:
        """Let batch keys age by one step."""
        self.steps = [*self.steps, end][-BATCH_KEY_STEPS - 1 :]
        if len(self.steps) > BATCH_KEY_STEPS:
            before = self.steps[0]
            expired = [key for key, (offset, _, _) in self.keys.items() if offset < before]
            for key in expired:
                del self.keys[key]

    # -- commands ------------------------------------------------------------------------------

    def command(self, payload: bytes, end: int) -> None:
        """Apply a command; `end` is the partition's end offset there. BadPack if it is unknown."""
        operation, *fields = unpack(payload)
        if operation == COMMIT:
            for consumer, offset, member, assignment in fields[0]:
                self._commit(consumer, offset, member, assignment, end)
        elif operation == TAKE:
            for consumer, key, most, *more in fields[0]:
                self._take(consumer, key, most, end, any(more))
        elif operation == START:
            offset, index, size = fields
            if self.start < offset <= end:
                self.start, self.start_index = offset, index
                self.bytes_gone += size
        elif operation == FORGET:
            for consumer, member, assignment in fields[0]:
                known = self.positions.get(consumer)
                if known is not None and (assignment, member) >= (known[2], known[1]):
                    del self.positions[consumer]
                    for take in [one for one in self.takes if one[1] == consumer]:
                        del self.takes[take]
        elif operation == KEY_STEP:
            self._step(end)
        else:
            raise BadPack(f"operation {operation} is of a newer version")

    def _commit(self, consumer: str, offset: int, member: int, assignment: int, end: int) -> None:
        """Move a consumer's position. NO_OFFSET moves nothing and only fences older owners."""
        known, fences = self.positions.get(consumer), offset == NO_OFFSET
        if known is None:
            if len(self.positions) >= CONSUMERS_MAX or (offset > end and not fences):
                return
            known = self.positions[consumer] = [None, 0, 0, {}]
        elif (assignment, member) < (known[2], known[1]) or (offset > end and not fences):
            return
        if not fences and (known[0] is None or offset > known[0] or assignment > known[2]):
            known[0] = offset
        known[1], known[2] = member, assignment

    def _take(self, consumer: str, key: bytes, most: int, end: int, nothing_too: bool) -> None:
        known = self.positions.get(consumer)
        if (known is not None and key in known[3]) or (key, consumer) in self.takes:
            return
        first = self.start if known is None else max(known[0] or 0, self.start)
        behind = max(first, min(first + most, end))
        if behind == first and not nothing_too:
            return
        if known is None:
            if len(self.positions) >= CONSUMERS_MAX:
                return
            known = self.positions[consumer] = [behind, 0, 0, {}]
        known[0] = behind
        known[3][key] = (first, behind)
        if len(known[3]) > KEYS_MAX:
            oldest = next(iter(known[3]))
            last = next(reversed(self.takes.values())) if self.takes else (0, 0, -1)
            self.takes[oldest, consumer] = (*known[3].pop(oldest), last[2] + 1)
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
        sessions.sort(key=lambda row: row[2])
        self.sessions = OrderedDict((row[0], row[1:]) for row in sessions)
        self.positions = {
            name: [offset, member, assignment, {key: (a, b) for key, a, b in taken}]
            for name, offset, member, assignment, taken in positions
        }
        keys = sorted(more[0], key=lambda row: row[1]) if more else []
        self.keys = OrderedDict((int.from_bytes(name, "big"), tuple(at)) for name, *at in keys)
        self.steps = list(more[2]) if len(more) > 2 else []
        takes = sorted(more[1], key=lambda row: row[3]) if len(more) > 1 else []
        self.takes = OrderedDict(
            ((name[:16], name[16:].decode()), tuple(at)) for name, *at in takes
        )
        return int(applied)

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The rows as the store holds them, in the order of their keys."""
        for name in sorted(self.positions, key=str.encode):
            offset, member, assignment, taken = self.positions[name]
            keys = [[key, first, behind] for key, (first, behind) in taken.items()]
            yield b"c" + name.encode(), pack([offset, member, assignment, keys])
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
            yield b"p" + producer.to_bytes(8, "big"), pack(self.sessions[producer])
        if self.steps:
            yield b"s", pack(self.steps)
        for key, consumer in sorted(self.takes, key=lambda one: one[0] + one[1].encode()):
            yield b"t" + key + consumer.encode(), pack(list(self.takes[key, consumer]))


def _problem(known: list[Any] | None, epoch: int, sequence: int) -> str:
    """How the sequence is wrong for this producer's session; "" if it is right."""
    if known is None or epoch > known[0]:
        return "" if sequence == 0 else f"epoch {epoch} begins at sequence {sequence}, not at 0"
    if epoch < known[0]:
        return f"epoch {epoch} after epoch {known[0]}"
    last = known[2][-1]
    expected = last[0] + last[2]
    if sequence == expected:
        return ""
    what = "is there twice" if sequence < expected else "comes too early"
    return f"sequence {sequence} {what}: {expected} would follow"


def _lengthen(runs: list[list[int]], sequence: int, offset: int, count: int) -> None:
    last = runs[-1]
    if sequence == last[0] + last[2] and offset == last[1] + last[2]:
        last[2] += count
        return
    runs.append([sequence, offset, count])
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
        if step.changes and step.changes[0][0] == "s":
            _, _, number, _, payload = step.changes[0]
            if number == 0:
                parts.clear()
            parts[number] = payload
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
        if change[0] == "p":
            _, producer, epoch, sequence, offset, count, index, size, time_ms = change
            if index <= done:
                continue
            problem = state.batches(producer, epoch, sequence, offset, count, index, size, time_ms)
            if problem:
                yield "sequence", f"producer {producer}: {problem}", index
        elif change[1] > done:
            _, index, offset, time_ms, payload = change
            try:
                state.command(payload, offset)
            except (BadPack, ValueError, TypeError) as error:
                yield "command", f"a command that can't be read: {error}", index
