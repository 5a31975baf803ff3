"""One request to a partition's leader, repeated until it is answered or its deadline passes.

Only for requests with a key, by which a broker recognises a repeat. Whatever happens to an attempt
(refused, connection lost, no answer), the next one goes to the leader known by then, and the first
answer counts. A refusal that is not retriable ends the request at once.

At the deadline the error never claims too much: the outcome is "none" if every attempt was
certainly refused, and the last refusal says why; else it is "unknown". All of this runs in the
session's I/O thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from myqueue.cluster.connection import Connection
from myqueue.cluster.io_thread import Timer
from myqueue.cluster.routing import Partition
from myqueue.cluster.session import Answer, SessionCore, resolve
from myqueue.cluster.silent_brokers import silence_at
from myqueue.cluster.waiters import Envelope, Waiter, details_of, failure
from myqueue.errors import (
    NONE,
    Busy,
    DiskFull,
    JournalBusy,
    MyQueueError,
    NotLeader,
    TimedOut,
    UnknownTopic,
    error_of,
)
from myqueue.wire.batch import Buffer
from myqueue.wire.protocol import ERROR, KIND

ATTEMPT_MS_MAX: Final = 2_000
PAUSE_MS_MIN, PAUSE_MS_MAX = 10, 500
_RIGHT_PLACE: Final = (Busy, DiskFull, JournalBusy)  # from the leader; do not look for another


def ask_leader(
    session: SessionCore,
    partition: Partition,
    kind: int,
    fields: Sequence[Any],
    frames: Sequence[Buffer] = (),
    *,
    timeout_ms: int,
) -> Future[Any]:
    """Send a request to a leader. The future is an Answer; for PRODUCE (offset, time in ms)."""
    session.check()
    future: Future[Any] = Future()
    call = LeaderCall(session, partition, kind, fields, frames, timeout_ms, future)
    session.on_io(call.ask)
    return future


class LeaderCall(Waiter):
    """A request with its attempts, one after another."""

    __slots__ = (
        "_at",
        "_began",
        "_deadline",
        "_doubt",
        "_fields",
        "_frames",
        "_future",
        "_id",
        "_kind",
        "_last",
        "_partition",
        "_pause",
        "_session",
        "_timeout_ms",
        "_timer",
    )

    def __init__(
        self,
        session: SessionCore,
        partition: Partition,
        kind: int,
        fields: Sequence[Any],
        frames: Sequence[Buffer],
        timeout_ms: int,
        future: Future[Any],
    ) -> None:
        self._session, self._partition = session, partition
        self._kind, self._fields, self._frames = kind, fields, frames
        self._timeout_ms, self._deadline = timeout_ms, session.now_ms() + timeout_ms
        self._future = future
        self._at: Connection | None = None
        self._id = self._began = 0
        self._timer: Timer | None = None
        self._pause = PAUSE_MS_MIN
        self._doubt = False  # an attempt may have been done
        self._last: MyQueueError | None = None

    def ask(self) -> None:
        session, group = self._session, self._partition.group
        now = session.now_ms()
        if session.closed or now >= self._deadline:
            self._give_up()
            return
        address = session.routes.leader(group, now)
        if address is None:
            if self._is_gone():
                self._end(None, UnknownTopic(f"the topic {self._partition.topic!r} was deleted"))
                return
            session.refresh((self._partition.topic,))
            self._later()
            return
        self._at, self._began = session.connection(address), now
        self._send(self._at)
        if self._at is not None and not self._future.done():  # `request` may fail at once
            self._timer = session.after(min(ATTEMPT_MS_MAX, self._deadline - now), self._silent)

    def _send(self, at: Connection) -> None:
        self._id = at.request(self._kind, self._fields, self._frames, self)

    def _is_gone(self) -> bool:
        routes, name = self._session.routes, self._partition.topic
        return routes.is_unknown(name) or (
            routes.topic(name) is not None and routes.partition(self._partition.group) is None
        )

    def _later(self) -> None:
        pause, self._pause = self._pause, min(PAUSE_MS_MAX, self._pause * 2)
        self._timer = self._session.after(pause, self.ask)

    # -- what became of an attempt ----------------------------------------------------------------

    def produced(self, row: list[Any]) -> None:
        _, code, offset, time_ms, details = row
        if not code:
            self._end((offset, time_ms), None)
            return
        text = str((details or {}).get("message", ""))
        error = error_of(code, text, component=self._at.address if self._at else "")
        error.__dict__["details"] = details or {}
        self._failed(error)

    def answered(self, envelope: Envelope, frames: list[Buffer]) -> None:
        if envelope[KIND] == ERROR:
            self._failed(failure(envelope))
        else:
            self._end(Answer(envelope, frames), None)

    def lost(self, error: MyQueueError) -> None:
        self._failed(error)

    def _silent(self) -> None:
        at = self._at
        if at is None:
            return
        waited = self._session.now_ms() - self._began
        error = TimedOut(f"{at.address}: no answer within {waited} ms", component=at.address)
        if at.take(self._id) is None:
            at.forget(self._id)
            error.outcome = NONE  # it was never sent
        elif at.silent_since(self._began):
            at.broke(f"no answer within {waited} ms")
        self._failed(error)

    def _failed(self, error: MyQueueError) -> None:
        at = self._let_go()
        if not error.component and at is not None:
            error.component = at.address
        self._last = error
        if error.outcome != NONE:
            self._doubt = True
        elif not error.retriable:
            self._end(None, error)
            return
        group, routes = self._partition.group, self._session.routes
        hinted = False
        if isinstance(error, NotLeader) and at is not None:
            routes.fail(group, at.address, self._session.now_ms())
            hinted = routes.hint(group, details_of(error))
        elif at is not None and not at.is_ready:
            routes.unreachable(group, at.address)
        if hinted:
            self.ask()
            return
        if not isinstance(error, _RIGHT_PLACE):
            self._session.refresh((self._partition.topic,))
        self._later()

    def _let_go(self) -> Connection | None:
        at, self._at = self._at, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return at

    # -- the end ----------------------------------------------------------------------------------

    def _give_up(self) -> None:
        last = self._last
        if last is not None and not self._doubt and isinstance(last, _RIGHT_PLACE):
            self._end(None, last)
            return
        where = f"{self._partition.topic}/{self._partition.number}"
        now = self._session.routes.partition(self._partition.group) or self._partition
        why = silence_at(self._session, now, last)
        text = f"not done at {where} within {self._timeout_ms} ms; {why.text}"
        error = TimedOut(text, component=why.component or where, hint=why.hint)
        if not self._doubt:
            error.outcome = NONE
        self._end(None, error)

    def _end(self, result: Any, error: MyQueueError | None) -> None:
        self._let_go()
        resolve(self._future, result, error)
