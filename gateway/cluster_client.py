"""The process's one client of the cluster, shared by all requests (Z10: one process, one context).

A request finds it as `flask.current_app.extensions["myqueue"]`. All it keeps is either on its way
to the cluster, or a copy of something that the cluster knows and that does not change: which topic,
and perhaps partition, an id was registered for. So it may be lost at any time, and another gateway
goes on.

Reads go to all managers in turn, updates to their leader (R1, C7). A manager may lag behind: what
this gateway changed itself is waited for, and "there is no such id" is believed only of the leader,
because the id may have come from another gateway a moment ago.
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
SPARE_MS: Final = 5_000  # beyond a request's own deadline; then something is wrong
KNOWN_MAX: Final = 100_000
ROUTES_S: Final = 2.0  # for news of a topic that is known to have changed
ASK_AGAIN_S: Final = 0.05  # for them, at first
Place = tuple[int, int]  # (partition, offset)


class Registration(NamedTuple):
    """What an id was registered for. It never changes."""

    uid: int  # of the topic
    topic: str
    partition: int | None  # for requests that name none


class ClusterClient:
    """One session, and what works over it."""

    def __init__(self, config: GatewayConfig, name: str = "gateway") -> None:
        self.timeout_ms = config.request_timeout_ms
        self._limit_s = (self.timeout_ms + SPARE_MS) / 1000
        self.session = Session(
            config.cluster, name=name, request_timeout_ms=self.timeout_ms, key_file=config.key
        )
        self.admin = Admin(self.session, timeout=self.timeout_ms / 1000)
        self.taker = Taker(self.session)
        # Of this machine, if one was named; whether it runs is asked when it is needed.
        self.agent = Agent(config.agent) if config.agent else None
        self.wait_slots = WaitSlots(config.waiting_max, config.wait_ms_max)
        self.empty_status = config.empty
        self._listens_at = config.listen
        self._known: dict[tuple[str, int], Registration] = {}  # by ("producer", id)
        self._producer: Producer | None = None
        self._making = threading.Lock()

    # -- metadata ---------------------------------------------------------------------------------

    def read(self, query: str, **arguments: Any) -> dict[str, Any]:
        """From any manager, in turn (R1); never older than what this gateway has changed."""
        return self._told(self.session.read(query, arguments))

    def newest(self, query: str, **arguments: Any) -> dict[str, Any]:
        """From the managers' leader, after it heard a majority."""
        return self._told(self.session.read(query, arguments, linearizable=True))

    def update(
        self, operation: str, arguments: Mapping[str, Any], key: bytes | None = None
    ) -> dict[str, Any]:
        """By the managers' leader (C7). The same key again gets the first answer."""
        return self._told(self.session.update(operation, dict(arguments), key=key))

    def _told(self, asked: Future[dict[str, Any]]) -> dict[str, Any]:
        """Requests have their deadline themselves; the one here is for when that does not work."""
        found: dict[str, Any] = self.session.wait(asked, self.timeout_ms + SPARE_MS)
        return found

    def register(
        self, kind: str, topic: str, partition: int | None, key: bytes | None
    ) -> dict[str, Any]:
        """A new id. A partition that does not exist is refused; one that does is kept with it."""
        own = {} if partition is None else {"partition": partition}
        try:
            found = self.update(f"register_{kind}", {"topic": topic, **own}, key)
        except UnknownPartition as error:
            error.retriable = False
            raise
        self._remember(
            kind, found[f"{kind}_id"], Registration(found["topic_uid"], topic, partition)
        )
        return found

    def check(
        self, kind: str, number: int, topic: str | None, partition: int | None
    ) -> tuple[str, int | None]:
        """The topic and partition that a request with this id is about; else what is wrong with
        them. A client that asks is alive, and the managers are told so (P5).
        """
        if topic is None:
            topic = self._topic_of(kind, number)
        routes = self.session.routes.topic(topic)
        if routes is None:
            asked = self.session.ensure_topics([topic])
            (routes,) = self.session.wait(asked, self.timeout_ms + SPARE_MS)
        known = self._known.get((kind, number))
        if known is None or known.uid != routes.uid:
            known = self._look_up(kind, number, topic)
        self.heard_of(kind, number)
        if partition is None:
            partition = known.partition
        if partition is not None:
            self.check_partition(topic, partition)
        return topic, partition

    def _topic_of(self, kind: str, number: int) -> str:
        known = self._known.get((kind, number))
        topic = known.topic if known is not None else self.client(kind, number)["topic"]
        if not topic:
            raise UnknownClient(f"{kind} {number} is not registered for any topic that exists")
        return str(topic)

    def _look_up(self, kind: str, number: int, topic: str) -> Registration:
        found = self.client(kind, number)
        uid, name = found["topic_uid"], found["topic"]
        if not uid:
            raise UnknownClient(f"{kind} {number} was not registered for any topic")
        if name != topic:
            of = f"the topic {name!r}" if name else "a topic that was deleted"
            raise WrongTopic(f"{kind} {number} is registered for {of}, not for {topic!r}")
        known = Registration(
            uid, topic, found.get("partition")
        )  # managers of before know no partition
        self._remember(kind, number, known)
        routes = self.session.routes
        self._await_routes(topic, lambda: (at := routes.topic(topic)) is not None and at.uid == uid)
        return known

    def client(self, kind: str, number: int) -> dict[str, Any]:
        """All about a producer or a consumer."""
        arguments = {f"{kind}_id": number}
        try:
            return self.read(kind, **arguments)
        except UnknownClient:
            return self.newest(kind, **arguments)

    def heard_of(self, kind: str, number: int) -> None:
        self.session.heard_of(**{kind: number})

    def _remember(self, kind: str, number: int, known: Registration) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[kind, number] = known

    def topic(self, topic: str) -> dict[str, Any]:
        """All about a topic. One that was created elsewhere a moment ago is known to the leader."""
        try:
            return self.read("topic", topic=topic)
        except UnknownTopic:
            return self.newest("topic", topic=topic)

    def newest_partition(self, topic: str, partition: int) -> dict[str, Any]:
        """All about a partition; 404 if there is none of this number."""
        found = self.topic(topic)["partitions"]
        if partition >= len(found):
            found = self.newest("topic", topic=topic)["partitions"]
        if partition >= len(found):
            error = UnknownPartition(
                f"{topic} has partitions 0 to {len(found) - 1}, not {partition}"
            )
            error.retriable = False
            raise error
        row: dict[str, Any] = found[partition]
        return row

    def check_partition(self, topic: str, partition: int) -> None:
        """It may have been added a moment ago, by whomever."""
        routes = self.session.routes

        def is_there() -> bool:
            known = routes.topic(topic)
            return known is not None and partition < len(known.partitions)

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
        """What a manager has said, routes will say soon."""
        if are_new():
            return
        news = threading.Event()

        def look() -> None:
            if are_new():
                news.set()

        self.session.on_routes(look)
        pause_s, waited_s = ASK_AGAIN_S, 0.0
        try:
            while waited_s < ROUTES_S:  # a manager that lags behind may be the one that is asked
                self.session.refresh((topic,))
                if news.wait(pause_s):
                    return
                waited_s, pause_s = waited_s + pause_s, pause_s * 2
        finally:
            self.session.off_routes(look)

    def knows(
        self, kind: str, number: int, topic: str | None, partition: int | None
    ) -> tuple[Any, int | None] | None:
        """What `check` says, and all about the topic; None: somebody has to be asked."""
        known = self._known.get((kind, number))
        if known is None:
            return None
        routes = self.session.routes.topic(known.topic if topic is None else topic)
        if routes is None or known.uid != routes.uid:
            return None
        if partition is None:
            partition = known.partition
        if partition is not None and partition >= len(routes.partitions):
            return None
        self.heard_of(kind, number)
        return routes, partition

    def ready_producer(self) -> Producer | None:
        """One that takes a message without waiting."""
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
        """One message; those of a moment share a batch."""
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
        """A list, in its order as far as it goes to the same partition."""
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
            stored = [one.result(self._limit_s) for one in sent]
            return [(one.partition, one.offset) for one in stored]
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
        """With an Idempotency-Key: the same again is not stored again (H4)."""
        producer = self._producer or self._make_producer(None)
        known = keys if any(key is not None for key in keys) else None
        stored = producer.send_once(
            topic, values, request_id=request_id, keys=known, partition=partition
        ).result(self._limit_s)
        return [(one.partition, one.offset) for one in stored]

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
        """Messages, what was passed over, and a damaged batch, as `Taker.take_all` has them."""
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
                    raise Closed("this gateway is about to end")
                self._producer = Producer(
                    self.session,
                    linger_ms=1,
                    max_buffered_bytes=BUFFER_BYTES,
                    max_block_ms=1_000,
                    delivery_timeout_ms=self.timeout_ms,
                    request_timeout_ms=max(1_000, self.timeout_ms // 2),
                )
            if self._producer is None:
                raise Closed("this gateway is about to end")
            return self._producer

    def after(self, error: MyQueueError, producer: Producer) -> None:
        """A producer that was fenced, or lost its place, stops for good: the next one is new."""
        if isinstance(error, Fenced | OutOfSequence | Closed):
            self._make_producer(producer)

    # -- names and the end ------------------------------------------------------------------------

    def name_of(self, what: str) -> str:
        """ "tcp://127.0.0.1:9093" is "manager 2 at 127.0.0.1:9093", and so is "manager 2", once it
        was heard of; "gateway" is this one.
        """
        if what == GATEWAY:
            return f"{GATEWAY} at {self._listens_at}"
        return self.session.name_of(what)

    def close(self) -> None:
        producer = self._producer
        if producer is not None:
            producer.close(1.0)
        self.session.close(1_000)


def _first_of(error: DeliveryFailed) -> MyQueueError:
    """Why the first run of a list failed."""
    first = error.failed[0] if error.failed else error
    return first if isinstance(first, MyQueueError) else error


def _of_a_part(error: MyQueueError) -> MyQueueError:
    """The same error of a list, of which other parts may be stored. A copy: whoever shared the
    batch has the original.
    """
    same = type(error)(str(error), component=error.component, hint=error.hint)
    same.outcome = UNKNOWN
    return same
