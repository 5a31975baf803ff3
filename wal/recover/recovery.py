"""After a crash: what is on the disk, what was promised, and where to go on.

`recover` follows FORMAT.md's steps. It is the only code that may cut, and it cuts only what no
evidence proves to have been synced (*torn*). What was synced and is not readable is *corrupt*:
reported, never overwritten, never deleted. Evidence that position p was synced: a mark behind it
in its segment, anything valid in a later segment, a trailer, or the watermark of the store.

Records reach `sink` in log order as ops, the same that the live journal gives to the store, in
portions of bounded size; nothing here grows with the log but one `Group` for each group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from myqueue.wal import format as f
from myqueue.wal.append.groups import Groups, Op, RowTuple
from myqueue.wal.append.layout import SegmentRows
from myqueue.wal.files import Files
from myqueue.wal.read.scan import BAD_PAYLOAD, CUT_SHORT, END, Scan
from myqueue.wal.recover.inventory import (
    CORRUPT,
    TORN,
    RecoveryFinding,
    SegmentFile,
    reader_of,
    take_inventory,
)
from myqueue.wal.recover.rewrite_tail import rewrite_tail

OPS_ROWS_MAX = 20_000
UNSURE = "unsure"  # a file beside the segments: `unknown_loss`, for later starts

Sink = Callable[[list[Op], int, int], None]  # (ops, segment, position up to which they reach)


@dataclass(slots=True)
class Recovered:
    """The outcome: the groups, the segments, where appending goes on, and all that was found."""

    groups: Groups
    segments: dict[int, SegmentFile] = field(default_factory=dict)
    number: int = 0  # the segment in which appending goes on, 0 if there is none to go on in
    position: int = 0
    next_number: int = 1  # of the next segment that is made
    spares: list[SegmentFile] = field(default_factory=list)  # unused, prepared before the crash
    flush_number: int = 0
    # Position up to which that segment is known to be synced, if it is abandoned because of damage.
    abandoned_at: int = 0
    rows: SegmentRows = field(default_factory=SegmentRows)  # of that segment, for its footer
    findings: list[RecoveryFinding] = field(default_factory=list)
    # True: a hole may have held records of any group, including groups that are unknown here. Set
    # by this start or by an earlier one, until the owner calls `Log.clear_unknown_loss`.
    unknown_loss: bool = False
    records: int = 0
    bytes_read: int = 0

    @property
    def corrupt(self) -> bool:
        return any(finding.verdict == CORRUPT for finding in self.findings)


def recover(
    files: Files, groups: Groups, watermark: tuple[int, int], sink: Sink,
    *, owner: bytes | None = None, repair: bool = True,
) -> Recovered:  # fmt: skip
    """Read what follows the watermark (segment, position); (0, 0) reads everything.

    `groups` are as the store knows them at the watermark. Segments of another `owner` are refused.
    With `repair` False nothing is written. What the sink is given is durable before.
    """
    out = Recovered(groups)
    if watermark == (0, 0):
        groups.by_uid.clear()  # left by a recovery that was interrupted
    if repair:
        files.sync(None)  # a name may be there that the last process did not come to sync
    out.segments, out.findings = take_inventory(files, owner, repair)
    is_noted = UNSURE in files.list()
    walk = _Walk(files, out, watermark, sink)
    walk.all_segments(forgot=is_noted and watermark == (0, 0))
    if repair:
        for segment in reversed(walk.aside):  # a crash must leave no hole before one of them
            files.move(segment.name, segment.name + ".trash")
            files.sync(None)
        if walk.newest is not None:
            rewrite_tail(files, out.segments, out.number, walk.newest, walk.newest_footer)
    if repair and out.unknown_loss and not is_noted:  # with the watermark behind it, nobody sees it
        files.create(UNSURE, 1)
        files.sync(None)
    out.unknown_loss |= is_noted
    walk.hand_over()
    return out


class _Walk:
    """Segments in order, from the watermark to the end of the log."""

    def __init__(
        self, files: Files, out: Recovered, watermark: tuple[int, int], sink: Sink
    ) -> None:
        self._files, self._out, self._sink = files, out, sink
        self._watermark = watermark
        self._ops: list[Op] = []
        self._incomplete: set[int] = set()  # groups that may miss entries
        self._lacking: set[int] = set()  # groups with entries of which only the payload is lost
        self._doubtful: set[int] = set()  # groups whose newest vote may be missing
        self._proven = 0  # of the segment that is read, as of its last stop
        self._known_until = 0  # in the segment that is read: the store's watermark
        self.aside: list[SegmentFile] = []  # unused segments that cannot be used any more
        self._rows: list[RowTuple] = []
        self.newest: Scan | None = None
        self.newest_footer: f.Record | None = None

    def all_segments(self, *, forgot: bool) -> None:
        """`forgot`: the doubt that an earlier start had was in a store that is lost as well."""
        out, from_segment = self._out, self._watermark[0]
        numbers = sorted(out.segments)
        if from_segment and from_segment not in out.segments:
            what = f"segment {from_segment} of the store's watermark is missing"
            self._find(CORRUPT, "wal", 0, what)
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
        if forgot and not out.unknown_loss:  # the hole looks as if it had been reclaimed
            self._doubt_all()
        self._mark_damage()
        if out.number < from_segment:
            self._end_is_gone()
        # Behind the watermark too: a new segment below it would be taken for a log whose end is
        # lost, and one in its place for that which the store's rows point to.
        out.next_number = max((*out.segments, from_segment)) + 1

    def _end_is_gone(self) -> None:
        """The store's segment and all behind it. What is written below the watermark would never be
        read again, so nothing goes on there; flushes are counted on.
        """
        out = self._out
        for spare in out.spares:
            del out.segments[spare.number]
        self.aside[:0] = out.spares  # in the order of their numbers
        out.spares = []
        last = out.segments.get(out.number)
        if last is not None:
            scan = Scan(reader_of(self._files, last), last.uid, last.capacity)
            for _ in scan.records():
                continue
            out.flush_number = scan.flush_number

    def _hole(self, number: int) -> None:
        """What is missing behind the store's watermark was not reclaimed: that goes by what the
        store has (W12). It may have held anything of any group.
        """
        self._find(CORRUPT, "wal", 0, f"segment {number}, behind the store's watermark, is missing")
        self._doubt_all()

    def _doubt_all(self) -> None:
        self._out.unknown_loss = True
        self._doubtful.update(self._out.groups.by_uid)
        self._incomplete.update(self._out.groups.by_uid)

    def _spare(self, segment: SegmentFile) -> None:
        """Prepared ahead and never used. If its header is bad, it and those after it go."""
        out = self._out
        if not segment.damaged and not self.aside:
            out.spares.append(segment)
            return
        for at, finding in enumerate(out.findings):
            if finding.segment == segment.name:  # nobody was promised anything in there
                what = f"unused segment: {finding.what}"
                out.findings[at] = RecoveryFinding(TORN, segment.name, 0, what)
        del out.segments[segment.number]
        self.aside.append(segment)

    def hand_over(self) -> None:
        """The rest to the sink, and the watermark with it."""
        out = self._out
        if out.number < self._watermark[0]:  # its segment and all behind it are gone
            # Never back: a start that is killed now would be followed by one that reads old votes
            # once more, and takes them for newer than the doubt.
            self._flush(out.next_number, 0)
        else:
            self._flush(out.number, out.position)

    def _missing_entries(self) -> None:
        """W10: what is missing now was neither reclaimed nor moved elsewhere."""
        for group in self._out.groups.by_uid.values():
            for first, last in group.missing:
                self._incomplete.add(group.uid)
                what = f"entries {first} to {last} are missing"
                self._find(CORRUPT, "wal", 0, what, group.uid, first)

    def _mark_damage(self) -> None:
        """What the damage means for each group goes into the store together with the watermark.

        For the next start reads on from there and does not see the damage again. In the log it is
        the owner who says what he makes of it, with his next hard state.
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
        """Whether anything valid stands in the segment."""
        segment = self._out.segments[number]
        if segment.sealed or number == self._watermark[0]:
            return True
        scan = Scan(reader_of(self._files, segment), segment.uid, segment.capacity)
        if next(scan.records(), None) is not None:
            return True
        return next(scan.find(f.RECORD_SIGN), None) is not None

    def _was_spare(self, number: int) -> bool:
        """A segment without records: prepared ahead if its predecessor is still open."""
        previous = self._out.segments.get(number - 1)
        return previous is not None and not previous.sealed

    def _check_seal(self, segment: SegmentFile) -> None:
        if not segment.sealed:
            segment.damaged = True
            if segment.abandoned_at:
                return
            what = "the trailer is missing or damaged, but the log went on in a later segment"
            self._find(CORRUPT, segment.name, segment.capacity - f.RECORD_HEADER_BYTES, what)

    def _segment(self, segment: SegmentFile, followed: bool) -> None:
        """Read all of it, even what the store has: the open segment was never checked before."""
        out = self._out
        scan = Scan(reader_of(self._files, segment), segment.uid, segment.capacity)
        known_until = self._watermark[1] if segment.number == self._watermark[0] else 0
        self._known_until = known_until
        proven = known_until
        if segment.sealed or followed:
            proven = max(proven, segment.abandoned_at or segment.capacity)
        footer = None
        out.rows = rows = SegmentRows()
        while True:
            for record, payload in scan.records():
                out.records += 1
                if record.kind == f.FOOTER:
                    footer = record
                elif record.group:
                    rows.note(record)
                    if record.position >= known_until:
                        self._record(segment, record, payload)
            if not self._stopped(segment, scan, proven, footer):
                break
        out.position, out.flush_number = scan.position, max(out.flush_number, scan.flush_number)
        out.abandoned_at = max(scan.position, self._proven)
        out.bytes_read += scan.position
        if followed:
            self._check_seal(segment)
        self.newest, self.newest_footer = scan, footer

    def _stopped(
        self, segment: SegmentFile, scan: Scan, proven: int, footer: f.Record | None
    ) -> bool:
        """Judge why the scan stopped; True if it was moved on to a record behind a bad place."""
        position = scan.position
        self._proven = proven = max(proven, scan.proven)
        last = scan.last_nonzero()
        if scan.problem == END and last == position:
            if footer is not None or (position >= proven and position >= scan.batch_end):
                return False
            if position >= proven:
                self._find(TORN, segment.name, position, "the last write is incomplete")
                return False
            what = "records that were synced are not there"
            self._corrupt(segment, position, what, end=proven)
            return False
        if footer is None:
            self._proven = proven = max(proven, scan.proven_by_later_marks())
        if position >= proven and scan.problem != CUT_SHORT:
            if footer is None:
                what = f"{last - position} bytes of a write that was never synced ({scan.problem})"
                self._find(TORN, segment.name, position, what)
            return False
        return self._resume(segment, scan)

    def _resume(self, segment: SegmentFile, scan: Scan) -> bool:
        bad, position = scan.bad, scan.position
        scan.bad = None
        if scan.problem == BAD_PAYLOAD and bad is not None and bad.end <= scan.limit:
            self._corrupt(segment, position, "payload fails its checksum", bad, bad.end)
            scan.position = bad.end
            if bad.kind == f.ENTRY and bad.position >= self._known_until:
                self._entry(segment, bad, b"")
            return True
        after = next(scan.find(f.RECORD_SIGN), None)
        end = after.position if after else scan.last_nonzero()
        what = f"{scan.problem} up to position {end}"
        self._corrupt(segment, position, what, end=end if scan.problem != CUT_SHORT else None)
        if after is not None:
            scan.position = after.position
        return after is not None

    def _corrupt(
        self, segment: SegmentFile, position: int, what: str, bad: f.Record | None = None,
        end: int | None = None,
    ) -> None:  # fmt: skip
        """`end`: of the bad place, if it is known. What the store knows of it is not lost: votes
        and ends of logs stand there, and rows tell which entries lie in it.
        """
        segment.damaged = True
        if bad is not None and bad.group:
            self._find(CORRUPT, segment.name, position, what, bad.group, bad.index)
            if bad.kind == f.ENTRY:
                self._lacking.add(bad.group)
                return
        else:
            self._find(CORRUPT, segment.name, position, what)
        if end is not None and end <= self._known_until:
            return
        self._doubt_all()

    def _met(self, record: f.Record) -> None:
        """A group that is first met behind a hole may have had records in it, unless it begins
        here: with its creation, which was not appended again.
        """
        if not self._out.unknown_loss or record.group in self._out.groups.by_uid:
            return
        if record.kind != f.GROUP_CREATED or record.flags & f.RELOCATED:
            self._doubtful.add(record.group)
            self._incomplete.add(record.group)

    def _find(
        self, verdict: str, name: str, position: int, what: str, group: int = 0, index: int = 0
    ) -> None:
        self._out.findings.append(RecoveryFinding(verdict, name, position, what, group, index))

    def _record(self, segment: SegmentFile, record: f.Record, payload: memoryview) -> None:
        if record.kind == f.ENTRY:
            self._entry(segment, record, payload)
            return
        self._close_rows()
        self._met(record)
        data = bytes(payload)
        self._out.groups.apply(record, segment.number, data)
        if record.kind == f.HARD_STATE:
            self._doubtful.discard(record.group)  # newer than what the hole may have held
        elif record.kind == f.GROUP_REMOVED:
            self._doubtful.discard(record.group)
            self._incomplete.discard(record.group)
            self._lacking.discard(record.group)
        self._ops.append((record, segment.number, data))

    def _entry(self, segment: SegmentFile, record: f.Record, payload: memoryview | bytes) -> None:
        self._met(record)
        problem = self._out.groups.entry(record)
        if problem:
            self._incomplete.add(record.group)
            self._find(CORRUPT, segment.name, record.position, problem, record.group, record.index)
        self._rows.append(
            (record.group, record.index, segment.number, record.position, record.length,
             record.count, record.offset, record.term, record.time_ms, record.chain)
        )  # fmt: skip
        if len(self._rows) >= OPS_ROWS_MAX and segment.sealed and self._watermark == (0, 0):
            self._flush(0, 0)

    def _close_rows(self) -> None:
        if self._rows:
            self._ops.append(self._rows)
            self._rows = []

    def _flush(self, segment: int, position: int) -> None:
        """The watermark moves once, at the end: a recovery that is interrupted starts again.

        So only a recovery from the beginning, which begins with no group, may hand over in
        portions, and only what a trailer proves to be durable.
        """
        self._close_rows()
        self._sink(self._ops, segment, position)
        self._ops = []
