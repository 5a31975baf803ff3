"""Takes and batches that nobody can unpack: told, or exactly their messages are passed over.

The partitions keep positions as real ones do (`ConsumerPositions`); answers are lost, and several
clients take for the same consumer, one within the steps of the other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from support.batches import unreadable

from myqueue import errors
from myqueue.cluster.routing import Partition, Topic
from myqueue.consumer.message import Message
from myqueue.daemons.partition.positions import OK, ConsumerPositions
from myqueue.errors import BatchUnreadable, TimedOut
from myqueue.taker import take_walk
from myqueue.taker.skip_damaged import SkippedRun
from myqueue.taker.taker import Taker
from myqueue.wire import batch

WHO = "7"


def topic(partitions: int) -> Topic:
    numbers = range(partitions)
    return Topic("t", 1, {}, tuple(Partition("t", n, 100 + n, 1, 1, (1,)) for n in numbers), 1)


class Log:
    """A partition: batches, which offsets can be read, and how far consumers are."""

    def __init__(self, batches: list[tuple[bool, int]]) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.good: list[int] = []
        self.end = 0
        for is_good, count in batches:
            values = [b"%d" % n for n in range(self.end, self.end + count)]
            frame = batch.make([values, None, None, None], 0) if is_good else unreadable(count)
            self.batches.append((self.end, frame))
            if is_good:
                self.good += range(self.end, self.end + count)
            self.end += count
        self.positions = ConsumerPositions()

    def holding(self, first: int, behind: int) -> list[tuple[int, bytes]]:
        ends = [at for at, _ in self.batches[1:]] + [self.end]
        rows = zip(self.batches, ends, strict=True)
        return [one for one, end in rows if end > first and one[0] < behind]


class Played:
    """Partitions whose answers are lost, before or after they did what was asked."""

    def __init__(self, logs: list[Log], seed: int = 0, losses: float = 0.0) -> None:
        self.logs, self.random, self.losses = logs, Random(seed), losses
        self.meanwhile: Callable[[], None] = lambda: None  # what others do before a step
        self.asked: list[str] = []
        self.now = self.step_ms = self.dies_at = 0  # with which step the client dies
        session: Any = SimpleNamespace(
            request_timeout_ms=1000,
            now_ms=lambda: self.now,
            on_shut=lambda callback: None,
            wait=lambda future, limit: future.result(0),
            routes=SimpleNamespace(topic=lambda name: topic(len(logs))),
        )
        self.taker = Taker(session)

    def _do(self, name: str, step: Callable[[], Any]) -> Future[Any]:
        self.asked.append(name)
        self.now += self.step_ms
        self.meanwhile()
        future: Future[Any] = Future()
        if len(self.asked) == self.dies_at:
            return future
        what = self.random.random()
        result = step() if what >= self.losses / 2 else None
        if what < self.losses:
            future.set_exception(TimedOut("no answer"))
        elif isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
        return future

    def take(
        self, _outbox: Any, _session: Any, partition: Partition, row: Any, timeout_ms: int
    ) -> Future[Any]:
        log = self.logs[partition.number]

        def step() -> Any:
            _, consumer, key, most, nothing_too = row
            code, first, behind = log.positions.take(consumer, key, most, 0, log.end, nothing_too)
            assert code == OK
            return first, behind, log.holding(first, behind)

        return self._do("take", step)

    def fetch(
        self, _session: Any, partition: Partition, _kind: int, fields: Any, *, timeout_ms: int
    ) -> Future[Any]:
        log, ((group, position),) = self.logs[partition.number], fields[3]
        batches = log.holding(position, log.end)
        row = [group, 0, 0, log.end, [[offset, 1] for offset, _ in batches], None]
        answer = SimpleNamespace(fields=[[row]], frames=[frame for _, frame in batches])
        return self._do("fetch", lambda: answer)

    def commit(
        self, _session: Any, partition: Partition, consumer: str, offset: int, timeout_ms: int
    ) -> Future[Any]:
        log = self.logs[partition.number]

        def step() -> Any:
            code, position = log.positions.commit(consumer, offset, 0, 0, log.end)
            return errors.error_of(code) if code else position

        return self._do("commit", step)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    def begin(*logs: list[tuple[bool, int]], **more: Any) -> Played:
        played = Played([Log(one) for one in logs], **more)
        monkeypatch.setattr(take_walk, "take_at_leader", played.take)
        monkeypatch.setattr(take_walk, "commit_at_leader", played.commit)
        monkeypatch.setattr(take_walk, "ask_leader", played.fetch)
        return played

    return begin


MIDDLE = [(True, 3), (False, 4), (True, 3)]  # offsets 3 to 6 can't be read


def offsets(messages: list[Message] | tuple[Message, ...]) -> list[int]:
    return [message.offset for message in messages]


@pytest.mark.parametrize("key", [None, b"k" * 15])
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 10])
def test_exactly_its_messages_are_passed_over(
    play: Callable[..., Played], most: int, key: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    played, found, skipped = play(MIDDLE), list[int](), Counter[int]()
    with caplog.at_level(logging.WARNING, "myqueue.client"):
        for call in range(12):
            one = None if key is None else key + bytes([call])
            taken = played.taker.begin(
                topic(1), 7, max_messages=most, key=one, on_damaged="skip"
            ).result(0)
            assert len(taken.messages) <= most and taken.damaged is None
            found += offsets(taken.messages)
            for row in taken.skipped:
                skipped.update(range(row.offset, row.offset + row.count))
    assert found == [0, 1, 2, 7, 8, 9]
    assert skipped == dict.fromkeys(range(3, 7), 1), "each is counted once"
    lines = [one.getMessage() for one in caplog.records]
    assert lines and all("passed over: t/0: offsets 3 to 6 can't be read" in one for one in lines)


def test_a_single_message_is_one_commit_and_one_more_take(play: Callable[..., Played]) -> None:
    played = play([(False, 100_000), (True, 1)])
    taken = played.taker.begin(topic(1), 7, on_damaged="skip").result(0)
    assert offsets(taken.messages) == [100_000]
    assert taken.skipped == (SkippedRun("t", 0, 0, 100_000),)
    assert played.asked == ["take", "commit", "take"]


def take_until_done(played: Played, key: bytes, most: int, partitions: int, limit: int) -> Any:
    """With this key, as often as it takes."""
    for _ in range(limit):
        asked = played.taker.begin(
            topic(partitions), 7, max_messages=most, key=key, on_damaged="skip"
        )
        error = asked.exception(0)
        if error is None:
            return asked.result()
        assert isinstance(error, TimedOut), error
    raise AssertionError("never answered")


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_several_clients_with_lost_answers(
    play: Callable[..., Played], seed: int, fenced: bool
) -> None:
    """What can be read is taken once, by one client; a repeat gets what its first sending got."""
    random = Random(seed)

    def log() -> list[tuple[bool, int]]:
        return [(random.random() < 0.5, random.randint(1, 6)) for _ in range(12)]

    played = play(log(), log(), seed=seed, losses=0.08)
    if fenced:
        for one in played.logs:
            assert one.positions.commit(WHO, 0, 3, 3, one.end)[0] == OK
    got: list[tuple[int, int]] = []
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        key, most = calls.to_bytes(16, "big"), random.randint(1, 4)
        found = take_until_done(played, key, most, 2, 500)
        got.extend((m.partition, m.offset) for m in found.messages)
        losses, played.losses = played.losses, 0.0
        again = take_until_done(played, key, most, 2, 1)
        played.losses = losses
        # Fewer takes are remembered than there are here only if this fails.
        assert offsets(again.messages) == offsets(found.messages) or not found.messages
        if not found.messages:
            got.extend((m.partition, m.offset) for m in again.messages)

    def others() -> None:
        if random.random() < 0.1 and depth[0] < 2:
            depth[0] += 1
            call()
            depth[0] -= 1

    depth = [0]
    played.meanwhile = others
    wanted = {(number, at) for number, one in enumerate(played.logs) for at in one.good}
    while len(got) < len(wanted) and calls < 400:
        call()
    assert len(got) == len(set(got)), "taken twice"
    assert set(got) == wanted, "nobody's"


def test_a_crash_between_commit_and_take(play: Callable[..., Played]) -> None:
    """The repeat gets the next message that nobody has, whatever others took since."""
    played, key = play([(False, 4), (True, 3)]), b"k" * 16
    begin = played.taker.begin

    played.dies_at = 3
    assert not begin(topic(1), 7, key=key, on_damaged="skip").done()
    assert played.asked == ["take", "commit", "take"]
    played.dies_at = 0
    assert played.logs[0].positions.offset(WHO) == 4, "behind the batch, and nothing is taken"
    assert offsets(begin(topic(1), 7).result(0).messages) == [4], "of another client"
    for _ in range(2):
        assert offsets(begin(topic(1), 7, key=key, on_damaged="skip").result(0).messages) == [5]
    assert offsets(begin(topic(1), 7).result(0).messages) == [6]


def test_two_clients_within_one_batch(play: Callable[..., Played]) -> None:
    """Both took a message of it before either passed it over."""
    played, found = play([(False, 4), (True, 3)]), list[int]()

    def other() -> None:
        if played.asked == ["take", "commit"]:
            taken = played.taker.begin(topic(1), 7, on_damaged="skip").result(0)
            found.extend(offsets(taken.messages))

    played.meanwhile = other
    taken = played.taker.begin(topic(1), 7, on_damaged="skip").result(0)
    assert found == [4] and offsets(taken.messages) == [5]


def test_it_is_raised_with_what_else_was_taken(play: Callable[..., Played]) -> None:
    played, key = play(MIDDLE), b"k" * 16
    with pytest.raises(BatchUnreadable, match="t/0: offsets 3 to 6 can't be read") as caught:
        played.taker.take("t", 7, max_messages=9, key=key)
    error = caught.value
    assert (error.offset, error.next_offset, error.outcome) == (3, 7, errors.UNKNOWN)
    assert offsets(error.messages) == [0, 1, 2, 7, 8], "they are nobody else's"
    assert 'on_damaged="skip"' in error.hint and "offset 7" in error.hint
    again = played.taker.take("t", 7, max_messages=9, key=key, on_damaged="skip")
    assert offsets(again) == [0, 1, 2, 7, 8]
    assert offsets(played.taker.take("t", 7)) == [9]
    assert "commit" not in played.asked
    with pytest.raises(errors.InvalidSetting, match="must be one of raise, skip"):
        played.taker.take("t", 7, on_damaged="ignore")


def test_one_that_was_damaged_on_its_way_is_never_passed_over(
    play: Callable[..., Played],
) -> None:
    played, key = play(MIDDLE), b"k" * 16
    whole = played.logs[0].batches[0]
    played.logs[0].batches[0] = (0, whole[1][:-1] + bytes([whole[1][-1] ^ 1]))
    with pytest.raises(errors.CorruptData) as caught:
        played.taker.take("t", 7, key=key, on_damaged="skip")
    assert not isinstance(caught.value, BatchUnreadable)
    assert caught.value.outcome == errors.UNKNOWN
    assert played.asked == ["take", "fetch", "fetch"], "the next copy may be whole"
    played.logs[0].batches[0] = whole
    assert offsets(played.taker.take("t", 7, key=key, on_damaged="skip")) == [0]


def test_many_of_them_are_passed_over_in_several_calls(play: Callable[..., Played]) -> None:
    """A call has its time; the next one goes on where it ended, with or without a key."""
    played = play([(False, 3)] * 40 + [(True, 1)])
    played.step_ms = 50
    passed, calls = 0, 0
    while True:
        before, calls = played.now, calls + 1
        found = played.taker.take_all(
            "t",
            7,
            partition=None,
            max_messages=1,
            wait_ms=10_000,
            key=None,
            timeout_ms=None,
            on_damaged="skip",
            ended=lambda: False,
        )
        passed += sum(row.count for row in found.skipped)
        assert played.now - before <= 700
        if found.messages:
            break
    assert offsets(found.messages) == [120] and passed == 120 and calls > 3
