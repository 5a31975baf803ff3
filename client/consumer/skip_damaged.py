"""Pass over a batch that nobody can unpack, for takes: `taker.py` walks, here are the steps.

A take moves the position before anybody opens the batches, so it may end within such a batch. Then
the position is committed to the offset after the batch, and the next take goes on there under a key
that is made from the key of the take before. Invariant: what a request with a key gets depends on
that key and on what the partition remembers of it, never on how often it was sent:

- A take's key gets the same messages again, thus meets the same batch, and the same key follows.
- The commit never moves a position back, so a repeat after others took more changes nothing; and it
  never passes a whole message, since the position was within the batch when the take was done.
- A crash between commit and take leaves a position, and nothing that belongs to nobody: a repeat
  commits in vain and takes; without a repeat the next client takes from there.
- A crash between take and commit leaves the position within the batch; the next take meets it too.

Several clients may meet one batch at the same time: each commits the same offset, and then takes
messages of its own. If a commit is FENCED, because somebody commits for this consumer with epochs,
the rest of the batch is passed over by takes alone.
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
    """Messages that were passed over, all of one batch."""

    topic: str
    partition: int
    offset: int
    count: int  # type: ignore[assignment]  # tuple.count is not used


def following_key(key: bytes, behind: int) -> bytes:
    """Of the take after one with `key` that took up to `behind` and gave no message."""
    return hashlib.sha256(b"behind" + key + behind.to_bytes(8, "big")).digest()[: len(key)]


class _CommitCall(LeaderCall):
    """A COMMIT of one partition. The future's result is the position afterwards."""

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
    """As one that is in no group, so with epochs of zero. Raises if the session can't be used."""
    session.check()
    future: Future[int] = Future()
    fields = (consumer, [[partition.group, offset, 0, 0]])
    call = _CommitCall(session, partition, words.COMMIT, fields, (), timeout_ms, future)
    session.on_io(call.ask)
    return future
