"""One place decides about repeats: which errors, after which pause, and with which outcome."""

from __future__ import annotations

from random import Random

import pytest

from myqueue.cluster.repeats import (
    GATEWAYS,
    LEADER,
    LEADERS,
    MANAGERS,
    Attempts,
    Rule,
    is_repeated,
)
from myqueue.errors import (
    Busy,
    Internal,
    InvalidRequest,
    KeyReused,
    MyQueueError,
    NotLeader,
    OutcomeUnknown,
    TimedOut,
    TooFewBrokers,
    UnknownPartition,
    Unreachable,
    error_of,
)


@pytest.mark.parametrize(
    "error,          managers, leader, leaders, gateways",
    [
        (Busy,           True,  True,  True,  True),
        (NotLeader,      True,  True,  True,  True),
        (Unreachable,    True,  True,  True,  True),
        (OutcomeUnknown, True,  True,  True,  True),
        (TimedOut,       True,  True,  True,  True),
        (TooFewBrokers,  False, True,  True,  True),
        (UnknownPartition, False, True, True, True),
        (Internal,       False, True,  False, False),
        (InvalidRequest, False, False, False, False),
        (KeyReused,      False, False, False, False),
    ],
)  # fmt: skip
def test_which_errors_are_repeated(
    error: type[MyQueueError], managers: bool, leader: bool, leaders: bool, gateways: bool
) -> None:
    rules = (MANAGERS, LEADER, LEADERS, GATEWAYS)
    wanted = (managers, leader, leaders, gateways)
    assert tuple(is_repeated(rule, error()) for rule in rules) == wanted


@pytest.mark.parametrize(
    "is_safe, errors,                     goes_on,              is_unknown",
    [
        (True,  (Busy, Busy),             (True, True),         False),
        (True,  (TimedOut, Busy),         (True, True),         True),
        (True,  (TimedOut, KeyReused),    (True, False),        True),
        (True,  (KeyReused,),             (False,),             False),
        (False, (Busy, Busy),             (True, True),         False),
        (False, (TimedOut,),              (False,),             True),
        (False, (Busy, OutcomeUnknown),   (True, False),        True),
    ],
)  # fmt: skip
def test_what_all_attempts_say_together(
    is_safe: bool,
    errors: tuple[type[MyQueueError], ...],
    goes_on: tuple[bool, ...],
    is_unknown: bool,
) -> None:
    attempts = Attempts(GATEWAYS, is_safe=is_safe)
    made = [error() for error in errors]
    assert tuple(attempts.failed(error) for error in made) == goes_on
    assert attempts.is_unknown is is_unknown and attempts.last is made[-1]


def test_pauses_double_up_to_the_most_and_clients_differ() -> None:
    rule, chance = Rule(20, 500), Random(7)
    clients = [Attempts(rule, chance=chance) for _ in range(50)]
    pauses = [[client.pause_ms() for _ in range(8)] for client in clients]
    for at, plain in enumerate((20, 40, 80, 160, 320, 500, 500, 500)):
        assert all(round(plain * 0.7) <= row[at] <= round(plain * 1.3) for row in pauses)
    assert len({tuple(row) for row in pauses}) == 50


@pytest.mark.parametrize("advice, least, most", [(5, 7, 13), (200, 140, 260), (9_000, 350, 650)])
def test_a_daemon_that_advises_a_pause_gets_it(advice: int, least: int, most: int) -> None:
    attempts = Attempts(LEADER)
    attempts.failed(error_of(Busy.code, details={"retry_ms": advice}))
    assert least <= attempts.pause_ms() <= most
