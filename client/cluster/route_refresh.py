"""A session's own requests: fresh routes, the addresses of all managers, and ALIVE.

The session asks for routes when a client needs a topic, when a request failed, and every few
seconds for the topics in use (so it notices a new partition). Many calls of `refresh` become one
request, and at most one is under way. A topic that a caller waits for is asked for alone: a client
of a thousand topics would otherwise read a million routes while it learns them one by one. Many
topics are asked for in portions, since an answer has to fit into one envelope.

A manager that lags would wrongly say "no such topic". So before `UnknownTopic` is raised, the
managers' leader is asked; if it knows the topic, the next request waits until a manager has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from myqueue.cluster.connection import Connection
from myqueue.cluster.io_thread import Timer
from myqueue.cluster.manager_request import Managers
from myqueue.cluster.routes_ahead import RoutesAhead
from myqueue.cluster.routing import Topic
from myqueue.cluster.waiters import Answer, Waiter, resolve
from myqueue.errors import Closed, MyQueueError, TimedOut, TopicExists, UnknownTopic
from myqueue.wire import protocol as words

if TYPE_CHECKING:
    from myqueue.cluster.session import SessionCore

log = logging.getLogger("myqueue.client")

ALIVE_MS: Final = 3_000
HEARD_MAX: Final = 10_000  # ids in one ALIVE
MANAGERS_MS: Final = 60_000
REFRESH_MS_MIN: Final = 20
TOPICS_PER_REQUEST_MAX: Final = 500


class Ensure:
    """A caller that waits for topics."""

    def __init__(self, names: list[str], create: bool, future: Future[list[Topic]]) -> None:
        self.names, self.create, self.future = names, create, future
        self.asked: set[str] = set()  # created, or looked up at the leader, so far
        self.new: set[str] = set()  # not in use before
        self.timer: Timer | None = None


class Upkeep:
    """The session's own requests. Everything runs in the I/O thread except `ensure`."""

    def __init__(self, session: SessionCore, managers: Managers) -> None:
        self.listeners: list[Callable[[], object]] = []
        self._session, self._managers = session, managers
        self._topics: set[str] = set()  # in use, so kept fresh
        self._asking = False
        self._wanted = False  # the routes of all topics in use
        self._missing: set[str] = set()  # topics that callers wait for
        self._unasked: list[str] = []  # the other portions of all topics
        self._at_least = 0
        self._ahead = RoutesAhead(session, self._ask)
        self._ensures: list[Ensure] = []
        self._producers: dict[int, int] = {}  # id -> how many clients keep it alive
        self._consumers: dict[int, int] = {}
        self.reported_alive: tuple[set[int], set[int]] = (
            set(),
            set(),
        )  # reported once, with the next ALIVE
        self._beats: list[tuple[Connection, int]] = []
        self._beating = False
        self._began = False

    # -- routes -----------------------------------------------------------------------------------

    def refresh(self, names: tuple[str, ...] = (), at_least: int = 0) -> None:
        self._topics.update(names)
        self._at_least = max(self._at_least, at_least)
        self._wanted = True
        self._ask()

    def _find(self, names: list[str]) -> None:
        """Ask for the routes of these topics only."""
        self._topics.update(names)
        self._missing.update(names)
        self._ask()

    def _ask(self) -> None:
        if self._asking or self._session.closed:
            return
        asked = self._next_portion()
        if not asked:
            return
        self._asking = True
        at_least = max(self._at_least, self._session.applied)
        future = self._session.call(self._session.managers, words.ROUTE, (asked, at_least))
        future.add_done_callback(self._routed)
        if not self._began:
            self._began = True
            self._periodically()

    def _next_portion(self) -> list[str]:
        if self._missing:
            asked = sorted(self._missing)[:TOPICS_PER_REQUEST_MAX]
            self._missing.difference_update(asked)
            return asked
        if self._ahead.unasked:
            asked = self._ahead.unasked[:TOPICS_PER_REQUEST_MAX]
            del self._ahead.unasked[:TOPICS_PER_REQUEST_MAX]
            return asked
        if self._wanted:
            self._wanted, self._unasked = False, sorted(self._topics)
        asked = self._unasked[:TOPICS_PER_REQUEST_MAX]
        del self._unasked[:TOPICS_PER_REQUEST_MAX]
        return [name for name in asked if name in self._topics]

    def _periodically(self) -> None:
        if not self._session.closed:
            self._session.after(self._session.settings.routes_max_age_ms, self._periodically)
            self.refresh()

    def _routed(self, future: Future[Answer]) -> None:
        self._asking = False
        error = future.exception()
        if error is not None:
            if self._topics and not self._session.closed:
                log.warning("routes are not known, or not fresh: %s", error)
        elif self._session.routes.learn(future.result().fields):
            self._tell_listeners()
        for ensure in tuple(self._ensures):
            self._look(ensure)
        if error is None and (self._unasked or self._ahead.unasked):
            self._ask()
        elif (self._wanted or self._missing) and not self._session.closed:
            self._session.after(REFRESH_MS_MIN, self._ask)

    def changed(self, name: str, applied: int) -> None:
        """Note a change by this session: from now on no caller gets the older state."""
        self._session.routes.changed(name, applied)
        if name in self._topics:
            self.refresh()

    def _tell_listeners(self) -> None:
        for listener in tuple(self.listeners):
            try:
                listener()
            except Exception:
                log.exception("a callback about routes failed")

    # -- callers that wait for topics -------------------------------------------------------------

    def ensure(self, names: list[str], create: bool, limit_ms: int) -> Future[list[Topic]]:
        """Find topics; from any thread."""
        future: Future[list[Topic]] = Future()
        ensure = Ensure(names, create, future)
        topics = [self._session.routes.topic(name) for name in names]
        if all(topics):
            if self._ahead.has_any(names):
                self._session.on_io(lambda: self._use(names))
            future.set_result([topic for topic in topics if topic is not None])
            return future
        self._session.on_io(lambda: self._start(ensure, limit_ms))
        return future

    def _use(self, names: list[str]) -> None:
        """Keep topics fresh from now on whose routes were fetched ahead."""
        self._topics.update(names)
        self._ahead.use(names)

    def _start(self, ensure: Ensure, limit_ms: int) -> None:
        if self._session.closed:
            self._end(ensure, None, Closed("the session was closed"))
            return
        self._ensures.append(ensure)
        ensure.new = set(ensure.names) - self._topics
        ensure.timer = self._session.after(limit_ms, lambda: self._late(ensure, limit_ms))
        routes = self._session.routes
        self._ahead.use(ensure.names)
        self._ahead.note_lookup()
        self._find([name for name in ensure.names if routes.topic(name) is None])

    def _look(self, ensure: Ensure) -> None:
        routes = self._session.routes
        missing = [name for name in ensure.names if routes.topic(name) is None]
        if not missing:
            topics = [topic for name in ensure.names if (topic := routes.topic(name)) is not None]
            self._end(ensure, topics, None)
            return
        for name in missing:
            if self._session.closed:
                return
            if name not in ensure.asked and routes.is_unknown(name):
                ensure.asked.add(name)
                self._ask_leader(ensure, name)
        self._missing.update(name for name in missing if name in self._topics)

    def _ask_leader(self, ensure: Ensure, name: str) -> None:
        session = self._session

        def created(future: Future[Any]) -> None:
            error = future.exception()
            if error is not None and not isinstance(error, TopicExists):
                self._end(ensure, None, error)
            else:
                self.refresh()

        def looked_up(future: Future[Answer]) -> None:
            error = future.exception()
            if isinstance(error, UnknownTopic):
                text = f"there is no topic {name!r}, and making it was not asked for"
                if name in ensure.new:
                    self._topics.discard(name)
                self._end(ensure, None, UnknownTopic(text, component=error.component))
            elif error is not None:
                self._end(ensure, None, error)
            else:
                self._at_least = max(self._at_least, future.result().fields[0])
                self.refresh()

        if ensure.create:
            session.update("create_topic", {"topic": name}).add_done_callback(created)
        else:
            fields = ("topic", {"topic": name}, 0, True)
            session.call(session.managers, words.READ, fields).add_done_callback(looked_up)

    def _late(self, ensure: Ensure, limit_ms: int) -> None:
        routes = self._session.routes
        missing = ", ".join(n for n in ensure.names if routes.topic(n) is None)
        told = "; ".join(
            f"{address}: {self._session.connection(address).error or 'no such topic so far'}"
            for address in self._managers.addresses
        )
        text = f"routes of {missing} were not known within {limit_ms} ms. Tried {told}"
        self._end(ensure, None, TimedOut(text))

    def _end(self, ensure: Ensure, topics: list[Topic] | None, error: BaseException | None) -> None:
        if ensure in self._ensures:
            self._ensures.remove(ensure)
        if ensure.timer is not None:
            ensure.timer.cancel()
        resolve(ensure.future, topics or [], error)

    def shut(self, error: MyQueueError) -> None:
        for ensure in tuple(self._ensures):
            self._end(ensure, None, error)

    # -- managers and ALIVE -----------------------------------------------------------------------

    def connection_changed(self, connection: Connection) -> None:
        if connection.is_ready and connection.kind == "manager" and not self._beating:
            self._beating = True
            self._ask_for_managers()
            self._beat()
        self._tell_listeners()

    def _ask_for_managers(self) -> None:
        def learn(future: Future[dict[str, Any]]) -> None:
            rows = future.result().get("managers") if future.exception() is None else None
            for row in rows if isinstance(rows, list) else ():
                address = row.get("address") if isinstance(row, dict) else None
                if isinstance(address, str) and address.startswith("tcp://"):
                    self._managers.add(address)
                    self._managers.nodes[address] = int(row.get("node", 0))

        if not self._session.closed:
            self._session.after(MANAGERS_MS, self._ask_for_managers)
            self._session.read("managers").add_done_callback(learn)

    def keep_alive(self, producer: int, consumer: int) -> None:
        for table, number in ((self._producers, producer), (self._consumers, consumer)):
            if number:
                table[number] = table.get(number, 0) + 1
        self._send_alive()

    def let_die(self, producer: int, consumer: int) -> None:
        for table, number in ((self._producers, producer), (self._consumers, consumer)):
            if number in table:
                table[number] -= 1
                if not table[number]:
                    del table[number]

    def _beat(self) -> None:
        if not self._session.closed:
            self._session.after(ALIVE_MS, self._beat)
            self._send_alive()

    def _send_alive(self) -> None:
        """Send ALIVE to every manager: each one reports from the ALIVEs it received itself."""
        for connection, request in self._beats:
            connection.forget(request)
        self._beats.clear()
        (producers, consumers), self.reported_alive = self.reported_alive, (set(), set())
        fields = tuple(
            sorted({*kept, *list(reported)[:HEARD_MAX]})
            for kept, reported in ((self._producers, producers), (self._consumers, consumers))
        )
        if not any(fields):
            return
        for address in self._managers.addresses:
            connection = self._session.connection(address)
            request = connection.request(words.ALIVE, fields, (), Waiter())
            self._beats.append((connection, request))
