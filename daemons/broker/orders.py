"""ORDERS of the managers: the replicas that this broker should hold, to remove, to transfer.

`parse_orders` checks a whole ORDERS before anything of it is stored. `FollowedOrders` decides which
orders are followed; `Broker` carries them out. `create_replica` makes one wanted replica with the
members that its group begins with. What a broker has to know of a group without any manager is
stored with the group: `pack_about` and `unpack_about`.

Orders state what managers have committed. A broker follows those of the highest version that it has
seen, of managers that know this life of it. So it never follows orders older than those that an
earlier life of it followed. A group that is neither wanted nor to be removed stays, and is
reported. Addresses of brokers alone are accepted from any manager: without them a restarted broker
could reach no other as long as the managers have no leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from myqueue.daemons.broker.rebuilds import MISSING, MissingReplicas, is_held
from myqueue.daemons.raft.types import node_of, replica_id
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.raft.health import Unhealthy
    from myqueue.daemons.replication.engine import Engine

# Settings of topics that brokers read (`GroupQueues`, `Retention`); others are only stored.
SETTINGS_READ: Final = ("message_bytes_max", "retention_bytes", "retention_ms")


class WantedReplica(NamedTuple):
    """One group that this broker should hold."""

    group: int
    topic: str
    number: int  # of the partition in its topic
    topic_uid: int
    replicas: tuple[tuple[int, int], ...]  # (node, incarnation); the first should lead
    settings: dict[str, Any]  # of the topic
    leaving: tuple[tuple[int, int], ...]  # (node, incarnation); may be members still
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
    """The work of a broker after an answer of a manager."""

    remove: list[int]  # groups
    wanted: dict[int, WantedReplica] | None  # by group; None: as before
    transfers: list[tuple[int, int]]  # (group, node of the next leader)
    unwanted: list[int] | None = None  # None: `wanted` are all; else those that are wanted no more


class OrdersMessage(NamedTuple):
    """The contents of one ORDERS, every field read and checked for its type."""

    version: int
    life: int  # of the broker, that the orders are for: `Engine.incarnation`
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


def _row_of(*checks: protocol.Check) -> protocol.Check:
    """Check a list that begins with these fields; a later version may add more."""
    count = len(checks)

    def fits(value: Any) -> bool:
        return (
            type(value) is list
            and len(value) >= count
            and all(check(field) for check, field in zip(checks, value, strict=False))
        )

    return fits


def _is_settings(value: Any) -> bool:
    """True if it is a map in which the settings that brokers read are numbers."""
    return type(value) is dict and all(_int(value.get(name, 0)) for name in SETTINGS_READ)


_int, _text = protocol.is_int, protocol.is_text
_list, _optional = protocol.list_of, protocol.optional
_pairs = _list(_row_of(_int, _int))
_wanted_row = _row_of(_int, _text, _int, _int, _pairs, _is_settings, _pairs, _int)
_FIELDS: Final[dict[str, protocol.Check]] = {
    "version": _int,
    "life": _int,
    "life_from": _int,
    "wanted": _optional(_list(_wanted_row)),
    "founders": _list(_row_of(_int, _pairs)),
    "gone": _pairs,
    "transfers": _pairs,
    "brokers": _optional(_list(_row_of(_int, _text, _text))),
    "more": protocol.is_bool,
    "wall_ms": _int,
    "managers": _list(_int),
    "since": _optional(_int),
    "unwanted": _list(_int),
    "part": _int,
    "parts": _int,
}
_ABSENT: Final[dict[str, Any]] = {
    "founders": [],
    "wall_ms": 0,
    "managers": [],
    "since": None,
    "unwanted": [],
    "part": 0,
    "parts": 1,
}


def parse_orders(orders: Any) -> OrdersMessage:
    """Read a whole ORDERS. Raises ValueError, which names the first malformed field."""
    if type(orders) is not dict:
        raise ValueError("no map")
    fields = _ABSENT | orders
    for name, fits in _FIELDS.items():
        if name not in fields:
            raise ValueError(f"{name} is missing")
        if not fits(fields[name]):
            raise ValueError(f"{name} is malformed")
    wanted, founders = fields["wanted"], {row[0]: row[1] for row in fields["founders"]}
    return OrdersMessage(
        version=fields["version"],
        life=fields["life"],
        life_from=fields["life_from"],
        wanted=None
        if wanted is None
        else [_wanted_replica(row, founders.get(row[0], ())) for row in wanted],
        gone=[(group, incarnation) for group, incarnation, *_ in fields["gone"]],
        transfers=[(group, node) for group, node, *_ in fields["transfers"]],
        brokers=[(node, client, peer) for node, client, peer, *_ in fields["brokers"] or ()],
        more=fields["more"],
        wall_ms=fields["wall_ms"],
        managers=fields["managers"],
        since=fields["since"],
        unwanted=fields["unwanted"],
        part=fields["part"],
        parts=fields["parts"],
    )


def _wanted_replica(row: list[Any], founders: Iterable[list[int]]) -> WantedReplica:
    group, topic, number, topic_uid, replicas, settings, leaving, moved, *_ = row
    return WantedReplica(
        group=group,
        topic=topic,
        number=number,
        topic_uid=topic_uid,
        replicas=_replica_names(replicas),
        settings=settings,
        leaving=_replica_names(leaving),
        moved=moved,
        founders=_replica_names(founders),
    )


def _replica_names(rows: Iterable[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((node, incarnation) for node, incarnation, *_ in rows)


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
    """The record stored with a group: its partition, and the topic's settings at its creation."""

    topic: str
    number: int
    topic_uid: int
    settings: dict[str, Any]


def pack_about(wanted: WantedReplica) -> bytes:
    return protocol.pack([wanted.topic, wanted.number, wanted.topic_uid, wanted.settings])


def unpack_about(about: bytes) -> About:
    return About(*protocol.unpack(about)[: len(About._fields)])  # a later version may add more


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


class FollowedOrders:
    """The last orders of the managers. `Broker` carries them out."""

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
