"""Routes that are fetched ahead: those of all topics, for a client that asks for many one by one.

A program that sends to a thousand topics waits for the routes of each before its first message
there: a thousand round trips, one after another. After some of them in a short time the session
asks for the names of all topics and then for their routes, in portions. A topic that nobody used
until then is forgotten after `routes_max_age_ms`, since only topics in use are kept fresh.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from myqueue.cluster.session import SessionCore

LOOKUPS_MIN: Final = 10  # of different topics, within `LOOKUPS_MS`
LOOKUPS_MS: Final = 2_000
TOPICS_AHEAD_MAX: Final = 10_000


class RoutesAhead:
    """Topics whose routes are, or were, fetched ahead. In the I/O thread; `has_any` anywhere."""

    def __init__(self, session: SessionCore, ask: Callable[[], None]) -> None:
        """`ask` begins to ask for `unasked`."""
        self._session, self._ask = session, ask
        self._lookups: deque[int] = deque(maxlen=LOOKUPS_MIN)  # their times
        self._is_fetching = False
        self.unasked: list[str] = []
        self._unused: set[str] = set()

    def has_any(self, names: list[str]) -> bool:
        return not self._unused.isdisjoint(names)

    def use(self, names: list[str]) -> None:
        """Note that these topics are in use from now on."""
        self._unused.difference_update(names)

    def note_lookup(self) -> None:
        """Note that somebody waits for the routes of a topic."""
        now = self._session.now_ms()
        self._lookups.append(now)
        is_often = len(self._lookups) == LOOKUPS_MIN and now - self._lookups[0] <= LOOKUPS_MS
        if is_often and not self._is_fetching:
            self._is_fetching = True
            self._session.read("topics").add_done_callback(self._named)

    def _named(self, future: Future[dict[str, Any]]) -> None:
        session = self._session
        if session.closed:
            return
        session.after(session.settings.routes_max_age_ms, self._forget_unused)
        names = future.result().get("topics") if future.exception() is None else None
        if isinstance(names, list):
            known = session.routes.topics
            new = [name for name in names if isinstance(name, str) and name not in known]
            self.unasked = new[:TOPICS_AHEAD_MAX]
            self._unused.update(self.unasked)
            self._ask()

    def _forget_unused(self) -> None:
        self._is_fetching = False
        self._session.routes.drop(self._unused)
        self.unasked, self._unused = [], set()
