"""The outcome of a list: its worst case, so that a caller who may not repeat it learns that."""

from __future__ import annotations

import pytest

from myqueue.cluster.partitioner import Spread
from myqueue.errors import NONE, UNKNOWN, Busy, DeliveryFailed, TimedOut
from myqueue.producer.accumulator import Batch, Lane
from myqueue.producer.delivery import BatchDelivery
from myqueue.producer.failures import Failures

STORED = "stored"


@pytest.mark.parametrize(
    "parts, outcome",
    [
        ((NONE,), NONE),
        ((NONE, NONE), NONE),
        ((UNKNOWN,), UNKNOWN),
        ((NONE, UNKNOWN), UNKNOWN),
        ((UNKNOWN, NONE), UNKNOWN),
        ((NONE, STORED), UNKNOWN),
        ((STORED, NONE, NONE), UNKNOWN),
    ],
)
def test_a_list_says_none_only_if_no_part_of_it_may_be_stored(
    parts: tuple[str, ...], outcome: str
) -> None:
    batches = [Batch(Lane("t", at, at, 1000, Spread(1)), 0, 0, 0) for at in range(len(parts))]
    delivery = BatchDelivery([(batch, 0, 1) for batch in batches])
    for batch, part in zip(batches, parts, strict=True):
        batch.settle(0, 0, {STORED: None, NONE: Busy(), UNKNOWN: TimedOut()}[part])
    error = delivery.exception(0)
    assert isinstance(error, DeliveryFailed) and error.outcome == outcome
    assert [part.outcome for part in error.failed] == [part for part in parts if part != STORED]


def test_the_log_names_the_first_error_even_if_a_flush_reported_it_before() -> None:
    lane = Lane("t", 0, 0, 1000, Spread(1))
    failures = Failures(1 << 20)
    first, second = TimedOut("the first"), Busy("the second")
    for error in (first, second):
        batch = Batch(lane, 0, 0, 0)
        batch.values, batch.count, batch.error = [b"v"], 1, error
        assert failures.add(batch) is (error is first), "one line is due for all"
    reported = failures.take()
    assert reported is not None and len(reported.failed) == 2
    assert failures.take_unlogged() == (2, first)
    assert failures.take_unlogged() == (0, None)
