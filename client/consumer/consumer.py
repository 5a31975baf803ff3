"""`Consumer`: messages of some topics, partition by partition in order, each exactly once a run.

It pulls, and what it pulls it has mostly already: the I/O thread fetches ahead (`fetcher.py`)
while the application works. There is one way to get messages with two faces, `poll` for lists and
iteration for one after the other, and they may be mixed: both take from the same place.

Where it stands is the *position* of each partition; it is its own until it is committed, under
its group's or its consumer id's name, to the partition itself, where it is replicated like the
messages. `auto_commit` commits what an earlier poll returned, never what the application may
still be working on (C9): after a crash some messages come twice, none is left out.

A consumer is for one thread; a second one that calls it at the same time gets ConcurrentUse.
Only `close` may come from anywhere: who waits in `poll` or in a loop is let go.
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
from myqueue.consumer.partition_state import PartitionState
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
CONTACT_S: Final = 1.0  # so long the constructor waits for any manager to answer
RELEASE_COMMIT_S_MAX: Final = 3.0  # for a commit while others wait for the partition
LEAVE_S_MAX: Final = 1.0  # of the time for `close`, kept for telling the managers


@lists_settings(ConsumerSettings)
class Consumer(ConsumerPositions):
    """Reads topics.

    >>> with Consumer("127.0.0.1:9092", ["orders"], group="billing") as consumer:  # doctest: +SKIP
    ...     for message in consumer:
    ...         bill(message.value)
    ...         consumer.commit()

    `cluster`: the managers' addresses, or a Session to share. Consumers of one `group` share the
    partitions of its topics: each has some. With a `consumer_id` (one id, or one for each topic),
    or with neither, a consumer reads all of them. Under the group's or the id's name positions are
    committed; without one nothing is. `start` is "earliest", "latest" or "committed" (else
    earliest; the default with a name); a group's members begin there only without a position.
    Iteration ends after `idle_timeout` seconds without a message. `on_assign`, `on_revoke` and
    `on_lost` (by default `on_revoke`) get lists of partitions, in the consumer's thread: before the
    first message; after the last one, while positions can still be committed; and when it is too
    late for that. The constructor raises UnknownTopic. Where no manager answers at all it does not
    wait: each call then tries for as long as it may take, and raises Unreachable. Further settings:
    `myq config show consumer`.
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
        who = who_commits(names, group, ids)
        named = all(who.values())
        if not named and (auto_commit or start == "committed"):
            raise MisuseError("positions are committed under a name: give group= or consumer_id=")
        limit_ms = self._settings.request_timeout_ms
        self._owns_session = not isinstance(cluster, Session)
        session = (
            cluster
            if isinstance(cluster, Session)
            else Session.of("", cluster, name=self._settings.name, request_timeout_ms=limit_ms)
        )
        subscription = Subscription(
            who,
            start=start or ("committed" if named else "earliest"),
            on_out_of_range=on_out_of_range,
            on_damaged=on_damaged,
            limits=limits_of(self._settings),
            shares=Assignment() if group else None,
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
        """Whether they are known. It waits for them; without any contact for `contact_s` only."""
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
        """The cluster could not be reached when this was made: each call tries, for its time."""
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
        """For who must not wait in `poll`: until the topics are known."""
        with self._exclusive_call():
            pass

    # -- messages ---------------------------------------------------------------------------------

    def poll(self, max_messages: int | None = None, timeout: float | None = 1.0) -> list[Message]:
        """Messages that are there, as soon as there are any; [] if none came in `timeout` seconds.

        What the poll before returned counts as handled from now on.
        """
        limit = self._settings.max_poll_messages if max_messages is None else max_messages
        if not arguments.is_whole(limit) or limit < 1:
            raise InvalidRequest(
                f"poll({max_messages!r}): max_messages is a whole number from 1 on",
                hint="To wait for so many seconds say poll(timeout=…).",
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
                self._error = error  # these messages first
            return out

    def __iter__(self) -> Iterator[Message]:
        """Every message; the one before counts as handled when the next one is asked for."""
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
                if self.has_withdrawals():
                    break  # the rest of it comes again, if it is still ours

    def take_run(self) -> Iterator[Message] | None:
        """For who iterates by himself: some messages that are there, None if there are none. What
        is taken from the iterator counts as returned.
        """
        return self._wait_for_run(0.0)

    def note_handled(self) -> None:
        """All that was returned is handled; auto_commit may commit it."""
        if self._settings.auto_commit and self._session.now_ms() >= self._commit_at:
            self._mark_handled()

    def has_withdrawals(self) -> bool:
        """Before the next message: partitions are wanted back, or are lost."""
        if self._membership is None:
            return False
        self._membership.note_poll()
        return self._membership.is_over() or self._subscription.has_withdrawals

    def on_news(self, callback: Callable[[], object]) -> None:
        """`callback` is called in the I/O thread whenever there may be something to `take_run`."""
        self._fetcher.listeners.append(callback)
        callback()

    def _wait_for_run(self, idle_s: float | None) -> Iterator[Message] | None:
        try:
            with self._exclusive_call():
                self._begin_call()
                return self._next_run(idle_s)
        except Closed:
            if self._closed:  # while the application was in its loop: it just ends
                return None
            raise

    def _begin_call(self) -> None:
        self._mark_handled()
        self.has_withdrawals()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _next_run(self, timeout_s: float | None) -> Iterator[Message] | None:
        """Waits for messages of any partition; None: none came, or the consumer was closed."""
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
        """Without waiting, and without a word to the application's callbacks."""
        subscription, notes, hungry = self._subscription, list[str](), False
        try:
            with self._changed:
                if self._closed:
                    return None
                self._session.check()
                if self._membership is not None and self._membership.is_over():
                    return None
                try:
                    return subscription.next_run(self._session.now_ms())
                finally:
                    hungry = subscription.may_fetch_more
                    notes, subscription.skips.log_lines = subscription.skips.log_lines, notes
        finally:
            for note in notes:
                log.warning("%s", note)
            if hungry:
                self._fetcher.nudge()

    def _call_callbacks(self) -> None:
        """Callbacks run here, in the consumer's thread and without a lock: they may seek. All of
        them, also if one raises: none of this is told again.
        """
        if self._membership is not None:
            self._membership.note_poll()
        with self._changed:
            news = self._subscription.take_changes()
            lost, leaving = self._subscription.take_withdrawals()
        if not (news or lost or leaving):
            return
        with ExitStack() as last_first:
            last_first.callback(self._admit)
            for added, gone in reversed(news):
                last_first.callback(call_back, self._on_assign, added)
                last_first.callback(call_back, self._on_revoke, gone)
            last_first.callback(self._release, leaving)
            last_first.callback(call_back, self._on_lost, lost)

    def _admit(self) -> None:
        with self._changed:
            self._subscription.admit()
        self._fetcher.nudge()

    def _release(self, leaving: list[PartitionState]) -> None:
        """The application has come back, so it is done with what it got of them."""
        if not leaving:
            return
        self._save(leaving)
        try:
            call_back(
                self._on_revoke,
                [one.name for one in leaving if one.is_announced and not one.is_removed],
            )
        finally:
            with self._changed:
                self._subscription.release(leaving)
            if self._membership is not None:
                self._membership.report_released()

    def has_to_save(self) -> bool:
        """Would the next call for messages wait for a commit before it gives something back?"""
        if self._closed or not self._settings.auto_commit:
            return False
        partitions = self._subscription.partitions.copy()  # of the I/O thread
        return any(one.is_leaving and not one.is_saved for one in partitions.values())

    def save_leaving(self) -> None:
        """That commit, for who must not wait in `poll`."""
        with self._exclusive_call():
            self._mark_handled()
            with self._changed:
                leaving = [one for one in self._subscription.partitions.values() if one.is_leaving]
            self._save(leaving)

    def _save(self, leaving: list[PartitionState]) -> None:
        if not self._settings.auto_commit:
            return
        with self._changed:
            unsaved = [one for one in leaving if not (one.is_removed or one.is_saved)]
            commits = self._subscription.commits(handled_only=True, of=[r.name for r in unsaved])
            for one in unsaved:
                one.is_saved = True  # or tried: once is enough
        with suppress(MyQueueError):  # else they come again, to somebody else
            self._commit_until(time.monotonic() + RELEASE_COMMIT_S_MAX, commits)

    # -- committing -------------------------------------------------------------------------------

    def _mark_handled(self) -> None:
        """The application asks for more, so what it got before is handled (C9)."""
        if not self._settings.auto_commit:
            return
        now = self._session.now_ms()
        with self._changed:
            if self._closed or (self._membership is not None and self._membership.is_over()):
                return  # closed in the loop, and committed; or all it had is lost
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
        """Commits what was returned so far; or up to and with a message; or these positions.

        Returns when it is on the disks of a majority. Committed positions only move forward. Fenced
        if messages that were returned are of partitions that others of the group have by now.
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
        """Again and again, as long as that may help."""
        pause_s, gone = 0.02, list[TopicPartition]()
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
            gone += more
        if gone and self._membership is not None:
            raise lost_error(gone)
        if gone:
            raise TopicDeleted(f"deleted before this was committed: {', '.join(map(str, gone))}")

    # -- the end ----------------------------------------------------------------------------------

    def close(self, timeout: float = 5.0, *, commit: bool = False) -> None:
        """Ends it, never later than `timeout` seconds; from any thread. With auto_commit, what is
        known to be handled is committed; with `commit`, all that was returned is.
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
