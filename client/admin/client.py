"""`Admin`: what people and tools ask of a cluster: topics, daemons, who is where, how things stand.

Changes go to the managers' leader with a key, so a repeat is harmless. Reads are the newest there
is: the leader answers them after it has heard a majority. Without a majority any manager tells what
it knows, which is never older than this Admin's own changes. What single daemons tell
(`raft_status`, `stats`, `where`) is asked of each of them at once, and one that does not answer has
its error in its place instead of spoiling what the others said.

Each call blocks up to `timeout` seconds, whatever it asks for on its way, and may come from any
thread. Answers are plain dicts and
lists, as the managers give them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Self

from myqueue import settings as config
from myqueue.admin.calls import Limit, public
from myqueue.admin.groups import GroupAdmin
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
ASK_MS_MAX: Final = 3_000  # of one daemon among several
NEWEST_MS_MAX: Final = 1_500  # so long a leader has to answer a read, before any manager may
GRACE_MS: Final = 500
PLAIN_S: Final = 10.0  # so long no leader is asked after that

Facts = dict[str, Any]


@public
class Admin(GroupAdmin):
    """Asks and changes a cluster.

    `cluster`: managers' addresses, host:port[,…] or a list, or a Session to share. `timeout`: how
    many seconds each call may take, with all that it asks for on its way (10).

    >>> with Admin("127.0.0.1:9092") as admin:  # doctest: +SKIP
    ...     admin.create_topic("orders", partitions=3)
    ...     admin.topics()
    ['orders']
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
        self, topic: str, *, partitions: int = 1, replication: int = 0,
        settings: Mapping[str, int | None] | None = None,
    ) -> Facts:  # fmt: skip
        """replication 0: three copies, or as many as there are brokers. TopicExists if so."""
        return self._update(
            "create_topic", topic=topic, partitions=partitions, replication=replication,
            settings=dict(settings or {}),
        )  # fmt: skip

    def delete_topic(self, topic: str) -> Facts:
        """With all its messages."""
        return self._update("delete_topic", topic=topic)

    def alter_topic(self, topic: str, settings: Mapping[str, int | None]) -> Facts:
        """None brings a default back. All settings, as they are afterwards."""
        return self._update("alter_topic", topic=topic, settings=dict(settings))

    def grow_topic(self, topic: str, count: int = 1, *, to: int | None = None) -> list[int]:
        """Numbers of the partitions that were added: `count`, or as many as make `to` in all."""
        more = {"count": count} if to is None else {"to": to}
        return list(self._update("grow_topic", topic=topic, **more)["partitions"])

    def topics(self, *, detail: bool = False) -> list[Any]:
        """Names; with `detail` what `describe_topic` tells of each."""
        return list(self._read("topics", detail=detail)["topics"])

    def describe_topic(self, topic: str) -> Facts:
        """Settings, and of each partition leader, replicas, offsets and size."""
        return self._read("topic", topic=topic)

    # -- daemons, and how they are ----------------------------------------------------------------

    def brokers(self) -> list[Facts]:
        return list(self._read("brokers")["brokers"])

    def drain_broker(self, broker: int) -> Facts:
        """It gives all its replicas away, in the background; `brokers` tells how many it has."""
        return self._update("drain_broker", node=broker)

    def undrain_broker(self, broker: int) -> Facts:
        """It may hold replicas again."""
        return self._update("undrain_broker", node=broker)

    def remove_broker(self, broker: int, *, force: bool = False) -> Facts:
        """BrokerInUse if it holds replicas, saying what would be missed; `force`: all the same.

        What it alone has is lost (`lost_partitions`); where too few others answer, nobody can read
        or write until they do (`stranded_partitions`); `missed` says both in a sentence.
        """
        return self._update("remove_broker", node=broker, force=force)

    def counting_on(self, broker: int) -> int:
        """How many partitions count on a broker that was removed still: stopped before they have
        let it go, it could leave them without a majority. Of `stranded` ones that has no end.
        """
        try:
            topics = self.topics(detail=True)
        except InvalidRequest:  # too much for one answer
            topics = []
            for name in self.topics():
                if self._limit.is_over:
                    raise TimedOut(
                        f"not all topics were asked whether they count on broker {broker}",
                        hint="Give Admin a longer timeout.",
                    ) from None
                with suppress(UnknownTopic):  # deleted meanwhile
                    topics.append(self.describe_topic(name))
        parts = [part for topic in topics for part in topic["partitions"]]
        return sum(broker in part["leaving"] for part in parts)

    def daemon_at(self, address: str) -> Facts:
        """Who listens at host:port: `{"daemon", "node", "address"}`. Unreachable if nobody does;
        ClusterMismatch if it is another cluster's.
        """
        limit_ms = min(self._limit.left_ms, ASK_MS_MAX)
        asked = self._session.call(config.address(address), words.STATS, timeout_ms=limit_ms)
        told = self._wait(asked).fields[0]
        return {"daemon": told["daemon"], "node": told["node"], "address": address}

    def managers(self) -> list[Facts]:
        return list(self._read("managers")["managers"])

    def health(self) -> Facts:
        """Every broker, manager, producer and consumer: last sign of life, active or not."""
        return self._read("health")

    def problems(self) -> list[Facts]:
        """What is not well; told by the managers' leader, who has just heard a majority."""
        return list(self._wait(self._newest("problems", {}, self._limit.left_ms))["problems"])

    def cluster(self) -> Facts:
        """Name, version, settings, and counts of what there is."""
        return self._read("cluster")

    def alter_cluster(self, settings: Mapping[str, int | None]) -> Facts:
        return self._update("alter_cluster", settings=dict(settings))

    def raft_status(self, topic: str | None = None, partition: int = 0) -> Facts:
        """Leader, term, and how each member stands: of the managers' group, or a partition's."""
        if topic is None:
            group = MANAGERS_GROUP
            asked = {row["node"]: row["address"] for row in self.managers() if row["address"]}
        else:
            found = self._partition(topic, partition)
            group, asked = found["group"], self._addresses(found["replicas"])
        members = self._ask_each(asked, words.STATUS, group)
        known = [row for row in members if "error" not in row]
        newest = max(known, key=lambda row: int(row.get("term", 0)), default={})
        return {
            "group": group, "term": newest.get("term", 0),
            "leader": _leader(newest), "members": members,
        }  # fmt: skip

    def daemons(self) -> list[Facts]:
        """Every manager and broker that is known: `{"daemon", "node", "address"}`."""
        kinds = (("manager", self.managers()), ("broker", self.brokers()))
        return [
            {"daemon": kind, "node": row["node"], "address": row["address"]}
            for kind, rows in kinds for row in rows if row["address"]
        ]  # fmt: skip

    def stats(self, daemons: Iterable[Facts] | None = None) -> list[Facts]:
        """What each daemon counts and holds: STATS. `daemons`: these, as `daemons` named them."""
        return self._ask_daemons(self.daemons() if daemons is None else daemons, words.STATS)

    def statuses(self, daemons: Iterable[Facts] | None = None) -> list[Facts]:
        """How each daemon's Raft groups stand: STATUS of all of them."""
        return self._ask_daemons(self.daemons() if daemons is None else daemons, words.STATUS, 0)

    def repairs(self, daemons: Iterable[Facts] | None = None) -> Facts:
        """What daemons found damaged on their disks, and what became of it, the oldest first of
        each: `{"repairs": […], "scrubbers": […]}`. Of those that answer; `silent` names the others.
        """
        told = self.statuses(daemons)
        known = [(f"{one['daemon']} {one['node']}", one["repair"]) for one in told
                 if "repair" in one]  # fmt: skip
        if told and not known:
            raise Unreachable(told[0].get("error", ""), component=told[0]["address"])
        return {
            "repairs": [row for who, repair in known for row in _repairs(who, repair)],
            "scrubbers": [{"daemon": who, **repair["scrub"]} for who, repair in known],
            "silent": [f"{one['daemon']} {one['node']}" for one in told if "error" in one],
        }

    def where(self, topic: str, partition: int, offset: int) -> Facts:
        """Where a message is: of each replica segment, bytes, index and term; who is past it."""
        found = self._partition(topic, partition)
        asked = self._addresses(found["replicas"])
        replicas = self._ask_each(asked, words.WHERE, found["group"], offset)
        return {
            "topic": topic, "partition": partition, "offset": offset, "group": found["group"],
            "leader": found["leader"], "replicas": replicas,
        }  # fmt: skip

    # -- producers, consumers, positions ----------------------------------------------------------

    def register_producer(
        self, topic: str, *, create: bool = True, partition: int | None = None
    ) -> Facts:
        """An id for a producer of exactly this topic; a missing topic is made if `create`.

        With a partition, which must exist, gateways send there what names no other one.
        """
        own = {} if partition is None else {"partition": partition}
        return self._update("register_producer", topic=topic, create=create, **own)

    def register_consumer(self, topic: str, *, partition: int | None = None) -> Facts:
        """An id for a consumer of this topic, which must exist.

        With a partition, which must exist too, gateways read that one if a request names none.
        """
        own = {} if partition is None else {"partition": partition}
        return self._update("register_consumer", topic=topic, **own)

    def producer(self, producer_id: int) -> Facts:
        return self._read("producer", producer_id=producer_id)

    def consumer(self, consumer_id: int) -> Facts:
        return self._read("consumer", consumer_id=consumer_id)

    def offsets(self, topic: str, *, time_ms: int | None = None) -> dict[TopicPartition, Offsets]:
        """Of each partition start, end and size, and the offset at a time."""
        return self._offsets(topic, None, time_ms)

    def positions(
        self, topic: str, *, consumer_id: int | None = None, group: str | None = None
    ) -> dict[TopicPartition, int | None]:
        """What a consumer or a group has committed; None: nothing so far."""
        found = self._offsets(topic, _who(consumer_id, group), None)
        return {name: row.position for name, row in found.items()}

    def lag(
        self, topic: str, *, consumer_id: int | None = None, group: str | None = None
    ) -> dict[TopicPartition, int]:
        """How many messages are left for a consumer or a group, by what it has committed."""
        found = self._offsets(topic, _who(consumer_id, group), None)
        return {
            name: max(0, row.end - max(row.start, row.position or 0)) for name, row in found.items()
        }

    # -- inside -----------------------------------------------------------------------------------

    def _update(self, operation: str, **arguments: Any) -> Facts:
        answer = self._session.update(operation, arguments, timeout_ms=self._limit.left_ms)
        return dict(self._wait(answer))

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
        """Requests have the deadline themselves; this is for when that does not work."""
        return self._session.wait(future, self._limit.left_ms + GRACE_MS)

    def _partition(self, topic: str, partition: int) -> Facts:
        rows = self.describe_topic(topic)["partitions"]
        if not 0 <= partition < len(rows):
            raise UnknownPartition(f"{topic} has {len(rows)} partitions; there is no {partition}")
        return dict(rows[partition])

    def _addresses(self, nodes: Iterable[int]) -> dict[int, str]:
        wanted = set(nodes)
        return {row["node"]: row["address"] for row in self.brokers() if row["node"] in wanted}

    def _ask_each(self, asked: Mapping[int, str], kind: int, *fields: Any) -> list[Facts]:
        rows = [{"node": node, "address": at} for node, at in sorted(asked.items())]
        return self._ask_daemons(rows, kind, *fields)

    def _ask_daemons(self, rows: Iterable[Facts], kind: int, *fields: Any) -> list[Facts]:
        """Each row with what that daemon told, or with its error; all are asked at once."""
        limit_ms = min(self._limit.left_ms, ASK_MS_MAX)
        calls = [
            (row, self._session.call(row["address"], kind, fields, timeout_ms=limit_ms))
            for row in rows
        ]
        out = []
        for row, future in calls:
            try:
                told = dict(self._wait(future).fields[0])
            except MyQueueError as error:
                told = {"error": str(error), "code": error.name}
            out.append({**row, **told})
        return out

    def _offsets(
        self, topic: str, who: str | None, time_ms: int | None
    ) -> dict[TopicPartition, Offsets]:
        groups = self._groups_of(topic)
        found = read_offsets(
            self._session, groups, who=who, time_ms=time_ms, timeout_ms=self._limit.left_ms
        )
        return {name: found[group] for group, name in groups.items()}

    def _known_offsets(self, topic: str, who: str) -> dict[TopicPartition, Offsets | None]:
        groups = self._groups_of(topic)
        limit_ms = min(max(1, self._limit.left_ms // 2), ASK_MS_MAX)
        found = read_offsets(self._session, groups, who=who, timeout_ms=limit_ms, partial=True)
        return {name: found.get(group) for group, name in groups.items()}

    def _groups_of(self, topic: str) -> dict[int, TopicPartition]:
        rows = self.describe_topic(topic)["partitions"]
        self._wait(self._session.ensure_topics([topic], timeout_ms=self._limit.left_ms))
        return {row["group"]: TopicPartition(topic, row["partition"]) for row in rows}

    def close(self, timeout: float = 5.0) -> None:
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


def _repairs(who: str, repair: Facts) -> list[Facts]:
    """The damage that one daemon tells of: what is repaired, then what is not."""
    names = ("segment", "position", "found", "what")
    return [
        {"daemon": who, **{name: one[name] for name in names},
         "partitions": one.get("partitions", []), "since_ms": since, "state": state}
        for one, since, state in (
            *((one, one["found_ms"], f"repaired in {one['took_ms'] / 1000:.1f} s")
              for one in repair["mended"]),
            *((one, one["since_ms"], one["state"]) for one in repair["damaged"]),
        )
    ]  # fmt: skip


def _leader(status: Facts) -> int:
    """Its node; the core speaks of (node, incarnation)."""
    leader = status.get("leader") or 0
    return int(leader[0] if isinstance(leader, list | tuple) else leader)
