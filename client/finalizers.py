"""Clients that the application dropped without `close`: they end by themselves and warn.

No thread refers to the object that an application holds, only to its inner parts. When that object
is collected, its finalizer submits one job to the I/O thread (`Parting`) and gives a
ResourceWarning, as files and sockets do. No failure is silent: a producer delivers for DELIVER_S
more, and the log says how many messages were not delivered. A consumer commits what auto_commit
may commit, and leaves its group.

Invariant: a finalizer waits for nothing and takes no lock that a thread may hold for long. It may
run in any thread, between any two instructions, with any lock held.
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

log = logging.getLogger("myqueue.client")

DELIVER_S: Final = 5.0  # how long a dropped producer delivers
LEAVE_S: Final = 2.0  # how long a dropped consumer may take to commit and leave its group
_under_way: set[Parting] = set()


def when_dropped(client: object, job: Callable[[], object]) -> None:
    """Run `job` when the client is collected, but not at the end of the program."""
    finalize(client, job).atexit = False


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method without keeping its object alive; later calls do nothing."""
    reference = WeakMethod(method)

    def call(*arguments: Any) -> Any:
        alive = reference()
        return None if alive is None else alive(*arguments)

    return call


def unclosed(kind: str, verb: str = "close") -> str:
    """The text of a warning about a dropped client."""
    return f"a {kind} was dropped without {verb}()"


class Parting:
    """What happens after a client was dropped. It refers to the client's inner parts only."""

    def __init__(self, kind: str, verb: str = "close") -> None:
        self.kind, self.verb = kind, verb
        self.is_closed = False  # by `close`, or it needs none
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
                f"; {waiting} messages are not delivered yet: the I/O thread tries for"
                f" {DELIVER_S:g} s more, and the log says how many failed"
            )
        _under_way.add(self)
        try:
            self.begin()
        finally:
            warnings.warn(text, ResourceWarning, stacklevel=2)

    def at_exit(self) -> None:
        """End an unclosed client at the end of the program."""
        if not self.is_closed and self.is_ours:
            _under_way.add(self)
            self.begin()

    @property
    def waiting(self) -> int:
        """How many messages are not delivered yet."""
        return 0

    def begin(self) -> None:
        """Begin the end. It runs in the finalizer, so it waits for nothing."""

    def finished(self) -> None:
        """Release those who wait for this end."""
        _under_way.discard(self)
        self.done.set()


def wait_for_partings(deadline: float) -> None:
    """Wait at the end of the program for clients that were dropped just before."""
    for parting in tuple(_under_way):
        if parting.is_ours:
            parting.done.wait(max(0.0, deadline - time.monotonic()))


class SessionParting(Parting):
    """The end of a client of a session; it closes the session if the client owns it."""

    def __init__(self, kind: str, session: Session, owns_session: bool) -> None:
        super().__init__(kind)
        self._core = session.core
        self._session: Session | None = session  # keeps it alive until we are done
        self._owns_session = owns_session
        self._has_ended = False

    def begin(self) -> None:
        if self._core.closed:
            self.finished()
        else:
            self._core.on_io(self.start)

    def start(self) -> None:
        """Do the work, in the I/O thread; then call `end`."""

    def end(self) -> None:
        """Finish once, in the I/O thread."""
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
        """Do the last work of this kind of client."""


class ConsumerParting(SessionParting):
    """Commit what auto_commit may commit, leave the group, and fetch no more."""

    def __init__(
        self,
        session: Session,
        fetcher: Fetcher,
        subscription: Subscription,
        membership: GroupMembership | None,
        ids: set[int],
        owns_session: bool,
        auto_commit: bool,
    ) -> None:
        super().__init__("Consumer", session, owns_session)
        self._fetcher, self._subscription, self._ids = fetcher, subscription, ids
        self._auto_commit = auto_commit
        self._left = 0
        self._membership = membership
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
        if self._membership is None or not self.has_begun or self._core.closed:
            self.end()
            return
        left: Future[Any] = Future()
        left.add_done_callback(lambda _: self.end())
        self._membership.leave_in_io_thread(left)

    def last(self) -> None:
        with self._fetcher.changed:
            self._subscription.close()
        self._fetcher.close()
        if self.has_begun and not self._core.closed:
            for number in self._ids:
                self._core.let_die(consumer=number)
