"""`Admin`: create and change topics, brokers and groups, and read the state of a cluster.

Changes go to the managers' leader with an idempotency key, so a repeat is harmless. Reads are
linearizable: the managers' leader answers after a majority has confirmed it. Without a majority any
manager answers with its own state, which is never older than this Admin's own changes.
`raft_status`, `stats`, `statuses` and `where` ask several daemons at once; the row of a daemon that
does not answer has its error, and the other rows are complete.

Invariant: a call and all its requests take at most `timeout` seconds. Calls may come from any
thread. Answers are plain dicts and lists, as the managers send them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Self

from myqueue import settings as config
from myqueue.admin.calls import Limit, public
from myqueue.admin.groups import GroupAdmin, lag_of
from myqueue.arguments import definite_seconds
from myqueue.cluster.offset_queries import Offsets, read_offsets
from myqueue.cluster.session import Session
from myqueue.constructors import named_arguments
from myqueue.consumer.message import TopicPartition
from myqueue.errors import (
    InvalidRequest,
    MisuseError,
    MyQueueError,
    NotLeader,
    TimedOut,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)
from myqueue.wire import protocol as words

MANAGERS_GROUP: Final = 1
ASK_MS_MAX: Final = 3_000  # for the answer of one daemon among several
NEWEST_MS_MAX: Final = 1_500  # for a leader's answer to a read; then any manager may answer
GRACE_MS: Final = 500
UPDATES_UNDER_WAY: Final = 100  # of a call that makes many
PLAIN_S: Final = 10.0  # after that, how long reads do not ask the leader first

Facts = dict[str, Any]


@public
class Admin(GroupAdmin):
    """Create and change topics, brokers and consumer groups; read the state of a cluster.

    >>> with Admin("127.0.0.1:9092") as admin:  # doctest: +SKIP
    ...     created = admin.create_topic("orders", partitions=3)
    ...     names = admin.topics()
    >>> names  # doctest: +SKIP
    ['orders']

    `cluster`: the managers' addresses, "host:port[,host:port…]" or a list of them, or a Session to
    share. `timeout`: how many seconds each call may take with all its requests (default 10).

    Calls block and may come from any thread. Every call raises InvalidRequest for a wrong
    argument, TimedOut after `timeout` seconds, Unreachable if no manager answers, and NoQuorum if
    the managers have no majority for a change. Answers are dicts and lists; fields may be added.
    """

    @named_arguments
    def __init__(self, cluster: str | Iterable[str] | Session, *, timeout: float = 10.0) -> None:
        limit_s = min(definite_seconds(timeout), config.DAY_MS / 1000)
        self._limit = Limit(limit_s)
        self._owns_session = not isinstance(cluster, Session)
        self._session = (
            cluster
            if isinstance(cluster, Session)
            else Session.of("Admin", cluster, name="admin", request_timeout_ms=self._limit.ms)
        )
        self._plain_until = 0.0

    # -- topics -----------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication: int = 0,
        settings: Mapping[str, int | None] | None = None,
    ) -> Facts:
        """Create a topic; returns its settings and partitions.

        `replication`: copies of each partition; 0: three, or as many as there are brokers.
        `settings`: those of `myq config show topic`. Raises TopicExists, InvalidName,
        InvalidSetting, TooFewBrokers.
        """
        return self._update(
            "create_topic",
            topic=topic,
            partitions=partitions,
            replication=replication,
            settings=dict(settings or {}),
        )

    def create_topics(
        self,
        topics: Iterable[str],
        *,
        partitions: int = 1,
        replication: int = 0,
        settings: Mapping[str, int | None] | None = None,
    ) -> list[Facts]:
        """Create many topics at once, all alike; returns a row for each, in the given order.

        A row has `topic` and what `create_topic` returns; or `error` and `code`, where that topic
        was refused or its outcome is not known: then the others are created nevertheless.

        >>> rows = admin.create_topics(f"orders-{n}" for n in range(1000))  # doctest: +SKIP
        >>> [row for row in rows if "error" in row]  # doctest: +SKIP
        []
        """
        given = {
            "partitions": partitions,
            "replication": replication,
            "settings": dict(settings or {}),
        }
        return self._update_each("create_topic", topics, given)

    def delete_topic(self, topic: str) -> Facts:
        """Delete a topic with all its messages. Raises UnknownTopic."""
        return self._update("delete_topic", topic=topic)

    def delete_topics(self, topics: Iterable[str]) -> list[Facts]:
        """Delete many topics at once; returns a row for each, as `create_topics` does."""
        return self._update_each("delete_topic", topics, {})

    def alter_topic(self, topic: str, settings: Mapping[str, int | None]) -> Facts:
        """Change settings of a topic (None: back to the default); returns all its settings.

        Raises UnknownTopic, InvalidSetting.
        """
        return self._update("alter_topic", topic=topic, settings=dict(settings))

    def grow_topic(self, topic: str, count: int = 1, *, to: int | None = None) -> list[int]:
        """Add `count` partitions, or so many that there are `to`; returns the new numbers."""
        more = {"count": count} if to is None else {"to": to}
        return list(self._update("grow_topic", topic=topic, **more)["partitions"])

    def topics(self, *, detail: bool = False) -> list[Any]:
        """List the names of all topics; with `detail` the `describe_topic` of each."""
        return list(self._read("topics", detail=detail)["topics"])

    def describe_topic(self, topic: str) -> Facts:
        """Describe a topic: settings, and for each partition leader, replicas, offsets, size."""
        return self._read("topic", topic=topic)

    # -- daemons, and how they are ----------------------------------------------------------------

    def brokers(self) -> list[Facts]:
        """List the brokers: node, address, last heartbeat, replicas, and whether one drains."""
        return list(self._read("brokers")["brokers"])

    def drain_broker(self, broker: int) -> Facts:
        """Move all replicas of a broker to others, in the background.

        `brokers` says how many it still has. Raises UnknownBroker, TooFewBrokers.
        """
        return self._update("drain_broker", node=broker)

    def undrain_broker(self, broker: int) -> Facts:
        """End a drain: the broker may hold replicas again."""
        return self._update("undrain_broker", node=broker)

    def remove_broker(self, broker: int, *, force: bool = False) -> Facts:
        """Remove a broker permanently. Raises BrokerInUse if it holds replicas, unless `force`.

        The answer, and the details of BrokerInUse, name the consequences. `lost_partitions` exist
        only on this broker. `stranded_partitions` have too few other live replicas: nobody can
        read or write them until those return. `missed` says both in a sentence.
        """
        return self._update("remove_broker", node=broker, force=force)

    def counting_on(self, broker: int) -> int:
        """Count the partitions whose raft group still has a removed broker as a member.

        Stop the broker only at 0: earlier it could leave them without a majority. Stranded
        partitions keep it for as long as their other replicas are missing.
        """
        try:
            topics = self.topics(detail=True)
        except InvalidRequest:  # the answer would be too large
            topics = []
            for name in self.topics():
                if self._limit.is_over:
                    raise TimedOut(
                        f"not all topics were asked whether they count on broker {broker}",
                        hint="Give Admin a longer timeout.",
                    ) from None
                with suppress(UnknownTopic):  # it was deleted after the list was made
                    topics.append(self.describe_topic(name))
        parts = [part for topic in topics for part in topic["partitions"]]
        return sum(broker in part["leaving"] for part in parts)

    def daemon_at(self, address: str) -> Facts:
        """Name the daemon that listens at host:port: `{"daemon", "node", "address"}`.

        Raises Unreachable if none listens, ClusterMismatch if it belongs to another cluster.
        """
        limit_ms = min(self._limit.left_ms, ASK_MS_MAX)
        asking = self._session.call(config.address(address), words.STATS, timeout_ms=limit_ms)
        stats = self._wait(asking).fields[0]
        return {"daemon": stats["daemon"], "node": stats["node"], "address": address}

    def managers(self) -> list[Facts]:
        """List the managers: node, address, and which one leads."""
        return list(self._read("managers")["managers"])

    def health(self) -> Facts:
        """List every broker, manager, producer and consumer with its last sign of life."""
        return self._read("health")

    def problems(self) -> list[Facts]:
        """List what is wrong now. Only a manager leader with a majority answers."""
        return list(self._wait(self._newest("problems", {}, self._limit.left_ms))["problems"])

    def cluster(self) -> Facts:
        """Describe the cluster: name, version, settings, and how many of each thing it has."""
        return self._read("cluster")

    def alter_cluster(self, settings: Mapping[str, int | None]) -> Facts:
        """Change settings of the cluster (None: back to the default); returns all of them."""
        return self._update("alter_cluster", settings=dict(settings))

    def raft_status(self, topic: str | None = None, partition: int = 0) -> Facts:
        """Describe a raft group, the managers' or a partition's: leader, term, each member."""
        if topic is None:
            group = MANAGERS_GROUP
            addresses = {row["node"]: row["address"] for row in self.managers() if row["address"]}
        else:
            facts = self._partition(topic, partition)
            group, addresses = facts["group"], self._addresses(facts["replicas"])
        members = self._ask_each(addresses, words.STATUS, group)
        answers = [row for row in members if "error" not in row]
        newest = max(answers, key=lambda row: int(row.get("term", 0)), default={})
        return {
            "group": group,
            "term": newest.get("term", 0),
            "leader": _leader(newest),
            "members": members,
        }

    def daemons(self) -> list[Facts]:
        """List all managers and brokers with an address: `{"daemon", "node", "address"}`."""
        kinds = (("manager", self.managers()), ("broker", self.brokers()))
        return [
            {"daemon": kind, "node": row["node"], "address": row["address"]}
            for kind, rows in kinds
            for row in rows
            if row["address"]
        ]

    def stats(self, daemons: Iterable[Facts] | None = None) -> list[Facts]:
        """Ask daemons for their counters. `daemons`: rows of `daemons()`; default all."""
        return self._ask_daemons(self.daemons() if daemons is None else daemons, words.STATS)

    def statuses(self, daemons: Iterable[Facts] | None = None) -> list[Facts]:
        """Ask daemons for the state of all their raft groups. `daemons`: as for `stats`."""
        return self._ask_daemons(self.daemons() if daemons is None else daemons, words.STATUS, 0)

    def repairs(self, daemons: Iterable[Facts] | None = None) -> Facts:
        """List the damage that daemons found on their disks, and whether it was repaired.

        Returns `{"repairs": […], "scrubbers": […], "silent": […]}`: each daemon's repairs, oldest
        first, the state of its scrubber, and the daemons that did not answer. Raises Unreachable
        if none did.
        """
        statuses = self.statuses(daemons)
        answers = [(_name(row), row["repair"]) for row in statuses if "repair" in row]
        if statuses and not answers:
            raise Unreachable(statuses[0].get("error", ""), component=statuses[0]["address"])
        return {
            "repairs": [row for daemon, repair in answers for row in _repairs(daemon, repair)],
            "scrubbers": [{"daemon": daemon, **repair["scrub"]} for daemon, repair in answers],
            "silent": [_name(row) for row in statuses if "error" in row],
        }

    def where(self, topic: str, partition: int, offset: int) -> Facts:
        """Locate a message on each replica: segment, bytes, index and term.

        Also names the consumers and groups whose position is past it. Raises UnknownPartition.
        """
        facts = self._partition(topic, partition)
        addresses = self._addresses(facts["replicas"])
        replicas = self._ask_each(addresses, words.WHERE, facts["group"], offset)
        return {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "group": facts["group"],
            "leader": facts["leader"],
            "replicas": replicas,
        }

    # -- producers, consumers, positions ----------------------------------------------------------

    def register_producer(
        self, topic: str, *, create: bool = True, partition: int | None = None
    ) -> Facts:
        """Register a producer of one topic; `create` a missing topic. Returns `producer_id`.

        `partition`, which must exist: where gateways send messages that name no other one.
        """
        own = {} if partition is None else {"partition": partition}
        return self._update("register_producer", topic=topic, create=create, **own)

    def register_consumer(self, topic: str, *, partition: int | None = None) -> Facts:
        """Register a consumer of one topic, which must exist. Returns `consumer_id`.

        `partition`, which must exist: which one gateways read if a request names none.
        """
        own = {} if partition is None else {"partition": partition}
        return self._update("register_consumer", topic=topic, **own)

    def producer(self, producer_id: int) -> Facts:
        """Describe a registered producer. Raises UnknownClient."""
        return self._read("producer", producer_id=producer_id)

    def consumer(self, consumer_id: int) -> Facts:
        """Describe a registered consumer. Raises UnknownClient."""
        return self._read("consumer", consumer_id=consumer_id)

    def offsets(self, topic: str, *, time_ms: int | None = None) -> dict[TopicPartition, Offsets]:
        """Look up start, end and size of each partition.

        With `time_ms` (ms since 1970) also `at_time`: the first offset of that time or later.
        """
        return self._offsets(topic, None, time_ms)

    def positions(
        self, topic: str, *, consumer_id: int | None = None, group: str | None = None
    ) -> dict[TopicPartition, int | None]:
        """Look up the committed positions of a consumer or a group; None: none so far."""
        offsets = self._offsets(topic, _who(consumer_id, group), None)
        return {name: row.position for name, row in offsets.items()}

    def lag(
        self, topic: str, *, consumer_id: int | None = None, group: str | None = None
    ) -> dict[TopicPartition, int]:
        """Count the messages after the committed position of a consumer or a group."""
        offsets = self._offsets(topic, _who(consumer_id, group), None)
        return {name: lag_of(row) for name, row in offsets.items()}

    # -- inside -----------------------------------------------------------------------------------

    def _update(self, operation: str, **arguments: Any) -> Facts:
        answer = self._session.update(operation, arguments, timeout_ms=self._limit.left_ms)
        return dict(self._wait(answer))

    def _update_each(
        self, operation: str, topics: Iterable[str], arguments: Mapping[str, Any]
    ) -> list[Facts]:
        """Make the same update of each topic, many of them under way at a time."""
        names, rows = list(topics), []
        under_way: deque[Future[Facts]] = deque()
        unsent = iter(names)
        for name in names:
            for more in islice(unsent, UPDATES_UNDER_WAY - len(under_way)):
                limit_ms = self._limit.left_ms
                fields = {"topic": more, **arguments}
                under_way.append(self._session.update(operation, fields, timeout_ms=limit_ms))
            try:
                answer = self._wait(under_way.popleft())
            except MyQueueError as error:
                answer = {"error": str(error), "code": error.name}
            rows.append({"topic": name, **answer})
        return rows

    def _read(self, query: str, **arguments: Any) -> Facts:
        if time.monotonic() >= self._plain_until:
            limit_ms = min(NEWEST_MS_MAX, max(1, self._limit.left_ms // 2))
            try:
                return dict(self._wait(self._newest(query, arguments, limit_ms)))
            except (NotLeader, TimedOut, Unreachable):
                self._plain_until = time.monotonic() + PLAIN_S
        answer = self._session.read(query, arguments, timeout_ms=self._limit.left_ms)
        return dict(self._wait(answer))

    def _newest(self, query: str, arguments: Facts, timeout_ms: int) -> Future[Facts]:
        return self._session.read(query, arguments, linearizable=True, timeout_ms=timeout_ms)

    def _wait(self, future: Any) -> Any:
        """Wait for an answer. A request has its own deadline; this one is the last resort."""
        return self._session.wait(future, self._limit.left_ms + GRACE_MS)

    def _partition(self, topic: str, partition: int) -> Facts:
        rows = self.describe_topic(topic)["partitions"]
        if not 0 <= partition < len(rows):
            raise UnknownPartition(f"{topic} has {len(rows)} partitions; there is no {partition}")
        return dict(rows[partition])

    def _addresses(self, nodes: Iterable[int]) -> dict[int, str]:
        wanted = set(nodes)
        return {row["node"]: row["address"] for row in self.brokers() if row["node"] in wanted}

    def _ask_each(self, addresses: Mapping[int, str], kind: int, *fields: Any) -> list[Facts]:
        rows = [{"node": node, "address": at} for node, at in sorted(addresses.items())]
        return self._ask_daemons(rows, kind, *fields)

    def _ask_daemons(self, rows: Iterable[Facts], kind: int, *fields: Any) -> list[Facts]:
        """Ask all daemons at once; return each row with the daemon's answer or its error."""
        limit_ms = min(self._limit.left_ms, ASK_MS_MAX)
        calls = [
            (row, self._session.call(row["address"], kind, fields, timeout_ms=limit_ms))
            for row in rows
        ]
        out = []
        for row, future in calls:
            try:
                answer = dict(self._wait(future).fields[0])
            except MyQueueError as error:
                answer = {"error": str(error), "code": error.name}
            out.append({**row, **answer})
        return out

    def _offsets(
        self, topic: str, who: str | None, time_ms: int | None
    ) -> dict[TopicPartition, Offsets]:
        groups = self._groups_of(topic)
        offsets = read_offsets(
            self._session, groups, who=who, time_ms=time_ms, timeout_ms=self._limit.left_ms
        )
        return {name: offsets[group] for group, name in groups.items()}

    def _known_offsets(self, topic: str, who: str) -> dict[TopicPartition, Offsets | None]:
        groups = self._groups_of(topic)
        limit_ms = min(max(1, self._limit.left_ms // 2), ASK_MS_MAX)
        offsets = read_offsets(self._session, groups, who=who, timeout_ms=limit_ms, partial=True)
        return {name: offsets.get(group) for group, name in groups.items()}

    def _groups_of(self, topic: str) -> dict[int, TopicPartition]:
        rows = self.describe_topic(topic)["partitions"]
        self._wait(self._session.ensure_topics([topic], timeout_ms=self._limit.left_ms))
        return {row["group"]: TopicPartition(topic, row["partition"]) for row in rows}

    def close(self, timeout: float = 5.0) -> None:
        """Close the session, if it is not shared, within `timeout` seconds."""
        timeout = definite_seconds(timeout)
        if self._owns_session:
            self._session.close(round(timeout * 1000))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _who(consumer_id: int | None, group: str | None) -> str:
    if (consumer_id is None) == (group is None):
        raise MisuseError("whose positions? Give consumer_id= or group=")
    return f"group/{group}" if consumer_id is None else str(consumer_id)


def _name(row: Facts) -> str:
    """The name of a daemon for people, as "broker 3"."""
    return f"{row['daemon']} {row['node']}"


def _repairs(daemon: str, repair: Facts) -> list[Facts]:
    """List the damage that one daemon reported: first what is repaired, then the rest."""
    repaired = [
        (damage, damage["found_ms"], f"repaired in {damage['took_ms'] / 1000:.1f} s")
        for damage in repair["mended"]
    ]
    unrepaired = [(damage, damage["since_ms"], damage["state"]) for damage in repair["damaged"]]
    return [
        {
            "daemon": daemon,
            **{name: damage[name] for name in ("segment", "position", "found", "what")},
            "partitions": damage.get("partitions", []),
            "since_ms": since_ms,
            "state": state,
        }
        for damage, since_ms, state in repaired + unrepaired
    ]


def _leader(status: Facts) -> int:
    """The leader's node; the Raft core names it as (node, incarnation)."""
    leader = status.get("leader") or 0
    return int(leader[0] if isinstance(leader, list | tuple) else leader)
