"""Skip an unreadable batch during takes: the commit past it, and the key of the next take.

`taker.py` decides when. A take moves the position before any client opens the batches, so it may
end within an unreadable batch. Then the position is committed to the offset after the batch, and
the next take goes on there under a key that is derived from the last take's key.

Invariant: what a request with a key returns depends on that key and on what the partition remembers
of it, never on how often it was sent.

- A take's key returns the same messages again, so it meets the same batch and derives the same key.
- The commit never moves a position back, so a repeat after other takes changes nothing. It never
  skips a readable message, since the position was within the batch when the take was done.
- A crash between commit and take loses no message: a repeat commits without effect and takes;
  without a repeat the next client takes from there.
- A crash between take and commit leaves the position within the batch; the next take meets it too.

Several clients may meet one batch at the same time: each commits the same offset, then takes
messages of its own. If the commit is FENCED, because a member of a group commits for this consumer,
takes alone skip the rest of the batch.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from typing import Any, NamedTuple

from myqueue.cluster.leader_request import ask_leader
from myqueue.cluster.routing import Partition
from myqueue.cluster.session import Session
from myqueue.wire import protocol as words


class SkippedRun(NamedTuple):
    """A run of messages of one batch that was skipped."""

    topic: str
    partition: int
    offset: int
    count: int  # type: ignore[assignment]  # tuple.count is not used


def following_key(key: bytes, end: int) -> bytes:
    """Derive the key of the take after one with `key` that took up to `end`, and no message."""
    return hashlib.sha256(b"behind" + key + end.to_bytes(8, "big")).digest()[: len(key)]


def commit_at_leader(
    session: Session, partition: Partition, consumer: str, offset: int, timeout_ms: int
) -> Future[Any]:
    """Commit for a consumer that is in no group, so with epochs of zero.

    Raises MyQueueError if the session can't be used.
    """
    fields = (consumer, [[partition.group, offset, 0, 0]])
    return ask_leader(session, partition, words.COMMIT, fields, timeout_ms=timeout_ms)
