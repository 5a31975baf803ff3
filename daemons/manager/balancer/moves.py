"""What the leader of the managers decides about replicas: when which should be elsewhere.

`plan.py` says what should move; here is the pace at which that is proposed, and when what left may
be removed. Its memory is about pace only, and a new leader begins afresh. Out come commands that
may be repeated or come late without harm (`daemons/metadata/brokers.py`). First of all it
*settles*: the leader of a group reports that leaving replicas are no members any more: they may be
removed; or that all wanted ones are members and no others: the move is over. Last, when nothing is
to be moved, it evens out who should lead.

When may a replica that left be removed? A leader that follows old orders could still take it back
as a voter, and remove the new one. So every member and every wanted replica must follow orders
that are not older than the move, and none may know of a later term than the report is of: whoever
had led in between by old orders would know of his own term (`settled`).
"""

from __future__ import annotations

from typing import Any, Final

from myqueue.daemons.manager.balancer import balance
from myqueue.daemons.manager.balancer.backoff import Shunned
from myqueue.daemons.manager.balancer.plan import Plan
from myqueue.daemons.manager.cluster_view import Liveness
from myqueue.daemons.metadata.records import PartitionRow
from myqueue.daemons.metadata.tables import Tables

LOOK_MS: Final = 500
AGAIN_MS: Final = 2000  # what was proposed and is not done then is proposed once more
STILL_MS: Final = 10_000  # nobody leads a group for so long: nothing of it is on its way
APART_MS: Final = 5000  # between two looks for replicas that share a host
SETTLES_MAX: Final = 100
PREFERS_MAX: Final = 20

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
        self._leaderless: dict[int, int] = {}  # moving groups that nobody leads, since when
        self._apart_at = now
        self.shunned = Shunned()

    def due(self, tables: Tables, now: int) -> list[Command]:
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_MS
        out = self._settle(tables, now)
        if self._drawn == tables.counters.incarnation and now < self._moves_at + AGAIN_MS:
            return out  # the last ones are on their way
        self.shunned.look(tables, self._liveness, now)
        still = self._still(tables, now) | {group for group, _ in self.shunned.stuck}
        plan = Plan(tables, self._liveness, still, now, self.shunned)
        is_time = now >= self._apart_at
        self._apart_at = now + APART_MS if is_time else self._apart_at
        moves = plan.moves(look_at_hosts=is_time)
        if moves:
            self._drawn, self._moves_at = tables.counters.incarnation, now
            out.append(("move_replicas", {"moves": moves}))
        elif not plan.moving:
            out += self._prefer(tables, plan)
        return out

    def _still(self, tables: Tables, now: int) -> set[int]:
        """Groups that were being moved when they lost their leader: they wait, and nobody else."""
        since = self._leaderless
        self._leaderless = {
            group: since.get(group, now)
            for group in tables.moving
            if not self._liveness.leader(group, now)[0]
        }
        return {group for group, at in self._leaderless.items() if now - at >= STILL_MS}

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

    def _prefer(self, tables: Tables, plan: Plan) -> list[Command]:
        there, led = plan.there, tables.led
        if not there or not plan.all_are_there:
            return []  # somebody is away: wait how that ends
        if max(led.values(), default=0) - min(led[node] for node in there) < 2:
            return []
        partitions = [
            (group, topic.partitions[number].nodes)
            for group, (topic, number) in sorted(tables.groups.items())
        ]
        return [
            ("prefer_replica", {"group": group, "node": node})
            for group, node in balance.better_leaders(partitions, sorted(there))[:PREFERS_MAX]
        ]


def settled(
    tables: Tables, liveness: Liveness, partition: PartitionRow
) -> tuple[list[tuple[int, int]], bool]:
    """(leaving replicas that are certainly out of the group, the group is as it is wanted)."""
    # What one that is dead did by older orders, only that one may have told.
    members = liveness.members(partition.group, ask_all=True)
    if members is None:
        return [], False
    for node, _ in {*members, *partition.replicas}:
        row, life = tables.brokers.get(node), liveness.brokers.get(node)
        if row is None or life is None or life.incarnation != row.life:
            return [], False
        if life.version < partition.moved or not life.full_at:
            return [], False
    gone = [one for one in partition.leaving if one not in members]
    done = len(gone) == len(partition.leaving) and members == dict.fromkeys(
        partition.replicas, True
    )
    return gone, done
