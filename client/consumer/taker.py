"""Take messages away: read them and move the consumer's position in one replicated step.

What a queue over HTTP needs, where the reader keeps nothing: whoever asks next, through whatever
process, gets the next message. `Consumer` is the better way for everybody who can keep a position.

Each take has a key; a repeat with the same key gets the same messages again (PROTOCOL.md, TAKE). So
a lost answer loses nothing: within one call it is asked for again here, and beyond it by whoever
knows the key. Without a partition's number they are looked into one after the other, beginning with
another one each time. With a key the order is decided by the key alone, and a partition that was
empty is remembered as such: the repeat goes the same way and finds the same.

A batch that nobody can unpack is BATCH_UNREADABLE, and the error has what else was taken with it;
with `on_damaged="skip"` exactly its messages are passed over (`skip_damaged.py`).
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
from myqueue.cluster.routing import Partition, Topic
from myqueue.cluster.session import Session
from myqueue.consumer.message import Message, messages_of
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
    error_of,
)
from myqueue.producer.partitioner import settled
from myqueue.settings import DAMAGED
from myqueue.wire import batch
from myqueue.wire.protocol import FETCH, FETCHED, FIELDS, KIND

log = logging.getLogger("myqueue.client")

KEY_BYTES: Final = 16
SPARE_MS: Final = 5_000  # beyond the deadline that a walk has itself
WAIT_MS_SLICE: Final = 1_000  # of a long poll: as long as a broker may hold what nobody waits for
FETCH_BYTES: Final = 4 << 20
OPENED_MAX: Final = 64  # batches that are kept open: the next message is often in the same one
OPENED_BYTES_MAX: Final = 64 << 20  # and what they may take
ITEM_BYTES: Final = 64  # of an object in a column, besides its content


class _OpenedBatch:
    """A batch whose messages are made when they are wanted."""

    __slots__ = ("bytes", "columns", "time_ms")

    def __init__(self, head: batch.Header, columns: batch.Columns) -> None:
        self.time_ms, self.columns = head.time_ms, columns
        kinds = sum(column is not None for column in columns)
        self.bytes = head.body_bytes + head.count * kinds * ITEM_BYTES


class TakeResult(NamedTuple):
    """What one take got. `damaged`: a batch of it can't be unpacked, and nobody asked to skip it;
    the messages are all others that were taken then.
    """

    messages: list[Message]
    ends: list[int]  # the consumer's position in each partition that was asked
    skipped: tuple[SkippedRun, ...] = ()
    damaged: BatchUnreadable | None = None


class Taker:
    """See the chapter's head. Any number of threads may use one.

    >>> with Session("127.0.0.1:9092") as session:  # doctest: +SKIP
    ...     taker = Taker(session)
    ...     number = Admin(session).register_consumer("orders")["consumer_id"]
    ...     messages = taker.take("orders", number, max_messages=10, wait_ms=1000)
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
        """The next messages for this consumer, which are taken with that; [] if none are left.

        If there are none it waits for up to `wait_ms`, or until `ended` says so (it is asked once a
        second). Each partition gives its messages in order.

        A batch that nobody can unpack raises BatchUnreadable; `messages` of the error are the
        others that were taken by this call. With `on_damaged="skip"` it is passed over, with a
        line in the log, and the call may return [] though there is more.
        """
        found = self.take_all(
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
        if found.damaged is not None:
            found.damaged.messages = tuple(found.messages)
            raise found.damaged
        return list(found.messages)

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
        """`take`, with what was passed over, and with a damaged batch beside the messages."""
        is_skipping = _is_skipping(on_damaged)
        known = self._topic(topic)
        limit_ms = self.session.request_timeout_ms if timeout_ms is None else timeout_ms
        order = self._order(known, partition, key)
        if wait_ms and key is not None and len(order) > 1:
            # Only then look: what was found empty with a key stays so.
            self._wait_by_offsets(consumer_id, order, wait_ms, limit_ms, ended)
            wait_ms = 0
        deadline = self.session.now_ms() + wait_ms
        while True:
            walk = _TakeWalk(self, order, consumer_id, max_messages, key, limit_ms, is_skipping)
            found: TakeResult = self.session.wait(walk.future, limit_ms + SPARE_MS)
            left = deadline - self.session.now_ms()
            if found.messages or found.skipped or found.damaged or left <= 0 or ended():
                return found
            self._wait(order, found.ends, left)

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
        """`take_all` without waiting; for a topic that is known (`session.routes`)."""
        is_skipping = _is_skipping(on_damaged)
        order = self._order(topic, partition, key)
        limit_ms = self.session.request_timeout_ms
        return _TakeWalk(self, order, consumer_id, max_messages, key, limit_ms, is_skipping).future

    def left(self, topic: str, consumer_id: int, partition: int | None = None) -> int:
        """How many messages are left for this consumer."""
        partitions = self._order(self._topic(topic), partition, None)
        found = read_offsets(self.session, [one.group for one in partitions], who=str(consumer_id))
        return sum(max(0, row.end - max(row.start, row.position or 0)) for row in found.values())

    def _topic(self, name: str) -> Topic:
        found = self.session.routes.topic(name)
        if found is None:
            (found,) = self.session.wait(self.session.ensure_topics([name]))
        return found

    def _order(
        self, topic: Topic, partition: int | None, key: bytes | None
    ) -> tuple[Partition, ...]:
        """Which partitions are asked, one after the other."""
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
        first = next(self._turn) % number if key is None else settled(key, number)
        return partitions[first:] + partitions[:first]

    def opened(
        self, partition: Partition, offset: int, frame: batch.Buffer, first: int, behind: int
    ) -> list[Message]:
        """Messages first … behind - 1, as far as this batch has them."""
        place = (partition.group, offset)
        opened = self._opened.get(place)
        if opened is None:
            try:
                opened = _OpenedBatch(*batch.open_batch(frame))
            except BatchInvalid as error:
                raise _damage(partition, offset, frame, error) from None
            if len(opened.columns.values) > 1:
                self._keep(place, opened)
        begin, end = max(0, first - offset), max(0, behind - offset)
        columns = batch.part_of(opened.columns, begin, end)
        return messages_of(
            partition.topic, partition.number, offset + begin, opened.time_ms, columns
        )

    def _keep(self, place: tuple[int, int], opened: _OpenedBatch) -> None:
        """By what they take in memory, which can be many times what was sent; the newest stays."""
        known = self._opened
        known[place] = opened
        taken = sum(one.bytes for one in known.values())
        while len(known) > 1 and (len(known) > OPENED_MAX or taken > OPENED_BYTES_MAX):
            taken -= known.popitem(last=False)[1].bytes

    # -- waiting ----------------------------------------------------------------------------------

    def _wait(self, order: tuple[Partition, ...], ends: list[int], left_ms: int) -> None:
        """Until one of them has something at that offset, or a slice of the time is over."""
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
        if rest > 0:  # nobody could be asked, or all said at once that they can't tell
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
            known = read_offsets(self.session, groups, who=str(consumer_id), timeout_ms=limit_ms)
            ends = [max(known[one].start, known[one].position or 0) for one in groups]
            if any(known[one].end > at for one, at in zip(groups, ends, strict=True)):
                return
            self._wait(order, ends, left)


def _is_skipping(on_damaged: str) -> bool:
    if on_damaged not in DAMAGED:
        raise InvalidSetting(f"on_damaged={on_damaged!r} must be one of {', '.join(DAMAGED)}")
    return on_damaged == "skip"


def _damage(
    partition: Partition, offset: int, frame: batch.Buffer, why: BatchInvalid
) -> CorruptData:
    """One that was damaged on its way may be whole in the next answer, and is never skipped."""
    if not batch.is_whole(frame):
        return CorruptData(f"{partition.topic}/{partition.number} at {offset}: {why}")
    count = batch.header(frame).count
    return BatchUnreadable.at(
        partition.topic,
        partition.number,
        offset,
        count,
        why,
        hint='To go on behind it: take with on_damaged="skip", or commit offset '
        f"{offset + count} for this consumer.",
    )


class _TakeWalk:
    """One way through the partitions, until there are enough messages; in the I/O thread.

    A partition whose leader is gone does not hide what the others have, unless the way is decided
    by a key. Once something is taken, it is handed out whatever happens next: it is the asker's.
    With a key that would be the end of the matter, though this call or one before it may have taken
    more, from the partition that does not answer; so there is the error, and the repeat gets all.
    """

    def __init__(
        self,
        taker: Taker,
        order: tuple[Partition, ...],
        consumer_id: int,
        most: int,
        key: bytes | None,
        limit_ms: int,
        is_skipping: bool,
    ) -> None:
        self.future: Future[TakeResult] = Future()
        self._taker, self._session = taker, taker.session
        self._order, self._consumer, self._max_messages, self._key = (
            order,
            str(consumer_id),
            most,
            key,
        )
        self._deadline = self._session.now_ms() + limit_ms
        # A row of damaged batches may be longer than a request may take: the next one goes on.
        self._pass_until = self._session.now_ms() + limit_ms // 2
        self._next_index = 0
        self._result = TakeResult([], [])
        self._first_error: MyQueueError | None = None
        self._position = self._take_end = 0  # of what was taken here and is not read yet
        self._is_skipping = is_skipping
        self._skipped: list[SkippedRun] = []
        self._damaged: BatchUnreadable | None = None  # the last one of the take that is being read
        self._take_key = b""  # of that take
        self._count_before = 0  # messages that there were before it
        self._start_take()

    def _start_take(self) -> None:
        self._take(self._key or token_bytes(KEY_BYTES))

    def _take(self, key: bytes) -> None:
        partition = self._order[self._next_index]
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
        return max(1, left // (len(self._order) - self._next_index))

    def _on_taken(self, asked: Future[Any]) -> None:
        try:
            first, behind, batches = asked.result()
            if behind - first > self._max_messages and self._key is not None:
                raise KeyReused(f"this key came before, and took {behind - first} messages")
            self._position, self._take_end = first, behind
            self._read(batches)
        except Exception as error:
            self._on_failure(error)
            return
        self._advance()

    def _read(self, batches: Iterable[tuple[int, batch.Buffer]]) -> None:
        partition = self._order[self._next_index]
        for offset, frame in batches:
            try:
                found = self._taker.opened(partition, offset, frame, self._position, self._take_end)
            except BatchUnreadable as error:
                self._skip_batch(error)
                continue
            self._result.messages.extend(found)
            self._position += len(found)

    def _advance(self) -> None:
        if self._position < self._take_end:  # taken, but more than one answer carries
            self._fetch()
        elif self._damaged is None:
            self._result.ends.append(self._take_end)
            self._next_partition()
        elif not self._is_skipping:
            self._damaged.outcome = UNKNOWN  # of the call: its messages are taken
            self._end()
        elif len(self._result.messages) > self._count_before:
            self._result.ends.append(self._take_end)
            self._next_partition()
        else:
            self._commit_past_batch(self._damaged)

    # -- what nobody can unpack -------------------------------------------------------------------

    def _skip_batch(self, error: BatchUnreadable) -> None:
        """The messages of this batch that were taken. Of several the error is the first one's."""
        behind = min(self._take_end, error.next_offset)
        if behind <= self._position:
            return
        count, self._position = behind - self._position, behind
        if self._is_skipping:
            self._note_skipped(error, behind - count, count)
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
        """The take gave nothing else: go on behind the batch that it ended in."""
        if error.next_offset <= self._take_end:
            self._take_after_batch()
            return
        partition, left_ms = self._order[self._next_index], self._time_share_ms()
        try:
            asked = commit_at_leader(
                self._session, partition, self._consumer, error.next_offset, left_ms
            )
        except MyQueueError as closed:
            self.future.set_exception(closed)
            return
        asked.add_done_callback(self._on_committed)

    def _on_committed(self, asked: Future[int]) -> None:
        try:
            asked.result()
        except Fenced:  # somebody else says where this consumer is: only what is taken is passed
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
        if self._session.now_ms() < self._pass_until:
            self._take(following_key(self._take_key, self._take_end))
        else:
            self._end()

    # -- what is taken and did not come with the answer -------------------------------------------

    def _fetch(self) -> None:
        partition = self._order[self._next_index]
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
            ((_, code, _, _, batches, _),) = asked.result().fields[0]
            if code:
                group, now = self._order[self._next_index].group, self._session.now_ms()
                raise error_of(code, component=self._session.routes.leader(group, now) or "")
            offsets = (offset for offset, _ in batches)
            self._read(zip(offsets, asked.result().frames, strict=True))
            if self._position == before:
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
            error.outcome = UNKNOWN  # they are taken, and could not be read
            self.future.set_exception(error)
        elif self._result.messages and self._key is None:
            self._end()
        elif is_bound:
            if self._result.messages and isinstance(error, MyQueueError):
                error.outcome = UNKNOWN  # of the call
            self.future.set_exception(error)
        else:
            self._first_error = error  # type: ignore[assignment]
            self._result.ends.append(0)
            self._next_partition()

    def _next_partition(self) -> None:
        self._next_index += 1
        if self._next_index < len(self._order) and len(self._result.messages) < self._max_messages:
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
            found = self._result._replace(skipped=tuple(self._skipped), damaged=damaged)
            self.future.set_result(found)


def _has_data(future: Future[Any]) -> bool:
    if future.exception() is not None:
        return False
    envelope = future.result().envelope
    if envelope[KIND] != FETCHED:
        return False
    rows: Iterable[list[Any]] = envelope[FIELDS]
    return any(row[4] or row[1] for row in rows)
