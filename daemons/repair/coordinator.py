"""Coordinates repair: entries that can't be read on our disk come back from other replicas.

In: places that a start, a read or the scrubber found damaged. Out: the same entries, appended again
at the end of the log; the damaged segment, emptied (`wal/space/segment_repair`); reports for
`myq health`. All groups of a daemon share its segments, so a damaged segment is examined for all of
them. Each live entry that can't be read comes back in one way (`repair_source`):

| way | when | what is done |
|---|---|---|
| GONE | not of the log any more, or before its start | nothing |
| MEMORY | still in the memory of the core's log | appended again at once |
| PEERS | anything else: it is committed, since what is not stays in memory | asked for |

The index still knows term, offset, length and chain of a lost entry; only its bytes are lost. So
any replica may give it, and the answer is compared with all of that before it is appended. Until
then the replica is *repairing*, also by a record on its disk: it neither votes, nor campaigns, nor
counts toward a quorum. A leader that lacks an entry requests it first, since that takes
milliseconds; after a second it transfers leadership (`leader_action`). If the same entries are lost
on a majority, no replica can lead: the partition stands still and says why, until a replica that
has them is back.

Reads of such an entry are told to come again; after `PEER_ANSWER_EXPECTED_MS` they are told why
not.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from myqueue import errors
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.groups import Packet
from myqueue.daemons.repair.damage import (
    LOOKUPS_MAX,
    PEER_ANSWER_EXPECTED_MS,
    REPORTED_MAX,
    DamagedSegment,
    LeaderAction,
    LostEntries,
    RepairSource,
    add_partition_names,
    damage_rows,
    first_needed_index,
    leader_action,
    matches_index_row,
    note_affected_partition,
    repair_source,
    repaired_segment_row,
    unavailable_text,
)
from myqueue.daemons.repair.messages import (
    ENTRIES_PER_REQUEST_MAX,
    EntriesRequest,
    EntryReply,
)
from myqueue.daemons.repair.scrub_pace import ScrubPace
from myqueue.wal.space.segment_repair import SegmentRepair

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica
    from myqueue.wal.groups import Row

ASK_MS: Final = 250
GIVE_BYTES: Final = 4 << 20  # in reply to one request
STEPS_MAX: Final = 4  # of emptying one segment, in a tick
REWRITE_BYTES_PER_S: Final = 16 << 20
AT_ONCE: Final = 4  # segments that are emptied at the same time
TURN_LOOKS: Final = 1000  # look-ups of entries in a tick, all groups together
LATER_MS: Final = 5000  # between tries after a failure, or while a segment waits to be removed
AGAIN_MS: Final = 1000  # between attempts to write records again


class RepairCoordinator:
    """Repairs the groups of one daemon. Called by the engine, in the loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.damaged_segments: dict[int, DamagedSegment] = {}
        self.lost_entries: dict[int, LostEntries] = {}
        self.repaired_segments: deque[dict[str, Any]] = deque(maxlen=REPORTED_MAX)
        # (group, index) appended from memory -> its lost place
        self._rewritten_from_memory: dict[tuple[int, int], tuple[int, int]] = {}
        self._missing_segments: set[int] = (
            set()
        )  # segments that the index names and that are not there
        self.scrub_pace = ScrubPace(engine, self.add_damage, self.add_missing_entry)

    # -- noticing ------------------------------------------------------------------------------

    def before_groups_open(self) -> None:
        """Mark the groups that have entries in segments that recovery found damaged."""
        log = self._engine.log
        recovered = log.journal.recovered
        places = {one.segment: one for one in recovered.findings if one.verdict == "corrupt"}
        for number, segment in sorted(recovered.segments.items()):
            if segment.damaged and number in log.journal.segments:
                place = places.get(segment.name)
                position, what = (place.position, place.what) if place else (0, "left unfinished")
                self.add_damage(number, position, "start", what)
                for row in self.damaged_segments[number].salvage.examine():
                    log.journal.groups.by_uid[row.group].damaged = True

    def after_groups_open(self) -> None:
        """Look for lost entries of the opened groups; end the repair of groups that have none."""
        by_uid, now = self._engine.log.journal.groups.by_uid, self._engine.now
        repairing = [uid for uid in self._engine.replicas if by_uid[uid].lacking]
        for uid in repairing:
            self.lost_entries[uid] = LostEntries(now, is_all_known=False)
        gone = set(self._engine.log.reader.damage_by_segment) - set(
            self._engine.log.journal.segments
        )
        self._take_read_failures()
        if gone:
            self.scrub_pace.check_files_now()
        for uid in repairing:
            self._repair_group(uid, now)

    def add_damage(self, number: int, position: int, how: str, what: str) -> None:
        """Note a segment with a place that can't be read, and begin to empty it."""
        engine = self._engine
        segment = engine.log.journal.segments.get(number)
        if segment is None or number in self.damaged_segments:
            return
        segment.damaged = True
        salvage = SegmentRepair(engine.log.reclaimer, number, self._rewrite_snapshot)
        one = self.damaged_segments[number] = DamagedSegment(
            segment.name, position, how, what, salvage
        )
        one.since_ms = engine.wall_ms()
        engine.counts["damage_found_total"] += 1
        engine.report(
            "warning", "damage-found", segment=segment.name, position=position, by=how, what=what
        )

    def _take_read_failures(self) -> None:
        """Take the damage that readers met since the last call."""
        reader = self._engine.log.reader
        while reader.damage_by_segment:
            number, one = reader.damage_by_segment.popitem()
            self.add_damage(number, one.position, "read", one.what)
        while reader.recent_damage:
            one = reader.recent_damage.popleft()
            self._add_lost_entry(one.group, one.index, (one.segment, one.position))

    def _rewrite_snapshot(self, uid: int) -> bool:
        replica = self._engine.replicas.get(uid)
        return replica is not None and self._engine.starts.write_snapshot(replica)

    def add_missing_entry(self, row: Row) -> None:
        """Note a lost entry: the index names it, and its segment is not there."""
        if row.segment not in self._missing_segments:
            self._missing_segments.add(row.segment)
            self._engine.counts["damage_found_total"] += 1
            self._engine.report("warning", "segment-missing", segment=row.segment)
        self._add_lost_entry(row.group, row.index, (row.segment, row.position))

    # -- what is lost --------------------------------------------------------------------------

    def _add_lost_entry(self, uid: int, index: int, place: tuple[int, int]) -> None:
        """Note an entry that can't be read, unless the index says by now that it is elsewhere."""
        engine = self._engine
        replica, lacking = engine.replicas.get(uid), self.lost_entries.get(uid)
        if replica is None or (lacking is not None and index in lacking.entries):
            return
        row = engine.log.index.row(uid, index)
        if row is None or (row.segment, row.position) != place:
            return
        note_affected_partition(self.damaged_segments, place[0], replica)
        log = replica.raft.log
        way = repair_source(index, first_needed_index(replica), log.last_index, log.memory_first)
        if way is RepairSource.MEMORY and self._rewritten_from_memory.get((uid, index)) != place:
            self._rewritten_from_memory[uid, index] = place
            engine.log.journal.append(uid, log.in_memory(index, index) or [], relocated=True)
            engine.counts["entries_repaired_total"] += 1
        elif way is RepairSource.PEERS:
            if lacking is None:
                lacking = self.lost_entries[uid] = LostEntries(engine.now)
                self._set_repairing(replica, repairing=True)
            lacking.add(index, place)

    def _set_repairing(self, replica: Replica, *, repairing: bool) -> None:
        engine = self._engine
        engine.host.touch(replica.uid)
        try:
            replica.raft.set_repairing(repairing, engine.now, engine.host.out)
        except t.InvariantBroken as error:
            engine.host.mark_broken(replica.uid, error)
        else:
            replica.note_health(engine.report)

    # -- the turn ------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        self._take_read_failures()
        busy = 0
        for number, one in sorted(self.damaged_segments.items()):
            busy += not one.salvage.is_held_up
            if one.salvage.is_held_up or busy <= AT_ONCE:
                self._salvage_segment(number, one, now)
        looks = TURN_LOOKS
        for uid in list(self.lost_entries):
            looks -= self._repair_group(uid, now) + 1
            if looks <= 0:
                break
            if uid in self.lost_entries:  # the other groups come first next time
                self.lost_entries[uid] = self.lost_entries.pop(uid)
        self.scrub_pace.tick(now)

    def _salvage_segment(self, number: int, one: DamagedSegment, now: int) -> None:
        salvage, before = one.salvage, one.salvage.relocated_bytes
        is_due = now >= one.next_step or (salvage.is_waiting and salvage.is_removed)
        if not is_due or self._engine.log.journal.error is not None:
            return
        try:
            for _ in range(STEPS_MAX):
                done = salvage.relocated_bytes
                if next(one.steps, self) is self:
                    if not self._has_lost_entries(number):
                        self._finish_segment(number, one)
                    return
                if salvage.relocated_bytes == done:
                    break
        except (OSError, errors.MyQueueError) as error:  # finished steps stay valid
            one.failed = str(error)
            one.steps, one.next_step = salvage.run(), now + LATER_MS
            return
        one.failed = ""
        wrote = salvage.relocated_bytes - before
        self._engine.counts["rewritten_bytes_total"] += wrote
        one.next_step = now + wrote * 1000 // REWRITE_BYTES_PER_S
        if salvage.is_waiting:
            one.next_step = now + LATER_MS
        elif salvage.waits_for:
            one.next_step = now + AGAIN_MS
            if not one.is_told:
                one.is_told = True
                self._engine.report(
                    "warning", "damage-waits", segment=one.name, waits_for=salvage.waits_for
                )
        for _ in range(min(len(salvage.unreported), LOOKUPS_MAX)):
            row = salvage.unreported.popleft()
            self._add_lost_entry(row.group, row.index, (row.segment, row.position))

    def _has_lost_entries(self, number: int) -> bool:
        """True while a group still lacks an entry that was in this segment."""
        return any(
            segment == number
            for lacking in self.lost_entries.values()
            for segment, _ in lacking.entries.values()
        )

    def _finish_segment(self, number: int, one: DamagedSegment) -> None:
        engine = self._engine
        del self.damaged_segments[number]
        self._rewritten_from_memory = {
            k: place for k, place in self._rewritten_from_memory.items() if place[0] != number
        }
        engine.note_segment_removed()
        engine.counts["damage_repaired_total"] += 1
        took_ms = engine.wall_ms() - one.since_ms
        self.repaired_segments.append(repaired_segment_row(one, took_ms))
        engine.report("info", "damage-repaired", segment=one.name, took_ms=took_ms)

    def _repair_group(self, uid: int, now: int) -> int:
        """Repair one group a bit further; return how many look-ups that took."""
        replica, lacking = self._engine.replicas[uid], self.lost_entries[uid]
        lacking.forget_outside(first_needed_index(replica), replica.raft.log.last_index)
        looks = 0
        for index in list(islice(lacking.given, LOOKUPS_MAX)):
            looks += 1
            if self._check_rewritten(replica, index, lacking):
                lacking.forget(index)
            elif index in lacking.given:
                break  # the store takes them in the order in which they were appended
        if now >= lacking.next_ask:
            lacking.next_ask = now + ASK_MS
            looks += self._request_entries(replica, lacking)
        if not lacking.entries and not self._may_find_more(lacking):
            del self.lost_entries[uid]
            replica.repair_problem = ""
            self._set_repairing(replica, repairing=False)
            return looks
        if (
            now - lacking.heard >= PEER_ANSWER_EXPECTED_MS
            and lacking.entries
            and not replica.repair_problem
        ):
            self._mark_stalled(replica, lacking)
        if replica.is_leader:
            self._yield_leadership(replica, lacking, leader_action(now - lacking.since))
        return looks

    def _may_find_more(self, lacking: LostEntries) -> bool:
        """Whether more entries may turn out to be lost."""
        looks = [one.salvage for one in self.damaged_segments.values()]
        if any(one.unreported for one in looks):
            return True
        return not (lacking.is_all_known or all(one.is_examined for one in looks))

    def _check_rewritten(self, replica: Replica, index: int, lacking: LostEntries) -> bool:
        log, index_of = self._engine.log, self._engine.log.index
        row = index_of.row(replica.uid, index)
        if row is None or (row.segment, row.position) == lacking.entries[index]:
            return False
        try:
            log.reader.at(row)
        except errors.MyQueueError as error:
            if not error.retriable:  # it is lost at its new place, too
                lacking.add(index, (row.segment, row.position))
            return False
        return True

    def _request_entries(self, replica: Replica, lacking: LostEntries) -> int:
        """Request lost entries from one member after the other, the leader first."""
        raft = replica.raft
        others = [one for one in raft.config.members if one != raft.replica]
        wanted = lacking.wanted(ENTRIES_PER_REQUEST_MAX)
        looks = len(wanted)
        for index in list(wanted):
            if self._check_rewritten(replica, index, lacking):
                lacking.forget(index)
                wanted.remove(index)
        lacking.awaited, lacking.given_bytes = set(wanted), 0
        if not others or not wanted or not self._engine.log.journal.has_reserve:
            return looks
        others.sort(key=lambda one: (one != raft.leader, one))
        target = others[lacking.asked % len(others)]
        lacking.asked += 1
        ask = EntriesRequest(replica.uid, raft.replica, target, raft.term, sorted(wanted))
        self._engine.send_repair_messages({t.node_of(target): Packet(repair_messages=[ask])})
        return looks

    def _mark_stalled(self, replica: Replica, lacking: LostEntries) -> None:
        number, _ = next(iter(lacking.entries.values()))
        named = self._engine.log.journal.segment_name(number)
        replica.repair_problem = unavailable_text(
            lacking, named[0] if named else str(number), replica.raft.applied_index
        )
        replica.note_health(self._engine.report)

    def _yield_leadership(
        self, replica: Replica, lacking: LostEntries, action: LeaderAction
    ) -> None:
        engine = self._engine
        if action is LeaderAction.TRANSFER and not lacking.is_handed_over:
            followers = replica.raft.leading.followers
            able = [
                one
                for one in replica.raft.config.voters
                if one in followers and not followers[one].is_unhealthy
            ]
            for one in sorted(able, key=lambda one: -followers[one].match_index):
                with suppress(errors.MyQueueError):
                    engine.transfer(replica, t.node_of(one))
                    lacking.is_handed_over = True
                    return
        elif action is LeaderAction.STEP_DOWN:
            engine.host.touch(replica.uid)
            replica.raft.step_down(engine.now, engine.host.out)

    # -- peers ---------------------------------------------------------------------------------

    def serve_entries(self, ask: EntriesRequest) -> None:
        """Send another replica those of the entries it lacks that we have."""
        replica = self._engine.replicas.get(ask.group)
        if replica is None or replica.replica_id != ask.target:
            return
        raft, size = replica.raft, 0
        if ask.source not in raft.config.members:
            return
        # We need not know that it is committed: the replica that asks knows its term and chain.
        last, messages = raft.log.persisted_index, list[EntryReply]()
        for index in ask.indexes:
            if not raft.log.first_index <= index <= last or size > GIVE_BYTES:
                continue
            with suppress(errors.MyQueueError):
                entry = replica.read(index, index, 1)[0]
                size += len(entry[t.PAYLOAD])
                messages.append(EntryReply(ask.group, raft.replica, ask.source, raft.term, entry))
        if messages:
            self._engine.counts["entries_given_total"] += len(messages)
            self._engine.send_repair_messages(
                {t.node_of(ask.source): Packet(repair_messages=messages)}
            )

    def receive_entry(self, have: EntryReply) -> None:
        """Append an entry that we requested, after comparing it with the index."""
        engine, index = self._engine, have.entry[t.INDEX]
        replica, lacking = engine.replicas.get(have.group), self.lost_entries.get(have.group)
        if replica is None or lacking is None or replica.replica_id != have.target:
            return
        if index not in lacking.entries or index in lacking.given:
            return
        row, log = engine.log.index.row(have.group, index), replica.raft.log
        before = engine.log.index.row(have.group, index - 1)
        if index == log.first_index:
            chain = log.start_chain
        elif before is not None and index > log.first_index:
            chain = before.chain
        else:
            return  # after a START record it would move the start back in a replay
        # The row may be old: the log may have another entry there that the store does not know yet.
        is_ours = log.has(index, have.entry[t.TERM])
        if row is None or not is_ours or not matches_index_row(row, chain, have.entry):
            engine.counts["entries_given_wrong_total"] += 1
            return
        engine.log.journal.append(have.group, [have.entry], relocated=True)
        lacking.was_given(index, len(have.entry[t.PAYLOAD]), engine.now)
        engine.counts["entries_repaired_total"] += 1
        if not lacking.awaited:  # request the next ones, at the pace of rewriting
            pace_ms = lacking.given_bytes * 1000 // REWRITE_BYTES_PER_S
            lacking.next_ask = min(lacking.next_ask, engine.now + pace_ms)

    # -- for people ----------------------------------------------------------------------------

    def damage_report(self, *, harmless: bool = False) -> list[dict[str, Any]]:
        """Rows for heartbeats and STATUS. `harmless` adds repaired segments that wait for older
        ones.
        """
        now, wall_ms = self._engine.now, self._engine.wall_ms()
        return damage_rows(
            self.damaged_segments, self.lost_entries, now, wall_ms, harmless=harmless
        )

    def status(self) -> dict[str, Any]:
        damaged = add_partition_names(self.damage_report(harmless=True), self._engine.replicas)
        return {
            "damaged": damaged,
            "mended": list(self.repaired_segments),
            "scrub": self.scrub_pace.status(),
        }
