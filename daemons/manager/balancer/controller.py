"""What the leader of the managers does unasked: one look at the world, out come commands.

`due` decides, the manager proposes. Everything here may be proposed twice without harm, so there
is no waiting for an outcome: what was asked for is not asked for again for a while, and if the
tables still do not show it then, it is asked for once more.

- Daemons that beat are registered, with the disk that they came with first, and their addresses.
- Clients' activity is logged in batches.
- A topic whose partitions hold more messages than `partition_growth` each gets one more (R3).
- Deleted groups are forgotten when the broker no longer holds them.
- Replicas move: away from the dead and the drained, to the empty (`moves.py`).
- Leadership goes to the preferred replicas (the first with room on its disk), few at a time, when
  their broker has been alive for some time: these are no commands but `transfers` in orders to the
  broker that leads now.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from myqueue.daemons.manager.balancer.moves import Moves
from myqueue.daemons.manager.broker_orders import forgettable, gone_from
from myqueue.daemons.manager.cluster_view import (
    SILENT_MS,
    Activity,
    BrokerLife,
    Liveness,
    ManagerLife,
)
from myqueue.daemons.metadata.records import BrokerRow, ManagerRow
from myqueue.daemons.metadata.tables import Tables

ASK_AGAIN_MS: Final = 2000
GROWTH_MS: Final = 500
ACTIVITY_MS: Final = 5000
ACTIVITY_MAX: Final = 10_000  # clients of each kind in one entry
FORGET_MAX: Final = 5000
FORGET_LOOK_MS: Final = 500
SETTLED_MS: Final = 5000  # a broker has to live for so long to lead again
BALANCE_MS: Final = 1000
TRANSFERS_MAX: Final = 4  # in one answer
TRANSFERS_UNDER_WAY_MAX: Final = 8
TRANSFER_MS: Final = 2000  # it is over by then, in one way or the other
TRANSFER_AGAIN_MS: Final = 10_000


class Todo(NamedTuple):
    operation: str
    arguments: dict[str, Any]


class Duties:
    """See the module's docstring. Its memory is about pace only; a new leader begins afresh."""

    def __init__(self, liveness: Liveness, activity: Activity) -> None:
        self._liveness, self._activity = liveness, activity
        self._moves = Moves(liveness)
        self.begin(0)

    def begin(self, now: int) -> None:
        """This manager became the leader."""
        self._moves.begin(now)
        self._asked: dict[tuple[Any, ...], int] = {}  # what -> when it may be asked for again
        self._growth_at, self._activity_at, self._forget_at = now, now + ACTIVITY_MS, now
        self._balance_at: dict[int, int] = {}  # broker -> when to look at it again
        self._transfers: dict[int, int] = {}  # group -> when it was transferred last

    def due(self, tables: Tables, managers: dict[int, ManagerLife], now: int) -> list[Todo]:
        """`managers`: those that are allowed, this one among them."""
        todo = self._registrations(tables, managers, now)
        todo += self._forgetting(tables, now)
        todo += [Todo(*command) for command in self._moves.due(tables, now)]
        if now >= self._growth_at:
            self._growth_at = now + GROWTH_MS
            todo += self._growth(tables, now)
        if now >= self._activity_at:
            self._activity_at = now + ACTIVITY_MS
            batch = self._activity.take(ACTIVITY_MAX, own_only=False)
            if any(batch.values()):
                todo.append(Todo("seen", batch))
        return todo

    @property
    def unreached(self) -> set[int]:
        """Brokers that leaders of partitions do not reach, though managers hear them."""
        return self._moves.shunned.unreached

    def _may_ask(self, now: int, *what: Any) -> bool:
        """Not asked for lately; then it is now."""
        if now < self._asked.get(what, 0):
            return False
        if len(self._asked) > 10_000:
            self._asked = {one: until for one, until in self._asked.items() if until > now}
        self._asked[what] = now + ASK_AGAIN_MS
        return True

    def _registrations(
        self, tables: Tables, managers: dict[int, ManagerLife], now: int
    ) -> list[Todo]:
        todo = []
        kinds: tuple[tuple[str, dict[int, Any], dict[int, Any]], ...] = (
            ("register_manager", managers, tables.managers),
            ("register_broker", self._liveness.brokers, tables.brokers),
        )
        for operation, lives, rows in kinds:
            for node, life in sorted(lives.items()):
                if isinstance(life, BrokerLife) and tables.removed.get(node) == life.disk:
                    continue  # heard last before it was removed
                news = _is_news(life, rows.get(node), now)
                if news and self._may_ask(now, operation, node):
                    arguments = {
                        "node": node, "disk": life.disk, "address": life.address,
                        "peer": life.peer, "host": life.host,
                    }  # fmt: skip
                    if isinstance(life, BrokerLife):
                        arguments["life"] = life.incarnation
                    todo.append(Todo(operation, arguments))
        return todo

    def _forgetting(self, tables: Tables, now: int) -> list[Todo]:
        if not tables.gone or now < self._forget_at:  # it may be many, of a broker that is away
            return []
        self._forget_at = now + FORGET_LOOK_MS
        todo = []
        for node, life in sorted(self._liveness.brokers.items()):
            groups = forgettable(tables, node, life)[:FORGET_MAX]
            if groups and self._may_ask(now, "forget_gone", node):
                arguments = {"node": node, "groups": groups, "version": life.full_version}
                todo.append(Todo("forget_gone", arguments))
        for node in sorted({one for gone in tables.gone.values() for one in gone.nodes}):
            if node not in tables.brokers and self._may_ask(now, "forget_gone", node):
                # Removed by force before its topic was deleted: nobody will ever tell of it.
                rows = gone_from(tables, node)[:FORGET_MAX]
                arguments = {
                    "node": node, "groups": sorted({group for group, _, _ in rows}),
                    "version": max(index for _, _, index in rows),
                }  # fmt: skip
                todo.append(Todo("forget_gone", arguments))
        return todo

    def _growth(self, tables: Tables, now: int) -> list[Todo]:
        todo = []
        for _, topic in sorted(tables.topics.items()):
            threshold, count = topic.settings["partition_growth"], len(topic.partitions)
            if not threshold:
                continue
            reports = (self._liveness.report(one.group) for one in topic.partitions)
            messages = sum(report.end for report in reports if report is not None)
            if messages >= threshold * count and self._may_ask(now, "grow", topic.uid, count):
                grow = {"topic_uid": topic.uid, "partitions": count}
                todo.append(Todo("grow_by_threshold", grow))
        return todo

    # -- leaders back to where they belong -----------------------------------------------------

    def transfers(self, tables: Tables, node: int, now: int) -> list[list[int]]:
        """[group, preferred node] of groups that this broker leads and another one should."""
        if now < self._balance_at.get(node, 0):
            return []
        self._balance_at[node] = now + BALANCE_MS
        recent = self._transfers
        for group in [one for one, at in recent.items() if now - at >= TRANSFER_AGAIN_MS]:
            del recent[group]
        room = TRANSFERS_UNDER_WAY_MAX - sum(now - at < TRANSFER_MS for at in recent.values())
        out: list[list[int]] = []
        for group in self._liveness.led_by(node):
            if len(out) >= min(room, TRANSFERS_MAX):
                break
            preferred = self._preferred(tables, group)
            if preferred in (0, node) or group in recent:
                continue
            settled = self._liveness.alive_for(preferred, now) >= SETTLED_MS
            settled = settled and self._holds(tables, group, preferred)
            if settled and self._liveness.leader(group, now)[0] == node:
                recent[group] = now
                out.append([group, preferred])
        return out

    def _holds(self, tables: Tables, group: int, node: int) -> bool:
        """The replica that is wanted there: not one that was lost with its disk and is to come."""
        partition, life = tables.partition(group), self._liveness.brokers.get(node)
        drawn = dict(partition.replicas).get(node, 0) if partition is not None else 0
        return life is not None and life.has(group) and life.holds(group, drawn)

    def _preferred(self, tables: Tables, group: int) -> int:
        """Who should lead it: the first replica whose disk has room, or the first of all; 0 if that
        one is not known to be a voter by now.
        """
        partition = tables.partition(group)
        if partition is None:
            return 0
        members, lives = self._liveness.members(group), self._liveness.brokers
        low = {one for one in partition.nodes if one in lives and lives[one].disk_low}
        first = next(
            (one for one in partition.replicas if one[0] not in low), partition.replicas[0]
        )
        return first[0] if members is None or members.get(first) else 0


def _is_news(life: BrokerLife | ManagerLife, row: BrokerRow | ManagerRow | None, now: int) -> bool:
    """Whether a daemon is not known as it says it is.

    A broker's life and disk are news as long as it is heard. A manager's disk never: that is a
    mistake.
    """
    if row is None:
        return True
    here = (life.address, life.peer, life.host)
    if isinstance(life, BrokerLife) and isinstance(row, BrokerRow):
        known = (row.disk, row.life, row.address, row.peer, row.host)
        is_heard = now - life.beat_at <= SILENT_MS
        return is_heard and (life.disk, life.incarnation, *here) != known
    return row.disk == life.disk and here != (row.address, row.peer, row.host)
