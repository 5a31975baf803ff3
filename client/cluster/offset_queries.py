"""Read start, end and committed positions of partitions, from several leaders at once.

Consumers and Admin use it, in the caller's thread. A read is safe to repeat: partitions whose
leader did not answer, or no longer leads, are asked again with newer routes until the deadline.
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
    """The offsets of a partition, as its leader reported them."""

    start: int  # offset of the first message kept
    end: int  # offset after the last committed message
    position: int | None  # committed by the consumer in question; None: nothing so far
    at_time: int | None  # of the first message at or after the requested time
    bytes: int


def read_offsets(
    session: Session,
    groups: Iterable[int],
    *,
    who: str | None = None,
    time_ms: int | None = None,
    timeout_ms: int | None = None,
    partial: bool = False,
) -> dict[int, Offsets]:
    """Read the offsets of partitions, by raft group.

    `who`: the name under which positions are committed. `time_ms`: for `at_time`. Raises TimedOut
    with the last refusal if a partition did not answer; with `partial` it is left out instead.
    """
    limit_ms = session.request_timeout_ms if timeout_ms is None else timeout_ms
    deadline = session.now_ms() + limit_ms
    left, offsets = set(groups), dict[int, Offsets]()
    pause, last = PAUSE_MS_MIN, "no leader is known"
    while True:
        groups_at: dict[str, list[int]] = {}
        for group in sorted(left):
            address = session.routes.leader(group, session.now_ms())
            if address:
                groups_at.setdefault(address, []).append(group)
        rest_ms = max(1, deadline - session.now_ms())
        calls = [
            (
                address,
                session.call(
                    address,
                    words.OFFSETS,
                    (who, time_ms, numbers),
                    timeout_ms=min(rest_ms, ATTEMPT_MS_MAX),
                ),
            )
            for address, numbers in groups_at.items()
        ]
        for address, future in calls:
            last = _take(session, address, future, groups_at[address], offsets) or last
        left -= offsets.keys()
        if not left:
            return offsets
        if session.now_ms() + pause >= deadline:
            if partial:
                return offsets
            raise _not_known(session, left, limit_ms, last)
        session.refresh()
        time.sleep(pause / 1000)
        pause = min(PAUSE_MS_MAX, pause * 2)


def _not_known(session: Session, left: set[int], limit_ms: int, last: str) -> TimedOut:
    """Make the error for partitions that did not answer; it names the first one."""
    partition = session.routes.partition(min(left))
    why = silence_at(session, partition, None)
    where = f"of {len(left)} partitions"
    if partition is not None:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        where = f"of {partition.topic}/{partition.number}{more}"
    problem = why.text if why.hint is not None else f"last: {last}"
    error = TimedOut(
        f"offsets {where} are not known in {limit_ms} ms; {problem}",
        component=why.component,
        hint=why.hint,
    )
    error.outcome = NONE
    return error


def _take(
    session: Session,
    address: str,
    future: Future[Answer],
    groups: list[int],
    offsets: dict[int, Offsets],
) -> str:
    """Move an answer into `offsets`; return the last error or "". Raise what is not retriable."""
    try:
        parts = session.wait(future).fields[0]
    except MyQueueError as error:
        if not error.retriable:
            raise
        _fail(session, groups, address)
        return str(error)
    problem = ""
    for group, code, *rest in parts:
        if not code:
            offsets[group] = Offsets(*rest)
            continue
        refusal = error_of(code, component=address)
        if not refusal.retriable:
            raise refusal
        _fail(session, [group], address)
        problem = f"{address}: {refusal}"
    return problem


def _fail(session: Session, groups: list[int], address: str) -> None:
    def mark() -> None:
        for group in groups:
            session.routes.fail(group, address, session.now_ms())

    session.on_io(mark)
