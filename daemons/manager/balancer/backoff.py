"""Brokers that get no replicas for a while, although they are alive and seem to have room.

Comes in: the tables, what brokers report, the time. Goes out: these brokers, for the plan, and
moves to them that must go elsewhere. There are two reasons:

- *low disk*: its disk ran out of room lately. Moves to it were called off, so now it has room and
  the fewest replicas: without a memory the same copies would begin again for ever. If no other
  broker can take a missing replica, this one may get it all the same.
- *unreachable*: managers receive its heartbeats, but a group's leader does not reach it: its peer
  address is wrong, or a firewall is between them. The replica that it created receives nothing and
  reports that it knows no leader. Then that group does not go there, and if none of the broker's
  replicas knows a leader, no other group does.

Each time within a day the pause is twice as long. Only the managers' leader remembers this, and it
is about pace only: a new leader starts without it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from myqueue.daemons.manager.cluster_view import ClusterView
from myqueue.daemons.metadata.records import PartitionRow
from myqueue.daemons.metadata.tables import Tables

K = TypeVar("K", bound=Hashable)
UNREACHABLE_AFTER_MS: Final = 30_000  # a new replica knows no leader, although there is one
PAUSE_MS_MIN: Final = 30_000
PAUSE_MS_MAX: Final = 3_600_000
FORGET_AFTER_MS: Final = 86_400_000
SAME_EVENT_GAP_MS: Final = 5000  # notes closer than this belong to one event


class Backoff(Generic[K]):
    """A pause for each key: twice as long each time within a day."""

    def __init__(self) -> None:
        self._last_noted: dict[K, tuple[int, int]] = {}  # key -> time of the last note, pause

    def note(self, key: K, now: int) -> None:
        """Note that the reason holds now; begins a pause, or prolongs the current one."""
        at, pause = self._last_noted.get(key, (now, 0))
        if not pause or now - at > SAME_EVENT_GAP_MS:  # a new event
            pause = min(PAUSE_MS_MAX, max(PAUSE_MS_MIN, 2 * pause))
        self._last_noted[key] = now, pause

    def active(self, now: int) -> set[K]:
        """Keys whose pause is not over."""
        last = self._last_noted.items()
        self._last_noted = {
            key: (at, pause) for key, (at, pause) in last if now - at < FORGET_AFTER_MS
        }
        return {key for key, (at, pause) in self._last_noted.items() if now < at + pause}

    def forget(self, key: K) -> None:
        self._last_noted.pop(key, None)


class BrokerBackoff:
    """The brokers to spare now. `stuck_moves`: (group, node) of moves that make no progress,
    `recent_targets`: those that made none some time ago.
    """

    def __init__(self) -> None:
        self.low_disk_brokers, self.unreachable_brokers = set[int](), set[int]()
        self.stuck_moves: list[tuple[int, int]] = []
        self.recent_targets: set[tuple[int, int]] = set()
        self._low_disk_backoff, self._unreachable_backoff = Backoff[int](), Backoff[int]()
        self._target_backoff = Backoff[tuple[int, int]]()
        # (group, node) -> since when that replica knows no leader.
        self._without_leader_since: dict[tuple[int, int], int] = {}
        # Unreachable broker -> its peer address and incarnation then.
        self._address_when_unreachable: dict[int, tuple[str, int]] = {}

    def update(self, tables: Tables, cluster_view: ClusterView, now: int) -> None:
        for node in tables.brokers:
            life = cluster_view.brokers.get(node)
            if life is not None and life.disk_low:
                self._low_disk_backoff.note(node, now)
        since, self._without_leader_since = self._without_leader_since, {}
        for group in tables.moving:
            partition = tables.partition(group)
            if partition is None:
                continue
            for node in _learners_without_leader(cluster_view, partition, now):
                self._without_leader_since[group, node] = since.get((group, node), now)
        self.stuck_moves = [
            move
            for move, at in self._without_leader_since.items()
            if now - at >= UNREACHABLE_AFTER_MS
        ]
        self._forget_restarted(cluster_view)
        for group, node in self.stuck_moves:
            self._target_backoff.note((group, node), now)
            self._unreachable_backoff.note(node, now)
            self._address_when_unreachable[node] = _address_and_incarnation(cluster_view, node)
        self.low_disk_brokers = self._low_disk_backoff.active(now)
        self.recent_targets = self._target_backoff.active(now)
        self.unreachable_brokers = {
            node
            for node in self._unreachable_backoff.active(now)
            if node in tables.brokers and not cluster_view.follows_any_leader(node)
        }

    def _forget_restarted(self, cluster_view: ClusterView) -> None:
        """Forget pauses of brokers that were restarted, with another address for example."""
        for node in [
            broker
            for broker, address in self._address_when_unreachable.items()
            if address != _address_and_incarnation(cluster_view, broker)
        ]:
            del self._address_when_unreachable[node]
            self._unreachable_backoff.forget(node)
            for target in [target for target in self.recent_targets if target[1] == node]:
                self._target_backoff.forget(target)


def _address_and_incarnation(cluster_view: ClusterView, node: int) -> tuple[str, int]:
    life = cluster_view.brokers.get(node)
    return (life.peer, life.incarnation) if life is not None else ("", 0)


def _learners_without_leader(
    cluster_view: ClusterView, partition: PartitionRow, now: int
) -> list[int]:
    """Brokers whose replica is a learner of this group and knows no leader."""
    leader = cluster_view.leader_of(partition.group, now)[0]
    members = cluster_view.members_of(partition.group)
    if not leader or members is None:
        return []
    return [
        node
        for node, drawn in partition.replicas
        if node != leader
        and members.get((node, drawn)) is False
        and cluster_view.is_broker_alive(node, now)
        and cluster_view.is_without_leader(node, partition.group, drawn)
    ]
