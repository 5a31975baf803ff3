"""Recovery of a log at a start: what is on the disk, what was promised, where to continue.

`recover` follows the steps in FORMAT.md. It is the only code that may cut a log, and it cuts only
what no evidence proves to have been synced (*torn*). What was synced and is not readable is
*corrupt*: reported, never overwritten, never deleted. Evidence that position p was synced: a mark
after it in its segment, anything valid in a later segment, a trailer, or the store's watermark.

Records reach `sink` in log order as ops, the same that the running journal gives to the store, in
portions of bounded size. Memory grows with the number of groups only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from myqueue.wal import format as f
from myqueue.wal.check.segments import CORRUPT, TORN, Finding, Segment
from myqueue.wal.check.verdict import Judge, StopVerdict
from myqueue.wal.files import Files
from myqueue.wal.footer_rows import SegmentRows
from myqueue.wal.groups import Groups, Op, RowTuple
from myqueue.wal.read.scan import Scan
from myqueue.wal.recover.inventory import take_inventory
from myqueue.wal.recover.rewrite_tail import rewrite_tail

OPS_ROWS_MAX = 20_000
UNSURE = "unsure"  # a file next to the segments: `unknown_loss`, for later starts

Sink = Callable[[list[Op], int, int], None]  # (ops, segment, position up to which they reach)


@dataclass(slots=True)
class Recovered:
    """The outcome: the groups, the segments, where appending continues, and the findings."""

    groups: Groups
    segments: dict[int, Segment] = field(default_factory=dict)
    number: int = 0  # the segment in which appending continues; 0: there is none
    position: int = 0
    next_number: int = 1  # number of the next new segment
    spares: list[Segment] = field(default_factory=list)  # unused, prepared before the crash
    flush_number: int = 0
    # Position up to which that segment is known to be synced, if it is abandoned because of damage.
    abandoned_at: int = 0
    rows: SegmentRows = field(default_factory=SegmentRows)  # of that segment, for its footer
    findings: list[Finding] = field(default_factory=list)
    # True: a hole may have held records of any group, including groups that are unknown here. Set
    # by this start or by an earlier one, until the owner calls `Log.clear_unknown_loss`.
    unknown_loss: bool = False
    records: int = 0
    bytes_read: int = 0

    @property
    def corrupt(self) -> bool:
        """True if synced data cannot be read."""
        return any(finding.verdict == CORRUPT for finding in self.findings)


def recover(
    files: Files,
    groups: Groups,
    watermark: tuple[int, int],
    sink: Sink,
    *,
    owner: bytes | None = None,
    repair: bool = True,
) -> Recovered:
    """Read what follows the watermark (segment, position); (0, 0) reads everything.

    `groups` are as the store has them at the watermark. Segments of another `owner` are refused.
    Without `repair` nothing is written. All that the sink gets is durable before the sink gets it.
    """
    out = Recovered(groups)
    if watermark == (0, 0):
        groups.by_uid.clear()  # left by a recovery that was interrupted
    if repair:
        files.sync(None)  # the last process may have ended before it synced a new name
    out.segments, out.findings = take_inventory(files, owner, repair)
    is_noted = UNSURE in files.list()
    walk = _Walk(files, out, watermark, sink)
    walk.all_segments(forgot=is_noted and watermark == (0, 0))
    if repair:
        for segment in reversed(walk.aside):  # a crash must leave no hole before one of them
            files.move(segment.name, segment.name + ".trash")
            files.sync(None)
        if walk.newest is not None:
            rewrite_tail(files, out.segments, out.number, walk.newest)
    if repair and out.unknown_loss and not is_noted:  # later starts begin after the hole
        files.create(UNSURE, 1)
        files.sync(None)
    out.unknown_loss |= is_noted
    walk.finish()
    return out


class _Walk:
    """One pass over the segments, from the watermark to the end of the log."""

    def __init__(
        self, files: Files, out: Recovered, watermark: tuple[int, int], sink: Sink
    ) -> None:
        self._files, self._out, self._sink = files, out, sink
        self._watermark = watermark
        self._ops: list[Op] = []
        self._incomplete: set[int] = set()  # groups that may miss entries
        self._lacking: set[int] = set()  # groups with entries of which only the payload is lost
        self._doubtful: set[int] = set()  # groups whose newest vote may be missing
        self._stored_until = 0  # the store has the current segment up to this position
        self.aside: list[Segment] = []  # unused segments that have to be removed
        self._rows: list[RowTuple] = []
        self.newest: Scan | None = None

    def all_segments(self, *, forgot: bool) -> None:
        """Read every segment. `forgot`: the doubts of an earlier start were lost with its store."""
        out, from_segment = self._out, self._watermark[0]
        numbers = sorted(out.segments)
        if from_segment and from_segment not in out.segments:
            problem = f"segment {from_segment} of the store's watermark is missing"
            self._find(CORRUPT, "wal", 0, problem)
            self._doubt_all()
        last_used = next((n for n in reversed(numbers) if self._is_used(n)), 0)
        for number in numbers:
            segment = out.segments[number]
            if number > last_used and (self.aside or self._was_spare(number)):
                self._spare(segment)
                continue
            out.number = number
            if 0 < from_segment < number - 1 and number - 1 not in out.segments:
                self._hole(number - 1)
            if number < from_segment:
                self._check_seal(segment)
            else:
                self._segment(segment, number < last_used)
        self._missing_entries()
        if forgot and not out.unknown_loss:  # the hole looks like reclaimed segments
            self._doubt_all()
        self._mark_damage()
        if out.number < from_segment:
            self._give_up_end()
        # After the watermark too: the next start would take a new segment below it for a log that
        # lost its end, and one with the same number for the one that the store's rows point to.
        out.next_number = max((*out.segments, from_segment)) + 1

    def _give_up_end(self) -> None:
        """Set spare segments aside: the segment of the watermark and all later ones are lost.

        A recovery never reads below the watermark, so nothing may be appended there. Flush numbers
        continue from the last segment that is left.
        """
        out = self._out
        for spare in out.spares:
            del out.segments[spare.number]
        self.aside[:0] = out.spares  # in the order of their numbers
        out.spares = []
        last = out.segments.get(out.number)
        if last is not None:
            scan = last.scan()
            for _ in scan.records():
                continue
            out.flush_number = scan.flush_number

    def _hole(self, number: int) -> None:
        """Report a missing segment after the store's watermark, which may have held any record.

        It was not reclaimed: reclaim removes only what the store covers.
        """
        self._find(CORRUPT, "wal", 0, f"segment {number}, after the store's watermark, is missing")
        self._doubt_all()

    def _doubt_all(self) -> None:
        """Note that a record of any group may be lost."""
        self._out.unknown_loss = True
        self._doubtful.update(self._out.groups.by_uid)
        self._incomplete.update(self._out.groups.by_uid)

    def _spare(self, segment: Segment) -> None:
        """Keep a segment that was prepared and never used. Set it aside after a bad header."""
        out = self._out
        if not segment.damaged and not self.aside:
            out.spares.append(segment)
            return
        for at, finding in enumerate(out.findings):
            if finding.segment == segment.name:  # no record in it was ever acknowledged
                problem = f"unused segment: {finding.what}"
                out.findings[at] = Finding(TORN, segment.name, 0, problem)
        del out.segments[segment.number]
        self.aside.append(segment)

    def finish(self) -> None:
        """Give the remaining ops to the sink, and the new watermark with them."""
        out = self._out
        if out.number < self._watermark[0]:  # its segment and all later ones are missing
            # The watermark never goes back: if this start is killed now, the next one would read
            # old votes again and take them for newer than the doubt.
            self._flush(out.next_number, 0)
        else:
            self._flush(out.number, out.position)

    def _missing_entries(self) -> None:
        """Report entries that are missing now: they were neither reclaimed nor moved elsewhere."""
        for group in self._out.groups.by_uid.values():
            for first, last in group.missing:
                self._incomplete.add(group.uid)
                problem = f"entries {first} to {last} are missing"
                self._find(CORRUPT, "wal", 0, problem, group.uid, first)

    def _mark_damage(self) -> None:
        """Give the sink, for each damaged group, a hard state with flags that name the damage.

        The store keeps it with the watermark, because the next start reads from there and does not
        see the damage again. In the log, the owner's next hard state says what became of it.
        """
        for uid in sorted(self._incomplete | self._doubtful | self._lacking):
            group = self._out.groups.by_uid.get(uid)
            if group is None:
                continue
            missing = uid in self._incomplete or uid in self._doubtful or group.incomplete
            flags = f.INCOMPLETE if missing else 0
            flags |= f.DOUBTFUL if uid in self._doubtful or group.doubtful else 0
            flags |= f.LACKING if uid in self._lacking or group.lacking else 0
            record = f.Record(
                0, 0, f.HARD_STATE, flags, 0, 0, 0, uid, group.vote, group.term, 0, 0, 0
            )
            group.apply(record, group.hard_state_at, b"")
            group.damaged = True
            self._close_rows()
            self._ops.append((record, group.hard_state_at, b""))

    def _is_used(self, number: int) -> bool:
        """Whether the segment holds any valid record, or the store's watermark."""
        segment = self._out.segments[number]
        return segment.sealed or number == self._watermark[0] or segment.has_record()

    def _was_spare(self, number: int) -> bool:
        """Whether an empty segment was prepared ahead: then its predecessor is still open."""
        previous = self._out.segments.get(number - 1)
        return previous is not None and not previous.sealed

    def _check_seal(self, segment: Segment) -> None:
        """Report a segment that later ones follow and that is neither sealed nor abandoned."""
        if not segment.sealed:
            segment.damaged = True
            if segment.abandoned_at:
                return
            problem = "the trailer is missing or damaged, but the log went on in a later segment"
            self._find(CORRUPT, segment.name, segment.capacity - f.RECORD_HEADER_BYTES, problem)

    def _segment(self, segment: Segment, followed: bool) -> None:
        """Read all of a segment, even what the store has: an open one was never checked before."""
        out = self._out
        known = self._watermark[1] if segment.number == self._watermark[0] else 0
        self._stored_until = stored_until = known
        if followed:
            known = max(known, segment.abandoned_at or segment.capacity)
        scan = segment.scan()
        judge = Judge(segment, scan, lambda: known, None)
        out.rows = rows = SegmentRows()
        again = True
        while again:
            for record, payload in scan.records():
                out.records += 1
                if record.group:
                    rows.note(record)
                    if record.position >= stored_until:
                        self._record(segment, record, payload)
            again = self._take(segment, judge.stopped())
        out.position, out.flush_number = scan.position, max(out.flush_number, scan.flush_number)
        out.abandoned_at = max(scan.position, judge.proven)
        out.bytes_read += scan.position
        if followed:
            self._check_seal(segment)
        self.newest = scan

    def _take(self, segment: Segment, stop: StopVerdict) -> bool:
        """Note what is wrong at a stop and which groups it concerns; return whether to read on.

        Before the watermark nothing is in doubt: the store has the votes and the ends of logs, and
        its rows name the entries in that place.
        """
        if stop.finding is None:
            return stop.again
        self._out.findings.append(stop.finding)
        if stop.finding.verdict == CORRUPT:
            segment.damaged = True
            if stop.record is not None and stop.record.kind == f.ENTRY:
                self._lacking.add(stop.record.group)
                if stop.record.position >= self._stored_until:
                    self._entry(segment, stop.record)
            elif stop.end > self._stored_until:
                self._doubt_all()
        return stop.again

    def _doubt_if_new(self, record: f.Record) -> None:
        """Doubt a group whose first record comes after a hole, which may have held earlier ones.

        Not if the group begins here, with a GROUP_CREATED that is not a relocated copy.
        """
        if not self._out.unknown_loss or record.group in self._out.groups.by_uid:
            return
        if record.kind != f.GROUP_CREATED or record.flags & f.RELOCATED:
            self._doubtful.add(record.group)
            self._incomplete.add(record.group)

    def _find(
        self, verdict: str, name: str, position: int, problem: str, group: int = 0, index: int = 0
    ) -> None:
        self._out.findings.append(Finding(verdict, name, position, problem, group, index))

    def _record(self, segment: Segment, record: f.Record, payload: memoryview) -> None:
        if record.kind == f.ENTRY:
            self._entry(segment, record)
            return
        self._close_rows()
        self._doubt_if_new(record)
        data = bytes(payload)
        self._out.groups.apply(record, segment.number, data)
        if record.kind == f.HARD_STATE:
            self._doubtful.discard(record.group)  # newer than any vote that the hole may have held
        elif record.kind == f.GROUP_REMOVED:
            self._doubtful.discard(record.group)
            self._incomplete.discard(record.group)
            self._lacking.discard(record.group)
        self._ops.append((record, segment.number, data))

    def _entry(self, segment: Segment, record: f.Record) -> None:
        self._doubt_if_new(record)
        problem = self._out.groups.entry(record)
        if problem:
            self._incomplete.add(record.group)
            self._find(CORRUPT, segment.name, record.position, problem, record.group, record.index)
        self._rows.append(
            (
                record.group,
                record.index,
                segment.number,
                record.position,
                record.length,
                record.count,
                record.offset,
                record.term,
                record.time_ms,
                record.chain,
            )
        )
        if len(self._rows) >= OPS_ROWS_MAX and segment.sealed and self._watermark == (0, 0):
            self._flush(0, 0)

    def _close_rows(self) -> None:
        if self._rows:
            self._ops.append(self._rows)
            self._rows = []

    def _flush(self, segment: int, position: int) -> None:
        """Give ops to the sink.

        The watermark moves once, at the end, so an interrupted recovery starts again. Therefore
        only a recovery from the beginning, which starts without groups, may give ops in portions,
        and only ops that a trailer proves to be durable.
        """
        self._close_rows()
        self._sink(self._ops, segment, position)
        self._ops = []
