"""The process's one client of the cluster, shared by all requests.

A request finds it as `flask.current_app.extensions["myqueue"]`. All that it holds is either under
way to the cluster, or a copy of something in the cluster that never changes: the topic, and perhaps
the partition, that an id was registered for. So it may be lost at any time, and another gateway
continues.

Reads go to all managers in turn, updates to their leader. A manager may lag behind: a read waits
until the manager has applied what this gateway changed, and "there is no such id" is believed only
of the leader, because another gateway may have registered the id a moment ago.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from myqueue import Admin, Agent, Delivery, Producer, Session, Taker
from myqueue.errors import (
    UNKNOWN,
    Closed,
    DeliveryFailed,
    Fenced,
    MyQueueError,
    NotReady,
    OutOfSequence,
    UnknownClient,
    UnknownPartition,
    UnknownTopic,
    WrongTopic,
)
from myqueue.gateway.api.failures import GATEWAY
from myqueue.gateway.api.wait_slots import WaitSlots
from myqueue.gateway.settings import GatewayConfig

BUFFER_BYTES: Final = 64 << 20
SPARE_MS: Final = 5_000  # beyond a request's own deadline, which should have come first
KNOWN_MAX: Final = 100_000
ROUTES_S: Final = 2.0  # wait so long for the routes of a topic known to have changed
ASK_AGAIN_S: Final = 0.05  # between two requests for them, at first
Place = tuple[int, int]  # (partition, offset)


class Registration(NamedTuple):
    """The topic and partition that an id was registered for. They never change."""

    uid: int  # of the topic
    topic: str
    partition: int | None  # used by requests that name none


class ClusterClient:
    """One session with the cluster, and the admin, producer and taker that use it."""

    def __init__(self, config: GatewayConfig, name: str = "gateway") -> None:
        self.timeout_ms = config.request_timeout_ms
        self._limit_s = (self.timeout_ms + SPARE_MS) / 1000
        self.session = Session(
            config.cluster, name=name, request_timeout_ms=self.timeout_ms, key_file=config.key
        )
        self.admin = Admin(self.session, timeout=self.timeout_ms / 1000)
        self.taker = Taker(self.session)
        # The agent of this machine, if the settings name one; whether it runs is checked when it is
        # used.
        self.agent = Agent(config.agent) if config.agent else None
        self.wait_slots = WaitSlots(config.waiting_max, config.wait_ms_max)
        self.empty_status = config.empty
        self._listens_at = config.listen
        self._known: dict[tuple[str, int], Registration] = {}  # by ("producer", id)
        self._producer: Producer | None = None
        self._making = threading.Lock()

    # -- metadata ---------------------------------------------------------------------------------

    def read(self, query: str, **arguments: Any) -> dict[str, Any]:
        """Ask any manager, in turn; the answer is never older than this gateway's changes."""
        return self._told(self.session.read(query, arguments))

    def newest(self, query: str, **arguments: Any) -> dict[str, Any]:
        """Ask the managers' leader, after a majority confirmed it."""
        return self._told(self.session.read(query, arguments, linearizable=True))

    def update(
        self, operation: str, arguments: Mapping[str, Any], key: bytes | None = None
    ) -> dict[str, Any]:
        """Have the managers' leader change metadata. The same key again gets the first answer."""
        return self._told(self.session.update(operation, dict(arguments), key=key))

    def _told(self, pending: Future[dict[str, Any]]) -> dict[str, Any]:
        """Wait for a reply. Requests have deadlines of their own; the one here is for a defect in
        those.
        """
        reply: dict[str, Any] = self.session.wait(pending, self.timeout_ms + SPARE_MS)
        return reply

    def register(
        self, kind: str, topic: str, partition: int | None, key: bytes | None
    ) -> dict[str, Any]:
        """Register a producer or consumer; return its new id. A partition must exist, and is stored
        with the id.
        """
        own = {} if partition is None else {"partition": partition}
        try:
            reply = self.update(f"register_{kind}", {"topic": topic, **own}, key)
        except UnknownPartition as error:
            error.retriable = False
            raise
        self._remember(
            kind, reply[f"{kind}_id"], Registration(reply["topic_uid"], topic, partition)
        )
        return reply

    def check(
        self, kind: str, number: int, topic: str | None, partition: int | None
    ) -> tuple[str, int | None]:
        """Return the topic and partition that a request of this id is about; raise what is wrong
        with them. It counts as a heartbeat of this client.
        """
        if topic is None:
            topic = self._topic_of(kind, number)
        routes = self.session.routes.topic(topic)
        if routes is None:
            pending_routes = self.session.ensure_topics([topic])
            (routes,) = self.session.wait(pending_routes, self.timeout_ms + SPARE_MS)
        registration = self._known.get((kind, number))
        if registration is None or registration.uid != routes.uid:
            registration = self._look_up(kind, number, topic)
        self.heard_of(kind, number)
        if partition is None:
            partition = registration.partition
        if partition is not None:
            self.check_partition(topic, partition)
        return topic, partition

    def _topic_of(self, kind: str, number: int) -> str:
        registration = self._known.get((kind, number))
        topic = (
            registration.topic if registration is not None else self.client(kind, number)["topic"]
        )
        if not topic:
            raise UnknownClient(f"{kind} {number} is not registered for any topic that exists")
        return str(topic)

    def _look_up(self, kind: str, number: int, topic: str) -> Registration:
        client = self.client(kind, number)
        uid, name = client["topic_uid"], client["topic"]
        if not uid:
            raise UnknownClient(f"{kind} {number} was not registered for any topic")
        if name != topic:
            of = f"the topic {name!r}" if name else "a topic that was deleted"
            raise WrongTopic(f"{kind} {number} is registered for {of}, not for {topic!r}")
        registration = Registration(
            uid, topic, client.get("partition")
        )  # older managers report no partition
        self._remember(kind, number, registration)
        routes = self.session.routes
        self._await_routes(topic, lambda: (at := routes.topic(topic)) is not None and at.uid == uid)
        return registration

    def client(self, kind: str, number: int) -> dict[str, Any]:
        """Return all facts about a producer or a consumer."""
        arguments = {f"{kind}_id": number}
        try:
            return self.read(kind, **arguments)
        except UnknownClient:
            return self.newest(kind, **arguments)

    def heard_of(self, kind: str, number: int) -> None:
        self.session.report_alive(**{kind: number})

    def _remember(self, kind: str, number: int, known: Registration) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[kind, number] = known

    def topic(self, topic: str) -> dict[str, Any]:
        """Return all facts about a topic. Only the leader may know one that another gateway just
        created.
        """
        try:
            return self.read("topic", topic=topic)
        except UnknownTopic:
            return self.newest("topic", topic=topic)

    def newest_partition(self, topic: str, partition: int) -> dict[str, Any]:
        """Return all facts about a partition; raise UnknownPartition if the topic has none of this
        number.
        """
        partitions = self.topic(topic)["partitions"]
        if partition >= len(partitions):
            partitions = self.newest("topic", topic=topic)["partitions"]
        if partition >= len(partitions):
            error = UnknownPartition(
                f"{topic} has partitions 0 to {len(partitions) - 1}, not {partition}"
            )
            error.retriable = False
            raise error
        row: dict[str, Any] = partitions[partition]
        return row

    def check_partition(self, topic: str, partition: int) -> None:
        """Wait until the routes have this partition, which may have been added a moment ago."""
        routes = self.session.routes

        def is_there() -> bool:
            route = routes.topic(topic)
            return route is not None and partition < len(route.partitions)

        if is_there():
            return
        self.newest_partition(topic, partition)
        self._await_routes(topic, is_there)
        if not is_there():
            raise NotReady(
                f"{topic}/{partition} was added a moment ago; where it is is not known here yet",
                component=GATEWAY,
            )

    def _await_routes(self, topic: str, are_new: Callable[[], bool]) -> None:
        """Wait for routes: what a manager has answered, they will show soon."""
        if are_new():
            return
        news = threading.Event()

        def look() -> None:
            if are_new():
                news.set()

        self.session.on_routes(look)
        pause_s, waited_s = ASK_AGAIN_S, 0.0
        try:
            while waited_s < ROUTES_S:  # the manager that is asked may lag behind
                self.session.refresh((topic,))
                if news.wait(pause_s):
                    return
                waited_s, pause_s = waited_s + pause_s, pause_s * 2
        finally:
            self.session.off_routes(look)

    def find_registered(
        self, kind: str, number: int, topic: str | None, partition: int | None
    ) -> tuple[Any, int | None] | None:
        """Return what `check` returns, with all facts about the topic; None if the cluster has to
        be asked.
        """
        registration = self._known.get((kind, number))
        if registration is None:
            return None
        routes = self.session.routes.topic(registration.topic if topic is None else topic)
        if routes is None or registration.uid != routes.uid:
            return None
        if partition is None:
            partition = registration.partition
        if partition is not None and partition >= len(routes.partitions):
            return None
        self.heard_of(kind, number)
        return routes, partition

    def ready_producer(self) -> Producer | None:
        """Return a producer that accepts a message without waiting, if there is one."""
        producer = self._producer
        has_room = producer is not None and producer.buffered_bytes < BUFFER_BYTES // 2
        return producer if has_room else None

    # -- messages ---------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: bytes,
        message_key: bytes | None,
        partition: int | None,
    ) -> Place:
        """Store one message. Messages sent at about the same time share a batch."""
        producer = self._producer or self._make_producer(None)
        try:
            stored = producer.send(topic, value, key=message_key, partition=partition).result(
                self._limit_s
            )
        except MyQueueError as error:
            self.after(error, producer)
            raise
        return stored.partition, stored.offset

    def produce_many(
        self, topic: str, values: list[bytes], keys: list[bytes | None], partition: int | None
    ) -> list[Place]:
        """Store a list of messages; those that go to the same partition keep their order."""
        producer = self._producer or self._make_producer(None)
        sent: list[Delivery] = []
        try:
            if not any(key is not None for key in keys):
                runs = producer.send_many(topic, values, partition=partition).result(self._limit_s)
                return [
                    (run.partition, run.offset + step)
                    for run in runs
                    for step in range(run.messages)
                ]
            for value, key in zip(values, keys, strict=True):
                sent.append(producer.send(topic, value, key=key, partition=partition))
            stored = [delivery.result(self._limit_s) for delivery in sent]
            return [(delivery.partition, delivery.offset) for delivery in stored]
        except MyQueueError as error:
            first = _first_of(error) if isinstance(error, DeliveryFailed) else error
            self.after(first, producer)
            raise _of_a_part(first) if sent or first is not error else error from None

    def produce_once(
        self,
        topic: str,
        values: list[bytes],
        keys: list[bytes | None],
        partition: int | None,
        request_id: bytes,
    ) -> list[Place]:
        """Store messages of a request with an Idempotency-Key: a repeat is not stored again."""
        producer = self._producer or self._make_producer(None)
        message_keys = keys if any(key is not None for key in keys) else None
        stored = producer.send_once(
            topic, values, request_id=request_id, keys=message_keys, partition=partition
        ).result(self._limit_s)
        return [(delivery.partition, delivery.offset) for delivery in stored]

    def take(
        self,
        topic: str,
        consumer_id: int,
        partition: int | None,
        most: int,
        wait_ms: int,
        key: bytes | None,
        on_damaged: str,
    ) -> Any:
        """Take messages; return also what was skipped, and a damaged batch, as `Taker.take_all`
        does.
        """
        return self.taker.take_all(
            topic,
            consumer_id,
            partition=partition,
            max_messages=most,
            wait_ms=wait_ms,
            key=key,
            timeout_ms=None,
            on_damaged=on_damaged,
            ended=self.wait_slots.stopping.is_set,
        )

    def _make_producer(self, before: Producer | None) -> Producer:
        with self._making:
            if self._producer is before:
                if self.session.closed:
                    raise Closed("this gateway is stopping")
                self._producer = Producer(
                    self.session,
                    linger_ms=1,
                    max_buffered_bytes=BUFFER_BYTES,
                    max_block_ms=1_000,
                    delivery_timeout_ms=self.timeout_ms,
                    request_timeout_ms=max(1_000, self.timeout_ms // 2),
                )
            if self._producer is None:
                raise Closed("this gateway is stopping")
            return self._producer

    def after(self, error: MyQueueError, producer: Producer) -> None:
        """Replace a producer that was fenced or lost its sequence: it never works again."""
        if isinstance(error, Fenced | OutOfSequence | Closed):
            self._make_producer(producer)

    # -- names and the end ------------------------------------------------------------------------

    def name_of(self, component: str) -> str:
        """Name a component: "tcp://127.0.0.1:9093" and "manager 2" both become "manager 2 at
        127.0.0.1:9093" once that manager is known; "gateway" is this one.
        """
        if component == GATEWAY:
            return f"{GATEWAY} at {self._listens_at}"
        return self.session.name_of(component)

    def close(self) -> None:
        producer = self._producer
        if producer is not None:
            producer.close(1.0)
        self.session.close(1_000)


def _first_of(error: DeliveryFailed) -> MyQueueError:
    """Return why the first run of a list failed."""
    first = error.failed[0] if error.failed else error
    return first if isinstance(first, MyQueueError) else error


def _of_a_part(error: MyQueueError) -> MyQueueError:
    """Return a copy of the error with outcome UNKNOWN, because other parts of the list may be
    stored. The original is shared with the other requests of the batch.
    """
    copy = type(error)(str(error), component=error.component, hint=error.hint)
    copy.outcome = UNKNOWN
    return copy
