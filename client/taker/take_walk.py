"""`TakeWalk`: one take, from one partition after the other; in the I/O thread.

`taker.py` starts it and gives the order of the partitions. An unreadable batch is BATCH_UNREADABLE;
the error has the other messages that were taken with it. With `on_damaged="skip"` exactly its
messages are skipped (`skip_damaged.py`). A batch that was damaged on its way is fetched again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from myqueue.cluster.leader_request import ask_leader
from myqueue.cluster.routing import Partition
from myqueue.consumer.message import Message
from myqueue.consumer.partition_state import DAMAGED_MAX
from myqueue.errors import (
    UNKNOWN,
    BatchUnreadable,
    CorruptData,
    Fenced,
    KeyReused,
    MyQueueError,
    TimedOut,
)
from myqueue.taker.skip_damaged import SkippedRun, commit_at_leader, following_key
from myqueue.taker.take_batching import take_at_leader
from myqueue.wire import batch
from myqueue.wire.protocol import FETCH

if TYPE_CHECKING:
    from myqueue.taker.taker import Taker

log = logging.getLogger("myqueue.client")

KEY_BYTES: Final = 16
FETCH_BYTES: Final = 4 << 20


class TakeResult(NamedTuple):
    """The result of one take.

    `damaged` is the error of an unreadable batch among what was taken, if it was not to be skipped;
    `messages` are all the readable ones.
    """

    messages: list[Message]
    ends: list[int]  # the consumer's position in each partition that was tried
    skipped: tuple[SkippedRun, ...] = ()
    damaged: BatchUnreadable | None = None


class TakeWalk:
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
                part = self._taker.opened.messages(
                    partition, offset, frame, self._position, self._take_end
                )
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
