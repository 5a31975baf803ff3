"""`AsyncProducer` and `AsyncConsumer`: `Producer` and `Consumer` for asyncio.

They use these classes and the same I/O thread; nothing is implemented twice. One await returns the
result: `await producer.send(…)` returns where the message was stored, `await consumer.poll()` a
list of messages. A waiting consumer holds no thread: the I/O thread wakes the event loop.
Calls that may block otherwise (a full buffer, the first use of a topic, commits, a seek or pause
while the I/O thread holds the lock) run in the loop's default executor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from myqueue.arguments import name_of_partition, seconds, text, whole
from myqueue.constructors import arguments_of
from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import Message, TopicPartition
from myqueue.consumer.positions import Partitions
from myqueue.errors import Closed
from myqueue.producer.conversion import plain_value, plain_values
from myqueue.producer.delivery import RecordMetadata, Stored
from myqueue.producer.producer import Producer
from myqueue.settings import ConsumerSettings

T = TypeVar("T")
SLICE_S: Final = 1.0  # a waiting consumer looks again after this time
UNWANTED_S: Final = 1.0  # to close a consumer whose `start` was cancelled


class AsyncProducer:
    """Send messages and await where they are stored. Its arguments are those of `Producer`.

    >>> async def main():
    ...     async with AsyncProducer("127.0.0.1:9092", create_topics=True) as producer:
    ...         stored = await producer.send("orders", b"17 apples", key=b"customer 4")
    ...         print(stored.topic, stored.offset)
    >>> asyncio.run(main())  # doctest: +SKIP
    orders 0

    For many at once `await asyncio.gather(*(producer.send("orders", value) for value in values))`:
    they are sent in this order. `send_many` is faster. Leaving the `async with` block delivers all
    messages and raises DeliveryFailed if some failed. Calls raise the errors of `Producer`.
    """

    @arguments_of(Producer)
    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._producer = Producer(*arguments, **named)
        self._producer.parting.kind = "AsyncProducer"
        self._order = asyncio.Lock()  # keeps messages in order while one waits for room
        self._known: set[str] = set()  # topics

    async def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one message; returns where a majority stored it, or raises why it failed.

        Arguments are those of `Producer.send`. Cancelling the wait does not unsend the message.
        """
        call = partial(
            self._producer.send,
            topic,
            value,
            key=key,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
        )
        size = len(plain_value(value))
        return await asyncio.wrap_future(await self._put(text(topic, "topic"), size, call))

    async def send_many(
        self, topic: str, values: Iterable[bytes], *, partition: int | None = None
    ) -> list[Stored]:
        """Send a list in its order; returns a Stored for each run of messages."""
        payloads = plain_values(values, "send_many")
        call = partial(self._producer.send_many, topic, payloads, partition=partition)
        return await asyncio.wrap_future(
            await self._put(text(topic, "topic"), sum(map(len, payloads)), call)
        )

    async def _put(self, topic: str, size: int, call: Callable[[], T]) -> T:
        """Call at once if the buffer has room, else in a thread that may wait; in order."""
        async with self._order:
            room = self._producer.settings.max_buffered_bytes - self._producer.buffered_bytes
            if topic in self._known and size < room // 2:
                return call()
            result = await asyncio.to_thread(call)
            self._known.add(topic)
            return result

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message sent so far is delivered or failed, as `Producer.flush`."""
        await asyncio.to_thread(self._producer.flush, timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Deliver the messages in the buffer, then end the producer, as `Producer.close`."""
        await asyncio.to_thread(self._producer.close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._producer.__exit__, kind, error, trace)


class AsyncConsumer:
    """Reads messages of topics; a `Consumer` for asyncio.

    >>> async def main():
    ...     async with AsyncConsumer("127.0.0.1:9092", ["orders"], group="billing") as consumer:
    ...         async for message in consumer:
    ...             await bill(message.value)
    ...             await consumer.commit()

    Without `async with` begin with `await consumer.start()`. Arguments are those of `Consumer`;
    callbacks run in the event loop's thread. Calls of several tasks are done one after the other.
    A call whose wait is cancelled goes on to its end, and the next one begins after it.
    """

    @arguments_of(Consumer)
    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._make = partial(Consumer, *arguments, **named)
        self._idle_s = seconds(named.get("idle_timeout"), "idle_timeout")
        most_ms = whole(named.get("max_poll_ms", ConsumerSettings.max_poll_ms), "max_poll_ms")
        self._slice_s = min(SLICE_S, most_ms / 3000)  # else its group thinks that it is stuck
        self._found: Consumer | None = None
        self._starting, self._turn = asyncio.Lock(), asyncio.Lock()
        self._news = asyncio.Event()

    async def start(self) -> Self:
        """Begin to read: wait until the topics are known. `async with` does it."""
        async with self._starting:
            if self._found is None:
                self._found = await self._made()
                self._found.parting.kind = "AsyncConsumer"
                loop = asyncio.get_running_loop()
                self._found._fetcher.listen(partial(_wake, loop, self._news))
        return self

    async def _made(self) -> Consumer:
        """Make the consumer in a thread; if the wait is cancelled, close it there."""
        made: Future[Consumer] = Future()
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, _make, self._make, made)
        try:
            return await asyncio.wrap_future(made)
        except asyncio.CancelledError:
            if not made.cancel() and made.exception() is None:
                loop.run_in_executor(None, made.result().close, UNWANTED_S)
            raise

    @property
    def _consumer(self) -> Consumer:
        if self._found is None:
            raise Closed("not started", hint="Use 'async with', or await start() first.")
        return self._found

    async def poll(
        self, max_messages: int | None = None, timeout: float | None = 1.0
    ) -> list[Message]:
        """Return messages as soon as there are any; [] if none came within `timeout` seconds.

        Arguments and errors are those of `Consumer.poll`. The time counts that calls of other tasks
        take.
        """
        consumer, timeout = self._consumer, seconds(timeout)
        return await self._until(timeout, lambda: consumer.poll(max_messages, 0.0)) or []

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages; the loop ends after `idle_timeout` seconds without one, or `close`."""
        consumer = self._consumer
        take_run = partial(consumer._wait_for_run, 0.0)
        handover = consumer._handover
        while True:
            run: Iterator[Message] | None = await self._until(self._idle_s, take_run)
            if run is None:
                return
            for message in run:
                yield message
                handover.commit_if_due()
                if handover.note_poll():
                    break

    async def _until(self, timeout: float | None, take: Callable[[], T | None]) -> T | None:
        """Call `take` until it returns something; other tasks may call while this one waits."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self._news.clear()
            if not await _within(end, self._turn.acquire()):
                return None  # another task is in a call, and this one's time is over
            try:
                has_to_save = self._consumer._handover.has_to_save()
                result = None if has_to_save else take()
            finally:
                self._turn.release()
            if has_to_save:
                with suppress(Closed):
                    if not await _within(end, self._call(self._save_leaving)):
                        return None  # the commit goes on; the next call begins after it
                continue
            left = self._slice_s if end is None else min(self._slice_s, end - time.monotonic())
            if result or left <= 0 or self._consumer.is_closed():
                await asyncio.sleep(0)  # let other tasks run, however much there is to read
                return result
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except TimeoutError:
                pass
            if self._consumer.is_closed():
                return None

    def _save_leaving(self) -> None:
        with self._consumer._exclusive_call():
            self._consumer._handover.save_leaving()

    async def commit(
        self,
        upto: Message | Mapping[TopicPartition, int] | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Commit positions; see `Consumer.commit`."""
        return await self._call(self._consumer.commit, upto, timeout)

    async def committed(
        self, partitions: Partitions | float = None, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return committed positions; see `Consumer.committed`."""
        return await self._call(self._consumer.committed, partitions, timeout)

    @overload
    async def position(
        self, partition: TopicPartition | tuple[str, int], timeout: float | None = None
    ) -> int: ...
    @overload
    async def position(self, topic: str, number: int, /, timeout: float | None = None) -> int: ...
    async def position(self, partition: Any, *more: Any, timeout: Any = None) -> int:
        """Return the offset of the next message; see `Consumer.position`."""
        name, rest = name_of_partition(partition, more)
        return await self._call(self._consumer.position, name, *(rest or (timeout,)))

    async def lag(
        self, partitions: Partitions | float = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return how many messages are left in each partition; see `Consumer.lag`."""
        return await self._call(self._consumer.lag, partitions, timeout)

    async def seek_to_time(
        self, time_ms: int, partitions: Partitions = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Go on from a time; see `Consumer.seek_to_time`."""
        return await self._call(self._consumer.seek_to_time, time_ms, partitions, timeout)

    async def seek_to_beginning(
        self, partitions: Partitions = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Go on from the oldest messages; see `Consumer.seek_to_beginning`."""
        return await self._call(self._consumer.seek_to_beginning, partitions, timeout)

    async def seek_to_end(
        self, partitions: Partitions = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Go on after the newest messages; see `Consumer.seek_to_end`."""
        return await self._call(self._consumer.seek_to_end, partitions, timeout)

    async def _call(self, method: Callable[..., T], *arguments: Any) -> T:
        await self._turn.acquire()
        done = asyncio.ensure_future(asyncio.to_thread(method, *arguments))
        done.add_done_callback(self._next_turn)
        return await asyncio.shield(done)

    def _next_turn(self, done: asyncio.Future[Any]) -> None:
        self._turn.release()
        if not done.cancelled():
            done.exception()  # read it, as the waiting task may have been cancelled

    def skipped(self) -> dict[TopicPartition, int]:
        """Return the number of skipped messages; see `Consumer.skipped`."""
        return self._consumer.skipped()

    async def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read now; see `Consumer.assignment`."""
        return await self._call(self._consumer.assignment)

    @overload
    async def seek(self, partition: TopicPartition | tuple[str, int], offset: int, /) -> None: ...
    @overload
    async def seek(self, topic: str, number: int, offset: int, /) -> None: ...
    @overload
    async def seek(self, partition: TopicPartition | tuple[str, int], *, offset: int) -> None: ...
    async def seek(self, partition: Any, *more: Any, offset: Any = None) -> None:
        """Go on from an offset; see `Consumer.seek`."""
        name, rest = name_of_partition(partition, more)
        await self._call(self._consumer.seek, name, *(rest or (offset,)))

    async def pause(self, partitions: Partitions = None) -> None:
        """Return no messages of these partitions until `resume`; see `Consumer.pause`."""
        await self._call(self._consumer.pause, partitions)

    async def resume(self, partitions: Partitions = None) -> None:
        """Return messages of these partitions again."""
        await self._call(self._consumer.resume, partitions)

    async def close(self, timeout: float = 5.0) -> None:
        """Leave the group and end, as `Consumer.close`; a waiting `poll` returns, a loop ends."""
        if self._found is not None:
            await asyncio.to_thread(self._found.close, timeout)
            self._news.set()

    def __aenter__(self) -> Awaitable[Self]:
        return self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _make(make: Callable[[], Consumer], made: Future[Consumer]) -> None:
    """Make a consumer in a thread, and wait until it is ready."""
    try:
        consumer = make()
        try:
            with consumer._exclusive_call():
                pass  # the topics are known: `poll` never waits for them
        except BaseException:
            consumer.close(0)
            raise
    except BaseException as error:
        with suppress(InvalidStateError):
            made.set_exception(error)
        return
    try:
        made.set_result(consumer)
    except InvalidStateError:  # `start` was cancelled
        consumer.close(UNWANTED_S)


async def _within(end: float | None, awaited: Awaitable[object]) -> bool:
    """Await it until `end`; False: it was not done by then, and was cancelled."""
    try:
        async with asyncio.timeout(None if end is None else end - time.monotonic()) as scope:
            await awaited
    except TimeoutError:
        if not scope.expired():
            raise
        return False
    return True


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set the event from the I/O thread."""
    try:
        loop.call_soon_threadsafe(event.set)
    except RuntimeError:  # the loop was closed before the consumer
        pass
