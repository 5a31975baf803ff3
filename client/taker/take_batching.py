"""Send takes: those of one moment go to a broker in one message. Runs in the I/O thread.

A gateway has many requests at once that each take a message. Packing, sending and receiving them
one by one would cost more than the takes. So a take waits until the I/O thread has done its current
work, never for time to pass, and all takes for the same broker then leave together. Each is still a
call with its own key, deadline and repeats, and its own row in the answer completes it.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from myqueue.cluster.connection import Connection
from myqueue.cluster.leader_request import LeaderRequest
from myqueue.cluster.routing import Partition
from myqueue.cluster.session import SessionCore
from myqueue.cluster.waiters import Envelope, failure
from myqueue.errors import UNKNOWN, CorruptData, error_of
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer

# (first offset, offset after the last one, batches that hold them, each with its offset)
TakeAnswer = tuple[int, int, list[tuple[int, Buffer]]]
TakeRow = tuple[
    int, str, bytes, int, bool
]  # group, consumer, key, max messages, remember emptiness


class TakeRequest(LeaderRequest):
    """One take, until it is answered. The future's result is a `TakeAnswer`."""

    __slots__ = ("_outbox", "siblings")

    def __init__(
        self,
        outbox: TakeOutbox,
        session: SessionCore,
        partition: Partition,
        row: TakeRow,
        timeout_ms: int,
    ) -> None:
        super().__init__(session, partition, words.TAKE, row, (), timeout_ms)
        self._outbox = outbox
        self.siblings: list[TakeRequest] = []  # all takes of the same message, with this one

    def _send(self, at: Connection) -> None:
        self._id = 0
        self._outbox.add(at, self)

    def waits_for(self, at: Connection) -> bool:
        """Is this call still to be sent over this connection?"""
        return self._at is at and not self._id

    def sent(self, request: int, siblings: list[TakeRequest]) -> None:
        if self._at is not None:  # the call may have failed in `produce`
            self._id, self.siblings = request, siblings

    @property
    def row(self) -> TakeRow:
        return self._fields  # type: ignore[return-value]

    def taken(self, row: list[Any], frames: list[Buffer]) -> None:
        _, code, first, end, batches, details = row
        if code:
            self._failed(error_of(code, details=details))
        elif any(place >= len(frames) for _, place in batches):
            missing = CorruptData("a TAKEN without the batches that it names")
            missing.outcome = UNKNOWN
            self._end(None, missing)
        else:
            frames_at = [(offset, frames[place]) for offset, place in batches]
            self._end((first, end, frames_at), None)

    def answered(self, envelope: Envelope, frames: list[Buffer]) -> None:
        """Take over an ERROR instead of rows: no take of the message was done."""
        at, error = self._at, failure(envelope)
        for call in self.siblings:
            if call is self or (at is not None and at.take(call._id) is call):
                call._failed(error)


class TakeOutbox:
    """Collects takes by connection, and sends them when the I/O thread has done its work."""

    def __init__(self, session: SessionCore) -> None:
        self._session = session
        self._waiting: dict[Connection, dict[TakeRequest, None]] = {}
        session.on_shut(self._flush)  # their connections fail them then

    def add(self, at: Connection, call: TakeRequest) -> None:
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
    """Send a take to the partition's leader. Raises MyQueueError if the session can't be used."""
    return TakeRequest(outbox, session, partition, row, timeout_ms).start()
