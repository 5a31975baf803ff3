"""Clients that work while a cluster is hurt, and note what they do and see (`history.py`).

Each is a thread with a turn that is repeated until it is told to stop. Trouble that the error calls
retriable is part of the day; anything else ends the client and fails the run. Values begin with the
message's name and go on with filler whose length follows from the name, so that a reader knows a
damaged one.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from random import Random
from typing import Any
from zlib import crc32

from faults.history import History

from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import Message, TopicPartition
from myqueue.errors import DeliveryFailed, MyQueueError
from myqueue.producer.producer import Producer

SIZES = (10, 40, 100, 100, 300, 1000, 5000)
DELIVERY_MS = 15_000
GIVE_UP_S = 20.0
COMMIT_EVERY_S = 0.7
Run = tuple[int, int, list[str]]  # partition, first offset, names


def value_of(name: str) -> bytes:
    return f"{name} ".encode() + b"." * SIZES[crc32(name.encode()) % len(SIZES)]


def name_of(value: bytes) -> str:
    name = value.partition(b" ")[0].decode("ascii", "replace")
    return name if value == value_of(name) else f"damaged {value[:40]!r}"


def runs_of(messages: list[Message]) -> Iterator[Run]:
    """Messages that stand behind each other, as they came."""
    run: Run | None = None
    for one in messages:
        if run is not None and run[0] == one.partition and run[1] + len(run[2]) == one.offset:
            run[2].append(name_of(one.value))
            continue
        if run is not None:
            yield run
        run = one.partition, one.offset, [name_of(one.value)]
    if run is not None:
        yield run


class Client(threading.Thread, ABC):
    """A thread that repeats `turn` until it is stopped, and notes what it does and sees.

    An error that is not retriable ends it; `finish` raises that error.
    """

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.error: Exception | None = None
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self.turn()
        except Exception as error:
            self.error = error

    @abstractmethod
    def turn(self) -> None:
        """One thing that such a client does; called until it is stopped."""

    def finish(self, seconds: float = 60.0) -> None:
        self.stopped.set()
        self.join(seconds)
        assert not self.is_alive(), f"{self.name} hangs"
        if self.error is not None:
            raise AssertionError(f"{self.name}: {self.error!r}") from self.error

    def patiently(self, call: Any, seconds: float) -> Any:
        """Until it succeeds; what is not retriable, or takes too long, is raised."""
        end = time.monotonic() + seconds
        while True:
            try:
                return call()
            except MyQueueError as error:
                if not error.retriable or time.monotonic() > end:
                    raise
            time.sleep(0.05)


class Writer(Client):
    """Sends at a steady rate. `how`: "steady" to each partition in turn, "keyed", or "free"."""

    def __init__(
        self,
        name: str,
        history: History,
        cluster: str,
        topic: str,
        how: str,
        rate: float,
        partitions: int,
    ) -> None:
        super().__init__(name, history)
        self.cluster, self.topic, self.how, self.partitions = cluster, topic, how, partitions
        self.pause_s, self.due = 1 / rate, time.monotonic()
        self.sessions = self.number = 0
        self._open()

    def _open(self) -> None:
        """Under a new name: what an older session left under way may be stored at any time."""
        self.sessions += 1
        self.number = 0
        self.known_as = f"{self.name}.{self.sessions}"
        self.history.note("client", self.known_as, "ordered")
        self.producer = Producer(
            self.cluster,
            delivery_timeout_ms=DELIVERY_MS,
            max_block_ms=DELIVERY_MS,
            max_buffered_bytes=4 << 20,
        )

    def turn(self) -> None:
        if self.stopped.wait(max(0.0, self.due - time.monotonic())):
            return
        self.due = max(self.due + self.pause_s, time.monotonic() - 0.2)
        client, number = self.known_as, self.number
        self.number += 1
        where: dict[str, Any] = {}
        if self.how == "steady":
            where = {"partition": number % self.partitions}
        elif self.how == "keyed":
            where = {"key": f"key {number % 23}"}
        self.history.note("send", client, self.topic, number)
        try:
            delivery = self.producer.send(self.topic, value_of(f"{client}:{number}"), **where)
        except MyQueueError as error:
            self._failed(client, number, error)
            if not error.retriable:
                self._close()
                self._open()
            return
        delivery.add_done_callback(lambda done: self._settled(client, number, done))

    def _settled(self, client: str, number: int, done: Any) -> None:
        error = done.exception()
        if error is not None:
            self._failed(client, number, error)
            return
        at = done.result()
        self.history.note("ack", client, self.topic, number, at.partition, at.offset)

    def _failed(self, client: str, number: int, error: MyQueueError) -> None:
        self.history.note("fail", client, self.topic, number, error.outcome, error.name)

    def _close(self) -> None:
        try:
            self.producer.close(2 * DELIVERY_MS / 1000)
        except DeliveryFailed:
            pass  # each of them was noted

    def finish(self, seconds: float = 60.0) -> None:
        super().finish(seconds)
        self._close()


class OnceWriter(Client):
    """Batches with a key of their own, sent again through another producer whenever the answer is
    lost, and sometimes although it came.
    """

    def __init__(self, name: str, history: History, cluster: str, topic: str, seed: int) -> None:
        super().__init__(name, history)
        self.topic, self.random, self.number = topic, Random(seed), 0
        self.producers = [Producer(cluster, delivery_timeout_ms=4000) for _ in range(2)]

    def turn(self) -> None:
        numbers = list(range(self.number, self.number + self.random.randint(1, 3)))
        self.number = numbers[-1] + 1
        for number in numbers:
            self.history.note("send", self.name, self.topic, number)
        values = [value_of(f"{self.name}:{number}") for number in numbers]
        key, end, outcome = self.random.randbytes(16), time.monotonic() + GIVE_UP_S, "none"
        again = self.random.random() < 0.2
        while True:
            self.producers.reverse()
            try:
                asked = self.producers[0].send_once(self.topic, values, request_id=key)
                found = asked.result(GIVE_UP_S)
            except MyQueueError as error:
                if error.outcome != "none":
                    outcome = "unknown"
                if time.monotonic() > end or not error.retriable:
                    self._gave_up(numbers, outcome, error)
                    return
                time.sleep(0.05)
                continue
            for number, at in zip(numbers, found, strict=True):
                self.history.note("ack", self.name, self.topic, number, at.partition, at.offset)
            if not again:
                break
            again, outcome = False, "acknowledged"
        self.stopped.wait(self.random.uniform(0.05, 0.2))

    def _gave_up(self, numbers: list[int], outcome: str, error: MyQueueError) -> None:
        if outcome != "acknowledged":
            for number in numbers:
                self.history.note("fail", self.name, self.topic, number, outcome, error.name)

    def finish(self, seconds: float = 60.0) -> None:
        super().finish(seconds)
        for producer in self.producers:
            producer.close(5)


class Reader(Client):
    """Reads all from the beginning. With an id it commits, and now and then it is closed and goes
    on from there; without one it just reads.
    """

    def __init__(
        self,
        name: str,
        history: History,
        cluster: str,
        topic: str,
        consumer_id: int | None,
        seed: int = 0,
    ) -> None:
        super().__init__(name, history)
        self.cluster, self.topic, self.id = cluster, topic, consumer_id
        self.random = Random(seed)
        self.next: dict[int, int] = {}
        self.reached: dict[int, int] = {}  # behind all that was read
        self.committed: dict[int, int] = {}
        self.commit_at = self.close_at = 0.0
        self.consumer: Consumer | None = None

    def _open(self) -> Consumer:
        consumer = self.patiently(
            lambda: Consumer(
                self.cluster, [self.topic], consumer_id=self.id, request_timeout_ms=4000
            ),
            120,
        )
        if self.id is not None:
            self.history.note("resume", self.name, str(self.id), self.topic)
        self.close_at = time.monotonic() + self.random.uniform(8, 20)
        self.next.clear()
        return consumer

    def turn(self) -> None:
        if self.consumer is None:
            self.consumer = self._open()
        for partition, first, names in runs_of(self.consumer.poll(1000, 0.2)):
            self.history.note("read", self.name, self.topic, partition, first, names)
            self.next[partition] = behind = first + len(names)
            self.reached[partition] = max(behind, self.reached.get(partition, 0))
        now = time.monotonic()
        if self.id is not None and now >= self.commit_at:
            self.commit_at = now + COMMIT_EVERY_S
            self._commit(self.consumer)
            if now >= self.close_at:
                self.consumer.close(5)
                self.consumer = None

    def _commit(self, consumer: Consumer) -> None:
        wanted = {p: at for p, at in self.next.items() if at != self.committed.get(p)}
        if not wanted:
            return
        who = str(self.id)
        for partition, position in wanted.items():
            self.history.note("commit", who, self.topic, partition, position)
        try:
            consumer.commit({TopicPartition(self.topic, p): at for p, at in wanted.items()}, 3)
        except MyQueueError as error:
            if not error.retriable:
                raise
            return
        for partition, position in wanted.items():
            self.history.note("committed", who, self.topic, partition, position)
        self.committed |= wanted

    def has_read(self, ends: dict[int, int]) -> bool:
        return all(self.reached.get(partition, 0) >= end for partition, end in ends.items())

    def finish(self, seconds: float = 60.0) -> None:
        super().finish(seconds)
        self.history.note("whole", self.name, self.topic)
        if self.consumer is not None:
            self.consumer.close(5)
