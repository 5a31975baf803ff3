"""`MyProducer` and `MyConsumer`: the interface of the assignment, exactly (Q10).

A thin dress over `Producer`, `Consumer` and `Admin`, for who wants to send bytes to topics and to
read them in a loop, and nothing to configure. What it adds is registration: each producer and
consumer has an id per topic, given out by the managers and shown by `myq health`.
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
from myqueue.producer.delivery import RecordMetadata
from myqueue.producer.input import plain
from myqueue.producer.producer import Producer
from myqueue.settings import DAMAGED, joined
from myqueue.simple_http import REFUSED_S, HttpConsumer, HttpProducer, is_http

STOP_S: Final = 5.0
BEGIN_S: Final = 10.0  # so long a constructor may take
SLICE_S: Final = 0.05


def _encoded(value: bytes | str, what: str) -> bytes:
    if not isinstance(value, str):
        return plain(value, what)
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
            told = "; ".join(f"{one}: {REFUSED}" for one in session.manager_addresses)
            raise Unreachable(
                f"every manager's address refused connections for {refused_ms / 1000:.1f} s: {told}"
            )
    asked.result()


def _admin(session: Session, end: float) -> Admin:
    return Admin(session, timeout=max(0.001, end - monotonic()))


class _Direct:
    """What `MyProducer` does over ZeroMQ; `simple_http.HttpProducer` does the same over
    gateways."""

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
    """Sends messages to topics; topics that do not exist are created.

    >>> producer = MyProducer(["orders"], "127.0.0.1:9092")  # doctest: +SKIP
    >>> if producer.can_send():  # doctest: +SKIP
    ...     producer.send("orders", b"17 apples")
    >>> producer.stop()  # doctest: +SKIP

    `broker` names the cluster: host:port of one or more managers, with commas between; or its
    gateways, http://host:port[,…], and all goes through the HTTP endpoints.

    `timeout`: so many seconds the constructor may take, and the registration of a further topic.
    Then it raises Unreachable or TimedOut, which say what each address did. Where every address has
    refused connections for two seconds it does not wait any longer. Both may be tried again.
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
        """Would `send` take a message at once? False: stopped, or the buffer is full."""
        return not self._stopped and self._way.can_send()

    def send(
        self, topic: str, value: bytes | str, *, key: bytes | str | None = None
    ) -> Future[RecordMetadata]:
        """Takes the message and delivers it in the background; the result tells when it is done.

        A text is sent as UTF-8. Messages with the same key go to the same partition. A topic that
        was not named before is registered on the way. While the buffer is full it waits for room,
        up to a minute, then raises BufferFull.
        """
        if self._stopped:
            raise Closed("this producer was stopped")
        as_bytes = _encoded(value, "value")
        its_key = None if key is None else _encoded(key, "key")
        self._way.register(text(topic, "topic"), self._limit_s)
        return self._way.send(topic, as_bytes, its_key)

    def stop(self) -> None:
        """Waits until everything that was sent is delivered or has expired, then ends.

        Raises DeliveryFailed, with each of them, if messages were not delivered.
        """
        if not self._stopped:
            self._stopped = True
            self._way.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class MyConsumer:
    """Reads all messages of topics, each partition in order, from the beginning on.

    >>> consumer = MyConsumer(["orders"], "127.0.0.1:9092")  # doctest: +SKIP
    >>> for message in consumer.get_next():  # doctest: +SKIP
    ...     print(message.topic, message.value)

    Topics must exist, else UnknownTopic. `get_next` waits while there is nothing; it ends after
    `stop`, or after `idle_timeout` seconds without a message. A message that was returned is
    consumed: positions are committed under this consumer's ids, and a consumer that is given the
    `consumer_ids` of an earlier one goes on behind them. `broker` and `timeout` are as for
    MyProducer.

    What retention took before it was read is not skipped in silence: OffsetOutOfRange, or with
    `on_out_of_range` "earliest" or "latest" it goes on at the start or the end. A gateway always
    goes on at the start, as the offsets tell. A batch that nobody can unpack is BATCH_UNREADABLE in
    each call of `get_next`, or with `on_damaged="skip"` it is passed over: logged, and counted in
    `skipped`. Through a gateway, where every request takes what it gets, each error is about one
    message of the batch, so there are as many errors as it has messages, one for each `get_next`.
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
        """Messages one after the other, with .topic .partition .offset .key .value .timestamp."""
        if self._http is not None:
            yield from self._http.get_next()
        elif not self._consumer.is_closed():
            yield from self._consumer

    def skipped(self) -> dict[TopicPartition, int]:
        """Messages that were passed over with on_damaged="skip", by partition."""
        if self._http is not None:
            return dict(self._http.skipped)
        return self._consumer.skipped()

    def stop(self) -> None:
        """Ends `get_next`, from any thread, and commits what it returned."""
        if self._http is not None:
            self._http.stop()
            return
        self._consumer.close(STOP_S, commit=True)
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
