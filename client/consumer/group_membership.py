"""A consumer's membership in its group: join, send heartbeats, take over assignments, leave.

It runs in the I/O thread, so an application that works for long on one message stays a member. An
application that does not ask for messages for `max_poll_ms` counts as stuck: the member leaves, so
that other members go on with its partitions, and joins again when the application asks.

One heartbeat (MEMBER) is always unanswered at the managers' leader, which answers when the
assignment changes, or after a while. Released partitions are reported at once by one more. Each
answer holds the whole assignment, so only the newest one counts. If none arrives before the
session's end, all partitions are lost (`assignment.py`).
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
    from myqueue.cluster.session import SessionCore
    from myqueue.cluster.waiters import Answer
    from myqueue.settings import ConsumerSettings

log = logging.getLogger("myqueue.client")

WAIT_MS_MAX: Final = 2_000  # the managers' leader may hold a heartbeat so long
REJOIN_MS: Final = 500  # pause between two attempts to join
CHECK_MS: Final = 100  # how often deadlines are checked
LEAVE_MS_MAX: Final = 2_000

OUT, JOINING, IN, RESTING, CLOSED = "out", "joining", "in", "resting", "closed"


class GroupMembership:
    """One consumer's membership. States: OUT → JOINING → IN; RESTING while stuck; CLOSED."""

    def __init__(
        self,
        session: SessionCore,
        fetcher: Fetcher,
        subscription: Subscription,
        settings: ConsumerSettings,
    ) -> None:
        self._session, self._fetcher, self._subscription = session, fetcher, subscription
        self._settings, self._changed = settings, fetcher.changed
        if subscription.assignment is None:
            raise ValueError("a subscription without an assignment")
        self.assignment = subscription.assignment
        self._state = OUT
        self._member = 0  # our newest member number
        self._join_key = b""  # of a join; a repeat with the same key makes no second member
        self._may_be_in = False  # a join may have been done though its answer was lost
        self._has_left: Future[Any] | None = None  # done when we have left
        self._heartbeat_count = 0
        self._last_poll_ms = session.now_ms()
        self._has_warned = False

    # -- from the application's thread ------------------------------------------------------------

    def start(self) -> None:
        self._session.on_io(self._check_deadlines)
        self._session.on_io(self._join)

    def note_poll(self) -> None:
        """Note that the application asks for messages, so it is not stuck; join again if needed."""
        self._last_poll_ms = self._session.now_ms()
        self._has_warned = False
        if self._state == RESTING:
            self._session.on_io(self._join)

    def report_released(self) -> None:
        """Send a heartbeat now: partitions were released."""
        self._session.on_io(self._send_heartbeat)

    def end_if_over(self) -> bool:
        """Lose all partitions if the session is over by our clock; return whether it is."""
        if self._state != IN or not self.assignment.has_ended(self._session.now_ms()):
            return False
        with self._changed:
            self._subscription.end_session()
        return True

    def leave(self) -> Future[Any]:
        """Leave the group; the future is done when the managers know, or can't be told."""
        left: Future[Any] = Future()
        self._session.on_io(partial(self.leave_in_io_thread, left))
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
            "group": settings.group,
            "topics": sorted(self._subscription.topics),
            "session_ms": settings.session_timeout_ms,
            "name": settings.name[:100],
            "host": socket.gethostname()[:100],
        }
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
            # This join was decided. Otherwise the next one repeats its key, so that we are never
            # two members.
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
        """Have the next call of the application raise an error that a repeat does not mend."""
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
        """Send a heartbeat with the released partitions; the managers hold it for a while."""
        assignment = self.assignment
        if self._state != IN or self._session.closed:
            return
        now, session_ms = self._session.now_ms(), self._settings.session_timeout_ms
        with self._changed:
            released = [list(pair) for pair in assignment.released.items()]
            fields = (
                self._settings.group,
                assignment.member,
                assignment.version,
                min(WAIT_MS_MAX, session_ms // 5),
                released,
            )
        self._heartbeat_count += 1
        limit_ms = max(1, assignment.ends_at - now)
        try:
            future = self._session.call(
                self._session.managers, words.MEMBER, fields, timeout_ms=limit_ms
            )
        except MyQueueError:  # the session was closed
            return
        future.add_done_callback(
            partial(self._on_heartbeat_answer, self._heartbeat_count, assignment.member, now)
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
                if member != self.assignment.member:  # `end_if_over` ended the session just now
                    return
                self._subscription.failure = None
                ends_at = sent_at + min(session_ms, self._settings.session_timeout_ms)
                self.assignment.ends_at = max(self.assignment.ends_at, ends_at)
                self._subscription.set_assignment(version, rows)
                self._changed.notify_all()
            routes = [self._session.routes.partition(group) for group in self.assignment.by_group]
            if not all(routes):  # ask again, but not a manager that lags behind this version
                self._session.refresh(self._subscription.topics, version)
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
        """Lose all partitions, as other members may have them, and join again."""
        with self._changed:
            self._subscription.end_session()
            self._changed.notify_all()
        for listener in self._fetcher.listeners:
            listener()
        self._state = OUT
        self._join()

    def _check_deadlines(self) -> None:
        """End a session without answers; warn about a stuck application, then leave for it."""
        if self._state == CLOSED or self._session.closed:
            return
        if self._state == IN:
            self._check_session(self._session.now_ms())
        if self._state == IN:
            self._check_application(self._session.now_ms() - self._last_poll_ms)
        self._after(CHECK_MS, self._check_deadlines)

    def _check_session(self, now: int) -> None:
        """End the session if no manager has answered for its whole length."""
        if self.assignment.member and not self.assignment.has_ended(now):
            return
        log.warning(
            "group %s: no manager answered for a session of %d ms; its partitions are lost",
            self._settings.group,
            self._settings.session_timeout_ms,
        )
        self._lose_assignment()
        self._send_leave(self._member)  # the managers need not wait for the session to expire

    def _check_application(self, silent_ms: int) -> None:
        """Warn if the application asks for no messages; leave the group after `max_poll_ms`."""
        max_poll_ms = self._settings.max_poll_ms
        if silent_ms > max_poll_ms // 2 and not self._has_warned:
            self._has_warned = True
            log.warning(
                "group %s: the application has asked for no messages for %d ms; after %d ms this"
                " member leaves. The last message was from %s",
                self._settings.group,
                silent_ms,
                max_poll_ms,
                self._last_message_place(),
            )
        if silent_ms <= max_poll_ms:
            return
        log.warning("group %s: left, as the application asks for no messages", self._settings.group)
        self._state = RESTING
        with self._changed:  # before we leave: other members get our partitions at once then
            self._subscription.end_session()
        self._send_leave(self._member)
        if self._session.now_ms() - self._last_poll_ms < max_poll_ms:  # it has just polled again
            self._join()

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

    def leave_in_io_thread(self, left: Future[Any]) -> None:
        """Do what `leave` does, in the I/O thread."""
        state, self._state, self._has_left = self._state, CLOSED, left
        if state == JOINING or self._may_be_in:
            self._after(LEAVE_MS_MAX, self._end_leave)  # sooner, if our number is known sooner
        if state != JOINING and self._may_be_in:
            self._ask_member_id()
        elif state != JOINING:
            self._leave(self._member if state == IN else 0)

    def _ask_member_id(self) -> None:
        """Repeat the join that may have been done, with its key: the answer has our number."""
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
        has_left, self._has_left = self._has_left, None
        if has_left is not None:
            has_left.set_result(None)
