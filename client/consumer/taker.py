"""`Taker`: read messages and move the consumer's position in one replicated step.

Gateways need it, as a client over HTTP keeps nothing: the next request, through any gateway, gets
the next message. A program that can keep a position should use `Consumer`, which is faster.

Invariant: a take with a key can be repeated. The repeat returns the same messages (PROTOCOL.md,
TAKE), so a lost answer loses no message: within one call it is repeated here, later by the caller
who knows the key. Without a partition's number, partitions are tried one after the other, beginning
with another one each time. With a key, the key alone decides the order, and a partition that was
empty is remembered as empty: the repeat takes the same way and finds the same.

An unreadable batch is BATCH_UNREADABLE; the error has the other messages that were taken with it.
With `on_damaged="skip"` exactly its messages are skipped (`skip_damaged.py`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import count
from secrets import token_bytes
from threading import Event
from typing import Any, Final, NamedTuple

from myqueue.cluster.leader_request import ask_leader
from myqueue.cluster.offset_queries import read_offsets
from myqueue.cluster.partitioner import jump_hash
from myqueue.cluster.routing import Partition, Topic
from myqueue.cluster.session import Session
from myqueue.consumer.message import Message, messages_of
from myqueue.consumer.partition_state import DAMAGED_MAX
from myqueue.consumer.skip_damaged import SkippedRun, commit_at_leader, following_key
from myqueue.consumer.take_batching import TakeOutbox, take_at_leader
from myqueue.errors import (
    UNKNOWN,
    BatchInvalid,
    BatchUnreadable,
    CorruptData,
    Fenced,
    InvalidSetting,
    KeyReused,
    MyQueueError,
    TimedOut,
    UnknownPartition,
)
from myqueue.settings import DAMAGED
from myqueue.wire import batch
from myqueue.wire.protocol import FETCH, FETCHED, FIELDS, KIND

log = logging.getLogger("myqueue.client")

KEY_BYTES: Final = 16
SPARE_MS: Final = 5_000  # added to the deadline that the take has itself
WAIT_MS_SLICE: Final = 1_000  # of a long poll: a broker may hold an abandoned request so long
FETCH_BYTES: Final = 4 << 20
OPENED_MAX: Final = 64  # opened batches that are kept: the next message is often in one
OPENED_BYTES_MAX: Final = 64 << 20  # memory that they may take
ITEM_BYTES: Final = 64  # memory of an object in a column, without its content


class _OpenedBatch:
    """An unpacked batch; its messages are made when they are taken."""

    __slots__ = ("bytes", "columns", "time_ms")

    def __init__(self, head: batch.Header, columns: batch.Columns) -> None:
        self.time_ms, self.columns = head.time_ms, columns
        kinds = sum(column is not None for column in columns)
        self.bytes = head.body_bytes + head.count * kinds * ITEM_BYTES


class TakeResult(NamedTuple):
    """The result of one take.

    `damaged` is the error of an unreadable batch among what was taken, if it was not to be skipped;
    `messages` are all the readable ones.
    """

    messages: list[Message]
    ends: list[int]  # the consumer's position in each partition that was tried
    skipped: tuple[SkippedRun, ...] = ()
    damaged: BatchUnreadable | None = None


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
        self._turn = count()
        self._opened: OrderedDict[tuple[int, int], _OpenedBatch] = OrderedDict()

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
            walk = _TakeWalk(self, order, consumer_id, max_messages, key, limit_ms, is_skipping)
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
        return _TakeWalk(self, order, consumer_id, max_messages, key, limit_ms, is_skipping).future

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

    def opened(
        self, partition: Partition, offset: int, frame: batch.Buffer, first: int, end: int
    ) -> list[Message]:
        """Return messages first … end - 1, as far as this batch has them."""
        place = (partition.group, offset)
        opened = self._opened.get(place)
        if opened is None:
            try:
                opened = _OpenedBatch(*batch.open_batch(frame))
            except BatchInvalid as error:
                raise _damage(partition, offset, frame, error) from None
            if len(opened.columns.values) > 1:
                self._keep(place, opened)
        begin = max(0, first - offset)
        columns = batch.part_of(opened.columns, begin, max(0, end - offset))
        return messages_of(
            partition.topic, partition.number, offset + begin, opened.time_ms, columns
        )

    def _keep(self, place: tuple[int, int], opened: _OpenedBatch) -> None:
        """Keep an opened batch, and drop the oldest ones by number and memory.

        A batch can take many times its packed size. The newest one always stays.
        """
        kept = self._opened
        kept[place] = opened
        memory = sum(one.bytes for one in kept.values())
        while len(kept) > 1 and (len(kept) > OPENED_MAX or memory > OPENED_BYTES_MAX):
            memory -= kept.popitem(last=False)[1].bytes

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


def _damage(
    partition: Partition, offset: int, frame: batch.Buffer, why: BatchInvalid
) -> CorruptData:
    """Make the error: CorruptData if the batch was damaged on its way, so a repeat may help and it
    is never skipped; else BatchUnreadable.
    """
    if not batch.is_whole(frame):
        return CorruptData(f"{partition.topic}/{partition.number} at {offset}: {why}")
    count = batch.header(frame).count
    return BatchUnreadable.at(
        partition.topic,
        partition.number,
        offset,
        count,
        why,
        hint='To go on after it: take with on_damaged="skip", or commit offset '
        f"{offset + count} for this consumer.",
    )


class _TakeWalk:
    """Takes from one partition after the other until there are enough messages; in the I/O thread.

    Without a key, a partition without a leader does not hide messages of other partitions, and
    messages that were taken are returned whatever fails later. With a key, a failure is an error
    instead: this call, or an earlier one with this key, may have taken messages from the partition
    that does not answer, and only a repeat returns them all.
    """

    def __init__(
        self,
        taker: Taker,
        order: tuple[Partition, ...],
        consumer_id: int,
        max_messages: int,
        key: bytes | None,
        limit_ms: int,
        is_skipping: bool,
    ) -> None:
        self.future: Future[TakeResult] = Future()
        self._taker, self._session = taker, taker.session
        self._order, self._key = order, key
        self._consumer, self._max_messages = str(consumer_id), max_messages
        self._deadline = self._session.now_ms() + limit_ms
        # A row of unreadable batches may outlast the request: the next request goes on.
        self._skip_until = self._session.now_ms() + limit_ms // 2
        self._index = 0
        self._result = TakeResult([], [])
        self._first_error: MyQueueError | None = None
        self._position = self._take_end = 0  # taken here, and not read yet
        self._torn_count = 0  # copies of the next batch that were damaged on their way
        self._is_skipping = is_skipping
        self._skipped: list[SkippedRun] = []
        self._damaged: BatchUnreadable | None = None  # in the take that is being read
        self._take_key = b""  # key of that take
        self._count_before = 0  # messages before that take
        self._start_take()

    def _start_take(self) -> None:
        self._take(self._key or token_bytes(KEY_BYTES))

    def _take(self, key: bytes) -> None:
        partition = self._order[self._index]
        remember = self._key is not None and len(self._order) > 1
        self._take_key, self._damaged, self._count_before = key, None, len(self._result.messages)
        row = (
            partition.group,
            self._consumer,
            key,
            self._max_messages - self._count_before,
            remember,
        )
        try:
            asked = take_at_leader(
                self._taker.outbox, self._session, partition, row, self._time_share_ms()
            )
        except MyQueueError as error:  # the session was closed
            self.future.set_exception(error)
            return
        asked.add_done_callback(self._on_taken)

    def _time_share_ms(self) -> int:
        left = self._deadline - self._session.now_ms()
        return max(1, left // (len(self._order) - self._index))

    def _on_taken(self, asked: Future[Any]) -> None:
        try:
            first, end, batches = asked.result()
            if end - first > self._max_messages and self._key is not None:
                raise KeyReused(f"this key came before, and took {end - first} messages")
            self._position, self._take_end = first, end
            self._read(batches)
        except Exception as error:
            self._on_failure(error)
            return
        self._advance()

    def _read(self, batches: Iterable[tuple[int, batch.Buffer]]) -> None:
        """Read the messages that were taken, up to a batch that was damaged on its way."""
        partition, before = self._order[self._index], self._position
        for offset, frame in batches:
            try:
                part = self._taker.opened(partition, offset, frame, self._position, self._take_end)
            except BatchUnreadable as error:
                self._skip_batch(error)
                continue
            except CorruptData:
                self._torn_count = 1 + (self._torn_count if self._position == before else 0)
                if self._torn_count == DAMAGED_MAX:
                    raise
                return
            self._result.messages.extend(part)
            self._position += len(part)
        self._torn_count = 0

    def _advance(self) -> None:
        if self._position < self._take_end:  # more was taken than one answer carried whole
            self._fetch()
        elif self._damaged is None:
            self._result.ends.append(self._take_end)
            self._next_partition()
        elif not self._is_skipping:
            self._damaged.outcome = UNKNOWN  # this call took messages
            self._end()
        elif len(self._result.messages) > self._count_before:
            self._result.ends.append(self._take_end)
            self._next_partition()
        else:
            self._commit_past_batch(self._damaged)

    # -- unreadable batches -----------------------------------------------------------------------

    def _skip_batch(self, error: BatchUnreadable) -> None:
        """Go on after the taken messages of this batch. Without skipping, keep the first error."""
        end = min(self._take_end, error.next_offset)
        if end <= self._position:
            return
        count, self._position = end - self._position, end
        if self._is_skipping:
            self._note_skipped(error, end - count, count)
            self._damaged = error
        else:
            self._damaged = self._damaged or error

    def _note_skipped(self, error: BatchUnreadable, first: int, count: int) -> None:
        last = self._skipped[-1] if self._skipped else None
        if (
            last is not None
            and (last.partition, last.offset + last.count) == (error.partition, first)
            and last.offset >= error.offset
        ):
            self._skipped[-1] = last._replace(count=last.count + count)
        else:
            self._skipped.append(SkippedRun(error.topic, error.partition, first, count))
            log.warning("passed over: %s", error)

    def _commit_past_batch(self, error: BatchUnreadable) -> None:
        """Go on after the unreadable batch in which the take ended; it returned nothing else."""
        if error.next_offset <= self._take_end:
            self._take_after_batch()
            return
        partition, left_ms = self._order[self._index], self._time_share_ms()
        try:
            asked = commit_at_leader(
                self._session, partition, self._consumer, error.next_offset, left_ms
            )
        except MyQueueError as closed:
            self.future.set_exception(closed)
            return
        asked.add_done_callback(self._on_committed)

    def _on_committed(self, asked: Future[Any]) -> None:
        try:
            asked.result()
        except Fenced:  # a group's member commits for this consumer: skip only what is taken
            pass
        except Exception as error:
            self._on_failure(error)
            return
        else:
            last, damaged = self._skipped[-1], self._damaged
            if damaged is not None:
                self._skipped[-1] = last._replace(count=damaged.next_offset - last.offset)
        self._take_after_batch()

    def _take_after_batch(self) -> None:
        if self._session.now_ms() < self._skip_until:
            self._take(following_key(self._take_key, self._take_end))
        else:
            self._end()

    # -- taken messages that did not fit into the answer, or were damaged on their way -------------

    def _fetch(self) -> None:
        partition = self._order[self._index]
        fields = (0, 1, FETCH_BYTES, [[partition.group, self._position]])
        try:
            asked = ask_leader(
                self._session, partition, FETCH, fields, timeout_ms=self._time_share_ms()
            )
        except MyQueueError as error:
            self._on_failure(error)
            return
        asked.add_done_callback(self._on_fetched)

    def _on_fetched(self, asked: Future[Any]) -> None:
        before = self._position
        try:
            ((_, _, _, _, batches, _),) = asked.result().fields[0]
            offsets = (offset for offset, _ in batches)
            self._read(zip(offsets, asked.result().frames, strict=True))
            if self._position == before and not self._torn_count:
                raise TimedOut(f"offset {before} could not be read")
        except Exception as error:
            self._on_failure(error)
            return
        self._advance()

    def _on_failure(self, error: Exception) -> None:
        is_bound = (
            self._key is not None
            or not isinstance(error, MyQueueError)
            or error.outcome == UNKNOWN
            or not error.retriable
        )
        if self._position < self._take_end and isinstance(error, MyQueueError):
            error.outcome = UNKNOWN  # messages are taken, and could not be read
            self.future.set_exception(error)
        elif self._result.messages and self._key is None:
            self._end()
        elif is_bound:
            if self._result.messages and isinstance(error, MyQueueError):
                error.outcome = UNKNOWN  # this call took messages
            self.future.set_exception(error)
        else:
            self._first_error = self._first_error or error  # type: ignore[assignment]
            self._result.ends.append(0)
            self._next_partition()

    def _next_partition(self) -> None:
        self._index += 1
        if self._index < len(self._order) and len(self._result.messages) < self._max_messages:
            self._start_take()
        else:
            self._end()

    def _end(self) -> None:
        damaged = None if self._is_skipping else self._damaged
        if self._first_error is not None and not (
            self._result.messages or self._skipped or damaged
        ):
            self.future.set_exception(self._first_error)
        else:
            result = self._result._replace(skipped=tuple(self._skipped), damaged=damaged)
            self.future.set_result(result)


def _has_data(future: Future[Any]) -> bool:
    if future.exception() is not None:
        return False
    envelope = future.result().envelope
    if envelope[KIND] != FETCHED:
        return False
    rows: Iterable[list[Any]] = envelope[FIELDS]
    return any(row[4] or row[1] for row in rows)
