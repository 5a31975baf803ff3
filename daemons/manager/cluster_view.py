"""What managers know from heartbeats alone: who is alive, who leads, sizes and offsets.

This is soft state (`daemons/DESIGN.md`): every manager receives the heartbeats of every broker, so
none of it goes through Raft, and a new leader of the managers has it already. It is lost with the
process and complete again after one full heartbeat of each broker, which ORDERS ask for (`more`).

A broker that is silent for 1.2 s counts as dead: clients are no longer sent to it, long before its
groups elect new leaders. The brokers report which of them leads a group. If two claim it, the
higher term is right; if that broker is silent, the group has no known leader.

Times: `now` is the monotonic clock in ms, `wall_ms` is for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from myqueue.errors import InvalidRequest
from myqueue.wire import protocol

BROKER_SILENT_AFTER_MS: Final = 1200
MANAGER_SILENT_AFTER_MS: Final = 3500  # managers send a heartbeat once a second

_int, _text, _bool = protocol.is_int, protocol.is_text, protocol.is_bool
_ints = protocol.list_of(_int)
_pairs = protocol.list_of(protocol.row(_int, _int))
REPORTED_ROWS_MAX: Final = 20  # damaged segments, and closed replicas, in one heartbeat
TEXT_CHARACTERS_MAX: Final = 1000
HEALTH_CHARACTERS_MAX: Final = 32
CLOSED_MAX: Final = 1000  # closed replicas of one broker
UNHEALTHY_MAX: Final = 1000  # replicas that are not healthy, in one heartbeat


def _is_damage_list(value: Any) -> bool:
    """Whether it lists segments under repair: short maps of texts and numbers, for people."""
    return (
        type(value) is list and len(value) <= REPORTED_ROWS_MAX and all(map(_is_damage_row, value))
    )


def _is_damage_row(one: Any) -> bool:
    texts, numbers = ("segment", "found", "what", "state"), ("position", "since_ms")
    return (
        type(one) is dict
        and all(_text(one.get(name)) and len(one[name]) <= TEXT_CHARACTERS_MAX for name in texts)
        and all(_int(one.get(name)) for name in numbers)
        and _ints(one.get("groups"))
        and len(one["groups"]) <= REPORTED_ROWS_MAX
    )


def _is_closed_list(value: Any) -> bool:
    """Whether it lists closed replicas and kept logs: short maps, for people."""
    return (
        type(value) is list and len(value) <= REPORTED_ROWS_MAX and all(map(_is_closed_row, value))
    )


def _is_closed_row(one: Any) -> bool:
    texts, numbers = ("partition", "why", "kept"), ("group", "replica", "since_ms")
    return (
        type(one) is dict
        and all(_text(one.get(name)) and len(one[name]) <= TEXT_CHARACTERS_MAX for name in texts)
        and all(_int(one.get(name)) for name in numbers)
    )


def _is_health_list(value: Any) -> bool:
    """Whether it lists [group, incarnation, health]; newer brokers may have other words for it."""
    return _health_rows(value) and len(value) <= UNHEALTHY_MAX


_health_rows = protocol.list_of(
    protocol.row(_int, _int, lambda word: _text(word) and len(word) <= HEALTH_CHARACTERS_MAX)
)
_members = protocol.list_of(protocol.row(_int, _int, _bool))
_BROKER_FIELDS: Final[dict[str, Callable[[Any], bool]]] = {
    "disk": _text,
    "incarnation": _int,
    "address": _text,
    "peer": _text,
    "host": _text,
    "version": _int,
    "full": _bool,
    "groups": protocol.list_of(
        protocol.row(_int, _int, _bool, _int, _int, _int, _int, _int, protocol.optional(_members))
    ),
    "held": protocol.optional(_pairs),
    "lost": _pairs,
    "producers": _ints,
    "consumers": _ints,
    "disk_low": _bool,
    "free_bytes": _int,
    "used_bytes": _int,
    "load": _int,
    "damaged": _is_damage_list,
    "closed": _is_closed_list,
    "closed_from": _int,
    "closed_total": protocol.optional(_int),
    "health": _is_health_list,
    "reads_changes": _bool,
}
_OPTIONAL: Final[dict[str, Any]] = {
    "held": None,
    "lost": [],
    "used_bytes": 0,
    "damaged": [],
    "closed": [],
    "closed_from": 0,
    "closed_total": None,
    "health": [],
    "reads_changes": False,
    "blank": False,
}
_MANAGER_FIELDS: Final[dict[str, Callable[[Any], bool]]] = {
    "disk": _text,
    "incarnation": _int,
    "address": _text,
    "peer": _text,
    "host": _text,
    "applied": _int,
    "producers": _pairs,
    "consumers": _pairs,
    "damaged": _is_damage_list,
    "closed": _is_closed_list,
    "blank": _bool,
}


def parse_heartbeat(
    state: dict[str, Any], fields: dict[str, Callable[[Any], bool]]
) -> dict[str, Any]:
    """Check the known fields and return them; fields of newer versions are left out."""
    known: dict[str, Any] = {}
    for name, fits in fields.items():
        value = known[name] = state.get(name, _OPTIONAL.get(name))
        if not fits(value):
            raise InvalidRequest(f"{name} of a heartbeat is malformed")
    return known


def client_url(address: str) -> str:
    """The URL of a client listener; settings may name it without its scheme."""
    return address if "://" in address else f"tcp://{address}"


class ReplicaReport(NamedTuple):
    """What one broker reports about its replica of one group."""

    leads: bool
    term: int
    leader: int  # node; as this replica knows it
    start: int
    end: int
    bytes: int
    members: list[list[int]] | None = None  # from the leader: [node, incarnation, votes], committed


@dataclass(slots=True)
class BrokerStatus:
    """One broker process, as its heartbeats describe it."""

    incarnation: int
    since: int  # alive without a gap since then
    beat_at: int = 0
    beat_wall_ms: int = 0
    disk: str = ""
    address: str = ""
    peer: str = ""
    host: str = ""
    version: int = 0  # of the orders that it follows
    disk_low: bool = False
    free_bytes: int = 0
    used_bytes: int = 0  # by its log and store
    load: int = 0  # messages per second
    held: dict[int, int] = field(default_factory=dict)  # group -> incarnation of its replica
    held_changes: int = 0  # how often `held` or `unusable` changed
    leader_changes: int = 0  # how often it began or ceased to lead a group
    # Replicas that can't take part: those to rebuild, and those that are being removed.
    unusable: dict[int, int] = field(default_factory=dict)
    full_heartbeat_at: int = 0  # 0: no full heartbeat yet
    full_heartbeat_version: int = 0  # the version of orders that it followed then
    reported_groups: set[int] = field(default_factory=set)
    damaged: list[dict[str, Any]] = field(default_factory=list)  # segments under repair
    # Closed replicas by their place in the whole list; a heartbeat carries a part of it.
    closed_rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    # Group -> health of its replica, if not healthy; for people, and perhaps not complete.
    health: dict[int, str] = field(default_factory=dict)
    reads_changes: bool = False  # orders may name changes only, and come in parts

    def take_closed(self, first: int, total: int | None, rows: list[dict[str, Any]]) -> None:
        """Store rows of the list from `first` on. `total` is its length; None: these are all."""
        end = min(len(rows) if total is None else total, CLOSED_MAX)
        self.closed_rows |= enumerate(rows, first)
        self.closed_rows = {at: row for at, row in self.closed_rows.items() if at < end}

    @property
    def closed(self) -> list[dict[str, Any]]:
        """The rows in order, each once: while the list changes, a row may stand at two places."""
        rows = [self.closed_rows[at] for at in sorted(self.closed_rows)]
        return list({(row["group"], row["replica"]): row for row in rows}.values())

    def has(self, group: int) -> bool:
        """Whether it has a replica of the group that takes part."""
        return group in self.held and group not in self.unusable

    def holds_replica(self, group: int, incarnation: int) -> bool:
        """Whether it has this replica, or one that no longer knows its incarnation."""
        return self.held.get(group, -1) in (incarnation, 0)


@dataclass(slots=True)
class ManagerStatus:
    """One manager, as its heartbeats describe it."""

    beat_at: int
    beat_wall_ms: int
    disk: str
    address: str
    peer: str
    host: str
    applied: int
    producers: list[tuple[int, int]] = field(default_factory=list)  # (id, last seen)
    consumers: list[tuple[int, int]] = field(default_factory=list)
    damaged: list[dict[str, Any]] = field(default_factory=list)
    closed: list[dict[str, Any]] = field(default_factory=list)
    blank: bool = False  # its log has no entry


class ClusterView:
    """Liveness, leaders, offsets and sizes, from the heartbeats this manager received."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerStatus] = {}
        self.managers: dict[int, ManagerStatus] = {}
        self._reports: dict[int, dict[int, ReplicaReport]] = {}  # group -> node -> report
        self.disk_low_changes = 0  # how often any broker began or ceased to lack room
        self._last_tick_at = 0  # the last tick of this process
        self._observing_since = -1  # this process has ticked without a gap since then

    # -- heartbeats ----------------------------------------------------------------------------

    def receive_broker_heartbeat(
        self, node: int, state: dict[str, Any], now: int, wall_ms: int
    ) -> BrokerStatus:
        """Store a BEAT of a broker. Raises InvalidRequest, and then changes nothing."""
        beat = parse_heartbeat(state, _BROKER_FIELDS)
        life = self.brokers.get(node)
        if life is None or life.incarnation != beat["incarnation"]:
            self._forget_reports(node)
            self.disk_low_changes += 1
            life = self.brokers[node] = BrokerStatus(beat["incarnation"], since=now)
        elif now - life.beat_at > BROKER_SILENT_AFTER_MS:
            life.since = now
        life.beat_at, life.beat_wall_ms = now, wall_ms
        life.disk, life.address, life.peer = beat["disk"], client_url(beat["address"]), beat["peer"]
        life.host, life.version, life.load = beat["host"], beat["version"], beat["load"]
        self.disk_low_changes += life.disk_low != beat["disk_low"]
        life.disk_low, life.free_bytes = beat["disk_low"], beat["free_bytes"]
        life.used_bytes, life.damaged = beat["used_bytes"], beat["damaged"]
        unusable, life.reads_changes = dict(beat["lost"]), beat["reads_changes"]
        life.held_changes += unusable != life.unusable
        life.unusable = unusable
        life.take_closed(beat["closed_from"], beat["closed_total"], beat["closed"])
        life.health = {group: word for group, _, word in beat["health"]}
        if beat["full"] and beat["held"] is not None:
            held = dict(beat["held"])
            life.held_changes += held != life.held
            life.held, life.full_heartbeat_at = held, now
            life.full_heartbeat_version = beat["version"]
            for group in life.reported_groups - set(life.held):
                self._forget_report(node, group)
            life.reported_groups &= set(life.held)
        for group, incarnation, *fields in beat["groups"]:
            life.reported_groups.add(group)
            life.held_changes += life.held.get(group) != incarnation
            life.held[group] = incarnation
            report, reports = ReplicaReport(*fields), self._reports.setdefault(group, {})
            before = reports.get(node)
            life.leader_changes += before is None or before.leads != report.leads
            reports[node] = report
        for group in [one["group"] for one in beat["closed"] if one["group"] in life.unusable]:
            self._forget_report(node, group)  # it no longer leads, and no newer report will follow
            life.reported_groups.discard(group)
        return life

    def _forget_reports(self, node: int) -> None:
        life = self.brokers.get(node)
        for group in life.reported_groups if life else ():
            self._forget_report(node, group)

    def _forget_report(self, node: int, group: int) -> None:
        reports = self._reports.get(group)
        if reports is not None:
            reports.pop(node, None)
            if not reports:
                del self._reports[group]

    def receive_manager_heartbeat(
        self, node: int, state: dict[str, Any], now: int, wall_ms: int
    ) -> ManagerStatus:
        """Store a BEAT of another manager."""
        beat = parse_heartbeat(state, _MANAGER_FIELDS)
        beat.pop("incarnation")
        beat["address"] = client_url(beat["address"])
        life = self.managers[node] = ManagerStatus(now, wall_ms, **beat)
        return life

    # -- who lives and leads -------------------------------------------------------------------

    def has_active_replica(self, node: int, group: int, now: int, incarnation: int = 0) -> bool:
        """Whether the broker is alive and its replica takes part: the named one, if one is named.

        A replica that was rebuilt on the same broker has nothing of the one before.
        """
        life = self.brokers.get(node)
        if life is None or not self.is_broker_alive(node, now) or not life.has(group):
            return False
        return not incarnation or life.holds_replica(group, incarnation)

    def is_broker_alive(self, node: int, now: int) -> bool:
        life = self.brokers.get(node)
        return life is not None and now - life.beat_at <= BROKER_SILENT_AFTER_MS

    def broker_alive_ms(self, node: int, now: int) -> int:
        """How long it has been alive without a gap, in ms; -1 if it is silent."""
        life = self.brokers.get(node)
        return now - life.since if life is not None and self.is_broker_alive(node, now) else -1

    def note_tick(self, now: int) -> None:
        """Note a tick. After a gap between ticks, silence is counted from now."""
        if self._observing_since < 0 or now - self._last_tick_at > BROKER_SILENT_AFTER_MS:
            self._observing_since = now
        self._last_tick_at = now

    def broker_silent_ms(self, node: int, disk: str, now: int) -> int:
        """For how many ms this broker, with this disk, has certainly sent no heartbeat to us."""
        if self._observing_since < 0:
            return 0
        life = self.brokers.get(node)
        seen_at = life.beat_at if life is not None and life.disk == disk else 0
        return now - max(seen_at, self._observing_since)

    def is_manager_alive(self, node: int, now: int) -> bool:
        life = self.managers.get(node)
        return life is not None and now - life.beat_at <= MANAGER_SILENT_AFTER_MS

    def health_of(self, nodes: Iterable[int], group: int, now: int) -> dict[int, str]:
        """Live broker -> health of its replica, of those whose replica is not healthy."""
        return {
            node: self.brokers[node].health[group]
            for node in nodes
            if self.is_broker_alive(node, now) and group in self.brokers[node].health
        }

    def silent_brokers(self, nodes: Iterable[int], now: int) -> list[int]:
        return sorted(node for node in nodes if not self.is_broker_alive(node, now))

    def leader_of(self, group: int, now: int) -> tuple[int, int]:
        """(node, term) of a group's leader; node 0: no leader is known."""
        best, term = 0, 0
        for node, report in self._reports.get(group, {}).items():
            if report.leads and report.term >= term:
                best, term = node, report.term
        return (best if best and self.is_broker_alive(best, now) else 0), term

    def best_report(self, group: int) -> ReplicaReport | None:
        """The best report about a group: that of its leader, else of the longest replica."""
        reports = self._reports.get(group)
        if not reports:
            return None
        return max(
            reports.values(),
            key=lambda one: (
                one.leads,
                one.term if one.leads else 0,
                one.end,
                one.start,
                one.bytes,
            ),
        )

    def members_of(
        self, group: int, *, include_dead: bool = False
    ) -> dict[tuple[int, int], bool] | None:
        """Replica -> whether it votes, by the committed configuration of the newest leader.

        None if it is not known: no member leads, or a member knows a later term, in which the
        configuration may have changed. A later term counts from members alone, as a replica that
        is no member cannot be elected. While a majority of the voters is alive and reports, the
        terms of dead members are ignored: a candidate that died before any voter followed it was
        not elected, and if one did, the voters would report it. A report may be late, though. So
        before a step that cannot be taken back, `include_dead` counts the dead members' terms too.
        """
        reports = self._reports.get(group, {})
        for report in sorted(reports.values(), key=lambda one: -one.term):
            if report.leads and report.members is not None:
                nodes = {node for node, _, _ in report.members}
                alive = {node for node in nodes if self.is_broker_alive(node, self._last_tick_at)}
                voters = [node for node, _, votes in report.members if votes]
                reporting = sum(node in alive and node in reports for node in voters)
                if not include_dead and 2 * reporting > len(voters):
                    nodes = alive
                newest = max((reports[node].term for node in nodes if node in reports), default=0)
                if newest <= report.term:
                    return {(node, number): bool(votes) for node, number, votes in report.members}
        return None

    def is_without_leader(self, node: int, group: int, incarnation: int) -> bool:
        """Whether this replica exists there and no leader of its group has contacted it."""
        life, report = self.brokers.get(node), self._reports.get(group, {}).get(node)
        if life is None or report is None or life.held.get(group) != incarnation:
            return False
        return not report.leads and not report.leader

    def follows_any_leader(self, node: int) -> bool:
        """Whether the leader of any group on another broker reaches it."""
        life = self.brokers.get(node)
        leaders = (self._reports[uid][node].leader for uid in life.reported_groups) if life else ()
        return any(leader not in (0, node) for leader in leaders)

    def groups_led_by(self, node: int) -> list[int]:
        """The groups that this broker reports to lead."""
        life = self.brokers.get(node)
        groups = sorted(life.reported_groups) if life else []
        return [group for group in groups if self._reports[group][node].leads]


class ClientActivity:
    """When clients were last seen, in wall time; collected here and logged in batches.

    `direct` came from the clients themselves: a follower sends it to the leader. `reported` came
    from heartbeats of brokers, which every manager receives, or of other managers: only the leader
    logs it. Followers keep it for a while in case they are elected.
    """

    def __init__(self) -> None:
        self.direct: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.reported: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.recent: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def record(self, kind: int, number: int, wall_ms: int, *, is_direct: bool) -> None:
        """Note a sign of life. `kind` is 0 for a producer, 1 for a consumer."""
        table = (self.direct if is_direct else self.reported)[kind]
        table[number] = max(table.get(number, 0), wall_ms)
        self.recent[kind][number] = max(self.recent[kind].get(number, 0), wall_ms)

    def take(self, most: int, *, direct_only: bool) -> dict[str, list[list[int]]]:
        """Remove and return at most `most` clients of each kind."""
        out: dict[str, list[list[int]]] = {}
        for kind, name in enumerate(("producers", "consumers")):
            taken = _pop_first(self.direct[kind], most)
            if not direct_only:
                for number, wall_ms in _pop_first(self.reported[kind], most).items():
                    taken[number] = max(taken.get(number, 0), wall_ms)
            out[name] = [[number, wall_ms] for number, wall_ms in sorted(taken.items())]
        return out

    def forget_before(self, wall_ms: int) -> None:
        """Forget signs of life before that time: followers never log them."""
        for table in (*self.reported, *self.recent):
            for number in [number for number, at in table.items() if at < wall_ms]:
                del table[number]

    def last_seen_wall_ms(self, kind: int, number: int) -> int:
        return self.recent[kind].get(number, 0)


def _pop_first(table: dict[int, int], most: int) -> dict[int, int]:
    taken = dict(list(table.items())[:most])
    for number in taken:
        del table[number]
    return taken
