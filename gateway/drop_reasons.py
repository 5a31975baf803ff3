"""Why the server drops a connection or a body: the labels of a metric, and the text in the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

log = logging.getLogger("myqueue.gateway")

LOG_INTERVAL_S: Final = 10.0  # at most one log line for each reason in this time

PLACES, BYTES, ANSWERS, REFUSED, FILES = "places", "bytes", "answers", "refused", "files"
REASONS: Final = {
    PLACES: "unfinished or idle connections were closed for new ones: connections_max is reached",
    BYTES: "unfinished bodies were dropped for others: bodies_bytes_max is reached",
    ANSWERS: "connections were closed because their clients did not take the answers",
    REFUSED: "new connections were closed: connections_max is reached, and all of them are busy",
    FILES: "connections were closed or accepting paused: no free file descriptor; raise ulimit -n"
    " or lower connections_max",
}


class DropCounter:
    """Counts what was dropped, by reason: each time in a metric, now and then in the log."""

    def __init__(self, count: Callable[[str], None] | None) -> None:
        self._count = count
        self._not_logged: Counter[str] = Counter()
        self._logged_s: dict[str, float] = {}

    def add(self, reason: str) -> None:
        self._not_logged[reason] += 1
        if self._count is not None:
            self._count(reason)

    def log_due(self, now: float) -> None:
        """Log what was counted since the last line, for each reason whose interval has passed."""
        for reason, number in tuple(self._not_logged.items()):
            if now - self._logged_s.get(reason, -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
                self._logged_s[reason] = now
                del self._not_logged[reason]
                log.warning("%d %s", number, REASONS[reason])
