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
from typing import NamedTuple

from myqueue.cluster.leader_request import LeaderCall
from myqueue.cluster.routing import Partition
from myqueue.cluster.session import Session
from myqueue.cluster.waiters import Envelope
from myqueue.errors import error_of
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer
from myqueue.wire.protocol import ERROR, FIELDS, KIND


class SkippedRun(NamedTuple):
    """A run of messages of one batch that was skipped."""

    topic: str
    partition: int
    offset: int
    count: int  # type: ignore[assignment]  # tuple.count is not used


def following_key(key: bytes, end: int) -> bytes:
    """Derive the key of the take after one with `key` that took up to `end`, and no message."""
    return hashlib.sha256(b"behind" + key + end.to_bytes(8, "big")).digest()[: len(key)]


class _CommitCall(LeaderCall):
    """A COMMIT of one partition. The future's result is the committed position after it."""

    __slots__ = ()

    def answered(self, envelope: Envelope, frames: list[Buffer]) -> None:
        if envelope[KIND] == ERROR:
            super().answered(envelope, frames)
            return
        ((_, code, position, details),) = envelope[FIELDS]
        if not code:
            self._end(position, None)
            return
        error = error_of(code, component=self._at.address if self._at else "")
        error.__dict__["details"] = details or {}
        self._failed(error)


def commit_at_leader(
    session: Session, partition: Partition, consumer: str, offset: int, timeout_ms: int
) -> Future[int]:
    """Commit for a consumer that is in no group, so with epochs of zero; return the new position.

    Raises MyQueueError if the session can't be used.
    """
    session.check()
    future: Future[int] = Future()
    fields = (consumer, [[partition.group, offset, 0, 0]])
    call = _CommitCall(session, partition, words.COMMIT, fields, (), timeout_ms, future)
    session.on_io(call.ask)
    return future
