"""Brokers that are given no replicas for a while, though they live and seem to have room.

In: the tables, what brokers report, the time. Out: who they are, for the plan, and which moves to
them have to go elsewhere. Two reasons:

- *low*: its disk ran out of room lately. What was on its way there was called off, so it has room
  again, and the fewest replicas: without a memory the same copies would begin anew, for ever. Where
  nobody else can take a replica that is missing, it may be asked all the same.
- *unreached*: managers hear it, but the leader of a group does not: a wrong address for peers, or a
  wall between them. The replica that it made is told nothing, and says so in its reports. Then that
  group does not go there; and if none of its replicas knows a leader, no other does.

Each time within a day it is left alone for twice as long. The memory is of the managers' leader,
and about pace only: a new leader begins afresh.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from myqueue.daemons.manager.cluster_view import Liveness
from myqueue.daemons.metadata.records import PartitionRow
from myqueue.daemons.metadata.tables import Tables

K = TypeVar("K", bound=Hashable)
UNREACHED_MS: Final = 30_000  # a new replica knows no leader for so long, and there is one
AGAIN_MS_MIN: Final = 30_000
AGAIN_MS_MAX: Final = 3_600_000
FORGET_MS: Final = 86_400_000
GAP_MS: Final = 5000  # between two looks at what is the same


class Pauses(Generic[K]):
    """How long each of some things is left alone: twice as long each time within a day."""

    def __init__(self) -> None:
        self._last: dict[K, tuple[int, int]] = {}  # when it was so last, pause

    def note(self, one: K, now: int) -> None:
        """It is so now."""
        at, pause = self._last.get(one, (now, 0))
        if not pause or now - at > GAP_MS:  # it was well meanwhile
            pause = min(AGAIN_MS_MAX, max(AGAIN_MS_MIN, 2 * pause))
        self._last[one] = now, pause

    def under_way(self, now: int) -> set[K]:
        last = self._last.items()
        self._last = {one: (at, pause) for one, (at, pause) in last if now - at < FORGET_MS}
        return {one for one, (at, pause) in self._last.items() if now < at + pause}

    def forget(self, one: K) -> None:
        self._last.pop(one, None)


class Shunned:
    """See the module's docstring. `stuck`: (group, node) of moves that do not come to an end,
    `tried`: those of some time ago.
    """

    def __init__(self) -> None:
        self.low, self.unreached = set[int](), set[int]()
        self.stuck: list[tuple[int, int]] = []
        self.tried: set[tuple[int, int]] = set()
        self._low, self._unreached = Pauses[int](), Pauses[int]()
        self._tried = Pauses[tuple[int, int]]()
        self._untold: dict[tuple[int, int], int] = {}  # replicas that know no leader, since when
        self._noted: dict[
            int, tuple[str, int]
        ] = {}  # address for peers and life, of unreached ones

    def look(self, tables: Tables, liveness: Liveness, now: int) -> None:
        for node in tables.brokers:
            life = liveness.brokers.get(node)
            if life is not None and life.disk_low:
                self._low.note(node, now)
        since, self._untold = self._untold, {}
        for group in tables.moving:
            partition = tables.partition(group)
            for node in _untold(liveness, partition, now) if partition is not None else ():
                self._untold[group, node] = since.get((group, node), now)
        self.stuck = [one for one, at in self._untold.items() if now - at >= UNREACHED_MS]
        self._forget_mended(liveness)
        for group, node in self.stuck:
            self._tried.note((group, node), now)
            self._unreached.note(node, now)
            self._noted[node] = _life(liveness, node)
        self.low, self.tried = self._low.under_way(now), self._tried.under_way(now)
        self.unreached = {
            one for one in self._unreached.under_way(now)
            if one in tables.brokers and not liveness.follows_anybody(one)
        }  # fmt: skip

    def _forget_mended(self, liveness: Liveness) -> None:
        """Whoever was started again, with another address say, begins anew."""
        for node in [one for one, was in self._noted.items() if was != _life(liveness, one)]:
            del self._noted[node]
            self._unreached.forget(node)
            for pair in [one for one in self.tried if one[1] == node]:
                self._tried.forget(pair)


def _life(liveness: Liveness, node: int) -> tuple[str, int]:
    life = liveness.brokers.get(node)
    return (life.peer, life.incarnation) if life is not None else ("", 0)


def _untold(liveness: Liveness, partition: PartitionRow, now: int) -> list[int]:
    """Where a replica that its leader made a learner knows of no leader."""
    leader = liveness.leader(partition.group, now)[0]
    members = liveness.members(partition.group)
    if not leader or members is None:
        return []
    return [
        node for node, drawn in partition.replicas
        if node != leader and members.get((node, drawn)) is False and liveness.alive(node, now)
        and liveness.knows_no_leader(node, partition.group, drawn)
    ]  # fmt: skip
