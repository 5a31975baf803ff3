"""ORDERS of the managers: the replicas that this broker should hold, to remove, to transfer.

`ManagerLink` decides which orders are followed; `Broker` carries them out. `create_replica` makes
one wanted replica with the members that its group begins with. What a broker has to know of a group
without any manager is stored with the group: `pack_about` and `unpack_about`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from myqueue.daemons.raft.types import incarnation_of, node_of, replica_id
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine


class WantedReplica(NamedTuple):
    """One group that this broker should hold."""

    group: int
    topic: str
    number: int  # of the partition in its topic
    topic_uid: int
    replicas: list[list[int]]  # [node, incarnation]; the first is the preferred leader
    settings: dict[str, Any]  # of the topic
    leaving: list[list[int]]  # [node, incarnation]; may be members still
    moved: int  # 0: the wanted replicas are the group's founders
    # (node, incarnation) of each founder, while the group may not be founded yet
    founders: tuple[tuple[int, int], ...] = ()

    def incarnation(self, node: int) -> int:
        """Return the incarnation of the replica that this node should hold; 0: none."""
        return next((incarnation for holder, incarnation in self.replicas if holder == node), 0)

    def members(self) -> tuple[int, ...]:
        """Return the replica ids of all that are wanted."""
        return tuple(replica_id(node, incarnation) for node, incarnation in self.replicas)


class BrokerOrders(NamedTuple):
    """What a broker has to do after an answer of a manager."""

    remove: list[int]  # groups
    wanted: dict[int, WantedReplica] | None  # by group; None: as before
    transfers: list[tuple[int, int]]  # (group, node of the next leader)
    unwanted: list[int] | None = None  # None: `wanted` are all; else those that are wanted no more


class OrdersMessage(NamedTuple):
    """The contents of one ORDERS, every field read and checked for its type."""

    version: int
    life: int  # the incarnation of the process that the orders are for
    life_from: int  # replicas of lower incarnations were created in earlier lives
    wanted: list[WantedReplica] | None  # None: as before
    gone: list[tuple[int, int]]  # (group, incarnation) of replicas to remove
    transfers: list[tuple[int, int]]  # (group, node of the next leader)
    brokers: list[tuple[int, str, str]]  # (node, address, peer address)
    more: bool  # the managers need a full heartbeat
    wall_ms: int  # 0: not sent
    managers: list[int]
    since: int | None  # `wanted` are those that changed since this version; None: all
    unwanted: list[int]  # changed since then, too: groups that are wanted no more
    part: int
    parts: int


def parse_orders(orders: Mapping[str, Any]) -> OrdersMessage:
    """Read a whole ORDERS. Malformed ones raise KeyError, TypeError or ValueError."""
    return OrdersMessage(
        int(orders["version"]),
        int(orders["life"]),
        int(orders["life_from"]),
        None if orders["wanted"] is None else wanted_replicas(orders),
        [(int(group), int(incarnation)) for group, incarnation in orders["gone"] or ()],
        [(int(group), int(node)) for group, node in orders["transfers"]],
        [(int(node), str(client), str(peer)) for node, client, peer, _ in orders["brokers"] or ()],
        bool(orders["more"]),
        int(orders.get("wall_ms", 0)),
        [int(node) for node in orders.get("managers", ())],
        None if orders.get("since") is None else int(orders["since"]),
        [int(group) for group in orders.get("unwanted", ())],
        int(orders.get("part", 0)),
        int(orders.get("parts", 1)),
    )


class OrdersParts:
    """Joins the parts of long orders of one manager, which come one after another."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[OrdersMessage] = []

    def join(self, message: OrdersMessage) -> OrdersMessage | None:
        """Return whole orders; None while parts are missing. Parts without the first are lost."""
        if message.parts <= 1:
            return message
        if message.part == 0:
            self._parts = []
        named = message.version, message.life, message.since, message.parts
        fits = all((one.version, one.life, one.since, one.parts) == named for one in self._parts)
        if message.wanted is None or message.part != len(self._parts) or not fits:
            self._parts = []
            return None
        self._parts.append(message)
        if len(self._parts) < message.parts:
            return None
        first, self._parts, parts = self._parts[0], [], self._parts
        return first._replace(wanted=[row for part in parts for row in part.wanted or ()])


class About(NamedTuple):
    """What is stored with a group: its partition, and the topic's settings at its creation."""

    topic: str
    number: int
    topic_uid: int
    settings: dict[str, Any]


def pack_about(wanted: WantedReplica) -> bytes:
    return protocol.pack([wanted.topic, wanted.number, wanted.topic_uid, wanted.settings])


def unpack_about(about: bytes) -> About:
    return About(*protocol.unpack(about)[: len(About._fields)])  # a later version may add more


def wanted_replicas(orders: Mapping[str, Any]) -> list[WantedReplica]:
    """Read the wanted replicas of an ORDERS. Malformed ones raise TypeError or ValueError."""
    founders = {
        int(group): tuple((int(node), int(incarnation)) for node, incarnation in members)
        for group, members in orders.get("founders") or ()
    }
    return [
        WantedReplica(*row)._replace(founders=founders.get(row[0], ()))
        for row in orders["wanted"] or ()
    ]


def is_held(held: Mapping[int, int], group: int, incarnation: int) -> bool:
    """True if `held` (group -> replica id) has this replica, or one of an unknown incarnation."""
    return group in held and incarnation_of(held[group]) in (incarnation, 0)


def create_replica(engine: Engine, wanted: WantedReplica) -> None:
    """Create the replica that was named for this broker. Raises what `Engine.create` raises.

    Founders know each other. A replica that comes later, or finds the group changed already,
    learns from its log which members vote; until then it neither votes for itself nor counts.
    A founder that is created late has never voted. If its group may still be unfounded, it is
    created with all founders as voters, so that they can elect a leader.
    """
    own_incarnation = wanted.incarnation(engine.node)
    own = replica_id(engine.node, own_incarnation)
    members = [replica_id(*member) for member in (*wanted.replicas, *wanted.leaving)]
    about = pack_about(wanted)
    if (engine.node, own_incarnation) in wanted.founders:
        founders = [replica_id(node, incarnation) for node, incarnation in wanted.founders]
        engine.create(wanted.group, own, founders, (), about)
    elif wanted.moved:
        others = [member for member in members if node_of(member) != engine.node]
        engine.create(wanted.group, own, others, [own], about)
    else:
        replica = engine.create(wanted.group, own, members, (), about)
        if members[0] == own:
            engine.campaign_soon(replica)
