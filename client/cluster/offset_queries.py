"""Ask several partitions' leaders at once, and again until the deadline: for their offsets, mostly.

Consumers and Admin use it, in the caller's thread. Only for requests that are safe to repeat:
partitions whose leader did not answer, or no longer leads, are asked again with newer routes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from myqueue.cluster.repeats import LEADERS, Attempts
from myqueue.cluster.silent_brokers import silence_at
from myqueue.errors import NONE, MyQueueError, TimedOut, error_of
from myqueue.wire import protocol as words

if TYPE_CHECKING:
    from myqueue.cluster.session import Session
    from myqueue.cluster.waiters import Answer

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
    wanted = set(groups)
    rows, last = ask_leaders(
        session, wanted, words.OFFSETS, lambda some: (who, time_ms, some), limit_ms
    )
    missing = wanted - rows.keys()
    if missing and not partial:
        raise _not_known(session, missing, limit_ms, last)
    return {group: Offsets(*row) for group, row in rows.items()}


def ask_leaders(
    session: Session,
    groups: Iterable[int],
    kind: int,
    fields: Callable[[list[int]], Sequence[Any]],
    limit_ms: int,
) -> tuple[dict[int, list[Any]], str]:
    """Ask the leaders of raft groups until all answered, for `limit_ms` at most.

    `fields` makes the fields of a request from the groups that it is about. Returns each group's
    row after its code, and the last error. Raises an error that is not retriable.
    """
    deadline = session.now_ms() + limit_ms
    attempts = Attempts(LEADERS)
    missing, rows, last = set(groups), dict[int, list[Any]](), "no leader is known"
    while True:
        now = session.now_ms()
        groups_at: dict[str, list[int]] = {}
        for group in sorted(missing):
            if address := session.routes.leader(group, now):
                groups_at.setdefault(address, []).append(group)
        attempt_ms = min(max(1, deadline - now), ATTEMPT_MS_MAX)
        calls = [
            (address, some, session.call(address, kind, fields(some), timeout_ms=attempt_ms))
            for address, some in groups_at.items()
        ]
        for address, some, call in calls:
            for group, error, row in _results(session, address, some, call):
                if error is None:
                    rows[group] = row
                elif attempts.failed(error):
                    session.on_io(partial(session.routes.fail, group, address, now))
                    last = str(error) if address in str(error) else f"{address}: {error}"
                else:
                    raise error
        missing -= rows.keys()
        pause_ms = attempts.pause_ms()
        if not missing or session.now_ms() + pause_ms >= deadline:
            return rows, last
        session.refresh()
        time.sleep(pause_ms / 1000)


def _results(
    session: Session, address: str, groups: list[int], call: Future[Answer]
) -> Iterator[tuple[int, MyQueueError | None, list[Any]]]:
    """Wait for an answer; return each group with its error or its row."""
    try:
        rows = session.wait(call).fields[0]
    except MyQueueError as error:
        yield from ((group, error, []) for group in groups)
    else:
        for group, code, *row in rows:
            yield group, error_of(code, component=address) if code else None, row


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
