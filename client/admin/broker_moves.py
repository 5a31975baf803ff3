"""Drains, fills and removals of brokers: how much is left, what holds it up, what would be lost.

Comes in: rows of `Admin.brokers` and `Admin.topics`, and times. Goes out: numbers and sentences,
for the commands, the gateway's API and the console. No rows mean that the managers are electing
their leader, so the progress is not known. Pure, but for `partitions_counting`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from myqueue.errors import BrokerInUse, MyQueueError, UnknownBroker

if TYPE_CHECKING:
    from myqueue.admin.client import Admin

STILL_S: Final = 10.0  # without progress for this time, the reason is shown
HOW_TO_START: Final = (
    "bin/myq-broker --id N --cluster NAME --data DIR --listen HOST:PORT --peer-listen HOST:PORT"
    " --managers ID@HOST:PORT … --keys DIR; it registers by itself."
)
Facts = dict[str, Any]
Rows = list[Facts]


class Left(NamedTuple):
    """The work that is left."""

    what: str  # "Draining broker 2"
    todo: int  # replicas that still have to move; 0: done
    obstacle: str = ""  # other brokers that can't take or give replicas


def of_draining(rows: Rows, number: int) -> Left | None:
    """Return what is left of a drain; None: not known now. BrokerInUse if it was undrained."""
    row = _row(rows, number)
    if row is None:
        return None
    if not row["draining"]:
        raise BrokerInUse(f"somebody undrained broker {number}", hint="Ask who, and why.")
    return Left(f"Draining broker {number}", replicas_left(row), _obstacles(rows, number))


def replicas_left(row: Facts) -> int:
    """Count the replicas that a draining broker still has: at least 1 until it is drained, then 0.

    A silent broker can't report that it deleted replicas that moved away.
    """
    left: int = row["replicas"] + row["leaving"]
    is_done = row["state"] == "drained" or (not left and not row["alive"])
    return 0 if is_done else max(1, left)


def of_spreading(rows: Rows, number: int) -> Left | None:
    """Return what is left until no replica moves and the broker has about as many as others.

    That is within a tenth, or one replica.
    """
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
    return Left(f"Filling broker {number}", max(0, missing, moving), _obstacles(rows, number))


def _row(rows: Rows, number: int) -> Facts | None:
    broker = next((row for row in rows if row["node"] == number), None)
    if rows and broker is None:
        raise UnknownBroker(f"broker {number} was removed meanwhile")
    return broker


def _obstacles(rows: Rows, number: int) -> str:
    texts = [f"broker {row['node']} is silent" for row in rows if not row["alive"]]
    texts += [
        f"broker {row['node']} has no room on its disk"
        for row in rows
        if row["alive"] and row["disk_low"] and row["node"] != number
    ]
    return ", ".join(texts)


def partitions_counting(admin: Admin, number: int, stranded: int) -> int | None:
    """Count the partitions that still need a removed broker; None while no manager leads.

    The `stranded` ones do not count: of two voters, the remaining one cannot change the members
    alone.
    """
    try:
        return max(0, admin.counting_on(number) - stranded)
    except MyQueueError as error:
        if not error.retriable:
            raise
        return None


class RemovalLosses(NamedTuple):
    """Partitions that suffer if a broker is removed before it is drained."""

    lost: list[str]  # it has the only copy
    stranded: list[str]  # other brokers have replicas, but no majority of them is alive


def removal_losses(topics: Rows, row: Facts) -> RemovalLosses:
    """Estimate the losses; the managers report exactly when the broker is removed."""
    node, lost, stranded = row["node"], [], []
    for topic in topics:
        for part in topic["partitions"]:
            name = f"{topic['topic']}/{part['partition']}"
            others = [one for one in part["replicas"] if one != node]
            needed = (len(others) if row["alive"] else len(part["replicas"])) // 2 + 1
            answer = sum(one not in part["silent"] for one in others)
            if part["replicas"] == [node] and not part["leaving"]:
                lost.append(name)
            elif node in part["replicas"] and others and answer < needed:
                stranded.append(name)
    return RemovalLosses(lost, stranded)


def when_to_stop(counting: int) -> str:
    """Say when the process of a removed broker may be stopped."""
    if not counting:
        return "its process may be stopped"
    return (
        f"keep its process running while {counting} of its partitions still count on it;"
        " 'myq broker remove' with its number, on its machine, waits for that"
    )


class Pace:
    """The progress seen so far, and an estimate of the rest."""

    def __init__(self) -> None:
        self._most = 0
        self._began_at = self._moved_at = 0.0
        self._last = -1
        self.reason = ""  # why nothing moves, if that is known

    def describe(self, left: Left, now_s: float) -> str:
        if left.todo > self._most:
            self._most, self._began_at = left.todo, now_s
        if left.todo != self._last:
            self._last, self._moved_at = left.todo, now_s
        is_still = now_s - self._moved_at >= STILL_S
        self.reason = left.obstacle if is_still else ""
        done = self._most - left.todo
        share = f"{100 * done // max(1, self._most)} %"
        text = f"{left.what}: {left.todo:,} of {self._most:,} replicas are left, {share} done"
        passed = now_s - self._began_at
        if is_still:
            obstacle = left.obstacle or "it may be copying a large one ('myq topic describe')"
            return f"{text}; nothing moved for {now_s - self._moved_at:.0f} s: {obstacle}"
        if done and left.todo and passed > 0:
            text += f", about {_duration(passed / done * left.todo)} more"
        return text


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
