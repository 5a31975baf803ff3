"""`Request`: one request to an address; `RetryingRequest`: one that is repeated until its deadline.

A request belongs to the I/O thread from its first `ask` on, and ends its future exactly once. A
`RetryingRequest` sends one attempt after another; the first answer counts. Which errors are
repeated, and after which pause, is decided in `repeats`. Its subclasses know whom to ask next:
`manager_request` and `leader_request`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, Final

from myqueue.cluster.connection import Connection
from myqueue.cluster.io_thread import Timer
from myqueue.cluster.repeats import Attempts, Rule, with_outcome
from myqueue.cluster.waiters import Answer, Envelope, Waiter, failure, resolve
from myqueue.errors import NONE, Closed, InvalidRequest, MyQueueError, TimedOut
from myqueue.wire.batch import Buffer
from myqueue.wire.protocol import ERROR, KIND

if TYPE_CHECKING:
    from myqueue.cluster.session import SessionCore

# Raised for values that cannot be packed: a number beyond 64 bits, half a surrogate pair, a set.
UNPACKABLE: Final = (ValueError, TypeError, OverflowError)
CLOSED: Final = "the session was closed"


class Request(Waiter):
    """A request to a given address: one attempt. The future is an Answer, or the error."""

    __slots__ = (
        "_at",
        "_began",
        "_fields",
        "_frames",
        "_id",
        "_kind",
        "_session",
        "_timeout_ms",
        "_timer",
        "future",
    )
    silence_ms: ClassVar[int] = 0  # a connection on which nothing came for so long is broken

    def __init__(
        self,
        session: SessionCore,
        kind: int,
        fields: Sequence[Any],
        frames: Sequence[Buffer],
        timeout_ms: int,
    ) -> None:
        self.future: Future[Any] = Future()
        self._session = session
        self._kind, self._fields, self._frames = kind, fields, frames
        self._timeout_ms = timeout_ms
        self._at: Connection | None = None
        self._id = self._began = 0
        self._timer: Timer | None = None

    def ask_at(self, address: str, limit_ms: int) -> None:
        """Send the request to an address, and wait so long for the answer."""
        session = self._session
        if session.closed:
            self._end(None, Closed(CLOSED))
            return
        at = self._at = session.connection(address)
        self._began = session.now_ms()
        try:
            self._send(at)
        except UNPACKABLE as error:
            self._end(None, InvalidRequest(f"this can't be sent: {error}"))
        if self._at is not None:  # sending may fail at once
            self._timer = session.after(limit_ms, self._late)

    def _send(self, at: Connection) -> None:
        self._id = at.request(self._kind, self._fields, self._frames, self)

    def answered(self, envelope: Envelope, frames: list[Buffer]) -> None:
        if envelope[KIND] == ERROR:
            self._failed(failure(envelope))
        else:
            self._end(Answer(envelope, frames), None)

    def lost(self, error: MyQueueError) -> None:
        self._failed(error)

    def _late(self) -> None:
        at = self._at
        if at is None:
            return
        waited = self._session.now_ms() - self._began
        why = f"no {'answer' if at.is_ready else 'connection'} within {waited} ms"
        error = TimedOut(f"{at.address}: {why}", component=at.address)
        if at.take(self._id) is None:
            at.forget(self._id)
            with_outcome(error, is_unknown=False)  # it was never sent
        elif waited >= self.silence_ms and at.silent_since(self._began):
            at.broke(why)
        self._failed(error, is_silent=True)

    def _failed(self, error: MyQueueError, is_silent: bool = False) -> None:
        self._end(None, error)

    def _let_go(self) -> Connection | None:
        at, self._at = self._at, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return at

    def _end(self, result: Any, error: MyQueueError | None) -> None:
        self._let_go()
        resolve(self.future, result, error)


class RetryingRequest(Request, ABC):
    """A request that is repeated; a repeat must be safe. Subclasses choose the addresses."""

    __slots__ = ("_attempts", "_deadline")
    rule: ClassVar[Rule]

    def __init__(
        self,
        session: SessionCore,
        kind: int,
        fields: Sequence[Any],
        frames: Sequence[Buffer],
        timeout_ms: int,
    ) -> None:
        super().__init__(session, kind, fields, frames, timeout_ms)
        self._deadline = session.now_ms() + timeout_ms
        self._attempts = Attempts(self.rule)

    def ask(self) -> None:
        """Begin the next attempt, or end the request if its time is over."""
        session, now = self._session, self._session.now_ms()
        session.requests.add(self)
        if session.closed:
            self._end(None, with_outcome(Closed(CLOSED), self._may_be_done))
            return
        if now >= self._deadline:
            self._end(None, self._too_late())
            return
        try:
            address = self._next_address(now)
        except MyQueueError as error:
            self._end(None, error)
            return
        if address is None:
            self._pause()
        else:
            self.ask_at(address, min(self._attempt_ms(), self._deadline - now))

    @property
    def _may_be_done(self) -> bool:
        return self._attempts.is_unknown

    def _pause(self) -> None:
        left_ms = max(0, self._deadline - self._session.now_ms())
        self._timer = self._session.after(min(self._attempts.pause_ms(), left_ms), self.ask)

    def _failed(self, error: MyQueueError, is_silent: bool = False) -> None:
        at = self._let_go()
        if at is not None and not error.component:
            error.component = at.address
        if not self._attempts.failed(error) or self._session.closed:
            is_unknown = self._may_be_done or error.outcome != NONE
            self._end(None, with_outcome(error, is_unknown))
        elif at is not None and self._goes_on_at_once(at, error, is_silent):
            self.ask()
        else:
            self._pause()

    def _end(self, result: Any, error: MyQueueError | None) -> None:
        self._session.requests.discard(self)
        super()._end(result, error)

    @abstractmethod
    def _next_address(self, now: int) -> str | None:
        """Choose whom to ask now; None: nobody before the next pause. An error ends it all."""

    @abstractmethod
    def _attempt_ms(self) -> int:
        """How long to wait for the answer to one attempt."""

    @abstractmethod
    def _goes_on_at_once(self, at: Connection, error: MyQueueError, is_silent: bool) -> bool:
        """Take in what an attempt's failure says of the daemons. True: ask again without a pause.

        `is_silent`: the daemon gave no answer in time.
        """

    @abstractmethod
    def _too_late(self) -> MyQueueError:
        """Make the error for a request whose time is over."""
