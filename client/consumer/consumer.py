"""`Consumer`: the calls of an application that reads messages of topics.

The I/O thread fetches ahead (`fetcher.py`) while the application works, so most calls find
messages in memory. `poll` and iteration take from the same iterator, so they may be mixed, and no
message is handed out twice. Waits are in short slices, so that Ctrl-C is never late.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from itertools import islice
from threading import RLock
from typing import Any, Final, Self, overload

from myqueue import arguments
from myqueue.cluster.session import Session
from myqueue.constructors import lists_settings, named_arguments
from myqueue.consumer.assignment import Assignment
from myqueue.consumer.fetch_plan import limits_of
from myqueue.consumer.fetcher import Fetcher
from myqueue.consumer.group_membership import GroupMembership
from myqueue.consumer.handover import Callback, Callbacks, Handover
from myqueue.consumer.message import Message, TopicPartition
from myqueue.consumer.partition_state import StartRule
from myqueue.consumer.positions import SLICE_S, Partitions, Positions
from myqueue.consumer.subscription import Subscription, lost_error
from myqueue.errors import (
    Closed,
    ConcurrentUse,
    Forked,
    InvalidRequest,
    MisuseError,
    MyQueueError,
    TopicDeleted,
    Unreachable,
)
from myqueue.finalizers import ConsumerParting
from myqueue.settings import ConsumerSettings, ids_by_topic, who_commits

log = logging.getLogger("myqueue.client")

CONTACT_S: Final = 1.0  # the constructor waits so long for any manager to answer
LEAVE_S_MAX: Final = 1.0  # the part of `close` that is kept for leaving the group


def _subscription(settings: ConsumerSettings, committers: Mapping[str, str]) -> Subscription:
    """Make the subscription to topics whose positions are committed under these names."""
    is_named = all(committers.values())
    if not is_named and (settings.auto_commit or settings.start == "committed"):
        raise MisuseError("positions are committed under a name: give group= or consumer_id=")
    return Subscription(
        committers,
        start=settings.start or ("committed" if is_named else "earliest"),
        on_out_of_range=settings.on_out_of_range,
        on_damaged=settings.on_damaged,
        limits=limits_of(settings),
        assignment=Assignment() if settings.group else None,
    )


@lists_settings(ConsumerSettings)
class Consumer:
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
        self._settings = settings = ConsumerSettings.of(locals())
        callbacks = Callbacks(on_assign, on_revoke, on_lost)
        names = arguments.texts(topics, "topics")
        ids = ids_by_topic(names, consumer_id)
        self._subscription = _subscription(settings, who_commits(names, group, ids))
        self._owns_session = not isinstance(cluster, Session)
        self._session = session = (
            cluster
            if isinstance(cluster, Session)
            else Session.of("", cluster, name=name, request_timeout_ms=request_timeout_ms)
        )
        self._fetcher = Fetcher(session.core, self._subscription, request_timeout_ms)
        self._changed = self._fetcher.changed
        self._membership = (
            GroupMembership(session.core, self._fetcher, self._subscription, settings)
            if group
            else None
        )
        parts = (session, self._fetcher, self._subscription)
        self._positions = Positions(*parts)
        self._handover = Handover(*parts, self._membership, settings, callbacks)
        self._pid = os.getpid()
        self._caller_lock = RLock()
        self._error: MyQueueError | None = None  # the next call raises it: its messages came first
        self._ids = set(ids.values())
        self._topics_future: Future[Any] | None = None  # for the topics
        self._has_begun = False
        self.parting = ConsumerParting(
            *parts, self._membership, self._ids, self._owns_session, auto_commit
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
            if now >= deadline or self.is_closed():
                return False
            wait([self._topics_future], min(SLICE_S, deadline - now))
        future, self._topics_future = self._topics_future, None
        future.result()  # raises a failure once; the next call asks again
        return True

    def _begin_reading(self) -> None:
        session = self._session
        self._has_begun = self.parting.has_begun = True
        session.refresh(self._subscription.topics)
        for number in self._ids:
            session.keep_alive(consumer=number)
        self._fetcher.start()
        if self._membership is not None:
            self._membership.start()

    def _ensure_started(self, limit_s: float | None) -> None:
        """Begin to read if that was not possible so far; Unreachable if it still is not."""
        if self._has_begun:
            return
        begun = time.monotonic()
        if self._find_topics(self._deadline(limit_s)):
            self._begin_reading()
        elif self.is_closed():
            raise Closed("the consumer was closed")
        else:
            tried = ", ".join(map(self._session.name_of, self._session.manager_addresses))
            waited = time.monotonic() - begun
            raise Unreachable(f"no manager could be reached within {waited:.1f} s. Tried {tried}")

    @contextmanager
    def _exclusive_call(self, limit_s: float | None = None) -> Iterator[None]:
        """Guard one call of the application; it may take `limit_s` seconds to start reading."""
        if self._pid != os.getpid():
            raise Forked("this consumer was made before a fork, by the parent process")
        if not self._caller_lock.acquire(blocking=False):
            raise ConcurrentUse("another thread is in a call of this consumer")
        try:
            if self.is_closed():
                raise Closed("the consumer was closed")
            self._ensure_started(limit_s)
            yield
        finally:
            self._caller_lock.release()

    def _deadline(self, timeout_s: float | None) -> float:
        default_s = self._settings.request_timeout_ms / 1000
        return time.monotonic() + (default_s if timeout_s is None else timeout_s)

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
        collects = False
        try:
            with self._exclusive_call(timeout):
                self._begin_call()
                run = self._next_run(None if end is None else end - time.monotonic())
                collects = gc.isenabled()
                gc.disable()  # no message can be garbage before this call returns
                return self._take(run, limit)
        finally:
            if collects:
                gc.enable()

    def _take(self, run: Iterator[Message] | None, limit: int) -> list[Message]:
        """Take messages that were fetched, of `run` and then of other runs."""
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
        handover = self._handover
        while (run := self._wait_for_run(idle_s)) is not None:
            if not handover.auto_commit and self._membership is None:
                yield from run
                continue
            for message in run:
                yield message
                handover.commit_if_due()
                if handover.note_poll():
                    break  # the rest of this run comes again, if the partition is still ours

    def _wait_for_run(self, idle_s: float | None) -> Iterator[Message] | None:
        """Return fetched messages of one partition; None: none came, or the consumer is closed.

        Messages that are taken from the iterator count as returned.
        """
        try:
            with self._exclusive_call():
                self._begin_call()
                return self._next_run(idle_s)
        except Closed:
            if self.is_closed():  # closed while the application was in its loop: end the loop
                return None
            raise

    def _begin_call(self) -> None:
        self._handover.mark_handled()
        self._handover.note_poll()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _next_run(self, timeout_s: float | None) -> Iterator[Message] | None:
        """Wait for messages of any partition; None: none came, or the consumer was closed."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._handover.call_callbacks()
            run = self._take_run()
            left = SLICE_S if end is None else min(SLICE_S, end - time.monotonic())
            if run is not None or left <= 0 or self.is_closed():
                return run
            with self._changed:
                if not (self.is_closed() or self._subscription.has_news):
                    self._changed.wait(left)

    def _take_run(self) -> Iterator[Message] | None:
        """Return fetched messages; neither wait nor call the application's callbacks."""
        subscription, log_lines, has_room = self._subscription, list[str](), False
        try:
            with self._changed:
                if self.is_closed():
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

    # -- positions --------------------------------------------------------------------------------

    @property
    def is_member(self) -> bool:
        """Is this consumer a member of its group now? False without a group and before it joins."""
        assignment = self._subscription.assignment
        return assignment is not None and assignment.member > 0

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this consumer reads now, sorted."""
        with self._exclusive_call():
            return sorted(partition.name for partition in self._positions.select(None))

    @overload
    def seek(self, partition: TopicPartition | tuple[str, int], offset: int, /) -> None: ...
    @overload
    def seek(self, topic: str, number: int, offset: int, /) -> None: ...
    @overload
    def seek(self, partition: TopicPartition | tuple[str, int], *, offset: int) -> None: ...
    def seek(self, partition: Any, *more: Any, offset: Any = None) -> None:
        """Go on from this offset: `seek(partition, offset)`, or `seek(topic, number, offset)`.

        Fetched messages of the partition are dropped. Raises MisuseError for a partition that is
        not read, TopicDeleted for one of a deleted topic.
        """
        name, rest = arguments.name_of_partition(partition, more)
        (at,) = rest if len(rest) == 1 else (offset,)
        at = arguments.whole(at, "an offset")
        with self._exclusive_call():
            self._positions.seek([name], at)
            self._error = None

    def seek_to_time(
        self, time_ms: int, partitions: Partitions = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Go on from the first message of `time_ms` (since 1970) or later; return new positions.

        `partitions`: some of those that are read, one, a topic's name, or (None) all. A message's
        time is when its leader received it, exact to the batch; if there is none, go on at the end.
        Raises TimedOut if a position is not known after `timeout` seconds (default:
        `request_timeout_ms`).
        """
        rule = StartRule("time", arguments.milliseconds(time_ms))
        return self._seek_by_rule(rule, partitions, timeout)

    def seek_to_beginning(
        self, partitions: Partitions = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Go on from the oldest messages; return the new positions. See `seek_to_time`."""
        return self._seek_by_rule(StartRule("earliest"), partitions, timeout)

    def seek_to_end(
        self, partitions: Partitions = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Go on after the newest messages; return the new positions. See `seek_to_time`."""
        return self._seek_by_rule(StartRule("latest"), partitions, timeout)

    def _seek_by_rule(
        self, rule: StartRule, partitions: Partitions, timeout: float | None
    ) -> dict[TopicPartition, int]:
        names, timeout = arguments.partitions(partitions), arguments.seconds(timeout)
        with self._exclusive_call(timeout):
            sought = self._positions.seek(names, rule)
            self._error = None
            return self._positions.known(sought, self._deadline(timeout))

    @overload
    def position(
        self, partition: TopicPartition | tuple[str, int], timeout: float | None = None
    ) -> int: ...
    @overload
    def position(self, topic: str, number: int, /, timeout: float | None = None) -> int: ...
    def position(self, partition: Any, *more: Any, timeout: Any = None) -> int:
        """Return the offset of the partition's next message: `position(partition)`, or
        `position(topic, number)`.

        Raises TimedOut if it is not known after `timeout` seconds (default: `request_timeout_ms`).
        """
        name, rest = arguments.name_of_partition(partition, more)
        limit_s = arguments.seconds(rest[0] if rest else timeout)
        with self._exclusive_call(limit_s):
            selected = self._positions.select([name])
            for offset in self._positions.known(selected, self._deadline(limit_s)).values():
                return offset
            raise TopicDeleted(f"{name} was deleted")

    def pause(self, partitions: Partitions = None) -> None:
        """Return no messages of these partitions until `resume`; keep what was fetched.

        `partitions`: some of those that are read, one, a topic's name, or (None) all.
        """
        names = arguments.partitions(partitions)
        with self._exclusive_call():
            self._positions.pause(names)

    def resume(self, partitions: Partitions = None) -> None:
        """Return messages of these partitions again; see `pause`."""
        names = arguments.partitions(partitions)
        with self._exclusive_call():
            self._positions.resume(names)

    def lag(
        self, partitions: Partitions | float = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Ask the brokers how many messages of each partition are after its position.

        Messages that retention removed do not count. `lag(5)`: the number alone is the `timeout`,
        in seconds (default: `request_timeout_ms`). Raises TimedOut if a leader does not answer.
        """
        names, limit_s = arguments.partitions_and_timeout(partitions, timeout)
        with self._exclusive_call(limit_s):
            return self._positions.lag(names, self._deadline(limit_s))

    def skipped(self) -> dict[TopicPartition, int]:
        """Return the number of messages skipped with on_damaged="skip" so far, by partition."""
        return self._subscription.skips.counts.copy()  # one step of C code: it needs no lock

    # -- committing -------------------------------------------------------------------------------

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
            self._handover.commit_until(self._deadline(timeout), commits)
            if unsaved:
                raise lost_error(unsaved)
            return {
                state.name: state.committed for state in partitions if state.committed is not None
            }

    def committed(
        self, partitions: Partitions | float = None, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Ask the brokers for the committed position of each partition; None: nothing committed.

        `committed(5)`: the number alone is the `timeout`, in seconds (default:
        `request_timeout_ms`). Raises TimedOut if a leader does not answer.
        """
        names, limit_s = arguments.partitions_and_timeout(partitions, timeout)
        with self._exclusive_call(limit_s):
            return self._positions.committed(names, self._deadline(limit_s))

    # -- the end ----------------------------------------------------------------------------------

    def close(self, timeout: float = 5.0, *, commit: bool = False) -> None:
        """Leave the group and end, within `timeout` seconds; may be called from any thread.

        With auto_commit, commit what is known to be handled; with `commit`, all that was returned.
        A commit that fails is not reported: those messages come again.
        """
        if self._pid != os.getpid() or self.is_closed():
            return
        timeout = arguments.definite_seconds(timeout)
        end = time.monotonic() + timeout
        self.parting.is_closed = True
        with self._changed:
            self._subscription.close()
        try:
            wanted = commit or self._settings.auto_commit
            if wanted and timeout > 0 and not self._session.closed:
                with self._changed:
                    commits = self._subscription.commits(handled_only=not commit)
                in_group = self._membership is not None
                self._handover.commit_until(end - min(LEAVE_S_MAX, timeout / 4) * in_group, commits)
        except MyQueueError:
            pass  # they come again; that is what auto_commit promises
        finally:
            self._fetcher.close()
            if self._membership is not None and self._has_begun and not self._session.closed:
                has_left = self._membership.leave()
                wait([has_left], max(SLICE_S, end - time.monotonic()))
            if self._has_begun and not self._session.closed:
                for number in self._ids:
                    self._session.let_die(consumer=number)
            if self._owns_session:
                self._session.close(max(100, round((end - time.monotonic()) * 1000)))

    def is_closed(self) -> bool:
        """Was `close` called?"""
        return self._subscription.is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
