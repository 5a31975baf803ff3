"""Which replicas should be elsewhere: what the leader of the managers decides about them.

A pure function of the tables, of what brokers report, and of the time; its memory is about pace
only, and a new leader begins afresh. Out come commands that may be repeated or come late without
harm (`brokers.py`). In this order, the first reasons are the pressing ones:

1. *settle*: the leader of a group reports that leaving replicas are no members any more: they may
   be removed; or that all wanted ones are members and no others: the move is over;
2. *lost*: a replica that its broker can't let take part, or whose disk is gone, is made anew there;
3. *dead*: replicas of a broker that has been silent for `replace_after_ms` are made on others;
4. *drained*: a broker that is being drained gives its replicas away;
5. *uneven*: while nothing else moves and all brokers are well, replicas go from who has most to who
   has fewest, as long as that is more than 10 % from even; then the preferred leaders.

No broker takes or gives more than `moves_per_broker` replicas at a time. Nothing is known to have
happened because it was ordered: what a group consists of is what its leader reports, committed.

When may a replica that left be removed? A leader that follows old orders could still take it back
as a voter, and remove the new one. So every member and every wanted replica must follow orders
that are not older than the move, and none may know of a later term than the report is of: whoever
had led in between by old orders would know of his own term (`_settle`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from myqueue.daemons import evenness, placement
from myqueue.daemons.liveness import Liveness
from myqueue.daemons.rows import ACTIVE, DRAINING, Partition
from myqueue.daemons.tables import Tables
from myqueue.daemons.topics import host_of

LOOK_MS: Final = 500
AGAIN_MS: Final = 2000  # what was proposed and is not done then is proposed once more
SETTLED_MS: Final = 5000  # a broker has to live for so long to be given replicas
MOVES_MAX: Final = 100  # in one entry
SETTLES_MAX: Final = 100
PREFERS_MAX: Final = 20

Move = list[int]  # group, node, incarnation, to
Command = tuple[str, dict[str, Any]]


class Moves:
    """See the module's docstring."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self.begin(0)

    def begin(self, now: int) -> None:
        """This manager became the leader."""
        self._look_at = now + LOOK_MS
        self._drawn = self._moves_at = -1  # of the last moves that were proposed
        self._settled: dict[int, int] = {}  # group -> when it may be proposed again

    def due(self, tables: Tables, now: int) -> list[Command]:
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_MS
        out = self._settle(tables, now)
        if self._drawn == tables.counters.incarnation and now < self._moves_at + AGAIN_MS:
            return out  # the last ones are on their way
        moves = _Plan(tables, self._liveness, now).moves()
        if moves:
            self._drawn, self._moves_at = tables.counters.incarnation, now
            out.append(("move_replicas", {"moves": moves}))
        elif not tables.moving:
            out += self._prefer(tables, now)
        return out

    def _settle(self, tables: Tables, now: int) -> list[Command]:
        self._settled = {
            group: at for group, at in self._settled.items() if at > now and group in tables.moving
        }
        out: list[Command] = []
        for group in sorted(tables.moving - set(self._settled)):
            partition = tables.partition(group)
            if partition is None or len(out) >= SETTLES_MAX:
                continue
            gone, done = settled(tables, self._liveness, partition)
            if gone or done:
                self._settled[group] = now + AGAIN_MS
                arguments = {
                    "group": group, "moved": partition.moved, "gone": [list(one) for one in gone],
                    "done": done,
                }  # fmt: skip
                out.append(("settle_replicas", arguments))
        return out

    def _prefer(self, tables: Tables, now: int) -> list[Command]:
        plan = _Plan(tables, self._liveness, now)
        fit, led = plan.fit, tables.led
        if not all_are_fit(tables, fit, plan.dead) or not fit:
            return []  # somebody is away: wait how that ends
        if max(led.values(), default=0) - min(led[node] for node in fit) < 2:
            return []
        partitions = [
            (group, topic.partitions[number].nodes)
            for group, (topic, number) in sorted(tables.groups.items())
        ]
        return [
            ("prefer_replica", {"group": group, "node": node})
            for group, node in evenness.better_leaders(partitions, sorted(fit))[:PREFERS_MAX]
        ]


def settled(
    tables: Tables, liveness: Liveness, partition: Partition
) -> tuple[list[tuple[int, int]], bool]:
    """(leaving replicas that are certainly out of the group, the group is as it is wanted)."""
    members = liveness.members(partition.group)
    if members is None:
        return [], False
    for node, _ in {*members, *partition.replicas}:
        row, life = tables.brokers.get(node), liveness.brokers.get(node)
        if row is None or life is None or life.incarnation != row.life:
            return [], False
        if life.version < partition.moved:
            return [], False
    gone = [one for one in partition.leaving if one not in members]
    done = len(gone) == len(partition.leaving) and members == dict.fromkeys(
        partition.replicas, True
    )
    return gone, done


def all_are_fit(tables: Tables, fit: set[int], dead: set[int]) -> bool:
    """Every broker that is to hold replicas may be given some."""
    wanted = {node for node, row in tables.brokers.items() if row.state == ACTIVE}
    return wanted - dead == fit


class _Plan:
    """One look: who is where, who is busy, and what should move."""

    def __init__(self, tables: Tables, liveness: Liveness, now: int) -> None:
        self.tables, self.liveness, self.now = tables, liveness, now
        self.limit = tables.settings["moves_per_broker"]
        self.dead = self._dead()
        self.busy: dict[int, int] = dict.fromkeys(tables.brokers, 0)
        for group in tables.moving:
            self._count_busy(tables.partition(group))
        self.fit = {
            node for node, row in tables.brokers.items()
            if row.state == ACTIVE and liveness.alive_for(node, now) >= SETTLED_MS
            and not liveness.brokers[node].disk_low
        }  # fmt: skip
        self.held = {node: len(tables.held[node]) for node in tables.brokers}
        self.hosts = {node: host_of(row) for node, row in tables.brokers.items()}
        self.out: list[Move] = []
        self.planned: set[int] = set()  # groups

    def _dead(self) -> set[int]:
        """Nobody, if most brokers are silent: then it is more likely us who hear nothing."""
        brokers, after = self.tables.brokers, self.tables.settings["replace_after_ms"]
        silent = {
            node for node, row in brokers.items()
            if self.liveness.silent_for(node, row.disk, self.now) >= after
        }  # fmt: skip
        alive = sum(self.liveness.alive(node, self.now) for node in brokers)
        return silent if 2 * alive >= len(brokers) else set()

    def _count_busy(self, partition: Partition | None) -> None:
        """Who is giving or taking a replica of it."""
        if partition is None:
            return
        members = self.liveness.members(partition.group) or {}
        arriving = [one for one in partition.replicas if not members.get(one)]
        for node in {node for node, _ in (*arriving, *partition.leaving)}:
            if node in self.busy:
                self.busy[node] += 1

    def moves(self) -> list[Move]:
        tables = self.tables
        for node, row in sorted(tables.brokers.items()):
            if self.liveness.alive(node, self.now):
                for group in self._lost_on(node):
                    self._anew(group, node)
            if node in self.dead or row.state == DRAINING:
                for group in sorted(tables.held[node]):
                    self._away(group, node, node in self.dead)
        if not (self.out or tables.moving) and all_are_fit(tables, self.fit, self.dead):
            self._even_out()
        return self.out

    def _lost_on(self, node: int) -> list[int]:
        life, row = self.liveness.brokers[node], self.tables.brokers[node]
        is_known = (life.disk, life.incarnation) == (row.disk, row.life)
        if not is_known or not (row.disk_from or life.lost):
            return []
        lost = []
        for group in sorted(self.tables.held[node]):
            incarnation = self._incarnation(group, node)
            known = life.lost.get(group, -1)
            if incarnation < row.disk_from or known in (0, incarnation):
                lost.append(group)
        return lost

    def _incarnation(self, group: int, node: int) -> int:
        partition = self.tables.partition(group)
        return dict(partition.replicas)[node] if partition is not None else 0

    def _room(self, *nodes: int) -> bool:
        room = all(self.busy.get(node, 0) < self.limit for node in nodes)
        return room and len(self.out) < MOVES_MAX

    def _anew(self, group: int, node: int) -> None:
        """On the same broker, under a new name."""
        if self._is_led(group) and self._room(node):
            self._move(group, node, node)

    def _is_led(self, group: int) -> bool:
        """Nobody changes the members of a group that has no leader; and its founders, if they were
        never made, must not be taken for such as came later and vote for nobody.
        """
        return group not in self.planned and self.liveness.members(group) is not None

    def _away(self, group: int, node: int, is_dead: bool) -> None:
        """To another broker, if there is one. From a dead one nothing is taken: no limit for it."""
        partition = self.tables.partition(group)
        if partition is None or not self._is_led(group):
            return
        if not is_dead and (partition.is_moving or not self._room(node)):
            return
        taken = set(partition.all_nodes)
        spare = [one for one in sorted(self.fit - taken) if self._room(one)]
        hosts = [self.hosts[one] for one in partition.nodes if one != node and one in self.hosts]
        loads = [placement.Load(one, self.hosts[one], self.held[one]) for one in spare]
        to = placement.place_another(loads, hosts)
        if to:
            self._move(group, node, to)

    def _move(self, group: int, node: int, to: int) -> None:
        self.out.append([group, node, self._incarnation(group, node), to])
        self.planned.add(group)
        for one in {node, to}:
            self.busy[one] += 1
        self.held[node] -= 1
        self.held[to] += 1

    def _even_out(self) -> None:
        """From the fullest to the emptiest, as long as that makes it more even."""
        while len(self.fit) > 1:
            most, least = (pick(self.held[one] for one in self.fit) for pick in (max, min))
            mean = sum(self.held[one] for one in self.fit) / len(self.fit)
            if not evenness.is_uneven(most, least, mean):
                return
            step = evenness.next_move(self._movable(), self.held, self.hosts, sorted(self.fit))
            if step is None or not self._room(step[1], step[2]):
                return
            self._move(*step)

    def _movable(self) -> Iterable[tuple[int, list[int]]]:
        """Groups that are whole: each of their members is wanted, and there."""
        for group in sorted(self.tables.groups):
            partition = self.tables.partition(group)
            if partition is not None and group not in self.planned:
                members = self.liveness.members(group)
                whole = members == dict.fromkeys(partition.replicas, True)
                if whole and all(self.liveness.alive(one, self.now) for one in partition.nodes):
                    yield group, partition.nodes
