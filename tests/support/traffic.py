"""Clients that write and read while a cluster is being hurt, and what must hold of what they saw.

A `Writer` sends numbered messages and notes what became of each; a `Reader` notes everything it
got, in order. Afterwards `judge` compares: nothing acknowledged is lost, nothing is there twice,
what was reported as certainly not done is not there, every partition is dense and in order, and
all readers saw the same.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any, NamedTuple

from myqueue.acks import AckLedger
from myqueue.consumer.consumer import Consumer
from myqueue.errors import Fenced, MyQueueError
from myqueue.producer.producer import Producer


class Ack(NamedTuple):
    partition: int
    offset: int
    at_s: float
    took_s: float  # from send() to this


class Writer(threading.Thread):
    """Sends `rate` messages a second, round-robin over the partitions, until it is stopped. What is
    acknowledged stands in the ledger as well, if there is one.
    """

    def __init__(
        self,
        cluster: str,
        topic: str,
        name: str,
        rate: float,
        ledger: AckLedger | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.topic, self.pause_s, self.ledger = topic, 1 / rate, ledger
        self.producer = Producer(cluster, **settings)
        self.acked: dict[str, Ack] = {}
        self.failed: dict[str, MyQueueError] = {}
        self.sent = 0
        self.error: Exception | None = None
        self._stop_asked = threading.Event()

    def run(self) -> None:
        try:
            due = time.monotonic()
            while not self._stop_asked.wait(max(0.0, due - time.monotonic())):
                due = max(due + self.pause_s, time.monotonic() - 1.0)
                self._send(f"{self.name}:{self.sent}")
                self.sent += 1
        except Exception as error:
            self.error = error

    def _send(self, text: str) -> None:
        begun_s = time.monotonic()
        delivery = self.producer.send(self.topic, text.encode())
        if self.ledger is not None:
            self.ledger.follow(delivery, text.encode())

        def settled(done: Any) -> None:
            error = done.exception()
            if error is None:
                found = done.result()
                now_s = time.monotonic()
                self.acked[text] = Ack(found.partition, found.offset, now_s, now_s - begun_s)
            else:
                self.failed[text] = error

        delivery.add_done_callback(settled)

    def finish(self, timeout_s: float) -> None:
        """Stop sending, and wait until every message is acknowledged or failed."""
        self._stop_asked.set()
        self.join(timeout_s)
        assert not self.is_alive(), f"{self.name} hangs"
        assert self.error is None, f"{self.name}: {self.error!r}"
        self.producer.flush(timeout_s)
        self.producer.close(5)

    def abandon(self) -> None:
        """Stop without waiting for messages that no broker can take any more."""
        self._stop_asked.set()
        self.join(30)
        with suppress(MyQueueError):
            self.producer.close(0)


class Reader(threading.Thread):
    """Reads a topic from its beginning, committing its positions under an id of its own."""

    def __init__(self, cluster: str, topic: str, name: str, **settings: Any) -> None:
        super().__init__(name=name, daemon=True)
        self.consumer = Consumer(cluster, [topic], **settings)
        self.commits = bool(settings.get("consumer_id") or settings.get("group"))
        self.seen: dict[int, list[tuple[int, str]]] = defaultdict(list)
        self.committed: dict[Any, list[int]] = defaultdict(list)
        self.commit_errors = 0
        self.error: Exception | None = None
        self._stop_asked = threading.Event()

    def run(self) -> None:
        try:
            next_commit = time.monotonic() + 1
            while not self._stop_asked.is_set():
                for message in self.consumer.poll(5000, 0.2):
                    self.seen[message.partition].append((message.offset, message.value.decode()))
                if self.commits and time.monotonic() >= next_commit:
                    next_commit = time.monotonic() + 1
                    self._commit()
        except Exception as error:
            self.error = error

    def _commit(self) -> None:
        try:
            for where, offset in self.consumer.commit(timeout=5).items():
                self.committed[where].append(offset)
        except MyQueueError as error:
            if not error.retriable and not isinstance(error, Fenced):
                raise
            self.commit_errors += 1

    @property
    def total(self) -> int:
        return sum(map(len, self.seen.values()))

    def abandon(self) -> None:
        """Stop without waiting for answers of a cluster that has ended."""
        self._stop_asked.set()
        self.join(30)
        with suppress(MyQueueError):
            self.consumer.close(0)

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(10)
        assert not self.is_alive(), f"{self.name} hangs"
        assert self.error is None, f"{self.name}: {self.error!r}"
        self.consumer.close(5)


def wait_until_read(readers: list[Reader], writers: list[Writer], seconds: float) -> None:
    """Wait until every reader has every message that was acknowledged."""
    wanted = {text for writer in writers for text in writer.acked}
    end = time.monotonic() + seconds
    for reader in readers:
        while reader.error is None:
            missing = wanted - {text for rows in reader.seen.values() for _, text in rows}
            if not missing:
                break
            assert time.monotonic() < end, (
                f"{reader.name} lacks {len(missing)} of {len(wanted)} acknowledged messages, "
                f"{sorted(missing)[:3]} among them"
            )
            time.sleep(0.05)


def judge(readers: list[Reader], writers: list[Writer]) -> dict[str, int]:
    """Raises AssertionError with the first thing that does not hold; returns what was counted."""
    first = readers[0]
    for reader in readers:
        _dense(reader)
        for where, offsets in reader.committed.items():
            assert offsets == sorted(offsets), f"{reader.name}: positions of {where} went back"
    place: dict[str, tuple[int, int]] = {}
    for partition, rows in first.seen.items():
        for offset, text in rows:
            assert text not in place, f"{text} is twice: {place[text]} and {(partition, offset)}"
            place[text] = (partition, offset)
    for writer in writers:
        _kept(writer, place)
    shortest = {p: min(len(r.seen[p]) for r in readers) for p in first.seen}
    for reader in readers[1:]:
        for partition, count in shortest.items():
            same = reader.seen[partition][:count] == first.seen[partition][:count]
            assert same, f"{reader.name} and {first.name} differ in partition {partition}"
    return {
        "sent": sum(writer.sent for writer in writers),
        "acknowledged": sum(len(writer.acked) for writer in writers),
        "failed": sum(len(writer.failed) for writer in writers),
        "read": sum(reader.total for reader in readers),
        "commit_errors": sum(reader.commit_errors for reader in readers),
    }


def _dense(reader: Reader) -> None:
    for partition, rows in reader.seen.items():
        for at, (offset, text) in enumerate(rows):
            assert offset == at, (
                f"{reader.name}: message {at} of partition {partition} has offset {offset} ({text})"
            )


def _kept(writer: Writer, place: dict[str, tuple[int, int]]) -> None:
    for text, ack in writer.acked.items():
        assert text in place, f"{text} was acknowledged at {ack} and is lost"
        assert place[text] == (ack.partition, ack.offset), f"{text}: {place[text]}, not {ack}"
    for text, error in writer.failed.items():
        if error.outcome == "none":
            assert text not in place, f"{text} failed for certain ({error}), and is there"
    newest: dict[int, int] = {}
    mine = [text for text in place if text.startswith(f"{writer.name}:")]
    for text in sorted(mine, key=lambda one: place[one]):
        partition, number = place[text][0], int(text.split(":")[1])
        assert newest.get(partition, -1) < number, f"{text} stands behind {newest[partition]}"
        newest[partition] = number


def percentile_ms(writers: list[Writer], since_s: float, until_s: float, share: float) -> float:
    """Return a percentile of the time from send() to the acknowledgement, in that period."""
    took = sorted(
        ack.took_s
        for writer in writers
        for ack in list(writer.acked.values())
        if since_s <= ack.at_s <= until_s
    )
    return 1000 * took[min(len(took) - 1, int(share * len(took)))]


def interruptions(writers: list[Writer], partition: int, since_s: float, until_s: float) -> float:
    """Return the longest time without an acknowledgement of this partition, in that period."""
    times = sorted(
        ack.at_s
        for writer in writers
        for ack in list(writer.acked.values())
        if ack.partition == partition and since_s - 0.2 <= ack.at_s <= until_s
    )
    if not times:
        return until_s - since_s
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return max([*gaps, until_s - times[-1]], default=until_s - since_s)
