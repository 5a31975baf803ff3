"""The broker: which request goes where, and what an event means for those who wait.

An owner in the sense of `engine.Owner`. It keeps one feed for each group that it was asked to
write to (`proposals.py`) and hands the rest to its parts: `produce`, `commit_take`, `fetch`,
`queries`, `manager_link`. Nothing here waits for anything; whoever has to wait is kept in one of
these parts until an event settles it:

| event | settles |
|---|---|
| applied | results of batches and commands; waiting fetches |
| changed: ready | what was held for a replica that was elected a moment ago |
| changed: leads no more | what was not proposed (NOT_LEADER), reads |
| dropped | what was proposed and is not committed: OUTCOME_UNKNOWN |
| removed by an order, or closed | everything of the group |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from myqueue import errors
from myqueue.daemons.broker.commit_take import Consuming
from myqueue.daemons.broker.fetch import Fetching
from myqueue.daemons.broker.join_status import Joining
from myqueue.daemons.broker.key_ageing import Ageing
from myqueue.daemons.broker.manager_link import Orders, Reports
from myqueue.daemons.broker.produce import Producing, with_overhead
from myqueue.daemons.broker.proposals import BATCH_BYTES_MAX, Details, Feed
from myqueue.daemons.broker.queries import Queries
from myqueue.daemons.broker.reconcile_members import Members
from myqueue.daemons.broker.retention import Retention
from myqueue.daemons.partition.machine import Partition
from myqueue.daemons.raft.types import COUNT, OFFSET, Entry
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.config import DaemonConfig
    from myqueue.daemons.interfaces import Client, Peer
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

SWEEP_MS: Final = 1000
TRANSFER_AGAIN_MS: Final = 500
RECORDS_IN_SEGMENT: Final = 4  # at least; larger ones are refused

Buffer = bytes | memoryview


class Broker:
    """See the module's docstring. `attach` completes it; nothing else is called before."""

    def __init__(self, config: DaemonConfig, tell: Callable[..., None]) -> None:
        self._config, self._tell = config, tell
        self._feeds: dict[int, Feed] = {}
        self._leading: dict[int, Feed] = {}  # of these, which may be proposed to
        self._asked: dict[Feed, None] = {}  # in this turn
        self._settings: dict[int, dict[str, Any]] = {}  # of topics, by group; as last ordered
        self._sweep_at = self._transfer_at = 0
        self._is_stopping = self._is_cast_out = False

    # -- the owner's side of the seam ----------------------------------------------------------

    def attach(self, engine: Engine) -> None:
        self._engine = engine
        self.ageing = Ageing(engine, self._leading)
        self.producing = Producing(
            engine, self._leading, self._asked, self._hold_or_refuse, self._feed_of,
            self.ageing.first,
        )  # fmt: skip
        self.consuming = Consuming(engine, self._leading, self._asked, self._refusal)
        self.fetching = Fetching(engine)
        self.queries = Queries(engine, self._refusal)
        self.reports = Reports(engine, self._config)
        self.retention = Retention(
            engine, self._leading, self._settings, self._config.segment_bytes,
            self.reports.is_current, self.reports.agreed_wall_ms,
        )  # fmt: skip
        self.joining = Joining(engine, self.reports, self._tell)
        self.members = Members(engine)

    def make_machine(self, group: int, about: bytes) -> Partition:
        return Partition()

    def started(self, now: int) -> None:
        """Every group that was here before is open."""
        for replica in self._engine.replicas.values():
            _, _, _, settings, *_ = protocol.unpack(replica.about)
            self._settings[replica.uid] = settings

    def greeted(self, kind: str, node: int, disk: str) -> str:
        """Which disks are whose is for the managers to judge; they don't give their addresses."""
        return ""

    def request(self, client: Client, envelope: protocol.Envelope, frames: list[Buffer]) -> None:
        kind = envelope[1]
        if kind == protocol.PRODUCE:
            self.producing.request(client, envelope, frames)
        elif kind == protocol.FETCH:
            self.fetching.request(client, envelope)
        elif kind == protocol.COMMIT:
            self.consuming.commit(client, envelope)
        elif kind == protocol.TAKE:
            self.consuming.take(client, envelope)
        elif kind == protocol.OFFSETS:
            self.queries.offsets(client, envelope)
        elif kind == protocol.WHERE:
            self.queries.where(client, envelope)
        elif kind == protocol.STATUS:
            self.queries.status(client, envelope)
        elif kind == protocol.STATS:
            self.queries.stats(client, envelope, self._gauges())
        else:
            raise errors.Unsupported(f"{protocol.name_of(kind)} is not for a broker")

    def peer_request(self, peer: Peer, envelope: protocol.Envelope, frames: list[Buffer]) -> None:
        raise errors.Unsupported(f"{protocol.name_of(envelope[1])} is not for a broker")

    def peer_answer(self, peer: tuple[str, int], envelope: protocol.Envelope) -> None:
        if peer[0] != "manager":
            return
        orders = self.reports.answered(peer[1], envelope)
        if orders is not None:
            self._obey(orders)

    # -- the turn ------------------------------------------------------------------------------

    def before_turn_ends(self, now: int) -> None:
        """Each group's requests of this turn become one proposal."""
        self.ageing.before_turn_ends(now)
        if not self._asked:
            return
        wall_ms = self._engine.wall_ms()
        for feed in self._asked:
            if feed.items or feed.rows:
                self._propose(feed, wall_ms)
        self._asked.clear()

    def _propose(self, feed: Feed, wall_ms: int) -> None:
        replica = feed.replica
        if feed.term != replica.node.term or not replica.is_leader:
            self._refuse_asked(feed, *self._refusal(replica.uid))
            return
        try:
            messages = bool(feed.items)
            if not messages:
                self._engine.disk.check_reserve()
            items = feed.take_items(wall_ms)
            first = self._engine.propose(replica, items, urgent=not messages)
        except errors.NotLeader:
            self._refuse_asked(feed, *self._refusal(replica.uid))
        except errors.MyQueueError as error:
            details = {"message": str(error), "retry_ms": 1000 if error.code == _FULL else 50}
            if feed.items and feed.rows:  # positions go on where messages have no room (W15)
                self.producing.failed(feed.batches_refused(), error.code, details)
                self._propose(feed, wall_ms)
            else:
                self._refuse_asked(feed, error.code, details)
        else:
            feed.proposed(first)

    def _refuse_asked(self, feed: Feed, code: int, details: Details) -> None:
        tickets, asked = feed.refused()
        self.producing.failed(tickets, code, details)
        for one in asked:
            one.failed(code, details)

    def applied(self, replica: Replica, entries: list[Entry], results: list[Any]) -> None:
        group = replica.uid
        feed = self._feeds.get(group)
        if feed is not None:
            if feed.waiting:
                self.producing.applied(feed, entries)
            if feed.commands:
                self.consuming.applied(feed, entries, results)
            if feed.term:
                last = entries[-1]
                self.reports.count(last[OFFSET] + last[COUNT] - entries[0][OFFSET])
        self.fetching.applied(group)
        self.reports.touch(group)

    def dropped(self, replica: Replica, first_index: int) -> None:
        feed = self._feeds.get(replica.uid)
        if feed is None:
            return
        tickets, asked = feed.lost(first_index)
        self.producing.failed(tickets, _UNKNOWN, None)
        for one in asked:
            one.failed(_UNKNOWN, None)

    def changed(self, replica: Replica) -> None:
        group = replica.uid
        self.reports.leadership_changed(group)
        self.members.changed(group)
        feed = self._feeds.get(group)
        term = replica.node.term
        if feed is not None and feed.term and (not replica.is_leader or feed.term != term):
            del self._leading[group]
            feed.stop()
        if replica.is_leader and replica.is_ready:
            feed = self._feed_of(group)
            if not feed.term:
                feed.begin(term)
                self._leading[group] = feed
                if len(feed.machine.keys):
                    self.ageing.first(feed)
                self.producing.release(feed, None)
        elif not replica.is_leader:
            self.queries.lost(group)
            self.fetching.lost(group)
            if feed is not None:
                refusal = self._refusal(group)
                self._refuse_asked(feed, *refusal)
                self.producing.release(feed, refusal)

    def read_ready(self, context: int) -> None:
        self.queries.read_ready(context)
        self.fetching.read_ready(context)

    def tick(self, now: int) -> None:
        self.fetching.tick(now)
        self.retention.tick(now)
        self.ageing.tick(now)
        self._look_whether_cast_out(now)
        self.joining.tick(now)
        if not (self._is_stopping or self._is_cast_out):
            self.members.tick(now)
        elif now >= self._transfer_at:
            self._hand_over(now)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_MS
            self._sweep()
            self._make_missing()

    def _look_whether_cast_out(self, now: int) -> None:
        """Whoever leads and is not heard by the managers keeps its groups from everybody."""
        before, self._is_cast_out = self._is_cast_out, self.reports.is_cast_out(now)
        if self._is_cast_out and not before:
            self._tell(
                "error", "cast-out", why=self.reports.why_refused,
                hint="The managers do not hear this broker, so it hands its leaders over. If its"
                " disk was replaced, wait: it is taken in when the old one was silent for ten"
                " seconds. Else stop it.",
            )  # fmt: skip

    def _sweep(self) -> None:
        self.producing.sweep()
        for feed in self._leading.values():
            if feed.ahead or feed.keyed:
                feed.forget_done()
        idle = [one for one, feed in self._feeds.items() if not feed.term and feed.is_idle]
        for group in idle:
            del self._feeds[group]

    def end_turn(self, now: int) -> None:
        self.fetching.end_turn()
        self.producing.end_turn()
        self.consuming.end_turn()
        if self.reports.is_due(now):
            producers, consumers = self.producing.take_seen(), self.consuming.take_seen()
            self.reports.beat(now, producers, consumers)

    def stopping(self, now: int) -> None:
        self._is_stopping = True
        self._hand_over(now)

    def _hand_over(self, now: int) -> None:
        """Each group that is led here goes to the follower that has most of its log."""
        self._transfer_at = now + TRANSFER_AGAIN_MS
        for replica in self._engine.replicas.values():
            follower = replica.best_follower(now) if replica.is_leader else 0
            if follower:
                self._transfer(replica, follower)

    # -- groups --------------------------------------------------------------------------------

    def _feed_of(self, group: int) -> Feed:
        feed = self._feeds.get(group)
        if feed is None:
            replica = self._engine.replicas[group]
            feed = self._feeds[group] = Feed(replica, cast(Partition, replica.machine))
            self._apply_settings(feed)
        return feed

    def _apply_settings(self, feed: Feed) -> None:
        settings = self._settings.get(feed.replica.uid, {})
        limit = settings.get("message_bytes_max", BATCH_BYTES_MAX)
        record = self._config.segment_bytes // RECORDS_IN_SEGMENT  # what the journal takes
        feed.bytes_max = min(with_overhead(limit), BATCH_BYTES_MAX, record)

    def _hold_or_refuse(self, group: int) -> tuple[int, Details] | None:
        """For a group that can't be proposed to now; None: it leads and will be ready soon."""
        replica = self._engine.replicas.get(group)
        if replica is not None and replica.is_leader:
            return None
        return self._refusal(group)

    def _refusal(self, group: int) -> tuple[int, Details]:
        """Why this group can't be written to here, and where it can."""
        replica = self._engine.replicas.get(group)
        if replica is None:
            return errors.UnknownPartition.code, None
        if replica.is_leader:
            return errors.NotReady.code, {"retry_ms": 50}
        leader = replica.leader_node
        if not leader or leader == self._engine.node:
            return errors.NotLeader.code, None
        details: dict[str, Any] = {"leader": leader}
        address = self.reports.brokers.get(leader)
        if address:
            details["address"] = address
        return errors.NotLeader.code, details

    def _obey(self, orders: Orders) -> None:
        for group in orders.remove:
            self._remove(group)
        if orders.wanted is not None:
            for group, wanted in orders.wanted.items():
                self._settings[group] = wanted.settings
                feed = self._feeds.get(group)
                if feed is not None:
                    self._apply_settings(feed)
            self.members.ordered(
                {group: wanted.members() for group, wanted in orders.wanted.items()}
            )
            self._make_missing()
        for group, node in orders.transfers:
            replica = self._engine.replicas.get(group)
            if replica is not None and replica.is_leader:
                self._transfer(replica, node, at_once=True)

    def _make_missing(self) -> None:
        """What could not be made, because the old one was not gone yet or by a full disk, is tried
        again and again.
        """
        for wanted in self.reports.missing():
            try:
                self.reports.create(wanted)
            except errors.NotReady:
                continue
            except errors.MyQueueError as error:
                self._tell("error", "replica-not-made", group=wanted.group, error=str(error))
            else:
                self._settings[wanted.group] = wanted.settings  # gone with the one before it
                self._tell(
                    "info", "replica-made", group=wanted.group, topic=wanted.topic,
                    joins=bool(wanted.moved),
                )  # fmt: skip

    def _transfer(self, replica: Replica, node: int, *, at_once: bool = False) -> None:
        try:
            self._engine.transfer(replica, node, at_once=at_once)
        except errors.MyQueueError:
            self._engine.counts["transfers_refused_total"] += 1  # it is asked for again

    def _remove(self, group: int) -> None:
        """Named by a committed entry; whoever waits for it is told."""
        if not self._engine.may_remove(group):
            return  # the order comes again
        replica = self._engine.replicas.get(group)
        self._engine.remove(group)
        self._settings.pop(group, None)
        self._end(group)
        entries = replica.node.log.last_index if replica is not None else -1  # it took no part
        self._tell("info", "replica-removed", group=group, entries=entries)

    def closed(self, replica: Replica) -> None:
        """It takes no part any more; whoever waits for it is told, and the managers at once."""
        self._end(replica.uid)
        self.members.changed(replica.uid)
        self.reports.closed(replica.uid)

    def _end(self, group: int) -> None:
        """No replica of it takes part here."""
        feed = self._feeds.pop(group, None)
        self._leading.pop(group, None)
        self.queries.lost(group)
        if feed is not None:
            refusal = self._refusal(group)
            self._refuse_asked(feed, *refusal)
            self.producing.release(feed, refusal)
            self._asked.pop(feed, None)
            tickets, asked = feed.lost(0)
            self.producing.failed(tickets, _UNKNOWN, None)
            for one in asked:
                one.failed(_UNKNOWN, None)
        self.fetching.removed(group)

    def _gauges(self) -> dict[str, int]:
        return {
            "groups": len(self._engine.replicas), "groups_led": len(self._leading),
            "produce_inflight_bytes": self.producing.inflight,
            "fetches_waiting": self.fetching.waiting,
        }  # fmt: skip


_FULL: Final = errors.DiskFull.code
_UNKNOWN: Final = errors.OutcomeUnknown.code
