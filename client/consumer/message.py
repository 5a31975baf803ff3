"""The message, as applications get it; and how a thousand of them are made at once.

People think in messages, machines move batches (decision 2 of the design). A consumer keeps
batches as they came and opens one when its messages are about to be handed out, all of them in
one go: the columns of the batch are zipped into tuples by C code, no Python runs for the single
message. That is why a Message is a tuple with names and not an object with a dictionary.
"""

from __future__ import annotations

from itertools import repeat
from typing import NamedTuple

from myqueue.wire.batch import Columns


class TopicPartition(NamedTuple):
    """A partition, as applications name it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Message(NamedTuple):
    """One message that was read.

    >>> message = Message("orders", 0, 41, b"customer-7", b"3 apples", None, 1700000000000)
    >>> message.value, message.offset
    (b'3 apples', 41)
    """

    topic: str
    partition: int
    offset: int  # its number in the partition, from 0
    key: bytes | None
    value: bytes
    headers: dict[str, bytes] | None
    timestamp: int  # ms since 1970, by the producer's clock unless the application set it


def messages_of(
    topic: str, partition: int, base_offset: int, time_ms: int, columns: Columns
) -> list[Message]:
    """All messages of an opened batch, in order. `base_offset` is the first one's offset."""
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
