"""How far it is with a broker that is being emptied or filled, how long it may take, what is amiss.

Pure: rows of `Admin.brokers` and times in, sentences out. No rows: the managers were electing their
leader just then, and nobody can tell.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final, NamedTuple

from myqueue.errors import BrokerInUse, UnknownBroker

STILL_S: Final = 10.0  # nothing moved for so long: then it says what may be the reason
Rows = list[dict[str, Any]]


class Left(NamedTuple):
    """What there is still to do."""

    what: str  # "Draining broker 2"
    todo: int  # replicas that are to move still; 0: it is done
    amiss: str = ""  # which other brokers can't take or give any


def of_draining(rows: Rows, number: int) -> Left | None:
    row = _row(rows, number)
    if row is None:
        return None
    if not row["draining"]:
        raise BrokerInUse(f"somebody undrained broker {number}", hint="Ask who, and why.")
    left = row["replicas"] + row["leaving"]
    # One that is silent can't say that it deleted what is elsewhere by now.
    is_done = row["state"] == "drained" or (not left and not row["alive"])
    return Left(f"Draining broker {number}", 0 if is_done else max(1, left), _amiss(rows, number))


def of_spreading(rows: Rows, number: int) -> Left | None:
    """Until nothing moves, and the new one has as many as the others, within a tenth or one."""
    row = _row(rows, number)
    if row is None:
        return None
    if row["draining"]:
        raise BrokerInUse(f"somebody drains broker {number}", hint="Ask who, and why.")
    active = [one for one in rows if not one["draining"]]
    total, count = sum(one["replicas"] for one in active), len(active)
    enough = min(math.ceil(Fraction(9 * total, 10 * count)), math.ceil(Fraction(total, count)) - 1)
    missing = enough - row["replicas"]
    moving = sum(one["leaving"] for one in rows)
    return Left(f"Filling broker {number}", max(0, missing, moving), _amiss(rows, number))


def _row(rows: Rows, number: int) -> dict[str, Any] | None:
    found = next((row for row in rows if row["node"] == number), None)
    if rows and found is None:
        raise UnknownBroker(f"broker {number} was removed meanwhile")
    return found


def _amiss(rows: Rows, number: int) -> str:
    texts = [f"broker {row['node']} is silent" for row in rows if not row["alive"]]
    texts += [
        f"broker {row['node']} has no room on its disk"
        for row in rows
        if row["alive"] and row["disk_low"] and row["node"] != number
    ]
    return ", ".join(texts)


class Pace:
    """What was seen so far, and what may be expected of that."""

    def __init__(self) -> None:
        self._most = 0
        self._began_at = self._moved_at = 0.0
        self._last = -1
        self.reason = ""  # why nothing moves, as far as can be told

    def told(self, left: Left, now_s: float) -> str:
        if left.todo > self._most:
            self._most, self._began_at = left.todo, now_s
        if left.todo != self._last:
            self._last, self._moved_at = left.todo, now_s
        is_still = now_s - self._moved_at >= STILL_S
        self.reason = left.amiss if is_still else ""
        done = self._most - left.todo
        share = f"{100 * done // max(1, self._most)} %"
        text = f"{left.what}: {left.todo:,} of {self._most:,} replicas are left, {share} done"
        passed = now_s - self._began_at
        if is_still:
            amiss = left.amiss or "it may be copying a large one ('myq topic describe')"
            return f"{text}; nothing moved for {now_s - self._moved_at:.0f} s: {amiss}"
        if done and left.todo and passed > 0:
            text += f", about {_duration(passed / done * left.todo)} more"
        return text


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
