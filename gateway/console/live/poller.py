"""Look at the cluster once a second while the console is in use.

It keeps the last 15 minutes for the charts, one point a second, and the last events, all in memory:
the cluster has the truth, and a gateway may be lost at any time. Pages show what the last look
found, so a hundred open pages cost the cluster as much as one. The watch begins with the first page
and stops when no page was requested for a while; the chart then shows a gap.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Final, NamedTuple

from myqueue import Session
from myqueue.errors import Closed
from myqueue.gateway.cluster_snapshot import ClusterSnapshot, Facts, SnapshotReader
from myqueue.gateway.console.live import rates
from myqueue.gateway.console.live.changes import Change, changes
from myqueue.gateway.console.live.rates import Point
from myqueue.gateway.console.view.format import wall_ms

log = logging.getLogger("myqueue.gateway")

EVERY_S: Final = 1.0
KEPT_S: Final = 900  # 15 minutes
EVENTS_MAX: Final = 200
REST_AFTER_S: Final = 900.0
FIRST_LOOK_S: Final = 5.0
SYNC_OVER: Final = 10  # looks; a percentile over fewer syncs means little


class Event(NamedTuple):
    at_ms: int
    is_bad: bool
    text: str


class Watch:
    """The console's view of the cluster. One thread looks; any number of requests read."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._looker = SnapshotReader(session)
        self._lock = threading.Lock()
        self._points: deque[Point] = deque(maxlen=KEPT_S)
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._stats: deque[tuple[float, list[Facts]]] = deque(maxlen=SYNC_OVER)
        self._thread: threading.Thread | None = None
        self._wanted_at = 0.0
        self._seen = threading.Event()
        self._look = ClusterSnapshot()
        self.looked_ms = 0  # when the last look was done
        self.written: dict[int, float] = {}  # messages per second, by broker

    def latest(self) -> ClusterSnapshot:
        """Return the last look, at most two seconds old; wait for the first one if necessary."""
        with self._lock:
            self._wanted_at = time.monotonic()
            if self._thread is None and not self._session.closed:
                self._seen.clear()
                self._thread = threading.Thread(target=self._run, name="myqueue-watch", daemon=True)
                self._thread.start()
        self._seen.wait(FIRST_LOOK_S)
        return self._look

    def points(self, since_ms: int = 0) -> list[Point]:
        with self._lock:
            return [one for one in self._points if one.at_ms > since_ms]

    def events(self) -> list[Event]:
        """Return the events, newest first."""
        with self._lock:
            return list(reversed(self._events))

    @property
    def newest(self) -> Point:
        with self._lock:
            return self._points[-1] if self._points else Point(0)

    def _run(self) -> None:
        try:
            while True:
                begin = time.monotonic()
                self._take(self._looker.look())
                with self._lock:
                    rests = begin - self._wanted_at > REST_AFTER_S or self._session.closed
                    if rests:
                        self._thread = None
                        self._stats.clear()
                        return
                time.sleep(max(0.05, begin + EVERY_S - time.monotonic()))
        except Closed:
            return  # the gateway is stopping
        except Exception:
            log.exception("the console's watch failed; the next page starts it again")
            with self._lock:
                self._thread = None

    def _take(self, look: ClusterSnapshot) -> None:
        at_ms, at_s = wall_ms(), time.monotonic()
        new_point, written = Point(at_ms), {}
        if self._stats:
            before_s, before = self._stats[-1]
            new_point = rates.point(at_ms, before, look.stats, at_s - before_s)
            written = rates.written(before, look.stats, at_s - before_s)
            new_point = new_point._replace(sync_ms=rates.sync_ms(self._stats[0][1], look.stats))
        happened = changes(self._look, look) if self.looked_ms else []
        with self._lock:
            self._stats.append((at_s, look.stats))
            self._points.append(new_point)
            self._events.extend(_event(at_ms, one) for one in happened)
            self._look, self.looked_ms, self.written = look, at_ms, written
        self._seen.set()


def _event(at_ms: int, change: Change) -> Event:
    return Event(at_ms, change.is_bad, change.text)
