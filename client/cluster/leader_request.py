"""One request to a partition's leader, repeated until it is answered or its deadline passes.

Only for requests with a key, by which a broker recognises a repeat. Whatever happens to an attempt
(refused, connection lost, no answer), the next one goes to the leader known by then, and the first
answer counts. A refusal that is not retriable ends the request at once.

At the deadline the error never claims too much: the outcome is "none" if every attempt was
certainly refused, and the last refusal says why; else it is "unknown".
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from myqueue.cluster.connection import Connection
from myqueue.cluster.repeats import LEADER, RIGHT_PLACE, with_outcome
from myqueue.cluster.request import RetryingRequest
from myqueue.cluster.routing import Partition
from myqueue.cluster.session import SessionCore
from myqueue.cluster.silent_brokers import silence_at
from myqueue.cluster.waiters import Envelope
from myqueue.errors import MyQueueError, NotLeader, TimedOut, UnknownTopic, error_of
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer

ATTEMPT_MS_MAX: Final = 2_000


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
    return LeaderRequest(session, partition, kind, fields, frames, timeout_ms).start()


def note_refusal(
    session: SessionCore, topic: str, group: int, at: Connection, error: MyQueueError
) -> bool:
    """Take in what a broker's refusal, or its silence, says of the partition's leader.

    True if it named another leader, which can be asked at once.
    """
    routes = session.routes
    if isinstance(error, NotLeader):
        routes.fail(group, at.address, session.now_ms())
        if routes.hint(group, error.details):
            return True
    elif not at.is_ready:
        routes.unreachable(group, at.address)
    if not isinstance(error, RIGHT_PLACE):
        session.refresh((topic,))
    return False


class LeaderRequest(RetryingRequest):
    """A request with its attempts, one after another."""

    __slots__ = ("_partition",)
    rule = LEADER

    def __init__(
        self,
        session: SessionCore,
        partition: Partition,
        kind: int,
        fields: Sequence[Any],
        frames: Sequence[Buffer],
        timeout_ms: int,
    ) -> None:
        super().__init__(session, kind, fields, frames, timeout_ms)
        self._partition = partition

    def start(self) -> Future[Any]:
        """Begin, from any thread. Raises MyQueueError if the session can't be used."""
        self._session.on_io(self.ask)
        return self.future

    def _attempt_ms(self) -> int:
        return ATTEMPT_MS_MAX

    def _next_address(self, now: int) -> str | None:
        routes, partition = self._session.routes, self._partition
        address = routes.leader(partition.group, now)
        if address is None:
            is_there = routes.topic(partition.topic) is not None
            if routes.is_unknown(partition.topic) or (
                is_there and routes.partition(partition.group) is None
            ):
                raise UnknownTopic(f"the topic {partition.topic!r} was deleted")
            self._session.refresh((partition.topic,))
        return address

    def _goes_on_at_once(self, at: Connection, error: MyQueueError, is_silent: bool) -> bool:
        partition = self._partition
        return note_refusal(self._session, partition.topic, partition.group, at, error)

    def answered(self, envelope: Envelope, frames: list[Buffer]) -> None:
        """Receive an answer; one for several partitions has a refusal in the partition's row."""
        if envelope[words.KIND] in (words.FETCHED, words.COMMITTED):
            ((_, code, *_, details),) = envelope[words.FIELDS]
            if code:
                self._failed(error_of(code, details=details))
                return
        super().answered(envelope, frames)

    def produced(self, row: list[Any]) -> None:
        _, code, offset, time_ms, details = row
        if code:
            self._failed(error_of(code, details=details))
        else:
            self._end((offset, time_ms), None)

    def _too_late(self) -> MyQueueError:
        last, is_unknown = self._attempts.last, self._attempts.is_unknown
        if isinstance(last, RIGHT_PLACE) and not is_unknown:
            return last
        where = f"{self._partition.topic}/{self._partition.number}"
        now = self._session.routes.partition(self._partition.group) or self._partition
        why = silence_at(self._session, now, last)
        text = f"not done at {where} within {self._timeout_ms} ms; {why.text}"
        error = TimedOut(text, component=why.component or where, hint=why.hint)
        return with_outcome(error, is_unknown)
