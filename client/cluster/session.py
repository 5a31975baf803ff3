"""`Session`: one process's connections to one cluster, which all its clients may share.

Comes in: requests, from any thread. Goes out: futures. The session holds the connections, hands
requests to the I/O thread, keeps routes fresh, and reports every three seconds to the managers
which producers and consumers of this process are alive.

A session belongs to the process that created it. A forked child has a copy without the I/O thread
and with its parent's sockets, so every call there raises Forked. The check comes before any lock,
because another thread may have held it during the fork.

Everything in the I/O thread refers to a `SessionCore`. Applications hold a `Session`: the same
state under another object, to which no thread refers. So it can be dropped without `close`, and the
core ends with it (`finalizers.py`).
"""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from secrets import token_bytes
from typing import Any, Final, Self
from weakref import WeakSet

from myqueue.cluster.connection import Connection, Greeting, Sockets
from myqueue.cluster.io_thread import IoThread, Job, Timer
from myqueue.cluster.manager_request import ManagerRequest, Managers
from myqueue.cluster.request import CLOSED, Request, RetryingRequest
from myqueue.cluster.route_refresh import Upkeep
from myqueue.cluster.routing import Routes, Topic
from myqueue.cluster.waiters import Answer, resolve
from myqueue.constructors import lists_settings, named_arguments
from myqueue.errors import Closed, ConcurrentUse, Forked, MyQueueError, TimedOut
from myqueue.finalizers import unclosed, when_dropped
from myqueue.settings import SessionSettings, addresses, joined
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer
from myqueue.wire.clock import now_ms
from myqueue.wire.keyfiles import read_client_key

log = logging.getLogger("myqueue.client")

MANAGERS: Final = "managers"
OF_TOPICS: Final = frozenset(("create_topic", "delete_topic", "grow_topic"))
_sessions: WeakSet[SessionCore] = WeakSet()


class SessionCore:
    """The state of a session, for the I/O thread and the objects that live there.

    An object that outlives a call refers to `self.core`, never to the application's `Session`.
    """

    def __init__(self, cluster: str | Iterable[str], settings: SessionSettings) -> None:
        self.settings = settings
        name, key_file = settings.name, settings.key_file
        if key_file is None:
            key_file = os.environ.get("MYQ_KEY", "")
        bootstrap = addresses(joined(cluster))
        self.core = self
        self.named_when_dropped = ""
        self.name, self.request_timeout_ms = name, settings.request_timeout_ms
        self.managers: Final = MANAGERS
        self.routes = Routes()
        self._greeting = Greeting(name)
        self._managers = Managers(bootstrap, random.Random())
        self._connections: dict[str, Connection] = {}
        self.requests: set[RetryingRequest] = set()  # not answered yet
        self._shutters: list[Job] = []
        self._last_index = 0  # of our own updates: later reads are not older
        self._closed = self._forked = False
        self._sockets = Sockets(read_client_key(key_file) if key_file else None)
        self._upkeep = Upkeep(self, self._managers)
        self._thread = IoThread(self._sockets, self._turn, f"myqueue-{name or 'client'}")
        _sessions.add(self)

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; "" before the first connection."""
        return self._greeting.cluster_id

    @property
    def closed(self) -> bool:
        """Was the session closed?"""
        return self._closed

    @property
    def manager_addresses(self) -> tuple[str, ...]:
        """The managers' addresses: the given ones, and those learned from the managers."""
        return tuple(self._managers.addresses)

    @property
    def is_in_contact(self) -> bool:
        """Is a manager connected now, with its greeting done?"""
        connections = map(self._connections.get, self._managers.addresses)
        return any(connection is not None and connection.is_ready for connection in connections)

    @property
    def refused_ms(self) -> int:
        """How long all managers' addresses have refused connections; 0 if one has not."""
        connections = map(self._connections.get, tuple(self._managers.addresses))
        since = [
            0 if connection is None else connection.refused_since for connection in connections
        ]
        return now_ms() - max(since) if all(since) else 0

    @property
    def applied(self) -> int:
        """The managers' log index of the last update of this session."""
        return self._last_index

    def name_of(self, address: str) -> str:
        """Name a daemon for people, as far as it is known: "manager 2 at 127.0.0.1:9093".

        `address` is an address, or the name that a daemon gives itself, as "manager 2".
        """
        if "://" not in address:
            address = self._address_of(address) or address
        at = address.removeprefix("tcp://")
        connection = self._connections.get(address)
        if connection is not None and connection.node:
            return f"{connection.kind} {connection.node} at {at}"
        if address in self._managers.nodes:
            return f"manager {self._managers.nodes[address]} at {at}"
        for broker in tuple(self.routes.brokers.values()):
            if broker.address == address:
                return f"broker {broker.node} at {at}"
        return f"manager at {at}" if address in self._managers.addresses else at

    def _address_of(self, daemon: str) -> str:
        """Find the address of a daemon named like "broker 3"; "" if it is not known."""
        kind, _, number = daemon.partition(" ")
        for address, node in tuple(self._managers.nodes.items()):
            if kind == "manager" and number == str(node):
                return address
        for broker in tuple(self.routes.brokers.values()):
            if kind == "broker" and number == str(broker.node):
                return broker.address
        for address, connection in tuple(self._connections.items()):
            if (connection.kind, str(connection.node)) == (kind, number):
                return address
        return ""

    def check(self) -> None:
        """Raise Forked in a forked child, Closed after `close`."""
        if self._forked:
            raise Forked("this client was made before a fork, by the parent process")
        if self._closed:
            raise Closed("this session was closed")

    # -- requests, any thread ---------------------------------------------------------------------

    def call(
        self,
        target: str,
        kind: int,
        fields: Sequence[Any] = (),
        frames: Sequence[Buffer] = (),
        *,
        timeout_ms: int | None = None,
    ) -> Future[Answer]:
        """Send one request. The future is an Answer(envelope, frames) or its error.

        `target`: an address (one attempt) or `session.managers` (repeats until the deadline).
        `timeout_ms`: default `request_timeout_ms`.
        """
        self.check()
        limit_ms = self.request_timeout_ms if timeout_ms is None else timeout_ms
        if target == MANAGERS:
            repeated = ManagerRequest(self.core, self._managers, kind, fields, frames, limit_ms)
            self._thread.run(repeated.ask)
            return repeated.future
        request = Request(self.core, kind, fields, frames, limit_ms)
        self._thread.run(lambda: request.ask_at(target, limit_ms))
        return request.future

    def update(
        self,
        operation: str,
        arguments: dict[str, Any],
        *,
        timeout_ms: int | None = None,
        key: bytes | None = None,
    ) -> Future[dict[str, Any]]:
        """Change metadata exactly once, with repeats under one `key` (16 bytes, default random).

        The future is a dict; PROTOCOL.md lists operations and their arguments.
        """
        fields = (key or token_bytes(16), operation, arguments)
        asking = self.call(MANAGERS, words.UPDATE, fields, timeout_ms=timeout_ms)
        topic, core = arguments.get("topic", "") if operation in OF_TOPICS else "", self.core
        return _then(asking, lambda answer: core._updated(answer, topic))

    def read(
        self,
        query: str,
        arguments: dict[str, Any] | None = None,
        *,
        at_least: int = 0,
        linearizable: bool = False,
        timeout_ms: int | None = None,
    ) -> Future[dict[str, Any]]:
        """Read metadata from a manager; never older than this session's own updates.

        `at_least`: a log index that the manager must have applied. `linearizable`: only the
        managers' leader answers, after a majority has confirmed it. The future is a dict.
        """
        fields = (query, arguments or {}, max(at_least, self._last_index), linearizable)
        asking = self.call(MANAGERS, words.READ, fields, timeout_ms=timeout_ms)
        return _then(asking, lambda answer: answer.fields[1])

    def in_io_thread(self) -> bool:
        """Is this the I/O thread, in which no caller may wait?"""
        return self._thread.is_here()

    def wait(self, future: Future[Any], timeout_ms: int | None = None) -> Any:
        """Wait for a future's result or exception; Ctrl-C interrupts it.

        Raises TimedOut after `timeout_ms`, and ConcurrentUse in the I/O thread.
        """
        if self._thread.is_here():
            raise ConcurrentUse("callbacks run in the I/O thread and must not wait for it")
        try:
            return future.result(None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError as error:
            if future.done() or isinstance(error, MyQueueError):
                raise
            raise TimedOut(f"not done within {timeout_ms} ms; it may still be") from None

    def ensure_topics(
        self, names: Iterable[str], *, create: bool = False, timeout_ms: int | None = None
    ) -> Future[list[Topic]]:
        """Find the routes of all these topics; `create` those that do not exist.

        The future is a list of Topic; it fails with UnknownTopic or TimedOut.
        """
        self.check()
        limit_ms = self.request_timeout_ms if timeout_ms is None else timeout_ms
        return self._upkeep.ensure(list(names), create, limit_ms)

    def refresh(self, names: Iterable[str] = (), at_least: int = 0) -> None:
        """Ask for fresh routes soon. `at_least`: the managers' log index they must show."""
        wanted, upkeep = tuple(names), self._upkeep
        self.on_io(lambda: upkeep.refresh(wanted, at_least))

    def on_routes(self, callback: Job) -> None:
        """Call `callback` in the I/O thread after each change of a route or a connection."""
        self._upkeep.listeners.append(callback)

    def off_routes(self, callback: Job) -> None:
        """Undo `on_routes`."""
        if callback in self._upkeep.listeners:
            self._upkeep.listeners.remove(callback)

    def keep_alive(self, *, producer: int = 0, consumer: int = 0) -> None:
        """Report this id as alive to the managers every 3 s, from now on."""
        upkeep = self._upkeep
        self.on_io(lambda: upkeep.keep_alive(producer, consumer))

    def let_die(self, *, producer: int = 0, consumer: int = 0) -> None:
        """Undo `keep_alive`."""
        upkeep = self._upkeep
        self.on_io(lambda: upkeep.let_die(producer, consumer))

    def report_alive(self, *, producer: int = 0, consumer: int = 0) -> None:
        """Report once, and soon, that a client which uses this process is alive."""
        for ids, number in zip(self._upkeep.reported_alive, (producer, consumer), strict=True):
            if number:
                ids.add(number)

    # -- the I/O thread ---------------------------------------------------------------------------

    def on_io(self, job: Job) -> None:
        """Run a job in the I/O thread, before its next poll."""
        self.check()
        self._thread.run(job)

    def on_shut(self, callback: Job) -> None:
        """Call `callback` in the I/O thread at the session's end, before connections close."""
        self._shutters.append(callback)

    def off_shut(self, callback: Job) -> None:
        """Undo `on_shut`."""
        if callback in self._shutters:
            self._shutters.remove(callback)

    def after(self, delay_ms: int, job: Job) -> Timer:
        """Run a job in the I/O thread after a delay; the timer can be cancelled."""
        return self._thread.after(delay_ms, job)

    def now_ms(self) -> int:
        """The monotonic clock of timers."""
        return now_ms()

    def connection(self, address: str) -> Connection:
        """Find or make the connection to an address. I/O thread only."""
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(
                self._sockets,
                address,
                self._greeting,
                self.settings.connect_timeout_ms,
                self.settings.backoff_ms_max,
            )
            connection.on_change = self._upkeep.connection_changed
        return connection

    def _turn(self) -> int | None:
        soonest: int | None = None
        for connection in tuple(self._connections.values()):
            due = connection.turn()
            if due is not None and (soonest is None or due < soonest):
                soonest = due
        return soonest

    def _updated(self, answer: Answer, topic: str) -> dict[str, Any]:
        index, result = answer.fields
        self._last_index = max(self._last_index, index)
        if topic:
            self._upkeep.changed(topic, index)
        return dict(result)

    # -- the end ----------------------------------------------------------------------------------

    def close(self, timeout_ms: int = 5_000) -> None:
        """End the session within `timeout_ms`; unanswered requests fail with Closed."""
        if self._forked or self._closed:
            return
        self._closed = True
        if not self._thread.stop(self.core._shut, timeout_ms / 1000):
            log.warning("the I/O thread of a session did not end within %d ms", timeout_ms)

    def end(self) -> None:
        """Close without waiting, and without a lock that another thread holds for long."""
        if not (self._forked or self._closed):
            self._closed = True
            self._thread.end(self.core._shut)

    def dropped(self) -> None:
        """End the core, because the application dropped its `Session` without `close`."""
        if self._forked or self._closed:
            return
        self.end()
        if self.named_when_dropped:
            warnings.warn(unclosed(self.named_when_dropped), ResourceWarning, stacklevel=2)

    def _shut(self) -> None:
        for shutter in tuple(self._shutters):
            try:
                shutter()
            except Exception:
                log.exception("a callback about the end of a session failed")
        self._upkeep.shut(Closed(CLOSED))
        for connection in self._connections.values():
            connection.shut(CLOSED)
        for request in tuple(self.requests):  # those that wait for their next attempt
            request.ask()
        self._sockets.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def mark_forked(self) -> None:
        self._forked = True


@lists_settings(SessionSettings)
class Session(SessionCore):
    """Connections to one cluster, for several clients of one process to share.

    >>> with Session("127.0.0.1:9092") as session:  # doctest: +SKIP
    ...     with Producer(session) as producer, Admin(session) as admin:
    ...         created = admin.create_topic("orders")
    ...         offset = producer.send("orders", b"17 apples").result(10).offset
    >>> offset  # doctest: +SKIP
    0

    Producer, Consumer, Admin and Taker take a Session instead of addresses. They then share its
    sockets, its I/O thread and its routes, and do not close it. Any number of threads may use it.

    `cluster`: the managers' addresses, "host:port[,host:port…]" or a list of them. Nothing is
    connected yet. The constructor raises InvalidSetting for a wrong setting or address. After
    `close` every call raises Closed; in a forked child every call raises Forked.
    """

    @named_arguments
    def __init__(
        self,
        cluster: str | Iterable[str],
        *,
        name: str = SessionSettings.name,
        request_timeout_ms: int = SessionSettings.request_timeout_ms,
        routes_max_age_ms: int = SessionSettings.routes_max_age_ms,
        connect_timeout_ms: int = SessionSettings.connect_timeout_ms,
        key_file: str | None = SessionSettings.key_file,
        backoff_ms_max: int = SessionSettings.backoff_ms_max,
    ) -> None:
        core = SessionCore(cluster, SessionSettings.of(locals()))
        self.__dict__ = core.__dict__  # one state, two objects; threads refer to the core only
        self.named_when_dropped = "Session"
        when_dropped(self, core.dropped)

    @classmethod
    def of(cls, owner: str, cluster: str | Iterable[str], **settings: Any) -> Self:
        """Make a session that is part of another client, the owner.

        If it is dropped without `close`, the warning names the owner; with "" the owner warns.
        """
        session = cls(cluster, **settings)
        session.named_when_dropped = owner
        return session


def _then(asked: Future[Answer], open_answer: Callable[[Answer], Any]) -> Future[Any]:
    """Make a future of the value that `open_answer` finds in the answer."""
    future: Future[Any] = Future()

    def done(asked: Future[Answer]) -> None:
        error = asked.exception()
        try:
            result = open_answer(asked.result()) if error is None else None
        except Exception as problem:  # the answer does not belong to this kind of request
            result, error = None, problem
        resolve(future, result, error)

    asked.add_done_callback(done)
    return future


def _after_fork() -> None:
    for session in tuple(_sessions):
        session.mark_forked()


os.register_at_fork(after_in_child=_after_fork)
