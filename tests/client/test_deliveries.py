"""The futures of messages and lists, their outcomes, and the failures that are kept."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from concurrent.futures import Future, wait

import pytest

from myqueue.cluster.partitioner import Spread
from myqueue.errors import NONE, UNKNOWN, Busy, DeliveryFailed, MyQueueError, TimedOut
from myqueue.producer.batch import AWAITING, FAILED, QUEUED, STORED, Batch, BatchState
from myqueue.producer.countdown import Countdown
from myqueue.producer.delivery import BatchDelivery, Delivery, Part, RecordMetadata
from myqueue.producer.failures import KEPT_BYTES_MAX, Failures
from myqueue.producer.lane import Lane

KEPT = "stored"


def made(*values: bytes, error: MyQueueError | None = None, size: int = 1) -> Batch:
    """A batch that was sent, or failed."""
    batch = Batch(Lane("t", 0, 0, 1000, Spread(1)), 0, 0, 0)
    batch.values, batch.count, batch.size = list(values), len(values), size
    batch.become(QUEUED)
    batch.become(AWAITING)
    if error is not None:
        fail(batch, error)
    return batch


def fail(batch: Batch, error: MyQueueError) -> None:
    batch.error = error
    batch.become(FAILED)
    batch.call_listeners()


@pytest.mark.parametrize(
    "parts, outcome",
    [
        ((NONE,), NONE),
        ((NONE, NONE), NONE),
        ((UNKNOWN,), UNKNOWN),
        ((NONE, UNKNOWN), UNKNOWN),
        ((UNKNOWN, NONE), UNKNOWN),
        ((NONE, KEPT), UNKNOWN),
        ((KEPT, NONE, NONE), UNKNOWN),
    ],
)
def test_a_list_says_none_only_if_no_part_of_it_may_be_stored(
    parts: tuple[str, ...], outcome: str
) -> None:
    batches = [made(b"%d" % at, b"of another list") for at in range(len(parts))]
    delivery = BatchDelivery([Part(batch, 0, 1) for batch in batches])
    for batch, part in zip(batches, parts, strict=True):
        if part == KEPT:
            batch.become(STORED)
            batch.call_listeners()
        else:
            fail(batch, {NONE: Busy(), UNKNOWN: TimedOut()}[part])
    error = delivery.exception(0)
    assert isinstance(error, DeliveryFailed) and error.outcome == outcome
    failed = [(b"%d" % at, part) for at, part in enumerate(parts) if part != KEPT]
    assert [(row.value, row.error.outcome) for row in error.failed] == failed
    assert error.messages == len(failed)


def test_a_list_that_is_late_says_so_and_may_still_be_stored() -> None:
    batch = made(b"a")
    delivery = BatchDelivery([Part(batch, 0, 1)])
    for ask in (delivery.result, delivery.exception):
        with pytest.raises(TimedOut):
            ask(0)
    assert not delivery.cancel() and not delivery.cancelled()
    batch.become(STORED)
    batch.call_listeners()
    assert [row.messages for row in delivery.result(0)] == [1]


def test_a_process_that_never_flushes_keeps_the_latest_failures_and_counts_all() -> None:
    failures = Failures()
    failures.add(made(b"first", error=TimedOut("the first"), size=KEPT_BYTES_MAX))
    failures.add(made(b"second", error=Busy(), size=KEPT_BYTES_MAX // 2))
    failures.add(made(b"third", error=Busy(), size=KEPT_BYTES_MAX // 2))
    error = failures.take()
    assert error is not None and [row.value for row in error.failed] == [b"second", b"third"]
    assert error.messages == 3
    assert str(error).startswith("3 messages were not delivered; first: the first")
    assert error.outcome == UNKNOWN, "of the first, although it is not kept"
    assert failures.take() is None
    failures.add(made(b"fourth", error=Busy()))
    error = failures.take()
    assert error is not None and (error.messages, error.outcome) == (1, NONE)


def test_the_log_names_the_first_error_even_if_a_flush_reported_it_before() -> None:
    failures = Failures()
    first, second = TimedOut("the first"), Busy("the second")
    for error in (first, second):
        assert failures.add(made(b"v", error=error)) is (error is first), "one line is due for all"
    reported = failures.take()
    assert reported is not None and len(reported.failed) == 2
    assert failures.take_unlogged() == (2, first)
    assert failures.take_unlogged() == (0, None)


def ask(
    delivery: Delivery,
    begin: threading.Barrier,
    added: threading.Semaphore,
    places: list[RecordMetadata],
) -> None:
    begin.wait(5)
    delivery.add_done_callback(lambda done: places.append(done.result(0)))
    added.release()
    places.append(delivery.result(5))
    places.append(Future.result(delivery, 5))
    assert not wait([delivery], 5).not_done and not delivery.cancelled()


@pytest.mark.parametrize("is_stored_at_once", [True, False])
def test_a_delivery_is_a_whole_future_whichever_threads_ask_first(
    monkeypatch: pytest.MonkeyPatch, is_stored_at_once: bool
) -> None:
    """Threads race for its parts while its batch is stored: each is called, and none sees half."""
    initialise = Future.__init__

    def slowly(future: Future[RecordMetadata]) -> None:
        time.sleep(0.001)
        initialise(future)

    monkeypatch.setattr(Future, "__init__", slowly)
    for _ in range(50):
        batch, places = made(b"a"), list[RecordMetadata]()
        begin, added = threading.Barrier(4), threading.Semaphore(0)
        delivery: Delivery = Delivery()
        delivery._batch, delivery._index = batch, 7
        arguments = (delivery, begin, added, places)
        threads = [threading.Thread(target=ask, args=arguments) for _ in range(3)]
        for thread in threads:
            thread.start()
        begin.wait(5)
        for _ in () if is_stored_at_once else threads:
            assert added.acquire(timeout=5)
        batch.offset, batch.stored_ms = 10, 5
        batch.become(STORED)
        batch.call_listeners()
        for thread in threads:
            thread.join(5)
        assert places == [("t", 0, 17, 5)] * 9


def test_a_batch_changes_only_as_its_table_says() -> None:
    batch = made(b"a")
    batch.become(STORED)
    for state in BatchState:
        with pytest.raises(ValueError, match="STORED cannot become"):
            batch.become(state)
    with pytest.raises(ValueError, match="OPEN cannot become STORED"):
        Batch(batch.lane, 0, 0, 0).become(STORED)


def entries(error: BaseException) -> int:
    return len(traceback.extract_tb(error.__traceback__))


def test_an_error_that_is_raised_often_gathers_no_traces() -> None:
    """All messages of a batch share one error; each `result` raises a copy."""
    batch = made(b"a", b"b", error=Busy("full", component="tcp://h:1"))
    delivery: Delivery = Delivery()
    delivery._batch, delivery._index = batch, 0
    for ask in (delivery, BatchDelivery([Part(batch, 0, 2)])):
        raised = []
        for _ in range(5):
            with pytest.raises(MyQueueError) as caught:
                ask.result(0)
            raised.append(caught.value)
        assert len({entries(error) for error in raised}) == 1
        assert len(set(map(id, raised))) == 5
        shared = ask.exception(0)
        assert isinstance(shared, MyQueueError) and shared.__traceback__ is None
        assert vars(raised[0]) == vars(shared) and str(raised[0]) == str(shared)


def test_a_wait_that_ends_too_early_leaves_no_listener() -> None:
    batches = [made(b"a"), made(b"b")]
    for _ in range(3):
        assert not Countdown(batches).wait(0.001)
    assert [batch.listeners for batch in batches] == [[], []]
    waiting = Countdown(batches)
    for batch in batches:
        batch.become(STORED)
        batch.call_listeners()
    assert waiting.wait(0) and Countdown(batches).wait(0) and Countdown([]).wait(0)


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_a_signal_ends_a_wait_that_is_not_sliced(timeout: float | None) -> None:
    """As Ctrl-C does, with and without a limit; and no listener stays behind."""

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    batch = made(b"a")
    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        sender.start()
        with pytest.raises(Interrupted):
            Countdown([batch]).wait(timeout)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert not batch.listeners


def test_the_parts_of_a_future_are_those_that_make_a_delivery_full() -> None:
    """A new Python may rename them: then `LazyFuture`, `wait` and `asyncio` must be read again."""
    names = {"_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"}
    assert set(vars(Future())) == names
    for name in names:
        delivery: Delivery = Delivery()
        delivery._batch, delivery._index = made(b"a"), 0
        assert not set(vars(delivery)) & names
        getattr(delivery, name)
        assert set(vars(delivery)) >= names, name
