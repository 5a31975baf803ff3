"""A consumer's place in its group: joins, says that it lives, hears what it may read, leaves.

All of it is in the I/O thread, so an application that works for long on a message stays a member.
That it is stuck for ever is another matter: who does not ask for messages for `max_poll_ms` leaves
by itself, so that others go on with its partitions, and joins again when it asks.

One MEMBER is always under way; the managers' leader answers when there is news, or after a while.
What the application let go of is told at once by another one. Each answer holds everything, so
the last one alone counts. If none came until the session's end, all shares are lost
(`assignment.py`).
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final

from myqueue.consumer.fetcher import Fetcher
from myqueue.consumer.subscription import Subscription
from myqueue.errors import NONE, Closed, Internal, MyQueueError, UnknownMember
from myqueue.wire import protocol as words

if TYPE_CHECKING:
    from myqueue.cluster.session import Answer, SessionCore
    from myqueue.settings import ConsumerSettings

log = logging.getLogger("myqueue.client")

WAIT_MS_MAX: Final = 2_000  # that a MEMBER is held by the leader
REJOIN_MS: Final = 500  # between two attempts to join
CHECK_MS: Final = 100  # at the clock
LEAVE_MS_MAX: Final = 2_000

OUT, JOINING, IN, RESTING, CLOSED = "out", "joining", "in", "resting", "closed"


class GroupMembership:
    """See the chapter's head. `asked` and `told` come from the application's thread."""

    def __init__(
        self, session: SessionCore, fetcher: Fetcher, subscription: Subscription,
        settings: ConsumerSettings,
    ) -> None:  # fmt: skip
        self._session, self._fetcher, self._subscription = session, fetcher, subscription
        self._settings, self._changed = settings, fetcher.changed
        if subscription.assignment is None:
            raise ValueError("a subscription without shares")
        self.assignment = subscription.assignment
        self._state = OUT
        self._member = 0  # the last one that we were
        self._join_key = b""  # of a join that may have to be asked for again
        self._may_be_in = False  # it may have been done, though nobody said so
        self._left: Future[Any] | None = None  # somebody waits for the end of what is under way
        self._heartbeat_count = 0
        self._asked_at = session.now_ms()
        self._warned = False

    # -- from the application's thread ------------------------------------------------------------

    def start(self) -> None:
        self._session.on_io(self._check_deadlines)
        self._session.on_io(self._join)

    def note_poll(self) -> None:
        """The application asks for messages: it is not stuck."""
        self._asked_at = self._session.now_ms()
        self._warned = False
        if self._state == RESTING:
            self._session.on_io(self._join)

    def report_released(self) -> None:
        """Something was released: the managers should know."""
        self._session.on_io(self._send_heartbeat)

    def is_over(self) -> bool:
        """Whether nothing may be handed out now. Does what has to be done then."""
        if self._state != IN or not self.assignment.has_ended(self._session.now_ms()):
            return False
        with self._changed:
            self._subscription.end_session()
        return True

    def leave(self) -> Future[Any]:
        """At once; done when the managers know."""
        left: Future[Any] = Future()
        self._session.on_io(partial(self.leave_from_here, left))
        return left

    # -- in the I/O thread ------------------------------------------------------------------------

    def _join(self) -> None:
        if self._state not in (OUT, RESTING) or self._session.closed:
            return
        self._state = JOINING
        settings = self._settings
        ends_at = self._session.now_ms() + settings.session_timeout_ms
        limit_ms = min(settings.request_timeout_ms, settings.session_timeout_ms)
        self._ask_to_join(limit_ms).add_done_callback(partial(self._on_joined, ends_at))

    def _ask_to_join(self, limit_ms: int) -> Future[dict[str, Any]]:
        settings = self._settings
        arguments = {
            "group": settings.group, "topics": sorted(self._subscription.topics),
            "session_ms": settings.session_timeout_ms, "name": settings.name[:100],
            "host": socket.gethostname()[:100],
        }  # fmt: skip
        self._join_key = self._join_key or token_bytes(16)
        return self._session.update(
            "join_group", arguments, timeout_ms=limit_ms, key=self._join_key
        )

    def _on_joined(self, ends_at: int, future: Future[dict[str, Any]]) -> None:
        error = future.exception()
        self._may_be_in = error is not None and (
            self._may_be_in or (isinstance(error, MyQueueError) and error.outcome != NONE)
        )
        if self._state == CLOSED:
            self._leave_as(future)
            return
        self._state = OUT
        if not isinstance(error, MyQueueError) or not (error.retriable or error.outcome != NONE):
            # Else the same is asked for again: nobody is a member twice.
            self._join_key, self._may_be_in = b"", False
        if error is None:
            self._state, self._member = IN, future.result()["member"]
            with self._changed:
                self.assignment.begin(self._member, ends_at)
                self._subscription.failure = None
            self._send_heartbeat()
        elif isinstance(error, MyQueueError) and (error.retriable or isinstance(error, Closed)):
            log.warning("group %s can't be joined now: %s", self._settings.group, error)
            self._after(REJOIN_MS, self._join)
        else:
            self._report_error(error)
            self._after(REJOIN_MS, self._join)

    def _report_error(self, error: BaseException) -> None:
        """What time does not mend is for the application to hear."""
        if isinstance(error, MyQueueError) and error.retriable:
            return
        with self._changed:
            self._subscription.failure = (
                error if isinstance(error, MyQueueError) else Internal(repr(error))
            )
            self._changed.notify_all()

    def _after(self, delay_ms: int, job: Callable[[], object]) -> None:
        if not self._session.closed:
            self._session.after(delay_ms, job)

    def _send_heartbeat(self) -> None:
        """Says that it lives, and what it let go of; waits for news."""
        shares = self.assignment
        if self._state != IN or self._session.closed:
            return
        now, session_ms = self._session.now_ms(), self._settings.session_timeout_ms
        with self._changed:
            released = [list(pair) for pair in shares.released.items()]
            fields = (
                self._settings.group, shares.member, shares.version,
                min(WAIT_MS_MAX, session_ms // 5), released,
            )  # fmt: skip
        self._heartbeat_count += 1
        limit_ms = max(1, shares.ends_at - now)
        try:
            future = self._session.call(
                self._session.managers, words.MEMBER, fields, timeout_ms=limit_ms
            )
        except MyQueueError:  # the session was closed
            return
        future.add_done_callback(
            partial(self._on_heartbeat_answer, self._heartbeat_count, shares.member, now)
        )

    def _on_heartbeat_answer(
        self, number: int, member: int, sent_at: int, future: Future[Answer]
    ) -> None:
        if self._state != IN or member != self.assignment.member:
            return
        error = future.exception()
        if error is None:
            version, session_ms, rows = future.result().fields
            with self._changed:
                if member != self.assignment.member:  # the application noticed the end just now
                    return
                self._subscription.failure = None
                ends_at = sent_at + min(session_ms, self._settings.session_timeout_ms)
                self.assignment.ends_at = max(self.assignment.ends_at, ends_at)
                self._subscription.set_assignment(version, rows)
                self._changed.notify_all()
            known = [self._session.routes.partition(group) for group in self.assignment.by_group]
            if not all(known):
                self._session.refresh(self._subscription.topics, version)  # not from who lags
            self._fetcher.take_routes()
            if number == self._heartbeat_count:
                self._send_heartbeat()
            return
        if isinstance(error, UnknownMember):
            log.warning("group %s: the session of this member ended", self._settings.group)
            self._lose_assignment()
        elif number == self._heartbeat_count:
            self._report_error(error)
            self._after(CHECK_MS, self._send_heartbeat)

    def _lose_assignment(self) -> None:
        """All shares are others' now, or may be soon."""
        with self._changed:
            self._subscription.end_session()
            self._changed.notify_all()
        for listener in self._fetcher.listeners:
            listener()
        self._state = OUT
        self._join()

    def _check_deadlines(self) -> None:
        """At the clock."""
        if self._state == CLOSED or self._session.closed:
            return
        now, most = self._session.now_ms(), self._settings.max_poll_ms
        if self._state == IN and (not self.assignment.member or self.assignment.has_ended(now)):
            log.warning(
                "group %s: nothing was heard for a session of %d ms; its partitions are lost",
                self._settings.group, self._settings.session_timeout_ms,
            )  # fmt: skip
            self._lose_assignment()
            self._send_leave(self._member)  # if the managers think it lives, others need not wait
        silent = now - self._asked_at
        if self._state == IN and silent > most // 2 and not self._warned:
            self._warned = True
            log.warning(
                "group %s: no messages were asked for since %d ms; after %d ms its partitions go to"
                " others. The last one was handed out from %s",
                self._settings.group, silent, most, self._last_message_place(),
            )  # fmt: skip
        if self._state == IN and silent > most:
            log.warning("group %s: left, as nothing was asked for", self._settings.group)
            self._state = RESTING
            with self._changed:  # first: others have what was ours as soon as the managers know
                self._subscription.end_session()
            self._send_leave(self._member)
            if self._session.now_ms() - self._asked_at < most:  # it asked meanwhile
                self._join()
        self._after(CHECK_MS, self._check_deadlines)

    def _last_message_place(self) -> str:
        with self._changed:
            current = self._subscription.round_robin.current
            if current is None or not current.position:
                return "nowhere"
            return f"{current.name}, offset {current.position - 1}"

    # -- the end ----------------------------------------------------------------------------------

    def _send_leave(self, member: int) -> Future[Any] | None:
        arguments = {"group": self._settings.group, "member": member}
        try:
            return self._session.update("leave_group", arguments, timeout_ms=LEAVE_MS_MAX)
        except MyQueueError:  # the session was closed
            return None

    def leave_from_here(self, left: Future[Any]) -> None:
        """`leave`, asked for in the I/O thread."""
        state, self._state, self._left = self._state, CLOSED, left
        if state == JOINING or self._may_be_in:
            self._after(LEAVE_MS_MAX, self._end_leave)  # or when it is known whom we joined as
        if state != JOINING and self._may_be_in:
            self._ask_member_id()
        elif state != JOINING:
            self._leave(self._member if state == IN else 0)

    def _ask_member_id(self) -> None:
        """Join again with the key of the join that may have been done: the answer says as whom."""
        self._may_be_in = False  # once
        try:
            self._ask_to_join(LEAVE_MS_MAX).add_done_callback(self._leave_as)
        except MyQueueError:  # the session was closed
            self._end_leave()

    def _leave_as(self, joined: Future[dict[str, Any]]) -> None:
        if joined.exception() is None:
            self._leave(joined.result()["member"])
        elif self._may_be_in:
            self._ask_member_id()
        else:
            self._end_leave()

    def _leave(self, member: int) -> None:
        sent = self._send_leave(member) if member else None
        if sent is None:
            self._end_leave()
        else:
            sent.add_done_callback(lambda _: self._end_leave())

    def _end_leave(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left.set_result(None)
