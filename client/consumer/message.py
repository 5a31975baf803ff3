"""`Message` and `TopicPartition`, as applications get them; and how a batch becomes messages.

Applications work with messages, brokers with batches. A consumer keeps batches packed and opens one
when its messages are about to be handed out, all at once: C code zips the columns of the batch into
tuples, and no Python runs for a single message. That is why `Message` is a named tuple.
"""

from __future__ import annotations

from itertools import repeat
from typing import NamedTuple

from myqueue.wire.batch import Columns


class TopicPartition(NamedTuple):
    """A partition: the name of its topic and its number, from 0.

    A named tuple: wherever one is expected, `("orders", 0)` is understood as well.

    >>> str(TopicPartition("orders", 0))
    'orders/0'
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Message(NamedTuple):
    """One message that was read. A named tuple; consumers make them, applications only read them.

    topic: the topic's name.
    partition: the partition's number, from 0.
    offset: the message's number in its partition, from 0 and without gaps.
    key: as it was sent, None without one. Messages with the same key are in the same partition.
    value: as it was sent.
    headers: as they were sent, None without any.
    timestamp: ms since 1970, by the producer's clock unless the application set it.

    >>> message = Message("orders", 0, 41, b"customer-7", b"3 apples", None, 1700000000000)
    >>> message.value, message.offset
    (b'3 apples', 41)
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: dict[str, bytes] | None
    timestamp: int


def messages_of(
    topic: str, partition: int, base_offset: int, time_ms: int, columns: Columns
) -> list[Message]:
    """Make the messages of an opened batch, in order. The first one has offset `base_offset`."""
    values, keys, headers, times = columns
    rows = zip(
        repeat(topic),
        repeat(partition),
        range(base_offset, base_offset + len(values)),
        repeat(None) if keys is None else keys,
        values,
        repeat(None) if headers is None else headers,
        repeat(time_ms) if times is None else [time_ms + time for time in times],
        strict=False,  # repeat() has no end; the columns were found to be of equal length
    )
    # Message(*row) would run a Python function for each message; this is what it ends in.
    return list(map(tuple.__new__, repeat(Message), rows))
