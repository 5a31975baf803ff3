"""Which outcomes of a recovery are allowed, judged without the code that recovers.

The oracle knows the whole log of a `Recording`, record by record, with its bytes; how much of it
was promised in the state at hand; and whether the state comes from a crash alone or from damage as
well. Allowed are

- **right**: exactly the records that were handed over, all that were promised and maybe more;
- **torn**: the same, and recovery said that it cut something off;
- **corrupt**: recovery named damage. Then no file was removed, no segment that it named was
  changed, every record whose bytes are whole was given, and nothing else was.

A crash alone must never end in *corrupt*. Damage must never end in a promised record missing
without it, with one exception:

- **excused**: a promised record is missing, something in its segment up to its end is damaged, and
  *no byte range that could prove that it was ever synced is whole*: no mark behind it that was
  written later, no trailer of its segment, no record in any later segment, no watermark. Nobody
  can tell such a state from a write that was never synced. It takes one fault that hits the end
  of the log and its proof at once: a sector which holds both, or any fault between a sync and the
  mark that settles. The store's watermark is in another file and proves it all the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from faults.recording import Recording
from sim.disk import SimDisk
from sim.rig import Watermark, recovered

from myqueue.wal import format as f
from myqueue.wal.check.segments import CORRUPT, TORN
from myqueue.wal.groups import Groups
from myqueue.wal.read.scan import Scan
from myqueue.wal.recover.recovery import Recovered

RIGHT, EXCUSED = "right", "excused"
_HEADER = f.RECORD_HEADER_BYTES
SEGMENT_END = 1 << 40


class Violation(AssertionError):
    """The log broke its promise."""


class State(NamedTuple):
    """A disk as somebody finds it, and what was said before."""

    disk: SimDisk
    promised: int
    possible: int
    reclaimed: frozenset[int]
    damaged: bool = False


class Oracle:
    """Judges states that stem from one recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.log = recording.log
        self.place = [_place(one) for one in self.log]  # (segment, position) of each record
        self._in_segment: dict[int, list[int]] = {}
        for number, (segment, _) in enumerate(self.place):
            self._in_segment.setdefault(segment, []).append(number)
        self.number_at = {place: number for number, place in enumerate(self.place)}
        self._segments = sorted(recording.bytes)
        # segment -> (position, end, term of a mark or 0) of every record, marks and footer included
        self.spans: dict[int, list[tuple[int, int, int]]] = {}
        for number, data in recording.bytes.items():
            self.spans[number] = list(_spans(recording.names[number], data))
        self.end = [self._end_of(place) for place in self.place]
        self._logs: dict[frozenset[int], list[int]] = {}

    def _end_of(self, place: tuple[int, int]) -> int:
        segment, position = place
        data = self.recording.bytes[segment]
        return position + _HEADER + int.from_bytes(data[position + 12 : position + 16], "little")

    def judge(self, state: State) -> str:
        """The outcome, or a Violation."""
        disk = state.disk.killed()
        out, found = recovered(disk)
        numbers = self._expected(state)
        if out.corrupt:
            if not state.damaged:
                raise Violation(f"a crash alone was called corruption: {_texts(out)}")
            self._judge_corrupt(state, disk, out, found, numbers)
            return CORRUPT
        return self._judge_prefix(state, disk, out, found, numbers)

    def judge_watermark(self, state: State, watermark: Watermark, groups: Groups) -> str:
        """The same with a store that knows the log up to the watermark, in the newest segment.

        There is no excuse: whatever byte before it is damaged, recovery must say so.
        """
        segment, position = watermark
        name, whole = self.recording.names[segment], self.recording.bytes[segment]
        data = state.disk.contents(name)
        damaged = data[f.SEGMENT_HEADER_BYTES : position] != whole[512:position]
        out, found = recovered(state.disk.killed(), watermark, groups)
        if found:
            raise Violation(f"records behind the end of the log: {found[:3]}")
        if damaged and not out.corrupt:
            raise Violation(f"damage before the watermark was not reported: {_texts(out)}")
        return CORRUPT if out.corrupt else TORN if out.findings else RIGHT

    def _expected(self, state: State) -> list[int]:
        """Numbers of the records that may be there: all but those of reclaimed segments."""
        there = state.disk.list()
        gone = frozenset(n for n in state.reclaimed if self.recording.names[n] not in there)
        numbers = self._logs.get(gone)
        if numbers is None:
            numbers = [n for n, place in enumerate(self.place) if place[0] not in gone]
            self._logs[gone] = numbers
        return numbers

    def _judge_prefix(
        self, state: State, disk: SimDisk, out: Recovered, found: list[Any], numbers: list[int]
    ) -> str:
        log = self.log if len(numbers) == len(self.log) else [self.log[n] for n in numbers]
        count = len(found)
        if found != log[:count]:
            raise Violation(_first_difference(found, log))
        if count and numbers[count - 1] >= state.possible:
            raise Violation(f"record {numbers[count - 1]} was not even handed over")
        self._check_bytes(disk, numbers[:count])
        outcome = TORN if out.findings else RIGHT
        missing = numbers[count] if count < len(numbers) else len(self.log)
        if missing >= state.promised:
            return outcome
        blameless = not state.damaged or self._is_whole_up_to(state.disk, missing)
        if blameless or self._proof(state.disk, missing):
            raise Violation(
                f"record {missing} at {self.place[missing]} of {state.promised} promised ones is "
                f"missing; proof: {self._proof(state.disk, missing)}; said: {_texts(out)}"
            )
        return EXCUSED

    def _check_bytes(self, disk: SimDisk, numbers: list[int]) -> None:
        """Everything from the segment's header to the last record found is as it was written."""
        if not numbers:
            return
        last, there = self.place[numbers[-1]][0], disk.list()
        for segment in self._segments:
            if segment > last or self.recording.names[segment] not in there:
                continue
            end = SEGMENT_END if segment != last else self.end[numbers[-1]]
            end = min(end, self.spans[segment][-1][1])
            whole = self.recording.bytes[segment]
            if disk.contents(self.recording.names[segment])[512:end] != whole[512:end]:
                raise Violation(f"bytes of segment {segment} before {end} are not what was written")

    def _proof(self, disk: SimDisk, number: int) -> str:
        """What still proves, in the damaged state, that this record was synced."""
        segment, position = self.place[number]
        for later in self._segments:
            name = self.recording.names[later]
            if later < segment or name not in disk.list():
                continue
            data, whole = disk.contents(name), self.recording.bytes[later]
            for begin, end, term in self.spans[later]:
                proves = later > segment or term > position or begin == len(whole) - _HEADER
                if proves and begin and data[begin:end] == whole[begin:end]:
                    return f"segment {later} position {begin}"
        return ""

    def _judge_corrupt(
        self, state: State, disk: SimDisk, out: Recovered, found: list[Any], numbers: list[int]
    ) -> None:
        self._check_files(state.disk, disk, out)
        damaged = self._damaged(state.disk)
        given = self._check_given(found, damaged, out)
        for number in numbers:
            if number >= state.promised:
                break
            if number not in given and number not in damaged and self._proof(state.disk, number):
                raise Violation(f"record {number} at {self.place[number]} is whole, and missing")

    def _check_files(self, before: SimDisk, after: SimDisk, out: Recovered) -> None:
        # A record that does not follow the one before is told with its place, but if the one before
        # was lost in another segment, the bytes of this one are whole: its torn end may be cut.
        whole = {one.name for one in out.segments.values() if not one.damaged}
        named = {one.segment for one in out.findings if one.verdict == CORRUPT} - whole
        there = after.list()
        for name, size in before.list().items():
            if not name.endswith(".seg"):
                continue
            if name not in there and not self._is_aside(after, name):
                raise Violation(f"{name} was removed, although there is corruption")
            if name in named and (
                there.get(name) != size or after.contents(name) != before.contents(name)
            ):
                raise Violation(f"{name} is damaged, and was changed")

    def _check_given(self, found: list[Any], damaged: set[int], out: Recovered) -> set[int]:
        """Numbers of the records found: each one right, in order, and its damage told."""
        places = {(one.segment, one.position) for one in out.findings}
        given: set[int] = set()
        previous = -1
        for one in found:
            number = self.number_at.get(_place(one))
            if number is None or self.log[number] != one or number <= previous:
                raise Violation(f"a wrong record: {one}")
            given.add(number)
            previous = number
        for number in given & damaged:
            segment, position = self.place[number]
            if (self.recording.names[segment], position) not in places:
                raise Violation(f"a damaged record was given without a finding: {number}")
        return given

    def _damaged(self, disk: SimDisk) -> set[int]:
        """Numbers of the records that are not as they were written, or not there."""
        there, damaged = disk.list(), set()
        for segment, numbers in self._in_segment.items():
            name, whole = self.recording.names[segment], self.recording.bytes[segment]
            data = disk.contents(name) if name in there else b""
            if data != whole:
                for number in numbers:
                    begin, end = self.place[number][1], self.end[number]
                    if data[begin:end] != whole[begin:end]:
                        damaged.add(number)
        return damaged

    def _is_aside(self, disk: SimDisk, name: str) -> bool:
        """A segment in which no record ever stood may be renamed."""
        number = (f.parse_segment_name(name) or (0, 0))[0]
        return name + ".trash" in disk.list() and all(at[0] != number for at in self.place)

    def _is_whole_up_to(self, disk: SimDisk, number: int) -> bool:
        """Whether nothing is wrong with the record's segment before its end."""
        segment, end = self.place[number][0], self.end[number]
        name, whole = self.recording.names[segment], self.recording.bytes[segment]
        return name in disk.list() and disk.contents(name)[:end] == whole[:end]


def _place(one: Any) -> tuple[int, int]:
    return (one[2], one[3]) if len(one) == 10 else (one[1], one[0].position)


def _spans(name: str, data: bytes) -> Any:
    """Position, end and (of marks) proven position of all records; a span to start with."""
    yield 0, f.SEGMENT_HEADER_BYTES, 0
    number_uid = f.parse_segment_name(name)
    assert number_uid is not None
    scan = Scan(lambda at, length: data[at : at + length], number_uid[1], len(data))
    for record, _ in scan.records():
        yield record.position, record.end, record.term if record.kind == f.MARK else 0
    trailer = len(data) - _HEADER
    if any(data[trailer:]):
        yield trailer, len(data), 0


def _first_difference(found: list[Any], log: list[Any]) -> str:
    for number, (one, other) in enumerate(zip(found, log, strict=False)):
        if one != other:
            return f"record {number}: found {one}, expected {other}"
    return f"{len(found)} records found, there are only {len(log)}: {found[len(log)]}"


def _texts(out: Recovered) -> str:
    return "; ".join(map(str, out.findings)) or "nothing"
