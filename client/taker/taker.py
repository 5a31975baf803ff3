"""`Taker`: read messages and move the consumer's position in one replicated step.

Gateways need it, as a client over HTTP keeps nothing: the next request, through any gateway, gets
the next message. A program that can keep a position should use `Consumer`, which is faster.

Invariant: a take with a key can be repeated. The repeat returns the same messages (PROTOCOL.md,
TAKE), so a lost answer loses no message: within one call it is repeated here, later by the caller
who knows the key. Without a partition's number, partitions are tried one after the other, beginning
with another one each time. With a key, the key alone decides the order, and a partition that was
empty is remembered as empty: the repeat takes the same way and finds the same.

`take_walk.py` goes from partition to partition, and handles unreadable batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import count
from threading import Event
from typing import Any, Final

from myqueue.cluster.offset_queries import read_offsets
from myqueue.cluster.partitioner import jump_hash
from myqueue.cluster.routing import Partition, Topic
from myqueue.cluster.session import Session
from myqueue.consumer.message import Message
from myqueue.errors import InvalidSetting, UnknownPartition
from myqueue.settings import DAMAGED
from myqueue.taker.opened_batches import OpenedBatches
from myqueue.taker.take_batching import TakeOutbox
from myqueue.taker.take_walk import TakeResult, TakeWalk
from myqueue.wire.protocol import FETCH, FETCHED, FIELDS, KIND

SPARE_MS: Final = 5_000  # added to the deadline that the take has itself
WAIT_MS_SLICE: Final = 1_000  # of a long poll: a broker may hold an abandoned request so long


class Taker:
    """Takes messages: each take reads and moves the consumer's position in one replicated step.

    >>> with Session("127.0.0.1:9092") as session:  # doctest: +SKIP
    ...     taker = Taker(session)
    ...     number = Admin(session).register_consumer("orders")["consumer_id"]
    ...     messages = taker.take("orders", number, max_messages=10, wait_ms=1000)

    session: the connection to the cluster. The Taker has nothing to close; close the session.

    A taken message counts as consumed at once, and several processes may take with one consumer id:
    each message goes to one of them. Use `Consumer` where the program can keep a position itself.
    Any number of threads may use one Taker.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.outbox = TakeOutbox(session)
        self.opened = OpenedBatches()
        self._turn = count()

    def take(
        self,
        topic: str,
        consumer_id: int,
        *,
        partition: int | None = None,
        max_messages: int = 1,
        wait_ms: int = 0,
        key: bytes | None = None,
        timeout_ms: int | None = None,
        on_damaged: str = "raise",
        ended: Callable[[], bool] = lambda: False,
    ) -> list[Message]:
        """Take the next messages for this consumer; [] if there are none.

        consumer_id: from `Admin.register_consumer`.
        partition: take from this partition only; None tries all, one after the other.
        max_messages: at most so many. Those of one partition come in order.
        wait_ms: wait so long for a first message; 0 does not wait.
        key: 16 bytes of the caller's choice. A repeat with the same key and arguments returns the
            same messages. None: each call takes further messages.
        timeout_ms: for the requests of this call, without the wait (default: the session's).
        on_damaged: "raise" raises BatchUnreadable for a batch that can't be unpacked; the error's
            `messages` are the others that this call took. "skip" logs and skips the batch; then []
            does not mean that nothing is left.
        ended: called about once a second while waiting; returning True ends the wait.

        Raises UnknownTopic, UnknownPartition, KeyReused, InvalidSetting, and what `Session` raises.
        An error with outcome "unknown" may have taken messages: repeat with the key to get them.
        """
        result = self.take_all(
            topic,
            consumer_id,
            partition=partition,
            max_messages=max_messages,
            wait_ms=wait_ms,
            key=key,
            timeout_ms=timeout_ms,
            on_damaged=on_damaged,
            ended=ended,
        )
        if result.damaged is not None:
            result.damaged.messages = tuple(result.messages)
            raise result.damaged
        return list(result.messages)

    def take_all(
        self,
        topic: str,
        consumer_id: int,
        *,
        partition: int | None,
        max_messages: int,
        wait_ms: int,
        key: bytes | None,
        timeout_ms: int | None,
        on_damaged: str,
        ended: Callable[[], bool],
    ) -> TakeResult:
        """Do what `take` does; return also skipped runs, and the error of an unreadable batch."""
        is_skipping = _is_skipping(on_damaged)
        limit_ms = self.session.request_timeout_ms if timeout_ms is None else timeout_ms
        order = self._order(self._topic(topic), partition, key)
        if wait_ms and key is not None and len(order) > 1:
            # Wait before the take: a partition that it finds empty stays empty for this key.
            self._wait_by_offsets(consumer_id, order, wait_ms, limit_ms, ended)
            wait_ms = 0
        deadline = self.session.now_ms() + wait_ms
        while True:
            walk = TakeWalk(self, order, consumer_id, max_messages, key, limit_ms, is_skipping)
            result: TakeResult = self.session.wait(walk.future, limit_ms + SPARE_MS)
            left = deadline - self.session.now_ms()
            if result.messages or result.skipped or result.damaged or left <= 0 or ended():
                return result
            self._wait(order, result.ends, left)

    def begin(
        self,
        topic: Topic,
        consumer_id: int,
        *,
        partition: int | None = None,
        max_messages: int = 1,
        key: bytes | None = None,
        on_damaged: str = "raise",
    ) -> Future[TakeResult]:
        """Start a take and return its future; `topic` comes from `session.routes`."""
        is_skipping = _is_skipping(on_damaged)
        order = self._order(topic, partition, key)
        limit_ms = self.session.request_timeout_ms
        return TakeWalk(self, order, consumer_id, max_messages, key, limit_ms, is_skipping).future

    def left(self, topic: str, consumer_id: int, partition: int | None = None) -> int:
        """Ask the brokers how many messages are left for this consumer, in one partition or all."""
        partitions = self._order(self._topic(topic), partition, None)
        groups = [one.group for one in partitions]
        offsets = read_offsets(self.session, groups, who=str(consumer_id))
        return sum(max(0, row.end - max(row.start, row.position or 0)) for row in offsets.values())

    def _topic(self, name: str) -> Topic:
        topic = self.session.routes.topic(name)
        if topic is None:
            (topic,) = self.session.wait(self.session.ensure_topics([name]))
        return topic

    def _order(
        self, topic: Topic, partition: int | None, key: bytes | None
    ) -> tuple[Partition, ...]:
        """Return the partitions in the order in which they are tried."""
        partitions = topic.partitions
        if partition is not None:
            if not 0 <= partition < len(partitions):
                error = UnknownPartition(
                    f"{topic.name} has partitions 0 to {len(partitions) - 1}, not {partition}"
                )
                error.retriable = False
                raise error
            return (partitions[partition],)
        number = len(partitions)
        first = next(self._turn) % number if key is None else jump_hash(key, number)
        return partitions[first:] + partitions[:first]

    # -- waiting ----------------------------------------------------------------------------------

    def _wait(self, order: tuple[Partition, ...], ends: list[int], left_ms: int) -> None:
        """Wait until a partition has a message at its offset, at most for WAIT_MS_SLICE."""
        session = self.session
        wait_ms = max(1, min(left_ms, WAIT_MS_SLICE))
        parts: dict[str, list[list[int]]] = {}
        for partition, offset in zip(order, ends, strict=False):
            address = session.routes.leader(partition.group, session.now_ms())
            if address is not None:
                parts.setdefault(address, []).append([partition.group, offset])
        asked: set[Future[Any]] = {
            session.call(address, FETCH, (wait_ms, 1, 1, wanted), timeout_ms=wait_ms + 2_000)
            for address, wanted in parts.items()
        }
        end = session.now_ms() + wait_ms
        while asked and session.now_ms() < end:
            done, asked = wait(asked, (end - session.now_ms()) / 1000, return_when=FIRST_COMPLETED)
            if any(_has_data(future) for future in done):
                return
        rest = end - session.now_ms()
        if rest > 0:  # no leader is known, or all refused at once
            Event().wait(rest / 1000)

    def _wait_by_offsets(
        self,
        consumer_id: int,
        order: tuple[Partition, ...],
        wait_ms: int,
        limit_ms: int,
        ended: Callable[[], bool],
    ) -> None:
        deadline = self.session.now_ms() + wait_ms
        while (left := deadline - self.session.now_ms()) > 0 and not ended():
            groups = [one.group for one in order]
            rows = read_offsets(self.session, groups, who=str(consumer_id), timeout_ms=limit_ms)
            positions = [max(rows[one].start, rows[one].position or 0) for one in groups]
            if any(rows[one].end > at for one, at in zip(groups, positions, strict=True)):
                return
            self._wait(order, positions, left)


def _is_skipping(on_damaged: str) -> bool:
    if on_damaged not in DAMAGED:
        raise InvalidSetting(f"on_damaged={on_damaged!r} must be one of {', '.join(DAMAGED)}")
    return on_damaged == "skip"


def _has_data(future: Future[Any]) -> bool:
    if future.exception() is not None:
        return False
    envelope = future.result().envelope
    if envelope[KIND] != FETCHED:
        return False
    rows: Iterable[list[Any]] = envelope[FIELDS]
    return any(row[4] or row[1] for row in rows)
