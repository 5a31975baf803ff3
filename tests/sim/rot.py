"""Bits that turn in data at rest, and what must hold of replicas that know what they lack.

On one node bits turn in what was provably synced: while its process runs, while it is down. It is
repaired by the real `repair`, whose questions and answers go over the simulated network. Judged is
from outside, by what the process has met and what can be read on its disk right now: not by what it
notes about itself.

- R2: while an entry that it knows to be lost can't be read, a replica neither votes nor stands nor
  counts, after a restart too if the note on its disk was reported; a leader does not count itself.
- W16: what is read, or given to a peer, is what was once appended there; what arrives may be
  another entry, or have other bytes, and is not taken then.
- In peace every entry of every member can be read again, and damaged segments are gone, or wait for
  older ones only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sim.checkers import Violation, check, hash_of

from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.repair.messages import EntryReply
from myqueue.daemons.replication.replica import Replica
from myqueue.errors import CorruptData, NotReady
from myqueue.wal import format as f
from myqueue.wal.append.writer import Persisted
from myqueue.wal.groups import Row
from myqueue.wal.read.reader import Reader

if TYPE_CHECKING:
    from sim.process import Process
    from sim.slot import Slot
    from sim.world import World

Key = tuple[int, int]  # group, replica
PORTION_BYTES = 4000
AUDIT_MS = 250  # at least between two looks at everything
TALLIED = {
    "damage_found_total": "damaged segment",
    "damage_repaired_total": "segment repaired",
    "entries_repaired_total": "entry repaired",
    "entries_given_wrong_total": "wrong entry given",
}


@dataclass
class Lost:
    """Entries that a replica knows to be lost, and how far it had committed when it met them."""

    commit: int
    indexes: set[int] = field(default_factory=set)


class Rot:
    """See the module's docstring."""

    def __init__(self, world: World) -> None:
        self.world, random = world, world.random
        self.is_on = bool({"rot", "corruption"} & world.nemesis.enabled)
        self.scrub_bytes_per_s = random.choice((0, 0, 1 << 18)) if self.is_on else 0
        self.scrub_round_ms = random.choice((300, 2000))
        self._forged = random.choice((0.0, 0.5)) if self.is_on else 0.0
        self._reads_ms = random.choice((50, 200, 1000))
        self._lost: dict[Key, Lost] = {}
        self._noted: set[Key] = set()  # a note on its disk says so
        self._hurt: set[int] = set()  # nodes
        self._next_audit = 0

    def start(self) -> None:
        if "rot" in self.world.nemesis.enabled:
            self._read_somewhere()

    # -- the medium ----------------------------------------------------------------------------

    def strike(self, slot: Slot) -> None:
        """Some bits turn, before the place up to which a later record proves the sync."""
        random, (newest, end) = self.world.random, slot.proven
        self._forget_mended(slot.process)  # what is hit again is not known to be lost
        places = []
        for name in sorted(slot.disk.list()):
            number, _ = f.parse_segment_name(name) or (newest + 1, 0)
            if number <= newest:
                used = len(slot.disk.contents(name)) if number < newest else end
                places.append((name, 0, used))
        for _ in range(random.choice((1, 1, 2, 8)) if places else 0):
            name, begin, end = self._live(slot) or random.choice(places)
            position = random.randrange(begin, end)
            slot.disk.flip(name, position, 1 << random.randrange(8))
            self.hurts(slot, name, position)

    def _live(self, slot: Slot) -> tuple[str, int, int] | None:
        """Where an entry stands that is needed, now and then: else most bits turn in vain."""
        random, process = self.world.random, slot.process
        if process is None or not process.replicas or random.random() < 0.5:
            return None
        replica = random.choice(list(process.replicas.values()))
        first, last = _needed_from(replica), replica.raft.log.persisted_index
        row = process.index.row(replica.uid, random.randint(first, last)) if first <= last else None
        named = None if row is None else process.journal.segment_name(row.segment)
        if row is None or named is None:
            return None
        end = row.position + f.RECORD_HEADER_BYTES + row.length
        return (named[0], row.position, end) if (row.segment, end) < slot.proven else None

    def hurts(self, slot: Slot, name: str, position: int) -> None:
        self.world.faults["flipped bit"] += 1
        self.world.note(f"node {slot.number}: a bit turns in {name} at {position}")
        self._hurt.add(slot.number)

    def _read_somewhere(self) -> None:
        """As consumers do; so damage is found while all else goes on."""
        world = self.world
        if not world.quiet:
            world.with_process(world.random.choice(sorted(world.slots)), self._read)
            world.after(self._reads_ms // 2, self._reads_ms, self._read_somewhere)

    def _read(self, process: Process) -> None:
        for replica in process.replicas.values():
            first, last = _needed_from(replica), replica.raft.applied_index
            if first <= last <= replica.raft.log.persisted_index:
                self._portion(replica, self.world.random.randint(first, last), last)

    def _portion(self, replica: Replica, at: int, last: int) -> int:
        """How many entries were read; 0 if it is told to come again."""
        try:
            entries = replica.read(at, last, PORTION_BYTES)
        except (CorruptData, NotReady):
            self.world.faults["unreadable entry"] += 1
            return 0
        for entry in entries:
            self.is_right(replica.uid, entry)
        return len(entries)

    def is_right(self, group: int, entry: t.Entry) -> None:
        key = (group, entry[t.INDEX], entry[t.TERM])
        truth = (entry[t.CHAIN], hash_of(entry))
        if self.world.checkers.entries.get(key) != truth:
            raise Violation(f"W16: {key} is not what was appended")

    def given(self, have: EntryReply) -> EntryReply:
        """What a peer gives is right when it is read, and may be wrong when it arrives."""
        self.is_right(have.group, have.entry)
        random, entry = self.world.random, have.entry
        if self.world.quiet or random.random() >= self._forged:
            return have
        self.world.faults["forged entry"] += 1
        if random.random() < 0.5 and entry[t.PAYLOAD]:
            wrong = (*entry[: t.PAYLOAD], bytes(len(entry[t.PAYLOAD]) - 1) + b"y")
        else:
            wrong = (entry[t.INDEX], entry[t.TERM] + 1, *entry[2:])
        return have._replace(entry=wrong)

    # -- what processes know -------------------------------------------------------------------

    def reported(self, process: Process, event: Persisted) -> None:
        slot = self.world.slots[process.number]
        slot.proven = max(slot.proven, process.written_to)
        process.written_to = event.segment, event.position
        self._forget_mended(process)
        for group, lacking in process.durable.lacking.items():
            replica = process.replicas.get(group)
            if replica is not None:
                (self._noted.add if lacking else self._noted.discard)((group, replica.replica_id))

    def booted(self, process: Process) -> None:
        """It knows what it had noted on its disk, and what it found while it started."""
        for group, replica in process.replicas.items():
            if (group, replica.replica_id) not in self._noted:
                self._lost.pop((group, replica.replica_id), None)
        met, process.reader.unreadable = process.reader.unreadable, []
        self.find_registered(process, met)

    def find_registered(self, process: Process, met: list[Row]) -> None:
        """What its readers met before this tick: from now on it has to act upon that."""
        for row in met:
            replica = process.replicas.get(row.group)
            if replica is None or not _is_needed(replica, row.index):
                continue
            now, place = process.index.row(row.group, row.index), (row.segment, row.position)
            if process.repair._rewritten_from_memory.get((row.group, row.index)) == place:
                continue  # on its way to the disk, from memory: since then it left that
            if now is not None and (now.segment, now.position) == place:
                key, commit = (row.group, replica.replica_id), replica.raft.commit_index
                self._lost.setdefault(key, Lost(commit)).indexes.add(row.index)
                check(
                    process.journal.groups.by_uid[row.group].lacking
                    or row.index not in self._lacks(process, replica.raft),
                    f"R2: {replica.replica_id:x} of group {row.group} lacks entry {row.index} and "
                    "does not note it on its disk",
                )

    def look_at(self, process: Process) -> None:
        """After each turn."""
        for group, replica in process.replicas.items() if self._lost else ():
            lost = self._lost.get((group, replica.replica_id))
            if lost is not None and replica.is_leader:
                self._counts(process, replica.raft, lost)

    def _forget_mended(self, process: Process | None) -> None:
        for replica in process.replicas.values() if process and self._lost else ():
            self._lacks(process, replica.raft)

    def _lacks(self, process: Process, node: RaftNode) -> set[int]:
        """What it knows to be lost and still can't be read, as of now."""
        lost = self._lost.get((node.group, node.replica))
        if lost is None:
            return set()
        reader = Reader(process.disk, process.index, process.journal.segment_name)
        trap, process.disk.stop_at = process.disk.stop_at, None  # it is us who read
        for index in sorted(lost.indexes):
            row = process.index.row(node.group, index)
            try:
                if row is not None and _is_needed(process.replicas[node.group], index):
                    reader.at(row)
                lost.indexes.discard(index)
            except CorruptData:
                continue
        process.disk.stop_at = trap
        if not lost.indexes:
            del self._lost[node.group, node.replica]
        return lost.indexes

    # -- what they may say ---------------------------------------------------------------------

    def sent(self, process: Process, node: RaftNode, message: t.Message) -> None:
        if isinstance(message, t.AppendReply):
            claims = message.ok and not message.is_unhealthy
        elif isinstance(message, t.VoteReply):
            claims = message.granted
        else:
            claims = isinstance(message, t.VoteRequest)
        if claims and (node.group, node.replica) in self._lost:
            lacks = self._lacks(process, node)
            check(
                not lacks,
                f"R2: {node.replica:x} of group {node.group} says {message}, though it knows that "
                f"{sorted(lacks)} can't be read",
            )

    def _counts(self, process: Process, node: RaftNode, lost: Lost) -> None:
        if node.commit_index <= lost.commit:
            return
        voters, followers = node.config.voters, node.leading.followers
        known = [followers[one].match_index for one in voters if one in followers]
        have = [one for one in known if one >= node.commit_index]
        check(
            len(have) > len(voters) // 2 or not self._lacks(process, node),
            f"R2: {node.replica:x} leads group {node.group}, lacks entries, and counts itself for "
            f"the commit at {node.commit_index}",
        )
        lost.commit = node.commit_index

    def damaged_segments(self) -> int:
        """That were found in this history."""
        alive = [slot.process for slot in self.world.slots.values() if slot.process is not None]
        now = sum(process.counts["damage_found_total"] for process in alive)
        return now + self.world.faults["damaged segment"]

    def tally(self, process: Process) -> None:
        """At its end, for the summary."""
        self._forget_mended(process)
        for name, what in TALLIED.items():
            self.world.faults[what] += process.counts[name]

    # -- peace ---------------------------------------------------------------------------------

    def is_mended(self) -> bool:
        """Everything on damaged disks can be read again; a look at it, now and then."""
        world = self.world
        if not self._hurt:
            return True
        if world.now_ms < self._next_audit:
            return False
        self._next_audit = world.now_ms + AUDIT_MS
        processes = [world.slots[number].process for number in sorted(self._hurt)]
        return all(one is not None and self._is_whole(one) for one in processes)

    def _is_whole(self, process: Process) -> bool:
        all_members = True
        for group, replica in process.replicas.items():
            found = self.world.leader(group)
            if found is None or replica.replica_id not in found[1].members:
                all_members = False  # taken out of the group, and not told yet
                continue
            if (
                replica.repair_problem and replica.has_unapplied
            ):  # the others left it behind meanwhile
                self._start_again(process.number)
                return False
            log, at = replica.raft.log, _needed_from(replica)
            is_whole = replica.raft.health.votes and group not in process.repair.lost_entries
            while at <= log.persisted_index:
                count = self._portion(replica, at, log.persisted_index)
                is_whole = is_whole and count > 0
                at += count or 1  # all that is bad is met in one look
            if not is_whole:
                return False
        damaged = process.repair.damaged_segments.values()
        return not all_members or all(one.salvage.is_waiting for one in damaged)

    def _start_again(self, number: int) -> None:
        """As people are told to do."""
        self.world.crash(number, power=False)
        self.world.boot(number)
        self.world.faults["start for repair"] += 1


def _needed_from(replica: Replica) -> int:
    return max(replica.raft.log.first_index, replica.machine.start_index)


def _is_needed(replica: Replica, index: int) -> bool:
    """Of the log, and nowhere but on disk."""
    log = replica.raft.log
    return _needed_from(replica) <= index < min(log.memory_first, log.last_index + 1)
