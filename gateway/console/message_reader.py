"""Read messages of a topic from given offsets, for the message browser and the live tail.

Each call is complete in itself: it names the offsets that it begins at, and a consumer on the
gateway's session lives for as long as the call. Nothing is committed or remembered, so any gateway
can continue where another one stopped. Messages, bytes and time are bounded: messages are read one
by one and from AT_ONCE partitions at a time, so no more batches than that are unpacked at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from myqueue import Admin, Consumer, Message, Session, TopicPartition
from myqueue.errors import MyQueueError

BYTES_MAX: Final = 8 << 20  # of messages in one call
AT_ONCE: Final = 4  # partitions
MESSAGE_BYTES: Final = 256  # counted for each message besides its value
FETCH_BYTES: Final = 1 << 20
BUFFER_BYTES: Final = 4 << 20
POLL_S: Final = 0.5
LIMIT_S: Final = 5.0


class Range(NamedTuple):
    """The offsets that a partition keeps: from `start` up to, but without, `end`."""

    start: int
    end: int


class ReadResult(NamedTuple):
    messages: list[Message]  # in the order of their partitions' offsets
    error: MyQueueError | None  # why messages are missing, if reading failed


def ranges(admin: Admin, topic: str) -> dict[int, Range]:
    return {name.partition: Range(row.start, row.end) for name, row in admin.offsets(topic).items()}


def clamp(at: Mapping[int, int], known: Mapping[int, Range]) -> dict[int, int]:
    """Limit offsets to those that exist, or the next one; a missing partition gets its start."""
    return {
        number: min(max(at.get(number, kept.start), kept.start), kept.end)
        for number, kept in known.items()
    }


def read(
    session: Session,
    topic: str,
    at: Mapping[int, int],
    upto: Mapping[int, int],
    wait_s: float = 0.0,
) -> ReadResult:
    """Return messages from the offsets `at` up to those of `upto`. If there are none: the first
    ones that arrive within `wait_s`.
    """
    ends = {number: end for number, end in upto.items() if at[number] < end}
    if not ends and wait_s <= 0:
        return ReadResult([], None)
    bounded = bool(ends)
    out: list[Message] = []
    end_s = time.monotonic() + (LIMIT_S if bounded else wait_s)
    size = 0
    try:
        with Consumer(
            session,
            [topic],
            start="latest",
            on_out_of_range="earliest",
            fetch_max_bytes=FETCH_BYTES,
            max_buffered_bytes=BUFFER_BYTES,
            request_timeout_ms=round(LIMIT_S * 1000),
        ) as consumer:
            for number in at:
                consumer.seek(TopicPartition(topic, number), at[number])
            following = iter(list(ends)[AT_ONCE:])
            if bounded:
                first = set(islice(ends, AT_ONCE))
                idle = [TopicPartition(topic, number) for number in at if number not in first]
                consumer.pause(idle)
            while (rest_s := end_s - time.monotonic()) > 0 and size < BYTES_MAX:
                for message in consumer.poll(max_messages=1, timeout=min(POLL_S, rest_s)):
                    number = message.partition
                    is_last = bounded and message.offset + 1 >= upto.get(number, 0)
                    if is_last and ends.pop(number, None) is not None:
                        place = TopicPartition(topic, number)
                        consumer.pause([place])
                        consumer.seek(place, upto[number])  # drops its unpacked batch
                        consumer.resume([TopicPartition(topic, n) for n in islice(following, 1)])
                    if bounded and message.offset >= upto.get(number, 0):
                        continue  # newer than the request; the next request gets it
                    out.append(message)
                    size += len(message.value) + MESSAGE_BYTES
                if not ends and (out or bounded):
                    break
    except MyQueueError as error:
        return ReadResult(out, error)
    return ReadResult(out, None)
