"""What managers know from beats alone: who lives, who leads what, how much is where.

Soft state (`DESIGN.md`): every manager hears every broker by itself, so nothing of this goes
through Raft, and a new leader of the managers knows it already. It is lost with the process, and
whole again when each broker has sent one full beat, which is asked for (`wants_full`).

A broker that is silent for 1.2 s is not alive: clients are not sent to it any more, long before
its replicas' peers agree about a new leader. Which broker leads a group is what the brokers say;
of two that claim it, the one of the higher term is right. If that one is silent, nobody is named.

Times: `now` is the monotonic clock in ms, `wall_ms` is for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from myqueue.errors import InvalidRequest
from myqueue.wire import protocol

SILENT_MS: Final = 1200
MANAGER_SILENT_MS: Final = 3500  # their beats come once a second

_int, _text, _bool = protocol.is_int, protocol.is_text, protocol.is_bool
_ints = protocol.list_of(_int)
_pairs = protocol.list_of(protocol.row(_int, _int))
DAMAGED_MAX: Final = 20  # segments that one daemon tells of
TOLD_CHARACTERS_MAX: Final = 1000
CLOSED_MAX: Final = 1000  # known of one broker


def _damaged(value: Any) -> bool:
    """Segments that are being repaired: short maps of texts and numbers, for people."""
    return type(value) is list and len(value) <= DAMAGED_MAX and all(map(_is_told, value))


def _is_told(one: Any) -> bool:
    texts, numbers = ("segment", "found", "what", "state"), ("position", "since_ms")
    return (
        type(one) is dict
        and all(_text(one.get(name)) and len(one[name]) <= TOLD_CHARACTERS_MAX for name in texts)
        and all(_int(one.get(name)) for name in numbers)
        and _ints(one.get("groups"))
        and len(one["groups"]) <= DAMAGED_MAX
    )


def _closed(value: Any) -> bool:
    """Replicas that contradict others, and what is kept of them: short maps, for people."""
    return type(value) is list and len(value) <= DAMAGED_MAX and all(map(_is_closed, value))


def _is_closed(one: Any) -> bool:
    texts, numbers = ("partition", "why", "kept"), ("group", "replica", "since_ms")
    return (
        type(one) is dict
        and all(_text(one.get(name)) and len(one[name]) <= TOLD_CHARACTERS_MAX for name in texts)
        and all(_int(one.get(name)) for name in numbers)
    )


_members = protocol.list_of(protocol.row(_int, _int, _bool))
_BROKER_FIELDS: Final[dict[str, Callable[[Any], bool]]] = {
    "disk": _text, "incarnation": _int, "address": _text, "peer": _text, "host": _text,
    "version": _int, "full": _bool,
    "groups": protocol.list_of(
        protocol.row(_int, _int, _bool, _int, _int, _int, _int, _int, protocol.optional(_members))
    ),
    "held": protocol.optional(_pairs), "lost": _pairs, "producers": _ints, "consumers": _ints,
    "disk_low": _bool, "free_bytes": _int, "used_bytes": _int, "load": _int, "damaged": _damaged,
    "closed": _closed, "closed_from": _int, "closed_total": protocol.optional(_int),
    "voteless": _pairs,
}  # fmt: skip
_OPTIONAL: Final[dict[str, Any]] = {
    "held": None, "lost": [], "used_bytes": 0, "damaged": [], "closed": [],
    "closed_from": 0, "closed_total": None, "voteless": [], "blank": False,
}  # fmt: skip
_MANAGER_FIELDS: Final[dict[str, Callable[[Any], bool]]] = {
    "disk": _text, "incarnation": _int, "address": _text, "peer": _text, "host": _text,
    "applied": _int, "producers": _pairs, "consumers": _pairs, "damaged": _damaged,
    "closed": _closed, "blank": _bool,
}  # fmt: skip


def check_beat(state: dict[str, Any], fields: dict[str, Callable[[Any], bool]]) -> dict[str, Any]:
    """The known fields, each of its type; fields of newer versions are left out."""
    known: dict[str, Any] = {}
    for name, fits in fields.items():
        value = known[name] = state.get(name, _OPTIONAL.get(name))
        if not fits(value):
            raise InvalidRequest(f"{name} of a beat is malformed")
    return known


def url(address: str) -> str:
    """A clients' door, as clients are told of it; settings may name it without its scheme."""
    return address if "://" in address else f"tcp://{address}"


class Report(NamedTuple):
    """What one broker says of one group."""

    leads: bool
    term: int
    leader: int  # node; as this replica knows it
    start: int
    end: int
    bytes: int
    members: list[list[int]] | None = None  # by its leader: [node, incarnation, votes], committed


@dataclass(slots=True)
class BrokerLife:
    """One life of one broker, as its beats tell it."""

    incarnation: int
    since: int  # alive without a gap since
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
    lost: dict[int, int] = field(default_factory=dict)  # those of them that can't take part
    full_at: int = 0  # 0: no full beat yet
    full_version: int = 0  # what it followed then
    reported: set[int] = field(default_factory=set)
    damaged: list[dict[str, Any]] = field(default_factory=list)  # segments under repair
    # Replicas that contradict others, by their place in the whole list: a beat has some of them.
    closed_rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    voteless: set[int] = field(default_factory=set)  # groups whose replica here misses something

    def take_closed(self, first: int, total: int | None, rows: list[dict[str, Any]]) -> None:
        """Rows of the list from `first` on, which has `total` now; None: these are all."""
        end = min(len(rows) if total is None else total, CLOSED_MAX)
        self.closed_rows |= enumerate(rows, first)
        self.closed_rows = {at: row for at, row in self.closed_rows.items() if at < end}

    @property
    def closed(self) -> list[dict[str, Any]]:
        """In their order; while the list changes its rows may stand at two places for a while."""
        rows = [self.closed_rows[at] for at in sorted(self.closed_rows)]
        return list({(row["group"], row["replica"]): row for row in rows}.values())

    def has(self, group: int) -> bool:
        """A replica that takes part."""
        return group in self.held and group not in self.lost

    def holds(self, group: int, incarnation: int) -> bool:
        """This one, or one that does not know its own name any more."""
        return self.held.get(group, -1) in (incarnation, 0)


@dataclass(slots=True)
class ManagerLife:
    beat_at: int
    beat_wall_ms: int
    disk: str
    address: str
    peer: str
    host: str
    applied: int
    producers: list[tuple[int, int]] = field(default_factory=list)  # that it heard of: (id, time)
    consumers: list[tuple[int, int]] = field(default_factory=list)
    damaged: list[dict[str, Any]] = field(default_factory=list)
    closed: list[dict[str, Any]] = field(default_factory=list)
    blank: bool = False  # its log has no entry


class Liveness:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerLife] = {}
        self.managers: dict[int, ManagerLife] = {}
        self._reports: dict[int, dict[int, Report]] = {}  # group -> node -> report
        self._watched_at = 0  # when this manager looked at the time last
        self._watching_since = -1  # without a gap; who was not heard since then may live

    # -- beats ---------------------------------------------------------------------------------

    def broker_beat(self, node: int, state: dict[str, Any], now: int, wall_ms: int) -> BrokerLife:
        """Take in a BEAT of a broker; raises InvalidRequest, and nothing was changed then."""
        beat = check_beat(state, _BROKER_FIELDS)
        life = self.brokers.get(node)
        if life is None or life.incarnation != beat["incarnation"]:
            self._forget_reports(node)
            life = self.brokers[node] = BrokerLife(beat["incarnation"], since=now)
        elif now - life.beat_at > SILENT_MS:
            life.since = now
        life.beat_at, life.beat_wall_ms = now, wall_ms
        life.disk, life.address, life.peer = beat["disk"], url(beat["address"]), beat["peer"]
        life.host, life.version, life.load = beat["host"], beat["version"], beat["load"]
        life.disk_low, life.free_bytes = beat["disk_low"], beat["free_bytes"]
        life.used_bytes, life.damaged = beat["used_bytes"], beat["damaged"]
        life.lost = dict(beat["lost"])
        life.take_closed(beat["closed_from"], beat["closed_total"], beat["closed"])
        life.voteless = {group for group, _ in beat["voteless"]}
        if beat["full"] and beat["held"] is not None:
            life.held, life.full_at = dict(beat["held"]), now
            life.full_version = beat["version"]
            for group in life.reported - set(life.held):
                self._forget_report(node, group)
            life.reported &= set(life.held)
        for group, incarnation, *fields in beat["groups"]:
            life.reported.add(group)
            life.held[group] = incarnation
            self._reports.setdefault(group, {})[node] = Report(*fields)
        for group in [one["group"] for one in beat["closed"] if one["group"] in life.lost]:
            self._forget_report(node, group)  # it leads no more, and nothing newer comes of it
            life.reported.discard(group)
        return life

    def _forget_reports(self, node: int) -> None:
        life = self.brokers.get(node)
        for group in life.reported if life else ():
            self._forget_report(node, group)

    def _forget_report(self, node: int, group: int) -> None:
        reports = self._reports.get(group)
        if reports is not None:
            reports.pop(node, None)
            if not reports:
                del self._reports[group]

    def manager_beat(self, node: int, state: dict[str, Any], now: int, wall_ms: int) -> ManagerLife:
        """Take in a BEAT of another manager."""
        beat = check_beat(state, _MANAGER_FIELDS)
        beat.pop("incarnation")
        beat["address"] = url(beat["address"])
        life = self.managers[node] = ManagerLife(now, wall_ms, **beat)
        return life

    # -- who lives and leads -------------------------------------------------------------------

    def has(self, node: int, group: int, now: int, incarnation: int = 0) -> bool:
        """It lives, and its replica takes part: this one, if it is named. What was made anew on the
        same broker has nothing of the one before.
        """
        life = self.brokers.get(node)
        if life is None or not self.alive(node, now) or not life.has(group):
            return False
        return not incarnation or life.holds(group, incarnation)

    def alive(self, node: int, now: int) -> bool:
        life = self.brokers.get(node)
        return life is not None and now - life.beat_at <= SILENT_MS

    def alive_for(self, node: int, now: int) -> int:
        """How long without a gap; -1 if it is silent."""
        life = self.brokers.get(node)
        return now - life.since if life is not None and self.alive(node, now) else -1

    def watch(self, now: int) -> None:
        """Called at every tick. Of the time in which this process stood still, it knows nothing."""
        if self._watching_since < 0 or now - self._watched_at > SILENT_MS:
            self._watching_since = now
        self._watched_at = now

    def silent_for(self, node: int, disk: str, now: int) -> int:
        """How long this broker, with this disk, was certainly not heard here."""
        if self._watching_since < 0:
            return 0
        life = self.brokers.get(node)
        heard_at = life.beat_at if life is not None and life.disk == disk else 0
        return now - max(heard_at, self._watching_since)

    def manager_alive(self, node: int, now: int) -> bool:
        life = self.managers.get(node)
        return life is not None and now - life.beat_at <= MANAGER_SILENT_MS

    def voteless(self, nodes: Iterable[int], group: int, now: int) -> list[int]:
        """Of these brokers those that live, and whose replica misses something: it can't vote."""
        return [
            node for node in nodes
            if self.alive(node, now) and group in self.brokers[node].voteless
        ]  # fmt: skip

    def silent(self, nodes: Iterable[int], now: int) -> list[int]:
        return sorted(node for node in nodes if not self.alive(node, now))

    def leader(self, group: int, now: int) -> tuple[int, int]:
        """(node, term) of a group's leader; node 0: none is known."""
        best, term = 0, 0
        for node, report in self._reports.get(group, {}).items():
            if report.leads and report.term >= term:
                best, term = node, report.term
        return (best if best and self.alive(best, now) else 0), term

    def report(self, group: int) -> Report | None:
        """What is known of a group at best: of the leader's replica, else of the longest one."""
        reports = self._reports.get(group)
        if not reports:
            return None
        return max(reports.values(), key=lambda one: (one.leads, one.term if one.leads else 0,
                                                      one.end, one.start, one.bytes))  # fmt: skip

    def members(self, group: int, *, ask_all: bool = False) -> dict[tuple[int, int], bool] | None:
        """Replica -> whether it votes, as the newest leader's committed configuration has it.

        None if that is not known: nobody leads, or a member knows of a later term, in which it may
        be another one by now. Who is no member can't be elected, whatever term it knows; nor is who
        stood, told so and died before anybody followed it: as long as most who vote are heard, one
        of them would tell. If beats come late, it has not told yet: for what can't be taken back,
        ask all, the dead too.
        """
        reports = self._reports.get(group, {})
        for report in sorted(reports.values(), key=lambda one: -one.term):
            if report.leads and report.members is not None:
                nodes = {node for node, _, _ in report.members}
                heard = {node for node in nodes if self.alive(node, self._watched_at)}
                voters = [node for node, _, votes in report.members if votes]
                told = sum(node in heard and node in reports for node in voters)
                if not ask_all and 2 * told > len(voters):
                    nodes = heard
                newest = max((reports[node].term for node in nodes if node in reports), default=0)
                if newest <= report.term:
                    return {(node, number): bool(votes) for node, number, votes in report.members}
        return None

    def knows_no_leader(self, node: int, group: int, incarnation: int) -> bool:
        """This replica was made there, and nobody who leads its group spoke to it."""
        life, report = self.brokers.get(node), self._reports.get(group, {}).get(node)
        if life is None or report is None or life.held.get(group) != incarnation:
            return False
        return not report.leads and not report.leader

    def follows_anybody(self, node: int) -> bool:
        """Some leader on another broker reaches it."""
        life = self.brokers.get(node)
        leaders = (self._reports[one][node].leader for one in life.reported) if life else ()
        return any(one not in (0, node) for one in leaders)

    def led_by(self, node: int) -> list[int]:
        """The groups that this broker says it leads."""
        life = self.brokers.get(node)
        groups = sorted(life.reported) if life else []
        return [group for group in groups if self._reports[group][node].leads]


class Activity:
    """When clients were last heard of, as wall time; collected here, logged in batches.

    `own` is what this manager heard from clients itself: a follower hands it to the leader.
    `told` came from brokers' beats, which every manager gets, or from other managers: only the
    leader logs it. It is kept for a while everywhere, for the case that this manager is next.
    """

    def __init__(self) -> None:
        self.own: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.told: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.recent: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def heard(self, kind: int, number: int, wall_ms: int, *, own: bool) -> None:
        """`kind` is 0 for a producer, 1 for a consumer."""
        table = (self.own if own else self.told)[kind]
        table[number] = max(table.get(number, 0), wall_ms)
        self.recent[kind][number] = max(self.recent[kind].get(number, 0), wall_ms)

    def take(self, most: int, *, own_only: bool) -> dict[str, list[list[int]]]:
        """At most so many of each kind, removed from here."""
        out: dict[str, list[list[int]]] = {}
        for kind, name in enumerate(("producers", "consumers")):
            taken = _take(self.own[kind], most)
            if not own_only:
                for number, wall_ms in _take(self.told[kind], most).items():
                    taken[number] = max(taken.get(number, 0), wall_ms)
            out[name] = [[number, wall_ms] for number, wall_ms in sorted(taken.items())]
        return out

    def forget_before(self, wall_ms: int) -> None:
        """A follower's memory has an end."""
        for table in (*self.told, *self.recent):
            for number in [number for number, at in table.items() if at < wall_ms]:
                del table[number]

    def last(self, kind: int, number: int) -> int:
        return self.recent[kind].get(number, 0)


def _take(table: dict[int, int], most: int) -> dict[int, int]:
    taken = dict(list(table.items())[:most])
    for number in taken:
        del table[number]
    return taken
