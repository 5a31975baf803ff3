"""The measurements behind `myq bench`: each makes load through the public client and counts.

Only acknowledged messages count as produced: they are on the disks of a majority, after fdatasync.
The keys of the results are those of the peers' benchmark, so that runs can be compared line by
line.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import deque
from functools import partial
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

from myqueue.acks import AckLedger
from myqueue.cli.bench.parts import Pacer, age_ns, payload, percentiles, timed, used
from myqueue.cluster.session import Session
from myqueue.consumer.consumer import Consumer
from myqueue.errors import MyQueueError, TimedOut
from myqueue.producer.producer import Producer

IDLE_S = 10.0
WARM = 50  # messages sent before a measurement of latency
WINDOW_BYTES = 8 << 20  # unacknowledged: enough to keep all daemons busy, little enough for memory


class Load(NamedTuple):
    """The load of a measurement: messages, duration and producer settings."""

    cluster: str
    topic: str
    size: int
    seconds: float
    warmup: float
    batch_bytes: int
    in_flight: int
    single: bool  # every message a batch of its own
    compression: str
    acks: AckLedger | None = None  # records each acknowledgement


def produce(load: Load, session: Session) -> dict[str, Any]:
    """Send as much as possible for some seconds after a warm-up."""
    settings: dict[str, Any] = {
        "batch_bytes": 1 if load.single else load.batch_bytes,
        "compression": load.compression,
        "max_in_flight": load.in_flight,
        "max_buffered_bytes": 4 * WINDOW_BYTES,
    }
    with Producer(load.cluster, **settings) as producer:
        counter = _Acked()
        sender = threading.Thread(
            target=_send_singles if load.single else _send_lists, args=(load, producer, counter)
        )
        sender.start()
        try:
            time.sleep(load.warmup)
            begin, before, cpu = time.monotonic(), counter.count, used(session)
            client_cpu_s = time.process_time()
            time.sleep(load.seconds)
            seconds, count = time.monotonic() - begin, counter.count - before
            client_cpu_s = time.process_time() - client_cpu_s
            after = used(session)
        finally:
            counter.stop = True
            sender.join(60)
    if counter.error is not None:
        raise counter.error
    count = max(count, 1)
    cpu_s = after.cpu_s - cpu.cpu_s
    return {
        "produce_msgs_s": round(count / seconds),
        "produce_mb_s": round(count * load.size / seconds / 1e6, 2), "produce_n": count,
        "server_cpu_s_per_m": round(cpu_s / count * 1e6, 2),
        "client_cpu_s_per_m": round(client_cpu_s / count * 1e6, 2),
        "server_cores": round(cpu_s / seconds, 2),
        "server_rss_mb": round(after.resident_bytes / 1e6, 1),
        "broker_rss_mb_max": round(after.biggest_bytes / 1e6, 1), "prefilled": counter.count,
    }  # fmt: skip


class _Acked:
    """Acknowledged messages and the first error, counted by the client's I/O thread."""

    def __init__(self) -> None:
        self.count, self.stop = 0, False
        self.error: Exception | None = None

    def add(self, count: int, error: BaseException | None) -> None:
        if error is None:
            self.count += count
        elif self.error is None and isinstance(error, Exception):
            self.error = error


def _send_lists(load: Load, producer: Producer, counter: _Acked) -> None:
    """Send lists that fill a batch; at most WINDOW_BYTES are unacknowledged."""
    each = max(1, load.batch_bytes // (load.size + 4))
    values = [payload(load.size)] * each
    room = threading.Semaphore(max(4, WINDOW_BYTES // (each * load.size)))
    try:
        while not counter.stop and counter.error is None:
            room.acquire()

            def settled(done: Any) -> None:
                counter.add(each, done.exception())
                room.release()

            delivery = producer.send_many(load.topic, values)
            if load.acks is not None:
                load.acks.follow_many(delivery, values)
            delivery.add_done_callback(settled)
    except MyQueueError as error:
        counter.error = error


def _send_singles(load: Load, producer: Producer, counter: _Acked) -> None:
    """Send messages one by one; with `in_flight` unacknowledged, wait for the oldest."""
    value, window = payload(load.size), deque[Any]()
    try:
        while not counter.stop:
            window.append(producer.send(load.topic, value))
            if load.acks is not None:
                load.acks.follow(window[-1], value)
            if len(window) >= load.in_flight:
                window.popleft().result(30)
                counter.count += 1
        for delivery in window:
            delivery.result(30)
    except MyQueueError as error:
        counter.error = error


def latency(
    cluster: str, topic: str, size: int, count: int, rate: float | None = None
) -> dict[str, Any]:
    """Send one message at a time; measure from the call to its acknowledgement.

    With a rate, send so many messages a second, whether earlier ones are acknowledged or not, and
    measure from when each was due.
    """
    value = payload(size)
    with Producer(cluster, linger_ms=0) as producer:

        def send() -> None:
            producer.send(topic, value).result(10)

        if rate is None:
            return percentiles(timed(send, count, 60.0), "ack")
        for _ in range(WARM):
            send()
        return _latency_at_rate(producer, topic, value, Pacer(count, rate))


def _latency_at_rate(producer: Producer, topic: str, value: bytes, pacer: Pacer) -> dict[str, Any]:
    took_ns: list[int] = []
    counter = _Acked()

    def settled(stamp_ns: int, done: Any) -> None:
        took_ns.append(time.monotonic_ns() - stamp_ns)
        counter.add(1, done.exception())

    begin = time.monotonic()
    for stamp_ns in pacer.stamps():
        producer.send(topic, value).add_done_callback(partial(settled, stamp_ns))
    seconds = time.monotonic() - begin
    producer.flush(30)
    if counter.error is not None:
        raise counter.error
    return {"ack_rate": round(counter.count / seconds), **percentiles(took_ns, "ack")}


def consume(cluster: str, topic: str, seconds: float, limit: int = 0) -> dict[str, Any]:
    """Read the topic from the beginning, until its end or for some seconds."""
    got, begin, cpu_s = 0, 0.0, 0.0
    with Consumer(cluster, [topic], start="earliest") as consumer:
        end = time.monotonic() + seconds + IDLE_S
        while time.monotonic() < end and not (limit and got >= limit):
            messages = consumer.poll(20_000, 1.0)
            if not messages and begin:
                break
            if messages and not begin:
                begin, cpu_s = time.monotonic(), time.process_time()  # connecting does not count
                end = begin + seconds
            got += len(messages)
        took = time.monotonic() - begin if begin else 0.0
        cpu_s = time.process_time() - cpu_s
    return {
        "consume_msgs_s": round(got / took) if took else 0,
        "consume_n": got,
        "consume_client_cpu_s_per_m": round(cpu_s / got * 1e6, 3) if got else None,
    }


def end_to_end(cluster: str, topic: str, size: int, rate: float, seconds: float) -> dict[str, Any]:
    """Measure from send to receipt in another process, on one monotonic clock."""
    count = int(rate * seconds)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    receiver, sender = context.Pipe(False)
    child = context.Process(
        target=_receive, args=(cluster, topic, count, sender, ready), daemon=True
    )
    child.start()
    if not ready.wait(30):
        raise TimedOut("the consumer's process did not get ready")
    with Producer(cluster) as producer:
        begin = time.monotonic()
        for stamp in Pacer(count, rate).stamps():
            producer.send(topic, payload(size, stamp))
        achieved = count / (time.monotonic() - begin)
        producer.flush(30)
    if not receiver.poll(30):
        raise TimedOut("the consumer did not get all messages in 30 s")
    ages: list[int] = receiver.recv()
    child.join(10)
    return {"e2e_rate": round(achieved), **percentiles(ages[count // 10 :], "e2e")}


def _receive(cluster: str, topic: str, count: int, out: Any, ready: Event) -> None:
    ages: list[int] = []
    with Consumer(cluster, [topic], start="latest") as consumer:
        consumer.lag(30)  # returns once the consumer knows the topic's end
        ready.set()
        end = time.monotonic() + 300
        while len(ages) < count and time.monotonic() < end:
            messages = consumer.poll(1000, 1.0)
            now = time.monotonic_ns()
            ages += [age_ns(message.value, now) for message in messages]
    out.send(ages)
