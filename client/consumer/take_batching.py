"""Takes on their way: those of a moment go to a broker in one message, and come back in one.

A gateway has many requests at once that each take a message. One by one, packing, sending and
receiving each of them would cost more than what they ask for. So a take waits until the I/O thread
has done what it is doing (no longer: nothing is gained by waiting for time to pass), and all that
wait for the same broker then leave together. Each is still a call of its own: with its own key,
deadline and repeats, and answered by its own row, as soon as that is known.

All in the session's I/O thread.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from myqueue.cluster.connection import Connection
from myqueue.cluster.leader_request import LeaderCall
from myqueue.cluster.routing import Partition
from myqueue.cluster.session import SessionCore
from myqueue.cluster.waiters import Envelope, failure
from myqueue.errors import UNKNOWN, CorruptData, error_of
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer

# first and next offset; and the batches that hold them, each with its offset
TakeAnswer = tuple[int, int, list[tuple[int, Buffer]]]
TakeRow = tuple[int, str, bytes, int, bool]  # group, consumer, key, most, nothing too


class TakeCall(LeaderCall):
    """One take, until it is answered. The future's result is a `TakeAnswer`."""

    __slots__ = ("_outbox", "siblings")

    def __init__(
        self, outbox: TakeOutbox, session: SessionCore, partition: Partition, row: TakeRow,
        timeout_ms: int,
        future: Future[TakeAnswer],
    ) -> None:  # fmt: skip
        super().__init__(session, partition, words.TAKE, row, (), timeout_ms, future)
        self._outbox = outbox
        self.siblings: list[TakeCall] = []  # all of its message, this one too

    def _send(self, at: Connection) -> None:
        self._id = 0
        self._outbox.add(at, self)

    def waits_for(self, at: Connection) -> bool:
        """It wants to be sent there, and was not."""
        return self._at is at and not self._id

    def sent(self, request: int, siblings: list[TakeCall]) -> None:
        if self._at is not None:  # it may have failed in the call
            self._id, self.siblings = request, siblings

    @property
    def row(self) -> TakeRow:
        return self._fields  # type: ignore[return-value]

    def taken(self, row: list[Any], frames: list[Buffer]) -> None:
        _, code, first, behind, batches, details = row
        if code:
            text = str((details or {}).get("message", ""))
            error = error_of(code, text, component=self._at.address if self._at else "")
            error.__dict__["details"] = details or {}
            self._failed(error)
        elif any(place >= len(frames) for _, place in batches):
            missing = CorruptData("a TAKEN without the batches that it names")
            missing.outcome = UNKNOWN
            self._end(None, missing)
        else:
            found = [(offset, frames[place]) for offset, place in batches]
            self._end((first, behind, found), None)

    def answered(self, envelope: Envelope, frames: list[Buffer]) -> None:
        """An ERROR instead of rows: nothing of the message was done."""
        at, error = self._at, failure(envelope)
        for call in self.siblings:
            if call is self or (at is not None and at.take(call._id) is call):
                call._failed(error)


class TakeOutbox:
    """Takes that leave when the I/O thread has done what it is doing."""

    def __init__(self, session: SessionCore) -> None:
        self._session = session
        self._waiting: dict[Connection, dict[TakeCall, None]] = {}
        session.on_shut(self._flush)  # then connections tell them that it is over

    def add(self, at: Connection, call: TakeCall) -> None:
        if not self._waiting:
            self._session.after(0, self._flush)
        self._waiting.setdefault(at, {})[call] = None

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for at, wanted in waiting.items():
            calls = [call for call in wanted if call.waits_for(at)]
            for begin in range(0, len(calls), words.TAKES_MAX):
                some = calls[begin : begin + words.TAKES_MAX]
                first = at.produce(words.TAKE, ([call.row for call in some],), (), list(some))
                for place, call in enumerate(some):
                    call.sent(first + place, some)


def take_at_leader(
    outbox: TakeOutbox, session: SessionCore, partition: Partition, row: TakeRow, timeout_ms: int
) -> Future[TakeAnswer]:
    """Raises MyQueueError if the session can't be used."""
    session.check()
    future: Future[TakeAnswer] = Future()
    call = TakeCall(outbox, session, partition, row, timeout_ms, future)
    session.on_io(call.ask)
    return future
