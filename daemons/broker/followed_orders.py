"""The orders that this broker follows: replicas it should hold, and addresses of brokers.

Orders state what managers have committed. A broker follows those of the highest version that it has
seen, of managers that have applied the registration of this process (`life`). So it never follows
orders older than those that an earlier life of it followed. A group that is neither wanted nor to
be removed stays, and is reported. Addresses of brokers alone are accepted from any manager: without
them a restarted broker could reach no other as long as the managers have no leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from myqueue.daemons.broker.orders import BrokerOrders, OrdersMessage, WantedReplica, is_held
from myqueue.daemons.broker.rebuilds import MISSING, MissingReplicas

if TYPE_CHECKING:
    from myqueue.daemons.raft.health import Unhealthy
    from myqueue.daemons.replication.engine import Engine


class FollowedOrders:
    """What the managers ordered last. `Broker` carries it out."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.version = 0
        self.wanted: dict[int, WantedReplica] = {}
        self.missing = MissingReplicas(engine)
        self._addresses_version = 0
        self.broker_addresses: dict[int, str] = {}  # node -> address of its client listener

    def accept(self, message: OrdersMessage) -> BrokerOrders:
        """Store orders for this life that are not older; return what the broker must carry out."""
        version, transfers = message.version, message.transfers
        self._accept_addresses(version, message.brokers)
        if message.life != self._engine.incarnation or version < self.version:
            return BrokerOrders([], None, [])
        if message.since is not None and message.since > self.version:
            return BrokerOrders([], None, transfers)  # what changed before is missing
        if message.wanted is None:
            # A manager that believes we follow newer orders has more to say than removals.
            gone = message.gone if version == self.version else []
            return BrokerOrders(self._groups_to_remove(gone), None, transfers)
        self.version = version
        wanted = {replica.group: replica for replica in message.wanted}
        unwanted = None if message.since is None else message.unwanted
        if unwanted is None:
            self.wanted = wanted
        else:
            self.wanted |= wanted
            for group in unwanted:
                self.wanted.pop(group, None)
        self.missing.update(self.wanted.values(), message.life_from)
        return BrokerOrders(self._groups_to_remove(message.gone), wanted, transfers, unwanted)

    def _accept_addresses(self, version: int, rows: list[tuple[int, str, str]]) -> None:
        if version < self._addresses_version:
            return
        for node, address, peer_address in rows:
            self._addresses_version = version
            self.broker_addresses[node] = address
            if node != self._engine.node:
                self._engine.set_peer_address(("broker", node), peer_address)

    def _groups_to_remove(self, gone: list[tuple[int, int]]) -> list[int]:
        """Return the groups of which `gone`, rows [group, incarnation], names the replica here.

        If the log lost the replica's id, any incarnation of its group names it.
        """
        if not gone:
            return []
        held = self._engine.held()
        named = (group for group, incarnation in gone if is_held(held, group, incarnation))
        return list(dict.fromkeys(named))

    def replicas_to_create(self, among: Iterable[int]) -> list[WantedReplica]:
        """Return those wanted replicas of these groups that are not here.

        Missing ones are rebuilt under another id. A group of which any replica is here waits until
        that one is removed.
        """
        engine = self._engine
        return [
            replica
            for group in among
            if (replica := self.wanted.get(group)) is not None
            and group not in engine.replicas
            and group not in engine.not_open
            and group not in self.missing.incarnations
            and replica.incarnation(engine.node)
        ]

    def unhealthy(self) -> dict[int, Unhealthy]:
        """Group -> health of each replica that is not HEALTHY; some are not on this disk."""
        return self._engine.unhealthy() | dict.fromkeys(self.missing.incarnations, MISSING)
