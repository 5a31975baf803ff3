"""Hand partitions over between managers and application: commits and callbacks, in its thread.

Auto_commit covers what earlier calls returned, never messages that the application may still work
on: after a crash some messages come twice, and none is skipped.

A partition that the managers want back is committed (with auto_commit), then revoked in the
application, then released to the managers. One that is added is handed out after `on_assign`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any, Final

from myqueue import arguments
from myqueue.cluster.session import Session
from myqueue.consumer.fetcher import Fetcher
from myqueue.consumer.group_membership import GroupMembership
from myqueue.consumer.message import TopicPartition
from myqueue.consumer.partition_state import Ownership, PartitionState
from myqueue.consumer.subscription import CommitRequest, Subscription, lost_error
from myqueue.errors import MyQueueError, TopicDeleted
from myqueue.settings import ConsumerSettings

PAUSE_S_MAX: Final = 0.5
RELEASE_COMMIT_S_MAX: Final = 3.0  # for the commit while another member waits for the partition
GRACE_MS: Final = 500
Callback = Callable[[list[TopicPartition]], object]


class Callbacks:
    """Functions of the application; see `Consumer`."""

    def __init__(
        self, on_assign: Callback | None, on_revoke: Callback | None, on_lost: Callback | None
    ) -> None:
        self.on_assign = arguments.callback(on_assign, "on_assign")
        self.on_revoke = arguments.callback(on_revoke, "on_revoke")
        self.on_lost = arguments.callback(on_lost, "on_lost") or on_revoke


def left_ms(deadline: float) -> int:
    return max(1, round((deadline - time.monotonic()) * 1000))


class Handover:
    """Commits of one consumer, and the calls of its callbacks."""

    def __init__(
        self,
        session: Session,
        fetcher: Fetcher,
        subscription: Subscription,
        membership: GroupMembership | None,
        settings: ConsumerSettings,
        callbacks: Callbacks,
    ) -> None:
        self.auto_commit = settings.auto_commit
        self.commit_due_at = session.now_ms() + settings.auto_commit_interval_ms
        self._session, self._fetcher, self._subscription = session, fetcher, subscription
        self._membership, self._settings, self._callbacks = membership, settings, callbacks

    # -- commits ----------------------------------------------------------------------------------

    def commit_if_due(self) -> None:
        """Note that all returned messages are handled; commit them if auto_commit is due."""
        if self.auto_commit and self._session.now_ms() >= self.commit_due_at:
            self.mark_handled()

    def mark_handled(self) -> None:
        """With auto_commit: note that earlier messages are handled, and commit them when due."""
        if not self.auto_commit:
            return
        now = self._session.now_ms()
        with self._fetcher.changed:
            is_over = self._membership is not None and self._membership.end_if_over()
            if is_over or self._subscription.is_closed:
                return  # all partitions are lost; or `close` has committed
            self._subscription.mark_handled()
            is_due = now >= self.commit_due_at
            commits = self._subscription.commits(handled_only=True) if is_due else []
        if is_due:
            self.commit_due_at = now + self._settings.auto_commit_interval_ms
            self._fetcher.commit(commits, self._settings.request_timeout_ms)

    def commit_until(self, deadline: float, commits: list[CommitRequest]) -> None:
        """Commit, and repeat what failed with a retriable error, until the deadline."""
        pause_s, lost = 0.02, list[TopicPartition]()
        while True:
            futures = self._fetcher.commit(commits, left_ms(deadline))
            errors = [self._wait(future, deadline) for future in futures]
            error = next((error for error in errors if error is not None), None)
            if error is None:
                break
            if not error.retriable or time.monotonic() + pause_s >= deadline:
                raise error
            time.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, pause_s * 2)
            with self._fetcher.changed:
                commits, newly_lost = self._subscription.remaining(commits)
            lost += newly_lost
        if lost and self._membership is not None:
            raise lost_error(lost)
        if lost:
            raise TopicDeleted(f"deleted before this was committed: {', '.join(map(str, lost))}")

    def _wait(self, future: Future[Any], deadline: float) -> Any:
        """Wait for an answer. Its request ends by the deadline itself; if not, raise soon after."""
        return self._session.wait(future, left_ms(deadline) + GRACE_MS)

    def save(self, leaving: list[PartitionState]) -> None:
        """With auto_commit: commit leaving partitions once, if that is possible in time."""
        if not self.auto_commit:
            return
        with self._fetcher.changed:
            unsaved = [state for state in leaving if state.is_wanted_back and not state.is_saved]
            commits = self._subscription.commits(
                handled_only=True, of=[state.name for state in unsaved]
            )
            for state in unsaved:
                state.is_saved = True  # or was tried: once is enough
        with suppress(MyQueueError):  # if it fails, the next owner gets these messages again
            self.commit_until(time.monotonic() + RELEASE_COMMIT_S_MAX, commits)

    # -- callbacks --------------------------------------------------------------------------------

    def note_poll(self) -> bool:
        """Note that the application asks for messages; return whether callbacks come first."""
        if self._membership is None:
            return False
        self._membership.note_poll()
        return self._membership.end_if_over() or self._subscription.has_withdrawals

    def call_callbacks(self) -> None:
        """Call the application's callbacks for lost, leaving, removed and added partitions.

        They run without a lock, so they may seek. All of them run even if one raises: no change is
        reported twice.
        """
        if self._membership is not None:
            self._membership.note_poll()
        with self._fetcher.changed:
            changes = self._subscription.take_changes()
            lost, leaving = self._subscription.take_withdrawals()
        if not (changes or lost or leaving):
            return
        with ExitStack() as last_first:
            last_first.callback(self._admit)
            for added, removed in reversed(changes):
                last_first.callback(_call, self._callbacks.on_assign, added)
                last_first.callback(_call, self._callbacks.on_revoke, removed)
            last_first.callback(self._release, leaving)
            last_first.callback(_call, self._callbacks.on_lost, lost)

    def _admit(self) -> None:
        with self._fetcher.changed:
            self._subscription.admit()
        self._fetcher.nudge()

    def _release(self, leaving: list[PartitionState]) -> None:
        """Commit and give back leaving partitions: the application is done with their messages."""
        if not leaving:
            return
        self.save(leaving)
        ours = [state.name for state in leaving if state.ownership is Ownership.LEAVING]
        try:
            _call(self._callbacks.on_revoke, ours)
        finally:
            with self._fetcher.changed:
                self._subscription.release(leaving)
            if self._membership is not None:
                self._membership.report_released()

    def has_to_save(self) -> bool:
        """Would `call_callbacks` wait for a commit before it gives a partition back?"""
        partitions = self._subscription.partitions.copy()  # the I/O thread changes the original
        is_unsaved = any(
            state.is_wanted_back and not state.is_saved for state in partitions.values()
        )
        return is_unsaved and self.auto_commit and not self._subscription.is_closed

    def save_leaving(self) -> None:
        """Do that commit now."""
        self.mark_handled()
        with self._fetcher.changed:
            partitions = self._subscription.partitions.values()
            leaving = [state for state in partitions if state.is_wanted_back]
        self.save(leaving)


def _call(callback: Callback | None, names: list[TopicPartition]) -> None:
    if names and callback is not None:
        callback(names)
