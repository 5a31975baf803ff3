"""Values and decisions of repair: damaged segments, lost entries, and how each comes back.

Pure: nothing here reads a disk or sends a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.log import next_chain
from myqueue.wal.groups import Row
from myqueue.wal.space.segment_repair import SegmentRepair
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.replication.replica import Replica

LOOKUPS_MAX: Final = 256  # look-ups for one group in a tick
PEER_ANSWER_EXPECTED_MS: Final = 10_000  # without a given entry until repair is reported as stalled
REPORTED_MAX: Final = 20
TEXT_MAX: Final = 300
PARTITIONS_NAMED_MAX: Final = 10  # partitions of one segment
LEAD_WHILE_REPAIRING_MS: Final = 1000  # that a leader may lack entries; then it yields leadership


class RepairSource(Enum):
    GONE = 0
    MEMORY = 1
    PEERS = 2


def repair_source(index: int, first: int, last: int, memory_first: int) -> RepairSource:
    """Decide how an entry that can't be read comes back; the log is first … last."""
    if not first <= index <= last:
        return RepairSource.GONE
    return RepairSource.MEMORY if index >= memory_first else RepairSource.PEERS


class LeaderAction(Enum):
    LEAD = 0
    TRANSFER = 1
    STEP_DOWN = 2


def leader_action(repairing_ms: int) -> LeaderAction:
    """Decide what a leader does that has lacked entries for so long."""
    if repairing_ms < LEAD_WHILE_REPAIRING_MS:
        return LeaderAction.LEAD
    is_early = repairing_ms < 2 * LEAD_WHILE_REPAIRING_MS
    return LeaderAction.TRANSFER if is_early else LeaderAction.STEP_DOWN


def first_needed_index(replica: Replica) -> int:
    """Return the first index that is still needed; the log may not begin there yet."""
    start = replica.machine.start_index
    return max(replica.raft.log.first_index, min(start, replica.raft.applied_index + 1))


def matches_index_row(row: Row, chain_before: int, entry: t.Entry) -> bool:
    """Whether an entry is the lost one, by its row in the index."""
    index, term, offset, count, time_ms, _, chain, payload = entry
    return (index, term, offset, count, time_ms, chain, len(payload)) == (
        row.index,
        row.term,
        row.offset,
        row.count,
        row.time_ms,
        row.chain,
        row.length,
    ) and next_chain(chain_before, term, payload) == chain


class DamagedSegment:
    """A segment with a place that can't be read."""

    def __init__(
        self, name: str, position: int, found: str, what: str, salvage: SegmentRepair
    ) -> None:
        self.name, self.position, self.found, self.what = name, position, found, what
        self.salvage = salvage
        self.steps: Iterator[None] = salvage.run()
        self.next_step = 0
        self.since_ms = 0  # wall clock, for people
        self.failed = ""
        self.is_told = False  # that it waits was logged
        self.groups: dict[int, str] = {}  # uid -> partition, of groups that lost entries in it


class LostEntries:
    """Entries that one group lost: where they stood, and which were appended again."""

    def __init__(self, now: int, *, is_all_known: bool = True) -> None:
        self.since = self.heard = self.next_ask = now
        self.asked = 0
        self.entries: dict[int, tuple[int, int]] = {}  # index -> segment and position
        self.given: dict[int, None] = {}  # in the order in which they were appended again
        self.awaited: set[int] = set()  # requested last and not received yet
        self.given_bytes = 0  # since the last request
        self.is_all_known = is_all_known  # else segments are still being examined
        self.is_handed_over = False
        self._queue: deque[int] = deque()
        self._first = self._last = 0  # of the log, at the last call of `forget_outside`

    def add(self, index: int, place: tuple[int, int]) -> None:
        self.entries[index] = place
        self.given.pop(index, None)
        self._queue.append(index)

    def forget(self, index: int) -> None:
        del self.entries[index]
        self.given.pop(index, None)

    def forget_outside(self, first: int, last: int) -> None:
        """Forget entries that are no longer part of the log."""
        if first > self._first or last < self._last:
            for index in [one for one in self.entries if not first <= one <= last]:
                self.forget(index)
        self._first, self._last = first, last

    def was_given(self, index: int, size: int, now: int) -> None:
        self.given[index] = None
        self.awaited.discard(index)
        self.given_bytes += size
        self.heard = now

    def wanted(self, count: int) -> list[int]:
        """Take the next entries to request, in turn: one that no replica has blocks no other."""
        out: list[int] = []
        for _ in range(min(len(self._queue), LOOKUPS_MAX)):
            index = self._queue.popleft()
            if index in self.entries and index not in self.given:
                self._queue.append(index)
                out.append(index)
                if len(out) == count:
                    break
        return out


# -- for people --------------------------------------------------------------------------------


def unavailable_text(lacking: LostEntries, segment: str, applied: int) -> str:
    """Say what to do when no replica that answers has the entries."""
    _, position = next(iter(lacking.entries.values()))
    text = (
        f"{len(lacking.entries)} entries can't be read, the first in {segment} at position "
        f"{position}, and no replica that answers has them: start the brokers of the other replicas"
    )
    if any(index > applied for index in lacking.entries):
        text += "; if they run, start this one again: it then takes their state"
    return text


def damaged_segment_rows(
    damaged: dict[int, DamagedSegment], lacks: dict[int, LostEntries], now: int, *, harmless: bool
) -> list[dict[str, Any]]:
    """Describe damaged segments; `harmless` adds those that only wait for older ones."""
    some = [
        (number, one)
        for number, one in sorted(damaged.items())
        if harmless or not one.salvage.is_waiting
    ]
    out = []
    for number, one in some[:REPORTED_MAX]:
        groups = _lacking_in(number, lacks)
        state = _state(one, [lacks[uid] for uid in groups], now)
        out.append(
            {
                "segment": one.name,
                "position": one.position,
                "found": one.found,
                "what": one.what[:TEXT_MAX],
                "since_ms": one.since_ms,
                "state": state[:TEXT_MAX],
                "groups": groups,
            }
        )
    return out


def repaired_segment_row(one: DamagedSegment, took_ms: int) -> dict[str, Any]:
    return {
        "segment": one.name,
        "position": one.position,
        "found": one.found,
        "what": one.what,
        "found_ms": one.since_ms,
        "took_ms": took_ms,
        "partitions": list(one.groups.values())[:PARTITIONS_NAMED_MAX],
    }


def add_partition_names(
    rows: list[dict[str, Any]], replicas: Mapping[int, Replica]
) -> list[dict[str, Any]]:
    """Add to each row the names of partitions that lost entries there."""
    for row in rows:
        known = (replicas[uid] for uid in row["groups"][:PARTITIONS_NAMED_MAX] if uid in replicas)
        row["partitions"] = list(map(_name_of, known))
    return rows


def note_affected_partition(
    damaged: dict[int, DamagedSegment], number: int, replica: Replica
) -> None:
    """Note that this replica lost entries in the segment."""
    if number in damaged:
        damaged[number].groups[replica.uid] = _name_of(replica)


def _name_of(replica: Replica) -> str:
    """Return the name of a replica's group for people."""
    return partition_name(replica.about)


def partition_name(about: bytes) -> str:
    """Return topic/number of the partition that a group was created for, or the managers' word."""
    try:
        topic, number, *_ = protocol.unpack(about)
    except (ValueError, TypeError):
        return bytes(about).decode(errors="replace")
    return f"{topic}/{number}"


def damage_rows(
    damaged: dict[int, DamagedSegment],
    lacks: dict[int, LostEntries],
    now: int,
    wall_ms: int,
    *,
    harmless: bool,
) -> list[dict[str, Any]]:
    """Describe damaged and missing segments; a heartbeat with more rows would be refused."""
    rows = damaged_segment_rows(damaged, lacks, now, harmless=harmless)
    return (rows + missing_segment_rows(damaged, lacks, now, wall_ms))[:REPORTED_MAX]


def missing_segment_rows(
    damaged: dict[int, DamagedSegment], lacks: dict[int, LostEntries], now: int, wall_ms: int
) -> list[dict[str, Any]]:
    """Describe segments that are missing; only lost entries in the index name them."""
    found = dict[int, tuple[int, LostEntries]]()
    for lacking in list(lacks.values())[:REPORTED_MAX]:
        for index, (number, position) in islice(lacking.entries.items(), LOOKUPS_MAX):
            if number not in damaged and index not in lacking.given:
                found.setdefault(number, (position, lacking))
    out = []
    for number, (position, lacking) in sorted(found.items())[:REPORTED_MAX]:
        groups = _lacking_in(number, lacks)
        out.append(
            {
                "segment": f"segment {number}",
                "position": position,
                "found": "index",
                "what": "the segment is gone",
                "since_ms": wall_ms - (now - lacking.since),
                "state": _lost([lacks[uid] for uid in groups], now),
                "groups": groups,
            }
        )
    return out


def _lacking_in(number: int, lacks: dict[int, LostEntries]) -> list[int]:
    """Return the groups that lost entries in this segment."""
    return [
        uid
        for uid, lacking in list(lacks.items())[:REPORTED_MAX]
        if any(place[0] == number for place in lacking.entries.values())
    ]


def _state(one: DamagedSegment, missing: list[LostEntries], now: int) -> str:
    if one.failed:
        return f"tried again soon: {one.failed}"
    if one.salvage.is_waiting:
        return "whole again; what is left goes with older segments"
    if not one.salvage.is_examined:
        return "being examined"
    if one.salvage.waits_for:
        return f"waits for {one.salvage.waits_for}"
    if not missing:
        return "being emptied"
    return _lost(missing, now)


def _lost(missing: list[LostEntries], now: int) -> str:
    hopeless = any(now - lacking.heard >= PEER_ANSWER_EXPECTED_MS for lacking in missing)
    count = sum(len(lacking.entries) for lacking in missing)
    where = "no replica that answers has them" if hopeless else "asked for"
    return f"{count} entries of {len(missing)} groups are lost here; {where}"
