"""What clients did and saw, line by line, as it happened: the only witness of a run.

Each line is `[seconds, verb, …]`, the time by the clock that all processes of the machine share. A
call is noted before it is made, its end after it came back, so that of two calls one certainly was
before the other if its end stands above the other's beginning, and nothing is said otherwise. A
message is known by who sent it and a number: "w1:17".

    begin     {seed and settings of the run}
    client    NAME "ordered"             what it sends to a partition stands there by its numbers
    send      CLIENT TOPIC NUMBER
    ack       CLIENT TOPIC NUMBER PARTITION OFFSET
    fail      CLIENT TOPIC NUMBER OUTCOME ERROR
    resume    CLIENT WHO TOPIC           reads on where WHO committed
    read      CLIENT TOPIC PARTITION OFFSET [MESSAGE…]       a run, from that offset on
    whole     CLIENT TOPIC               says that it got everything, at the end
    take      CLIENT WHO TOPIC CALL
    taken     CLIENT WHO TOPIC CALL [[PARTITION, OFFSET, MESSAGE]…]
    got       MEMBER GROUP TOPIC PARTITION EPOCH ASKED OFFSET [MESSAGE…]   asked for at ASKED
    commit    WHO TOPIC PARTITION POSITION                   asked
    committed WHO TOPIC PARTITION POSITION                   confirmed
    position  WHO TOPIC PARTITION POSITION ASKED             what a reader of it was told
    make, made, drop, dropped   NAME TOPIC    a topic of this name; TOPIC is this one of several
    listed    ASKED [NAME…]              the topics that there are
    fault     NUMBER KIND VICTIMS MAJORITY     MAJORITY: every group kept one
    healed    NUMBER
    end                                  all faults are gone, all clients came to their end

`check.py` reads it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from threading import Lock
from typing import Any


class History:
    """A file that many threads write to; the order of its lines is the order of things."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="ascii", buffering=1 << 16)
        self._lock = Lock()

    def note(self, verb: str, *fields: Any) -> float:
        with self._lock:
            now = round(time.monotonic(), 4)
            self._file.write(json.dumps([now, verb, *fields], separators=(",", ":")) + "\n")
        return now

    def flush(self) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()
