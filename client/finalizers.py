"""Clients that nothing refers to any more, though nobody closed them: they end by themselves.

No thread refers to the object that an application holds, only to its inner parts. When that object
is gone, its finalizer leaves the rest to the I/O thread (`Parting`) and gives a ResourceWarning, as
those of files and sockets do. Nothing is lost in silence: a producer goes on delivering for
DELIVER_S, and the log says how many messages were not delivered. A consumer commits what
auto_commit may commit, and leaves its group.

A finalizer may run in any thread, between any two instructions, whatever lock that thread holds.
So it takes no lock that others hold for long and waits for nothing: it hands in one job.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakMethod, finalize

if TYPE_CHECKING:
    from myqueue.cluster.session import Session
    from myqueue.consumer.fetcher import Fetcher
    from myqueue.consumer.group_membership import GroupMembership
    from myqueue.consumer.subscription import Subscription
    from myqueue.producer.accumulator import Accumulator, Batch
    from myqueue.producer.delivery import Failures
    from myqueue.producer.sender import Sender

log = logging.getLogger("myqueue.client")

DELIVER_S: Final = 5.0  # so long a dropped producer goes on delivering
LEAVE_S: Final = 2.0  # so long a dropped consumer may take to commit and to leave its group
_under_way: set[Parting] = set()


def when_dropped(client: object, job: Callable[[], object]) -> None:
    """Run `job` when nothing refers to the client any more; not at the end of the program."""
    finalize(client, job).atexit = False


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, without keeping its object alive. It does nothing when that is gone."""
    reference = WeakMethod(method)

    def call(*arguments: Any) -> Any:
        known = reference()
        return None if known is None else known(*arguments)

    return call


def unclosed(kind: str, verb: str = "close") -> str:
    return f"a {kind} was dropped without {verb}()"


class Parting:
    """What is to be done when a client was dropped; refers to its inner parts only."""

    def __init__(self, kind: str, verb: str = "close") -> None:
        self.kind, self.verb = kind, verb
        self.is_closed = False  # properly, or it is in the same state as if it had been
        self.done = threading.Event()
        self._pid = os.getpid()

    def watch(self, client: object) -> None:
        when_dropped(client, self._dropped)

    @property
    def is_ours(self) -> bool:
        """False in a forked child: the parent has the threads and the sockets."""
        return self._pid == os.getpid()

    def _dropped(self) -> None:
        if self.is_closed or not self.is_ours:
            return
        text, waiting = unclosed(self.kind, self.verb), self.waiting
        if waiting:
            text += (
                f"; {waiting} messages are not delivered yet: that is tried for {DELIVER_S:g} s"
                " more, and the log says how many failed"
            )
        _under_way.add(self)
        try:
            self.begin()
        finally:
            warnings.warn(text, ResourceWarning, stacklevel=2)

    def at_exit(self) -> None:
        """The program ends, and nobody closed the client."""
        if not self.is_closed and self.is_ours:
            _under_way.add(self)
            self.begin()

    @property
    def waiting(self) -> int:
        """How many messages are not delivered yet."""
        return 0

    def begin(self) -> None:
        """In the finalizer: wait for nothing."""

    def finished(self) -> None:
        _under_way.discard(self)
        self.done.set()


def wait_for_partings(deadline: float) -> None:
    """At the end of the program: for those that were dropped just before."""
    for parting in tuple(_under_way):
        if parting.is_ours:
            parting.done.wait(max(0.0, deadline - time.monotonic()))


class _OfSession(Parting):
    """A part of a session, which it closes at the end if it has it for itself."""

    def __init__(self, kind: str, session: Session, owns_session: bool) -> None:
        super().__init__(kind)
        self._core = session.core
        self._session: Session | None = session  # nobody else may drop it before we are done
        self._owns_session = owns_session
        self._has_ended = False

    def begin(self) -> None:
        if self._core.closed:
            self.finished()
        else:
            self._core.on_io(self.start)

    def start(self) -> None:
        """In the I/O thread, as all that follows."""

    def end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        try:
            self.last()
        finally:
            if self._owns_session:
                self._core.end()
            self._session = None
            self.finished()

    def last(self) -> None:
        """What is left to do, once."""


class ProducerParting(_OfSession):
    """Delivers what was accepted, for DELIVER_S; says in the log what it could not deliver."""

    def __init__(
        self, session: Session, owns_session: bool, sender: Sender, lanes: Accumulator,
        lock: threading.Condition, failures: Failures,
    ) -> None:  # fmt: skip
        super().__init__("Producer", session, owns_session)
        self._sender, self._lanes, self._lock, self._failures = sender, lanes, lock, failures
        self._left = 0

    @property
    def waiting(self) -> int:
        lanes = tuple(self._lanes.lanes.values())  # the I/O thread may add some
        return sum(batch.count for lane in lanes for batch in lane.unsettled())

    def start(self) -> None:
        with self._lock:
            batches = self._lanes.seal_all()
        self._left = len(batches)
        if not batches or self._core.closed:
            self.end()
            return
        self._core.after(round(DELIVER_S * 1000), self.end)
        for batch in batches:
            batch.listen(self._settled)
        self._sender.kick()

    def _settled(self, batch: Batch) -> None:
        self._left -= 1
        if not self._left and not self._has_ended:
            self._core.after(0, self.end)  # not in the middle of an answer

    def last(self) -> None:
        if not self._core.closed:
            self._sender.stop()
        failed, error = self._failures.take_unlogged()
        if failed:
            text = "%s: %d messages were not delivered; first: %s"
            log.error(text, unclosed(self.kind, self.verb), failed, error)


class ConsumerParting(_OfSession):
    """Commits what auto_commit may commit, leaves the group, and fetches no more."""

    def __init__(
        self, session: Session, owns_session: bool, fetcher: Fetcher, subscription: Subscription,
        ids: set[int], auto_commit: bool,
    ) -> None:  # fmt: skip
        super().__init__("Consumer", session, owns_session)
        self._fetcher, self._subscription, self._ids = fetcher, subscription, ids
        self._auto_commit = auto_commit
        self._left = 0
        self.membership: GroupMembership | None = None
        self.has_begun = False

    def start(self) -> None:
        if self._core.closed:
            self.end()
            return
        self._core.after(round(LEAVE_S * 1000), self.end)
        commits = []
        if self._auto_commit and self.has_begun:
            with self._fetcher.changed:
                commits = self._subscription.commits(handled_only=True)
        sent = self._fetcher.commit(commits, round(LEAVE_S * 500))
        self._left = len(sent) + 1
        for future in sent:
            future.add_done_callback(self._committed)
        self._committed()

    def _committed(self, _: object = None) -> None:
        self._left -= 1
        if self._left or self._has_ended:
            return
        if self.membership is None or self._core.closed:
            self.end()
            return
        left: Future[Any] = Future()
        left.add_done_callback(lambda _: self.end())
        self.membership.leave_from_here(left)

    def last(self) -> None:
        with self._fetcher.changed:
            self._subscription.close()
        self._fetcher.close()
        if self.has_begun and not self._core.closed:
            for number in self._ids:
                self._core.let_die(consumer=number)
