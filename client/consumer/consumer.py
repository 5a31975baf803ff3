"""`Consumer`: hand out messages of topics and commit positions, in the application's thread.

The I/O thread fetches ahead (`fetcher.py`) while the application works, so most calls find
messages in memory. `poll` returns lists, iteration single messages. Both take from the same
iterator, so they may be mixed, and no message is handed out twice.

The *position* of a partition is known only to this consumer until it is committed: under the name
of its group or consumer id, to the partition, where it is replicated like messages. `auto_commit`
commits what earlier calls returned, never messages that the application may still work on: after a
crash some messages come twice, and none is skipped.

A consumer is for one thread: a second one that calls it at the same time gets ConcurrentUse. Only
`close` may be called from any thread, and ends a waiting `poll` or loop.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from itertools import islice
from typing import Any, Final, Self

from myqueue import arguments
from myqueue.cluster.session import Session
from myqueue.constructors import lists_settings, named_arguments
from myqueue.consumer.assignment import Assignment
from myqueue.consumer.fetch_plan import limits_of
from myqueue.consumer.group_membership import GroupMembership
from myqueue.consumer.message import Message, TopicPartition
from myqueue.consumer.partition_state import Ownership, PartitionState
from myqueue.consumer.positions import SLICE_S, Callback, ConsumerPositions, call_back
from myqueue.consumer.subscription import CommitRequest, Subscription, lost_error
from myqueue.errors import (
    Closed,
    InvalidRequest,
    MisuseError,
    MyQueueError,
    TopicDeleted,
    Unreachable,
)
from myqueue.finalizers import ConsumerParting
from myqueue.settings import ConsumerSettings, ids_by_topic, who_commits

log = logging.getLogger("myqueue.client")

PAUSE_S_MAX: Final = 0.5
CONTACT_S: Final = 1.0  # the constructor waits so long for any manager to answer
RELEASE_COMMIT_S_MAX: Final = 3.0  # for the commit while another member waits for the partition
LEAVE_S_MAX: Final = 1.0  # the part of `close` that is kept for leaving the group


@lists_settings(ConsumerSettings)
class Consumer(ConsumerPositions):
    """Reads messages of topics, each partition in the order of its offsets.

    >>> with Consumer("127.0.0.1:9092", ["orders"], group="billing") as consumer:  # doctest: +SKIP
    ...     for message in consumer:
    ...         bill(message.value)
    ...         consumer.commit()

    Iterate, or call `poll`; both may be mixed. For one thread at a time: a call of a second thread
    raises ConcurrentUse. Only `close` may be called from any thread.

    cluster: managers as "host:port[,…]" or a list of them; or a Session to share with other
        clients.
    topics: one name or several. Topics must exist.
    group: consumers with the same group share the partitions of its topics. Positions are committed
        under the group's name.
    consumer_id: an id from `Admin.register_consumer`, or a mapping of topics to ids. The consumer
        reads all partitions, and positions are committed under the id. Not together with `group`.
        Without `group` and `consumer_id` nothing can be committed.
    start: where to begin: "earliest", "latest" or "committed" (else earliest; the default with a
        group or an id). A group's member begins there only where the group has no position.
    idle_timeout: iteration ends after so many seconds without a message.
    on_assign, on_revoke, on_lost: functions that get a list of TopicPartition, in this consumer's
        thread. `on_assign` is called before the first message of a partition, and may seek;
        `on_revoke` after the last one, while positions can still be committed; `on_lost` (default:
        `on_revoke`) when it is too late for that.

    A message counts as handled when the application asks for the next one. `auto_commit` commits
    handled messages only: after a crash some messages come twice, and none is skipped.

    Raises UnknownTopic, MisuseError, InvalidSetting. If no manager can be reached the constructor
    returns after a second; each call then looks for the cluster and raises Unreachable in the end.
    """

    @named_arguments
    def __init__(
        self,
        cluster: str | Iterable[str] | Session,
        topics: str | Iterable[str],
        *,
        group: str | None = ConsumerSettings.group,
        consumer_id: int | Mapping[str, int] | None = None,
        start: str | None = ConsumerSettings.start,
        auto_commit: bool = ConsumerSettings.auto_commit,
        on_out_of_range: str = ConsumerSettings.on_out_of_range,
        on_damaged: str = ConsumerSettings.on_damaged,
        idle_timeout: float | None = ConsumerSettings.idle_timeout,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
        auto_commit_interval_ms: int = ConsumerSettings.auto_commit_interval_ms,
        session_timeout_ms: int = ConsumerSettings.session_timeout_ms,
        max_poll_ms: int = ConsumerSettings.max_poll_ms,
        max_poll_messages: int = ConsumerSettings.max_poll_messages,
        fetch_wait_ms: int = ConsumerSettings.fetch_wait_ms,
        fetch_min_bytes: int = ConsumerSettings.fetch_min_bytes,
        fetch_max_bytes: int = ConsumerSettings.fetch_max_bytes,
        max_buffered_bytes: int = ConsumerSettings.max_buffered_bytes,
        request_timeout_ms: int = ConsumerSettings.request_timeout_ms,
        name: str = ConsumerSettings.name,
    ) -> None:
        idle_timeout = arguments.seconds(idle_timeout, "idle_timeout")
        self._settings = ConsumerSettings.of(locals())
        arguments.callback(on_assign, "on_assign")
        arguments.callback(on_revoke, "on_revoke")
        arguments.callback(on_lost, "on_lost")
        names = arguments.texts(topics, "topics")
        ids = ids_by_topic(names, consumer_id)
        committers = who_commits(names, group, ids)
        is_named = all(committers.values())
        if not is_named and (auto_commit or start == "committed"):
            raise MisuseError("positions are committed under a name: give group= or consumer_id=")
        limit_ms = self._settings.request_timeout_ms
        self._owns_session = not isinstance(cluster, Session)
        session = (
            cluster
            if isinstance(cluster, Session)
            else Session.of("", cluster, name=self._settings.name, request_timeout_ms=limit_ms)
        )
        subscription = Subscription(
            committers,
            start=start or ("committed" if is_named else "earliest"),
            on_out_of_range=on_out_of_range,
            on_damaged=on_damaged,
            limits=limits_of(self._settings),
            assignment=Assignment() if group else None,
        )
        super().__init__(session, subscription, limit_ms)
        self._on_assign, self._on_revoke = on_assign, on_revoke
        self._on_lost = on_lost or on_revoke
        self._membership: GroupMembership | None = None
        self._ids = set(ids.values())
        self._commit_at = session.now_ms() + self._settings.auto_commit_interval_ms
        self._topics_future: Future[Any] | None = None  # for the topics
        self._has_begun = False
        self.parting = ConsumerParting(
            session, self._owns_session, self._fetcher, subscription, self._ids, auto_commit
        )
        self.parting.watch(self)
        try:
            if self._find_topics(self._deadline(None), CONTACT_S):
                self._begin_reading()
        except BaseException:
            self.close(0)
            raise

    # -- the beginning ----------------------------------------------------------------------------

    def _find_topics(self, deadline: float, contact_s: float | None = None) -> bool:
        """Wait until the topics are known; False: they are not, by the deadline.

        If no manager is in contact, wait for `contact_s` seconds only.
        """
        contact = None if contact_s is None else time.monotonic() + contact_s
        if self._topics_future is None:
            names = list(self._subscription.topics)
            limit_ms = self._settings.request_timeout_ms
            self._topics_future = self._session.ensure_topics(names, timeout_ms=limit_ms)
        while not self._topics_future.done():
            now = time.monotonic()
            if contact is not None and now >= contact and not self._session.is_in_contact:
                return False
            if now >= deadline or self._closed:
                return False
            wait([self._topics_future], min(SLICE_S, deadline - now))
        asked, self._topics_future = self._topics_future, None
        asked.result()  # raises a failure once; the next call asks again
        return True

    def _begin_reading(self) -> None:
        session = self._session
        self._has_begun = self.parting.has_begun = True
        session.refresh(self._subscription.topics)
        for number in self._ids:
            session.keep_alive(consumer=number)
        self._fetcher.start()
        if self._subscription.assignment is not None:
            self._membership = self.parting.membership = GroupMembership(
                session.core, self._fetcher, self._subscription, self._settings
            )
            self._membership.start()

    def _ensure_started(self, limit_s: float | None) -> None:
        """Begin to read if that was not possible so far; Unreachable if it still is not."""
        if self._has_begun:
            return
        begun = time.monotonic()
        if self._find_topics(self._deadline(limit_s)):
            self._begin_reading()
        elif self._closed:
            raise Closed("the consumer was closed")
        else:
            tried = ", ".join(map(self._session.name_of, self._session.manager_addresses))
            waited = time.monotonic() - begun
            raise Unreachable(f"no manager could be reached within {waited:.1f} s. Tried {tried}")

    def wait_until_ready(self) -> None:
        """Wait until the topics are known: `poll` never waits for them then. For AsyncConsumer."""
        with self._exclusive_call():
            pass

    # -- messages ---------------------------------------------------------------------------------

    def poll(self, max_messages: int | None = None, timeout: float | None = 1.0) -> list[Message]:
        """Return messages as soon as there are any; [] if none came within `timeout` seconds.

        max_messages: at most so many (default: `max_poll_messages`, 1000).
        timeout: seconds; 0 does not wait, None waits for ever.

        Messages of the last call count as handled from now on. Callbacks run within this call.
        Raises what went wrong with a partition when its turn comes: OffsetOutOfRange,
        BatchUnreadable (both again until a seek), CorruptData, TopicDeleted, Unreachable.
        """
        limit = self._settings.max_poll_messages if max_messages is None else max_messages
        if not arguments.is_whole(limit) or limit < 1:
            raise InvalidRequest(
                f"poll({max_messages!r}): max_messages is a whole number from 1 on",
                hint="To wait for a number of seconds say poll(timeout=…).",
            )
        timeout = arguments.seconds(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        with self._exclusive_call(timeout):
            self._begin_call()
            run = self._next_run(None if end is None else end - time.monotonic())
            out: list[Message] = []
            try:
                while run is not None and len(out) < limit:
                    out += islice(run, limit - len(out))
                    run = self._take_run() if len(out) < limit else None
            except MyQueueError as error:
                self._error = error  # raised by the next call; these messages come first
            return out

    def __iter__(self) -> Iterator[Message]:
        """Yield messages one after the other; the loop ends after `idle_timeout` or `close`.

        A message counts as handled when the loop asks for the next one. Errors are those of `poll`.
        """
        idle_s = self._settings.idle_timeout
        with self._exclusive_call(idle_s):
            pass
        while (run := self._wait_for_run(idle_s)) is not None:
            if not self._settings.auto_commit and self._membership is None:
                yield from run
                continue
            for message in run:
                yield message
                self.note_handled()
                if self.check_withdrawals():
                    break  # the rest of this run comes again, if the partition is still ours

    def take_run(self) -> Iterator[Message] | None:
        """Return fetched messages of one partition without waiting; None: there are none.

        Messages that are taken from the iterator count as returned. For AsyncConsumer.
        """
        return self._wait_for_run(0.0)

    def note_handled(self) -> None:
        """Note that all returned messages are handled; commit them if auto_commit is due."""
        if self._settings.auto_commit and self._session.now_ms() >= self._commit_at:
            self._mark_handled()

    def check_withdrawals(self) -> bool:
        """Were partitions lost or wanted back, so that callbacks must run before the next message?

        Counts as asking for messages: the member is not stuck.
        """
        if self._membership is None:
            return False
        self._membership.note_poll()
        return self._membership.end_if_over() or self._subscription.has_withdrawals

    def on_news(self, callback: Callable[[], object]) -> None:
        """Call `callback` in the I/O thread whenever `take_run` may have something to return."""
        self._fetcher.listeners.append(callback)
        callback()

    def _wait_for_run(self, idle_s: float | None) -> Iterator[Message] | None:
        try:
            with self._exclusive_call():
                self._begin_call()
                return self._next_run(idle_s)
        except Closed:
            if self._closed:  # closed while the application was in its loop: end the loop
                return None
            raise

    def _begin_call(self) -> None:
        self._mark_handled()
        self.check_withdrawals()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _next_run(self, timeout_s: float | None) -> Iterator[Message] | None:
        """Wait for messages of any partition; None: none came, or the consumer was closed."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._call_callbacks()
            run = self._take_run()
            left = SLICE_S if end is None else min(SLICE_S, end - time.monotonic())
            if run is not None or left <= 0 or self._closed:
                return run
            with self._changed:
                if not (self._closed or self._subscription.has_news):
                    self._changed.wait(left)

    def _take_run(self) -> Iterator[Message] | None:
        """Return fetched messages; neither wait nor call the application's callbacks."""
        subscription, log_lines, has_room = self._subscription, list[str](), False
        try:
            with self._changed:
                if self._closed:
                    return None
                self._session.check()
                if self._membership is not None and self._membership.end_if_over():
                    return None
                try:
                    return subscription.next_run(self._session.now_ms())
                finally:
                    has_room = subscription.may_fetch_more
                    log_lines, subscription.skips.log_lines = subscription.skips.log_lines, []
        finally:
            for line in log_lines:
                log.warning("%s", line)
            if has_room:
                self._fetcher.nudge()

    def _call_callbacks(self) -> None:
        """Call the application's callbacks for lost, leaving, removed and added partitions.

        They run in the consumer's thread and without a lock, so they may seek. All of them run even
        if one raises: no change is reported twice.
        """
        if self._membership is not None:
            self._membership.note_poll()
        with self._changed:
            changes = self._subscription.take_changes()
            lost, leaving = self._subscription.take_withdrawals()
        if not (changes or lost or leaving):
            return
        with ExitStack() as last_first:
            last_first.callback(self._admit)
            for added, removed in reversed(changes):
                last_first.callback(call_back, self._on_assign, added)
                last_first.callback(call_back, self._on_revoke, removed)
            last_first.callback(self._release, leaving)
            last_first.callback(call_back, self._on_lost, lost)

    def _admit(self) -> None:
        with self._changed:
            self._subscription.admit()
        self._fetcher.nudge()

    def _release(self, leaving: list[PartitionState]) -> None:
        """Commit and give back leaving partitions: the application is done with their messages."""
        if not leaving:
            return
        self._save(leaving)
        try:
            call_back(
                self._on_revoke,
                [one.name for one in leaving if one.ownership is Ownership.LEAVING],
            )
        finally:
            with self._changed:
                self._subscription.release(leaving)
            if self._membership is not None:
                self._membership.report_released()

    def has_to_save(self) -> bool:
        """Would the next call wait for a commit before it gives a partition back?"""
        if self._closed or not self._settings.auto_commit:
            return False
        partitions = self._subscription.partitions.copy()  # the I/O thread changes the original
        return any(one.is_wanted_back and not one.is_saved for one in partitions.values())

    def save_leaving(self) -> None:
        """Do that commit now, so that the next call does not wait. For AsyncConsumer."""
        with self._exclusive_call():
            self._mark_handled()
            with self._changed:
                partitions = self._subscription.partitions.values()
                leaving = [one for one in partitions if one.is_wanted_back]
            self._save(leaving)

    def _save(self, leaving: list[PartitionState]) -> None:
        if not self._settings.auto_commit:
            return
        with self._changed:
            unsaved = [one for one in leaving if one.is_wanted_back and not one.is_saved]
            commits = self._subscription.commits(handled_only=True, of=[r.name for r in unsaved])
            for one in unsaved:
                one.is_saved = True  # or was tried: once is enough
        with suppress(MyQueueError):  # if it fails, the next owner gets these messages again
            self._commit_until(time.monotonic() + RELEASE_COMMIT_S_MAX, commits)

    # -- committing -------------------------------------------------------------------------------

    def _mark_handled(self) -> None:
        """With auto_commit: note that earlier messages are handled, and commit them when due."""
        if not self._settings.auto_commit:
            return
        now = self._session.now_ms()
        with self._changed:
            if self._closed or (self._membership is not None and self._membership.end_if_over()):
                return  # `close` has committed; or all partitions are lost
            self._subscription.mark_handled()
            due = now >= self._commit_at
            commits = self._subscription.commits(handled_only=True) if due else []
        if due:
            self._commit_at = now + self._settings.auto_commit_interval_ms
            self._fetcher.commit(commits, self._settings.request_timeout_ms)

    def commit(
        self,
        upto: Message | Mapping[TopicPartition, int] | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Commit positions; return the committed position of each partition that has one.

        upto: None commits all that was returned so far; a Message commits up to and including it;
            a mapping of TopicPartition to offset commits these positions.
        timeout: seconds (default: `request_timeout_ms`).

        Returns when the positions are on the disks of a majority. Committed positions only move
        forward. Raises MisuseError without a group or id; Fenced if returned messages belong to
        partitions that other members of the group own now; TopicDeleted; TimedOut.
        """
        upto, timeout = arguments.positions(upto), arguments.seconds(timeout)
        with self._exclusive_call(timeout):
            if not all(self._subscription.topics.values()):
                raise MisuseError("nothing to commit under: give the consumer a group= or an id")
            with self._changed:
                if upto is not None and self._membership is not None:
                    self._subscription.check_returned(upto)
                elif upto is not None:
                    self._subscription.check_topic(upto)
                if isinstance(upto, Message):
                    upto = {TopicPartition(upto.topic, upto.partition): upto.offset + 1}
                partitions = self._subscription.select(upto)
                commits = self._subscription.commits(only=upto)
                unsaved = [] if upto is not None else self._subscription.uncommitted
            self._commit_until(self._deadline(timeout), commits)
            if unsaved:
                raise lost_error(unsaved)
            return {r.name: r.committed for r in partitions if r.committed is not None}

    def _commit_until(self, deadline: float, commits: list[CommitRequest]) -> None:
        """Commit, and repeat what failed with a retriable error, until the deadline."""
        pause_s, lost = 0.02, list[TopicPartition]()
        while True:
            futures = self._fetcher.commit(commits, self._left_ms(deadline))
            errors = [self._wait(future, deadline) for future in futures]
            error = next((error for error in errors if error is not None), None)
            if error is None:
                break
            if not error.retriable or time.monotonic() + pause_s >= deadline:
                raise error
            time.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, pause_s * 2)
            with self._changed:
                commits, more = self._subscription.remaining(commits)
            lost += more
        if lost and self._membership is not None:
            raise lost_error(lost)
        if lost:
            raise TopicDeleted(f"deleted before this was committed: {', '.join(map(str, lost))}")

    # -- the end ----------------------------------------------------------------------------------

    def close(self, timeout: float = 5.0, *, commit: bool = False) -> None:
        """Leave the group and end, within `timeout` seconds; may be called from any thread.

        With auto_commit, commit what is known to be handled; with `commit`, all that was returned.
        A commit that fails is not reported: those messages come again.
        """
        if self._pid != os.getpid() or self._closed:
            return
        timeout = arguments.definite_seconds(timeout)
        end = time.monotonic() + timeout
        self.parting.is_closed = True
        with self._changed:
            self._closed = True
        try:
            wanted = commit or self._settings.auto_commit
            if wanted and timeout > 0 and not self._session.closed:
                with self._changed:
                    commits = self._subscription.commits(handled_only=not commit)
                in_group = self._membership is not None
                self._commit_until(end - min(LEAVE_S_MAX, timeout / 4) * in_group, commits)
        except MyQueueError:
            pass  # they come again; that is what auto_commit promises
        finally:
            with self._changed:
                self._subscription.close()
            self._fetcher.close()
            if self._membership is not None and not self._session.closed:
                left = self._membership.leave()
                wait([left], max(SLICE_S, end - time.monotonic()))
            if self._has_begun and not self._session.closed:
                for number in self._ids:
                    self._session.let_die(consumer=number)
            if self._owns_session:
                self._session.close(max(100, round((end - time.monotonic()) * 1000)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
