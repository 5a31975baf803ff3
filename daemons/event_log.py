"""The daemon's log for people: one line per event on stderr, as text or as JSON.

The same event is logged at most ten times in ten seconds; the next line says how many were left
out. A line never contains payloads or secrets.
"""

from __future__ import annotations

import json
import sys
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from myqueue.daemons.clock import Clock

EVENTS_PER_WINDOW_MAX, WINDOW_MS = 10, 10_000


class EventLog:
    def __init__(self, name: str, form: str, clock: Clock) -> None:
        self._name, self._json, self._clock = name, form == "json", clock
        self._seen: dict[str, list[int]] = {}  # event -> [start of the window, seen, left out]

    def __call__(
        self, level: str, event: str, *, trace: bool = False, always: bool = False, **fields: Any
    ) -> None:
        """Log one event with its fields.

        `trace` adds the traceback of the exception that is being handled. `always` exempts the
        line from the limit: for actions of operators.
        """
        now = self._clock.now_ms()
        window = self._seen.setdefault(event, [now, 0, 0])
        if now - window[0] > WINDOW_MS:
            if window[2]:
                fields["left_out"] = window[2]
            window[:] = [now, 0, 0]
        window[1] += 1
        if window[1] > EVENTS_PER_WINDOW_MAX and not always:
            window[2] += 1
            return
        if trace:
            fields["trace"] = traceback.format_exc(limit=-6)
        stamp = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        line = {
            "ts": stamp.isoformat(timespec="milliseconds"),
            "level": level,
            "daemon": self._name,
            "event": event,
            **fields,
        }
        text = json.dumps(line, default=str) if self._json else _text(line)
        with suppress(OSError):  # a full disk or a closed terminal must not end a daemon
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _text(line: dict[str, Any]) -> str:
    trace = line.pop("trace", "")
    head = f"{line.pop('ts')} {line.pop('level'):7} {line.pop('daemon')} {line.pop('event')}"
    tail = "".join(f" {name}={_quoted(value)}" for name, value in line.items())
    return head + tail + (f"\n{trace.rstrip()}" if trace else "")


def _quoted(value: Any) -> str:
    text = str(value)
    is_plain = text.isprintable() and text and not any(c in text for c in ' "=')
    return text if is_plain else json.dumps(text)
