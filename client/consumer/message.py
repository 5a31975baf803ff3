"""`Message` and `TopicPartition`, as applications get them; and how a batch becomes messages.

Applications work with messages, brokers with batches. A consumer keeps batches packed and opens one
when its messages are about to be handed out. Each message is made when it is handed out: C code
zips the columns of the batch into a tuple, and no Python runs for a single message. That is why
`Message` is a named tuple.

Python's garbage collector examines all new tuples whenever there are 700 more of them. Messages
that are made late are freed early, and `Consumer.poll` pauses the collector while it makes a list
of them. Without both, a third of a consumer's time is the collector's.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class MessageRun(NamedTuple):
    """Messages of an opened batch, in order; each is made when it is taken from `messages`."""

    messages: Iterator[Message]
    left: Iterator[bytes]  # its length hint is the number of messages that were not taken


def messages_of(
    topic: str, partition: int, base_offset: int, time_ms: int, columns: Columns
) -> MessageRun:
    """Return the messages of an opened batch. The first one has offset `base_offset`."""
    values, keys, headers, times = columns
    left = iter(values)
    rows = zip(
        repeat(topic),
        repeat(partition),
        range(base_offset, base_offset + len(values)),
        repeat(None) if keys is None else keys,
        left,
        repeat(None) if headers is None else headers,
        repeat(time_ms) if times is None else map(time_ms.__add__, times),
        strict=False,  # repeat() has no end; the columns were found to be of equal length
    )
    # Message(*row) would run a Python function for each message; this is what it ends in.
    return MessageRun(map(tuple.__new__, repeat(Message), rows), left)
