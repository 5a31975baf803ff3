"""The operator of the simulated cluster: replaces replicas that are gone, one change at a time.

A wiped disk, or one whose votes may be lost, must not speak under its old replica id (W7, R2).
The operator takes the old replica out, lets the node start a new one as a learner, and makes it a
voter when the leader says that it has caught up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from myqueue.daemons.raft.types import Config, RaftError, Role, node_of, replica_id

if TYPE_CHECKING:
    from sim.process import Process
    from sim.world import World


class Operator:
    def __init__(self, world: World) -> None:
        self.world = world
        self._incarnations: dict[tuple[int, int], int] = {}  # (group, node) -> last one given
        random, nodes = world.random, len(world.slots)
        self._voters = random.choice((3, 5, 5)) if nodes >= 5 else 3
        self._learners = random.choice((0, min(2, nodes - self._voters)))  # that stay learners
        # It asks new leaders at once, and again while a change is under way: they have to refuse.
        hasty = 0.8 if world.nemesis.profile == "members" else 0.4
        self.is_hasty = "membership" in world.nemesis.enabled and random.random() < hasty

    def founders(self) -> tuple[list[int], list[int]]:
        """The nodes that a new group begins with: voters, learners."""
        count = self._voters + self._learners
        chosen = self.world.random.sample(sorted(self.world.slots), count)
        return sorted(chosen[: self._voters]), sorted(chosen[self._voters :])

    def start(self) -> None:
        self.world.after(100, 300, self._round)

    def _round(self) -> None:
        for group in self.world.groups:
            found = self.world.leader(group)
            if found is not None:
                self._look_after(group, *found)
        if self.world.quiet:
            for group in self.world.groups:
                self.world.clients.probe(group)
        self.world.after(100, 300, self._round)

    def _replica_on(self, group: int, number: int) -> int:
        process = self.world.slots[number].process
        node = process.host.groups.get(group) if process is not None else None
        return 0 if node is None else node.replica

    def _look_after(self, group: int, leader: Process, config: Config) -> None:
        """One step towards a configuration in which every member is there."""
        for learner in config.learners if len(config.voters) < self._voters else ():
            if self._replica_on(group, node_of(learner)) == learner:
                rest = tuple(one for one in config.learners if one != learner)
                self._change(group, leader, Config((*config.voters, learner), rest))
                return
        for member in config.members:
            slot = self.world.slots[node_of(member)]
            if slot.process is not None and self._replica_on(group, slot.number) != member:
                voters = tuple(one for one in config.voters if one != member)
                learners = tuple(one for one in config.learners if one != member)
                if voters:
                    self._change(group, leader, Config(voters, learners))
                return
        if len(config.members) < self._voters + self._learners:
            self._add(group, leader, config)

    def _add(self, group: int, leader: Process, config: Config) -> None:
        taken = {node_of(member) for member in config.members}
        free = [
            slot.number
            for slot in self.world.slots.values()
            if slot.number not in taken and slot.process is not None
        ]
        if not free:
            return
        number = self.world.random.choice(free)
        replica = self._replica_on(group, number)
        if replica:  # one that was taken out, and does not know: its time is over
            self._forget(group, number)
        key = (group, number)
        self._incarnations[key] = self._incarnations.get(key, 1) + 1
        replica = replica_id(number, self._incarnations[key])
        new = Config(config.voters, (*config.learners, replica))
        if self._change(group, leader, new):
            created = Config(config.voters, new.learners)
            self.world.with_process(number, lambda process: process.create(group, replica, created))
            self.world.writer_soon(number)
            if self.world.random.random() < 0.5:  # what the one before it said comes once more
                self.world.after(0, 60, lambda: self.world.network.haunt(number))

    def _forget(self, group: int, number: int) -> None:
        def forget(process: Process) -> None:
            if group not in process.host.groups:
                return  # asked twice, because this node was paused the first time
            process.host.remove(group)
            process.journal.remove_group(group)
            process.forget(group)

        self.world.with_process(number, forget)

    def _change(self, group: int, leader: Process, config: Config) -> bool:
        done = []
        if self.world.slots[leader.number].paused_until > self.world.now_ms:
            return False  # it would be done later, when it may be wrong by then

        def change(process: Process) -> None:
            node = process.host.touch(group)
            if node is None or node.role != Role.LEADER:
                return
            try:
                node.change(config, process.now)
                done.append(True)
                self.world.faults["change of members"] += 1
                self.world.note(f"group {group}: change to {config}")
            except RaftError as error:
                self.world.note(f"group {group}: no change: {error}")
            process.turn()

        self.world.with_process(leader.number, change)
        return bool(done)

    def shuffle(self) -> None:
        """Take a voter out, the leader not excepted; the round brings another one in.

        Not while a member is missing: two voters of three, one of them gone, can't change anything.
        """
        world = self.world
        if not self.all_is_well(ledgers=False):
            return
        group = world.random.choice(world.groups)
        found = world.leader(group)
        if found is not None and self._is_full(found[1]):
            process, config = found
            gone = world.random.choice(config.voters)
            voters = tuple(one for one in config.voters if one != gone)
            self._change(group, process, Config(voters, config.learners))

    def fidget(self, group: int, number: int) -> None:
        """Have a node that thinks it leads make a voter a learner, and soon undo that.

        Never a second one before: the group needs the disks of the rest.
        """
        world, process = self.world, self.world.slots[number].process
        if world.quiet or process is None or not self.all_is_well(ledgers=False):
            return
        node = process.host.groups.get(group)
        if node is None or node.role != Role.LEADER or not self._is_full(node.config):
            return
        before, gone = node.config, world.random.choice(node.config.voters)
        voters = tuple(one for one in before.voters if one != gone)
        if self._change(group, process, Config(voters, (*before.learners, gone))):
            world.after(0, 40, lambda: self._undo(group, process, before))

    def _undo(self, group: int, leader: Process, config: Config) -> None:
        if self.world.slots[leader.number].process is leader:
            self._change(group, leader, config)

    def _is_full(self, config: Config) -> bool:
        return len(config.voters) == self._voters and len(config.learners) == self._learners

    def all_is_well(self, ledgers: bool = True, settled: bool = False) -> bool:
        """Every group has a leader and members that are there, whole and equal. Settled: all know
        the same members, committed; so no change is under way that may need each of them.
        """
        for group in self.world.groups:
            found = self.world.leader(group)
            if found is None:
                return False
            process, config = found
            leader = process.host.groups[group]
            if not self._is_full(config):
                return False
            for member in config.members:
                other = self.world.slots[node_of(member)].process
                node = other.host.groups.get(group) if other is not None else None
                if other is None or node is None or node.replica != member or not node.health.votes:
                    return False
                if ledgers and node.applying_index != leader.log.last_index:
                    return False
                known = node.configs.current_index <= node.commit_index and node.config == config
                if (ledgers or settled) and not known:
                    return False
            if ledgers and leader.commit_index != leader.log.last_index:
                return False
        return True
