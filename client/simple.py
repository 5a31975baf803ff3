"""`MyProducer` and `MyConsumer`: send bytes to topics and read them, with nothing to configure.

They are thin classes over `Producer`, `Consumer` and `Admin`, with exactly the interface of the
project's assignment. They add registration: each producer and consumer has an id for each topic,
which the managers allot and `myq health` shows. With `http://` addresses they use gateways instead
(`simple_http.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from time import monotonic
from typing import Final, Self

from myqueue.admin.client import Admin
from myqueue.arguments import definite_seconds, numbers_of, seconds, text, texts
from myqueue.cluster.connection import REFUSED
from myqueue.cluster.session import Session
from myqueue.constructors import named_arguments
from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import Message, TopicPartition
from myqueue.errors import Closed, InvalidRequest, InvalidSetting, Unreachable
from myqueue.http_requests import REFUSED_S
from myqueue.producer.conversion import plain_value
from myqueue.producer.delivery import RecordMetadata
from myqueue.producer.producer import Producer
from myqueue.settings import DAMAGED, joined
from myqueue.simple_http import HttpConsumer, HttpProducer, is_http

STOP_S: Final = 5.0
BEGIN_S: Final = 10.0  # default time limit of constructors
SLICE_S: Final = 0.05


def _encoded(value: bytes | str, what: str) -> bytes:
    if not isinstance(value, str):
        return plain_value(value, what)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"this {what} has half of a surrogate pair, which is no text"
        ) from None


def _find_managers(session: Session, end: float) -> None:
    """Wait until a manager answers; Unreachable if none does, sooner if all refuse connections."""
    left_ms = max(1, round((end - monotonic()) * 1000))
    asked = session.read("managers", timeout_ms=left_ms)
    while not wait([asked], SLICE_S).done:
        refused_ms = session.refused_ms
        if refused_ms >= REFUSED_S * 1000:
            reasons = "; ".join(f"{one}: {REFUSED}" for one in session.manager_addresses)
            raise Unreachable(
                f"every manager's address refused connections for {refused_ms / 1000:.1f} s:"
                f" {reasons}"
            )
    asked.result()


def _admin(session: Session, end: float) -> Admin:
    return Admin(session, timeout=max(0.001, end - monotonic()))


class _Direct:
    """`MyProducer` over ZeroMQ; `simple_http.HttpProducer` is the same over gateways."""

    def __init__(self, broker: str) -> None:
        self.producer_ids: dict[str, int] = {}
        self._session = Session.of("", broker, name="MyProducer")
        self._producer = Producer(self._session)
        self._producer.parting.kind, self._producer.parting.verb = "MyProducer", "stop"

    def register(self, topic: str, limit_s: float) -> None:
        if topic not in self.producer_ids:
            end = monotonic() + limit_s
            if not self.producer_ids:
                _find_managers(self._session, end)
            number = _admin(self._session, end).register_producer(topic)["producer_id"]
            self.producer_ids[topic] = number
            self._session.keep_alive(producer=number)

    def can_send(self) -> bool:
        room = self._producer.settings.max_buffered_bytes
        return self._producer.buffered_bytes < room

    def send(self, topic: str, value: bytes, key: bytes | None = None) -> Future[RecordMetadata]:
        return self._producer.send(topic, value, key=key)

    def stop(self) -> None:
        try:
            self._producer.close()
        finally:
            self._session.close()


class MyProducer:
    """Sends messages to topics, and creates topics that do not exist.

    >>> producer = MyProducer(["orders"], "127.0.0.1:9092")  # doctest: +SKIP
    >>> if producer.can_send():  # doctest: +SKIP
    ...     producer.send("orders", b"17 apples")
    >>> producer.stop()  # doctest: +SKIP

    topics: names of the topics to register for; `send` registers for others.
    broker: the cluster: "host:port[,…]" of one or more managers, or "http://host:port[,…]" of
        gateways, and then everything goes over HTTP. A list works too.
    timeout: seconds that the constructor may take, and the registration of a further topic
        (default: 10).

    Raises Unreachable or TimedOut, which say what each address did; both may be tried again. If
    every address refuses connections for two seconds it does not wait any longer.

    Attributes: `producer_ids`, the ids of this producer by topic.
    """

    @named_arguments
    def __init__(
        self, topics: Iterable[str], broker: str | Iterable[str], *, timeout: float = BEGIN_S
    ) -> None:
        names, broker = texts(topics, "topics"), joined(broker)
        self._limit_s = definite_seconds(timeout)
        end = monotonic() + self._limit_s
        self._stopped = False
        self._way: HttpProducer | _Direct
        if is_http(broker):
            self._way = http = HttpProducer(broker)
            http.parting.watch(self)
        else:
            self._way = _Direct(broker)
        self.producer_ids: dict[str, int] = self._way.producer_ids  # by topic
        try:
            for topic in names:
                self._way.register(topic, end - monotonic())
        except BaseException:
            self._way.stop()
            raise

    def can_send(self) -> bool:
        """Would `send` take a message without waiting? False: stopped, or the buffer is full."""
        return not self._stopped and self._way.can_send()

    def send(
        self, topic: str, value: bytes | str, *, key: bytes | str | None = None
    ) -> Future[RecordMetadata]:
        """Take a message and deliver it in the background; return a future of where it is stored.

        topic: its name. A topic that was not named before is registered first.
        value, key: bytes, or a text that is sent as UTF-8. Messages with the same key go to the
            same partition.

        While the buffer (64 MiB) is full this waits for room, up to a minute, then raises
        BufferFull. Raises Closed after `stop`. `send(…).result(10)` waits for the delivery.
        """
        if self._stopped:
            raise Closed("this producer was stopped")
        as_bytes = _encoded(value, "value")
        its_key = None if key is None else _encoded(key, "key")
        self._way.register(text(topic, "topic"), self._limit_s)
        return self._way.send(topic, as_bytes, its_key)

    def stop(self) -> None:
        """Wait until every message is delivered or has expired (two minutes), then end.

        Raises DeliveryFailed if messages were not delivered; its `failed` lists them.
        """
        if not self._stopped:
            self._stopped = True
            self._way.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class MyConsumer:
    """Reads all messages of topics from the beginning on, each partition in order.

    >>> consumer = MyConsumer(["orders"], "127.0.0.1:9092", idle_timeout=5)  # doctest: +SKIP
    >>> for message in consumer.get_next():  # doctest: +SKIP
    ...     print(message.topic, message.value)
    >>> consumer.stop()  # doctest: +SKIP

    topics: names of the topics. They must exist.
    broker: managers or gateways, as for MyProducer.
    idle_timeout: `get_next` ends after so many seconds without a message (default: never).
    consumer_ids: the `consumer_ids` of an earlier consumer, by topic, to go on where it stopped.
    on_out_of_range: "error" raises OffsetOutOfRange when retention removed the next message;
        "earliest" or "latest" goes on at the start or the end. Gateways always go on at the start.
    on_damaged: "raise" raises BatchUnreadable, in each call of `get_next`, for a batch that can't
        be unpacked; "skip" logs and skips it, and counts it in `skipped`. Through a gateway each
        error is about one message of the batch, one in each call of `get_next`.
    timeout: seconds that the constructor may take (default: 10).

    Every consumer reads every message. A message that was returned counts as consumed: `stop`
    commits the positions under this consumer's ids, and so does each second.

    Raises UnknownTopic, and Unreachable or TimedOut as MyProducer does.

    Attributes: `consumer_ids`, the ids of this consumer by topic.
    """

    @named_arguments
    def __init__(
        self,
        topics: Iterable[str],
        broker: str | Iterable[str],
        *,
        idle_timeout: float | None = None,
        consumer_ids: Mapping[str, int] | None = None,
        on_out_of_range: str = "error",
        on_damaged: str = "raise",
        timeout: float = BEGIN_S,
    ) -> None:
        end = monotonic() + definite_seconds(timeout)
        names, broker = texts(topics, "topics"), joined(broker)
        idle_timeout = seconds(idle_timeout, "idle_timeout")
        known = numbers_of(consumer_ids or {}, "consumer_ids")
        self._http: HttpConsumer | None = None
        if is_http(broker):
            if on_damaged not in DAMAGED:
                raise InvalidSetting(
                    f"on_damaged={on_damaged!r} must be one of {', '.join(DAMAGED)}"
                )
            self._http = HttpConsumer(
                names, broker, idle_timeout, known, end - monotonic(), on_damaged
            )
            self.consumer_ids = self._http.consumer_ids
            self._http.parting.watch(self)
            return
        self._session = Session.of("", broker, name="MyConsumer")
        try:
            if not known.keys() >= set(names):
                _find_managers(self._session, end)
            self.consumer_ids = {
                name: known[name]
                if name in known
                else int(_admin(self._session, end).register_consumer(name)["consumer_id"])
                for name in names
            }
            if not known.keys() >= set(names):  # Consumer itself takes the time of a request
                left_ms = max(1, round((end - monotonic()) * 1000))
                self._session.wait(self._session.ensure_topics(names, timeout_ms=left_ms))
            self._consumer = Consumer(
                self._session,
                names,
                consumer_id=self.consumer_ids,
                auto_commit=True,
                auto_commit_interval_ms=1_000,
                idle_timeout=idle_timeout,
                on_out_of_range=on_out_of_range,
                on_damaged=on_damaged,
            )
            self._consumer.parting.kind, self._consumer.parting.verb = "MyConsumer", "stop"
        except BaseException:
            self._session.close()
            raise

    def get_next(self) -> Iterator[Message]:
        """Yield each `Message`: .topic .partition .offset .key .value .headers .timestamp.

        Waits while there is none; ends after `stop`, or `idle_timeout` seconds without a message.
        """
        if self._http is not None:
            yield from self._http.get_next()
        elif not self._consumer.is_closed():
            yield from self._consumer

    def skipped(self) -> dict[TopicPartition, int]:
        """Return the number of messages skipped with on_damaged="skip", by partition."""
        if self._http is not None:
            return dict(self._http.skipped)
        return self._consumer.skipped()

    def stop(self) -> None:
        """End `get_next` and commit what it returned; may be called from any thread."""
        if self._http is not None:
            self._http.stop()
            return
        self._consumer.close(STOP_S, commit=True)
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
