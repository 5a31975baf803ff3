"""Which replicas should be elsewhere: one look at the tables, at what brokers report, at the time.

Pure. The first reasons are the pressing ones:

1. *lost*: a replica that its broker can't let take part, or whose disk is gone, is made anew there;
2. *dead*: replicas of a broker that has been silent for `replace_after_ms` are made on others; so
   are those of one that was removed when there was nobody else;
3. *full*: what is on its way to a disk that ran out of room, or to a broker that the group's leader
   does not reach (`backoff.py`), goes to another one; in all these cases, who was to leave for it
   and is there still stays instead;
4. *drained*: a broker that is being drained gives its replicas away;
5. *too few*: what lost a replica for good, when there was no broker for another, gets one;
6. *together*: replicas that had to share a host are parted, if there is another host by now;
7. *uneven*: replicas go from who has most to who has fewest, as long as that is more than 10 % from
   even.

The last two only while nothing else moves and all brokers are there. A full disk is no reason to
wait: what one adds a broker for is to relieve the others. No broker takes or gives more than
`moves_per_broker` replicas at a time; from a dead one nothing is taken.

Nothing is known to have happened because it was ordered: what a group consists of is what its
leader reports, committed. A group that nobody leads can't change, so it is not moved; and if it was
being moved, it takes nobody's turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from myqueue.daemons.manager.balancer import balance
from myqueue.daemons.manager.balancer.backoff import Shunned
from myqueue.daemons.manager.cluster_view import Liveness
from myqueue.daemons.metadata import placement
from myqueue.daemons.metadata.records import ACTIVE, DRAINING, PartitionRow
from myqueue.daemons.metadata.tables import Tables
from myqueue.daemons.metadata.topics import host_label

SETTLED_MS: Final = 5000  # a broker has to live for so long to be given replicas
MOVES_MAX: Final = 100  # in one entry

Move = list[int]  # group, node, incarnation, to; node 0: one more


class Plan:
    """Who is where, who is busy, and what should move. `still`: moves that stand still."""

    def __init__(
        self, tables: Tables, liveness: Liveness, still: set[int], now: int, shunned: Shunned
    ) -> None:
        self.tables, self.liveness, self.now = tables, liveness, now
        self.stuck, self.tried = shunned.stuck, shunned.tried
        self.limit = tables.settings["moves_per_broker"]
        self.dead = self._dead()
        self.moving = tables.moving - still
        self.busy: dict[int, int] = dict.fromkeys(tables.brokers, 0)
        for group in self.moving:
            self._count_busy(tables.partition(group))
        self.there = {
            node for node, row in tables.brokers.items()
            if row.state == ACTIVE and liveness.alive_for(node, now) >= SETTLED_MS
        }  # fmt: skip
        low = {node for node in self.there if liveness.brokers[node].disk_low}
        self.able = self.there - low - shunned.unreached
        self.fit = self.able - shunned.low
        self.held = {node: len(tables.held[node]) for node in tables.brokers}
        self.hosts = {node: host_label(row) for node, row in tables.brokers.items()}
        self.out: list[Move] = []
        self.planned: set[int] = set()  # groups

    @property
    def all_are_there(self) -> bool:
        """Every broker that is to hold replicas has lived for a while."""
        wanted = {node for node, row in self.tables.brokers.items() if row.state == ACTIVE}
        return wanted - self.dead == self.there

    def _dead(self) -> set[int]:
        """Nobody, if most brokers are silent: then it is more likely us who hear nothing. Who died
        long ago and holds nothing any more tells nothing about that.
        """
        tables, liveness, now = self.tables, self.liveness, self.now
        silent = {
            node for node, row in tables.brokers.items()
            if liveness.silent_for(node, row.disk, now) >= tables.settings["replace_after_ms"]
        }  # fmt: skip
        alive = {node for node in tables.brokers if liveness.alive(node, now)}
        telling = alive | {node for node in tables.brokers if tables.held.get(node)}
        return silent if 2 * len(alive) >= len(telling) else set()

    def _count_busy(self, partition: PartitionRow | None) -> None:
        """Who is giving or taking a replica of it."""
        if partition is None:
            return
        arriving = self._arriving(partition)
        for node in {node for node, _ in (*arriving, *partition.leaving)}:
            if node in self.busy:
                self.busy[node] += 1

    def _arriving(self, partition: PartitionRow) -> list[tuple[int, int]]:
        """Wanted replicas that don't vote yet."""
        members = self.liveness.members(partition.group) or {}
        return [one for one in partition.replicas if not members.get(one)]

    # -- what moves ----------------------------------------------------------------------------

    def moves(self, *, look_at_hosts: bool = True) -> list[Move]:
        tables = self.tables
        for node in sorted(tables.brokers):
            if self.liveness.alive(node, self.now):
                for group in self._lost_on(node):
                    self._anew(group, node)
            if node in self.dead:
                for group in sorted(tables.held[node]):
                    self._away(group, node, is_taken=False)
        for node in sorted(set(tables.held) - set(tables.brokers)):
            for group in sorted(tables.held[node]):  # removed when nobody could take it instead
                self._away(group, node, is_taken=False)
        self._off_full_disks()
        for group, node in self.stuck:
            self._away(group, node, is_taken=False)
        for node, row in sorted(tables.brokers.items()):
            if row.state == DRAINING and node not in self.dead:
                for group in sorted(tables.held[node]):
                    self._away(group, node)
        for group in sorted(tables.under_replicated):
            self._one_more(group)
        if not self.moving and self.all_are_there:
            if look_at_hosts and not self.out:
                self._apart()
            if not self.out:
                self._even_out()
        return self.out

    def _lost_on(self, node: int) -> list[int]:
        life, row = self.liveness.brokers[node], self.tables.brokers[node]
        is_known = (life.disk, life.incarnation) == (row.disk, row.life)
        if not is_known or not life.full_at or not (row.disk_first_incarnation or life.lost):
            return []
        lost = []
        for group in sorted(self.tables.held[node]):
            incarnation = self._incarnation(group, node)
            known = life.lost.get(group, -1)
            is_away = (
                incarnation < row.disk_first_incarnation and life.held.get(group) != incarnation
            )
            if is_away or known in (0, incarnation):
                lost.append(group)
        return lost

    def _incarnation(self, group: int, node: int) -> int:
        partition = self.tables.partition(group)
        return dict(partition.replicas)[node] if partition is not None else 0

    def _room(self, *nodes: int) -> bool:
        room = all(self.busy.get(node, 0) < self.limit for node in nodes)
        return room and len(self.out) < MOVES_MAX

    def _is_led(self, group: int) -> bool:
        """Nobody changes the members of a group that has no leader; and its founders, if they were
        never made, must not be taken for such as came later and vote for nobody.
        """
        if group in self.planned or not self.liveness.leader(group, self.now)[0]:
            return False
        return self.liveness.members(group) is not None

    def _anew(self, group: int, node: int) -> None:
        """On the same broker, under a new name; elsewhere at once if that one is being drained."""
        if self.tables.brokers[node].state == DRAINING:
            partition = self.tables.partition(group)
            if partition is not None and self.fit - set(partition.all_node_ids):
                self._away(group, node, is_taken=False)
                return
        if self._is_led(group) and (self._has_turn(group, node) or self._room(node)):
            self._move(group, node, node)

    def _has_turn(self, group: int, node: int) -> bool:
        """It was on its way there already: else moves that were lost with a disk would wait for
        each other's turn for ever.
        """
        partition = self.tables.partition(group)
        if partition is None or group not in self.moving:
            return False
        return any(one == node for one, _ in self._arriving(partition))

    def _away(self, group: int, node: int, *, is_taken: bool = True) -> None:
        """To another broker, if there is one. `is_taken`: from a broker that has it."""
        partition = self.tables.partition(group)
        if partition is None or not self._is_led(group):
            return
        if is_taken and (partition.is_moving or not self._room(node)):
            return
        to = (not is_taken and self._back(partition)) or self._spare(partition, node)
        if to:
            self._move(group, node, to)

    def _back(self, partition: PartitionRow) -> int:
        """Whose replica was to leave for one that does not come, and is there still; 0: nobody."""
        lives, group = self.liveness.brokers, partition.group
        for node, incarnation in partition.leaving:
            is_here = node in self.there and node not in partition.nodes
            if is_here and lives[node].has(group) and lives[node].held[group] == incarnation:
                return node
        return 0

    def _spare(self, partition: PartitionRow, instead_of: int = 0) -> int:
        """The broker that is best for one more replica; 0: none can take it now."""
        not_there = {node for group, node in self.tried if group == partition.group}
        not_there |= set(partition.all_node_ids)
        fit = self.fit - not_there or self.able - not_there
        spare = [one for one in sorted(fit) if self._room(one)]
        hosts = [
            self.hosts[one] for one in partition.nodes if one != instead_of and one in self.hosts
        ]
        loads = [placement.BrokerLoad(one, self.hosts[one], self.held[one]) for one in spare]
        return placement.best_broker_for_replica(loads, hosts)

    def _off_full_disks(self) -> None:
        """Copying on would take the room that its disk needs for votes."""
        lives = self.liveness.brokers
        full = {one for one in self.tables.brokers if one in lives and lives[one].disk_low}
        for group in sorted(self.moving) if full else ():
            partition = self.tables.partition(group)
            for node, _ in self._arriving(partition) if partition is not None else ():
                if node in full:
                    self._away(group, node, is_taken=False)

    def _one_more(self, group: int) -> None:
        partition = self.tables.partition(group)
        if partition is None or partition.is_moving or not self._is_led(group):
            return
        to = self._spare(partition)
        if to:
            self._move(group, 0, to)

    def _move(self, group: int, node: int, to: int) -> None:
        self.out.append([group, node, self._incarnation(group, node) if node else 0, to])
        self.planned.add(group)
        for one in {node, to} & self.busy.keys():
            self.busy[one] += 1
        if node in self.held:
            self.held[node] -= 1
        self.held[to] += 1

    # -- how it would be better ----------------------------------------------------------------

    def _apart(self) -> None:
        """Two on one host, and a host without one: the fuller broker of the two gives its own."""
        if len(set(self.hosts.values())) == len(self.hosts):
            return
        for group, nodes in self._movable(self._shares_a_host):
            count = Counter(self.hosts[one] for one in nodes)
            spare = [
                one for one in sorted(self.fit - set(nodes))
                if not count[self.hosts[one]] and self._room(one)
            ]  # fmt: skip
            givers = [one for one in nodes if count[self.hosts[one]] > 1 and self._room(one)]
            if spare and givers:
                giver = max(givers, key=lambda one: (self.held[one], -one))
                self._move(group, giver, min(spare, key=lambda one: (self.held[one], one)))

    def _shares_a_host(self, partition: PartitionRow) -> bool:
        hosts = [self.hosts.get(node, "") for node in partition.nodes]
        return len(set(hosts)) < len(hosts)

    def _even_out(self) -> None:
        """From the fullest to the emptiest, as long as that makes it more even."""
        held, there = self.held, sorted(self.there)
        groups: dict[int, list[int]] | None = None  # looked at once, and only if it must be
        while len(there) > 1 and self.fit:
            most, least = (pick(held[one] for one in there) for pick in (max, min))
            mean = sum(held[one] for one in there) / len(there)
            if not balance.is_uneven(most, least, mean):
                return
            groups = dict(self._movable()) if groups is None else groups
            step = balance.next_move(groups.items(), held, self.hosts, there, sorted(self.fit))
            if step is None or not self._room(step[1], step[2]):
                return
            self._move(*step)
            del groups[step[0]]

    def _movable(
        self, wanted: Callable[[PartitionRow], bool] = lambda _: True
    ) -> Iterable[tuple[int, list[int]]]:
        """Groups that are whole: each of their members is wanted, and there."""
        tried = {group for group, _ in self.tried}
        for group in sorted(self.tables.groups.keys() - self.planned - tried):
            partition = self.tables.partition(group)
            if partition is not None and wanted(partition):
                members = self.liveness.members(group)
                whole = members == dict.fromkeys(partition.replicas, True)
                if whole and all(self.liveness.alive(one, self.now) for one in partition.nodes):
                    yield group, partition.nodes
