"""Taking with a key while answers are lost: whoever repeats loses nothing and gets nothing twice.

Q6, C1: the partitions are played; each remembers what a key got, as a real one does.
"""

from __future__ import annotations

from concurrent.futures import Future
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from myqueue.cluster.routing import Partition, Topic
from myqueue.errors import NONE, UNKNOWN, KeyReused, NotLeader, TimedOut
from myqueue.taker import take_walk
from myqueue.taker.taker import Taker
from myqueue.wire.batch import make

PARTITIONS, EACH = 4, 40
TOPIC = Topic(
    "t", 1, {}, tuple(Partition("t", n, 100 + n, 1, 1, (1,)) for n in range(PARTITIONS)), 1
)


class Played:
    """Partitions whose answers are lost, before or after they did what was asked."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.position = dict.fromkeys(range(100, 100 + PARTITIONS), 0)
        self.known: dict[tuple[int, bytes], tuple[int, int]] = {}

    def ask(
        self, _outbox: Any, _session: Any, partition: Partition, row: Any, timeout_ms: int
    ) -> Future[Any]:
        future: Future[Any] = Future()
        group, _, key, most, _ = row
        what = self.random.random()
        if what < 0.15:
            error = NotLeader("another one leads")
            future.set_exception(error)
            return future
        if what < 0.30:  # not done, and nobody knows
            future.set_exception(TimedOut("no answer"))
            return future
        if (group, key) not in self.known:
            first = self.position[group]
            self.position[group] = behind = min(EACH, first + most)
            self.known[group, key] = first, behind
        if what < 0.45:  # done, and nobody knows
            future.set_exception(TimedOut("no answer"))
            return future
        first, behind = self.known[group, key]
        values = [b"%d" % n for n in range(first, behind)]
        found = [(first, make((values, None, None, None), 0))] if values else []
        future.set_result((first, behind, found))
        return future


@pytest.mark.parametrize("seed", range(30))
def test_q6_a_repeat_with_the_key_gets_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(seed)
    monkeypatch.setattr(take_walk, "take_at_leader", played.ask)
    session: Any = SimpleNamespace(
        request_timeout_ms=1000, now_ms=lambda: 0, on_shut=lambda callback: None
    )
    taker, got = Taker(session), []
    for call in range(200):
        key = call.to_bytes(16, "big")
        while True:
            before = sum(played.position.values())
            asked = taker.begin(TOPIC, 7, max_messages=7, key=key)
            error = asked.exception()
            if error is None:
                break
            assert sum(played.position.values()) == before or error.outcome == UNKNOWN, "C1"
        got += [(one.partition, one.offset) for one in asked.result().messages]
        if len(got) >= PARTITIONS * EACH:
            break
    assert len(got) == len(set(got)), "taken twice"
    assert set(got) == {(p, o) for p in range(PARTITIONS) for o in range(EACH)}, "nobody's"


def test_the_first_error_of_several_partitions_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is the cause; a later partition may fail only for want of time."""

    def ask(_outbox: Any, _session: Any, partition: Partition, *_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(NotLeader(f"number {partition.number}"))
        return future

    monkeypatch.setattr(take_walk, "take_at_leader", ask)
    session: Any = SimpleNamespace(
        request_timeout_ms=1000, now_ms=lambda: 0, on_shut=lambda callback: None
    )
    error = Taker(session).begin(TOPIC, 7).exception()
    assert isinstance(error, NotLeader) and str(error) == "number 0"


def test_a_key_that_took_more_than_is_asked_for_belongs_to_another_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(0)
    played.random = SimpleNamespace(random=lambda: 1.0)  # type: ignore[assignment]
    monkeypatch.setattr(take_walk, "take_at_leader", played.ask)
    session: Any = SimpleNamespace(
        request_timeout_ms=1000, now_ms=lambda: 0, on_shut=lambda callback: None
    )
    taker, key = Taker(session), b"k" * 16
    for most in (50, 60):  # all of one partition and some of the next; the same again
        found = taker.begin(TOPIC, 7, max_messages=most, key=key).result().messages
        assert len(found) >= 50
    error = taker.begin(TOPIC, 7, max_messages=7, key=key).exception()
    assert isinstance(error, KeyReused) and error.outcome == NONE
