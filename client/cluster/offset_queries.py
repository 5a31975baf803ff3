"""Where partitions begin and end, and what was committed: one question to several leaders.

Used by consumers and Admin, in the caller's thread. A read is safe to repeat, so whoever does not
answer, or does not lead any more, is asked again by newer routes until the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple

from myqueue.cluster.silent_brokers import silence_at
from myqueue.errors import NONE, MyQueueError, TimedOut, error_of
from myqueue.wire import protocol as words

if TYPE_CHECKING:
    from myqueue.cluster.session import Answer, Session

PAUSE_MS_MIN, PAUSE_MS_MAX = 20, 500
ATTEMPT_MS_MAX: Final = 3_000


class Offsets(NamedTuple):
    """What a partition's leader knows."""

    start: int  # offset of the first message kept
    end: int  # offset behind the last committed message
    position: int | None  # that the consumer asked about has committed; None: it never did
    at_time: int | None  # of the first message at or after the time that was asked about
    bytes: int


def read_offsets(
    session: Session, groups: Iterable[int], *, who: str | None = None, time_ms: int | None = None,
    timeout_ms: int | None = None, partial: bool = False,
) -> dict[int, Offsets]:  # fmt: skip
    """By group. Raises TimedOut, with what the last refusal was, if not all could be asked;
    `partial`: those are left out.
    """
    limit_ms = session.request_timeout_ms if timeout_ms is None else timeout_ms
    deadline = session.now_ms() + limit_ms
    left, found = set(groups), dict[int, Offsets]()
    pause, last = PAUSE_MS_MIN, "no leader is known"
    while True:
        asked: dict[str, list[int]] = {}
        for group in sorted(left):
            address = session.routes.leader(group, session.now_ms())
            if address:
                asked.setdefault(address, []).append(group)
        rest_ms = max(1, deadline - session.now_ms())
        calls = [
            (address, session.call(
                address, words.OFFSETS, (who, time_ms, numbers),
                timeout_ms=min(rest_ms, ATTEMPT_MS_MAX),
            ))
            for address, numbers in asked.items()
        ]  # fmt: skip
        for address, future in calls:
            last = _take(session, address, future, asked[address], found) or last
        left -= found.keys()
        if not left:
            return found
        if session.now_ms() + pause >= deadline:
            if partial:
                return found
            raise _not_known(session, left, limit_ms, last)
        session.refresh()
        time.sleep(pause / 1000)
        pause = min(PAUSE_MS_MAX, pause * 2)


def _not_known(session: Session, left: set[int], limit_ms: int, last: str) -> TimedOut:
    """Nothing was changed, whoever did not answer. Of several partitions the first one is named."""
    partition = session.routes.partition(min(left))
    why = silence_at(session, partition, None)
    where = f"of {len(left)} partitions"
    if partition is not None:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        where = f"of {partition.topic}/{partition.number}{more}"
    said = why.text if why.hint is not None else f"last: {last}"
    error = TimedOut(
        f"offsets {where} are not known in {limit_ms} ms; {said}",
        component=why.component, hint=why.hint,
    )  # fmt: skip
    error.outcome = NONE
    return error


def _take(
    session: Session, address: str, future: Future[Answer], groups: list[int],
    found: dict[int, Offsets],
) -> str:  # fmt: skip
    """Moves what was answered to `found`; says what went wrong. Raises what time can't mend."""
    try:
        parts = session.wait(future).fields[0]
    except MyQueueError as error:
        if not error.retriable:
            raise
        _fail(session, groups, address)
        return str(error)
    said = ""
    for group, code, *rest in parts:
        if not code:
            found[group] = Offsets(*rest)
            continue
        refusal = error_of(code, component=address)
        if not refusal.retriable:
            raise refusal
        _fail(session, [group], address)
        said = f"{address}: {refusal}"
    return said


def _fail(session: Session, groups: list[int], address: str) -> None:
    def tell() -> None:
        for group in groups:
            session.routes.fail(group, address, session.now_ms())

    session.on_io(tell)
