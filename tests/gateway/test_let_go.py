"""A removed broker's process is stopped when its partitions can do without it, not before."""

from __future__ import annotations

from typing import Any

import pytest

from myqueue import errors
from myqueue.admin.broker_moves import when_to_stop
from myqueue.gateway import broker_processes
from myqueue.gateway.api.endpoints import brokers
from myqueue.gateway.api.wait_slots import WaitSlots
from myqueue.gateway.broker_processes import stop_when_unused

ROW = {"node": 3, "address": "h:1", "alive": True, "replicas": 4, "leaving": 1}


class Cluster:
    """Answers what it was told to, then the last of it for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.dropped = list(answers), 0
        self.wait_slots, self.admin, self.agent, self.is_running = (
            WaitSlots(1, 10_000),
            self,
            self,
            True,
        )

    def counting_on(self, _: int) -> int:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    def drop_broker(self, *_: Any) -> bool:
        self.dropped += 1
        return True

    def let_go(self, stranded: int = 0, **row: Any) -> tuple[int, bool]:
        return stop_when_unused(self, 3, {**ROW, **row}, stranded)  # type: ignore[arg-type]

    def let_go_again(self) -> tuple[int, bool]:
        """The same request once more: the managers do not know the broker any more."""
        return stop_when_unused(self, 3, None, 0)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_processes, "LOOK_S", 0.001)
    monkeypatch.setattr(broker_processes, "LET_GO_MS", 50)


def test_it_is_stopped_when_none_counts_on_it() -> None:
    assert Cluster(5, 3, 2).let_go(stranded=2) == (0, True)
    assert Cluster(5).let_go(alive=False) == (0, True)


def test_a_repeat_says_no_more_than_the_first_one() -> None:
    """Whose answer was lost while partitions counted on the broker."""
    cluster = Cluster(1)
    counting, stopped = cluster.let_go_again()
    assert (
        not stopped and not cluster.dropped and "keep its process running" in when_to_stop(counting)
    )
    assert Cluster(2, 0).let_go_again() == (0, True)


def test_managers_that_elect_a_leader_are_asked_again() -> None:
    """B1: the broker that went may have been on the machine of their leader."""
    cluster = Cluster(errors.NotLeader("electing"), errors.Unreachable("nobody"), 2, 0)
    assert cluster.let_go() == (0, True)


@pytest.mark.parametrize("error", [errors.NotLeader("electing"), errors.Internal("?")])
def test_of_what_nobody_knows_it_is_not_said_that_it_may_be_stopped(error: Exception) -> None:
    cluster = Cluster(error)
    counting, stopped = cluster.let_go()
    assert not stopped and not cluster.dropped
    assert "5 of its partitions" in when_to_stop(counting)


def test_nor_where_there_is_no_place_to_wait() -> None:
    cluster = Cluster(2)
    with cluster.wait_slots.hold():
        counting, stopped = cluster.let_go()
    assert not stopped and "keep its process running" in when_to_stop(counting)


def test_what_is_done_is_done_though_nobody_tells_of_it_then() -> None:
    """503 says that nothing was done."""

    class Ask:
        def __init__(self) -> None:
            self.sdk, self.updates = self, list[str]()

        def key(self, *_: Any) -> None:
            return None

        def update(self, operation: str, *_: Any) -> None:
            self.updates.append(operation)

        def read(self, _: str) -> Any:
            raise errors.Unreachable("nobody")

    ask = Ask()
    told = brokers.undrain_broker(ask, 3)  # type: ignore[arg-type]
    assert ask.updates == ["undrain_broker"] and "may hold partitions again" in told["message"]
