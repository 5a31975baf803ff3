"""What `myq broker drain --wait` and `add --wait` say while they wait, and when they end (P4)."""

from __future__ import annotations

from typing import Any

import pytest

from myqueue.admin.broker_moves import (
    Left,
    Pace,
    of_draining,
    of_spreading,
    partitions_counting,
    removal_losses,
)
from myqueue.cli.topic import partitions_table
from myqueue.errors import BrokerInUse, InvalidRequest, MyQueueError, NotLeader, UnknownBroker


def row(node: int, replicas: int, **more: Any) -> dict[str, Any]:
    known = {"draining": False, "state": "active", "alive": True, "disk_low": False, "leaving": 0}
    return {"node": node, "replicas": replicas, **known, **more}


def draining(replicas: int, leaving: int = 0, **more: Any) -> list[dict[str, Any]]:
    one = row(2, replicas, leaving=leaving, draining=True, state="draining")
    return [row(1, 40), one | more, row(3, 40)]


def test_a_drain_is_done_when_the_broker_says_that_it_has_nothing() -> None:
    assert of_draining(draining(30, 4), 2) == Left("Draining broker 2", 34)
    assert of_draining(draining(0), 2) == Left("Draining broker 2", 1), "it deletes still"
    done = of_draining(draining(0, state="drained"), 2)
    assert done is not None and done.todo == 0


def test_a_drained_broker_that_died_does_not_make_it_wait_for_ever() -> None:
    done = of_draining(draining(0, state="dead", alive=False), 2)
    assert done is not None and done.todo == 0
    left = of_draining(draining(3, state="dead", alive=False), 2)
    assert left == Left("Draining broker 2", 3, "broker 2 is silent")


def test_an_election_of_the_managers_is_no_removal() -> None:
    assert of_draining([], 2) is None and of_spreading([], 2) is None
    with pytest.raises(UnknownBroker, match="removed meanwhile"):
        of_draining([row(1, 40)], 2)
    with pytest.raises(BrokerInUse, match="undrained"):
        of_draining([row(2, 40)], 2)


def test_a_new_broker_has_its_share_when_it_is_even_and_nothing_moves() -> None:
    def left(replicas: int, leaving: int = 0) -> int:
        found = of_spreading([row(1, 50, leaving=leaving), row(2, 50), row(4, replicas)], 4)
        assert found is not None
        return found.todo

    assert left(0) == 30  # 33 each, less a tenth
    assert left(20, 4) == 16 and left(45) == 0 and left(45, 2) == 2
    with pytest.raises(BrokerInUse, match="drains broker 4"):
        of_spreading([row(4, 9, draining=True)], 4)


def test_it_says_how_far_it_is_and_how_long_it_may_take() -> None:
    pace = Pace()
    assert pace.describe(Left("D", 40), 100) == "D: 40 of 40 replicas are left, 0 % done"
    told = pace.describe(Left("D", 30), 105)
    assert told == "D: 30 of 40 replicas are left, 25 % done, about 15 s more"
    assert "about 8 min" in pace.describe(Left("D", 29), 282)
    assert pace.describe(Left("D", 0), 300) == "D: 0 of 40 replicas are left, 100 % done"


def test_it_says_why_nothing_moves() -> None:
    pace = Pace()
    pace.describe(Left("D", 40, "broker 3 is silent"), 100)
    assert pace.reason == ""
    told = pace.describe(Left("D", 40, "broker 3 is silent"), 112)
    assert told.endswith("nothing moved for 12 s: broker 3 is silent")
    assert pace.reason == "broker 3 is silent"
    pace.describe(Left("D", 39, "broker 3 is silent"), 113)
    assert pace.reason == ""


def test_what_moves_and_who_is_silent_is_shown_where_it_is_so() -> None:
    whole = {"partition": 0, "leader": 1, "replicas": [1, 2, 3], "leaving": [], "silent": []}
    moves = {**whole, "partition": 1, "replicas": [4, 2, 3], "leaving": [1], "leader": 0}
    heads, rows = partitions_table([whole, moves])
    assert heads[:4] == ["partition", "leader", "replicas", "leaving"] and "silent" not in heads
    assert [row[:4] for row in rows] == [[0, 1, "1 2 3", None], [1, None, "4 2 3", "1"]]
    assert "leaving" not in partitions_table([whole])[0]
    assert partitions_table([{**whole, "silent": [2]}])[1][0][3] == "2"


def test_what_a_removal_would_lose_is_estimated() -> None:
    def part(number: int, replicas: list[int], **more: list[int]) -> dict[str, Any]:
        return {"partition": number, "replicas": replicas, "leaving": [], "silent": [], **more}

    parts = [
        part(0, [2]),  # its only copy
        part(1, [2], leaving=[4]),  # broker 4 still has one
        part(2, [1, 2]),  # of two members one is alive: enough when broker 2 is no member
        part(3, [1, 2], silent=[1]),
        part(4, [1, 2, 3], silent=[1]),
        part(5, [1, 3], silent=[1, 3]),  # not on broker 2
    ]
    topics = [{"topic": "t", "partitions": parts}]
    assert removal_losses(topics, row(2, 5)) == (["t/0"], ["t/3", "t/4"])
    dead = removal_losses(topics, row(2, 5, alive=False))
    assert dead == (["t/0"], ["t/2", "t/3", "t/4"]), "a dead broker does not agree to its removal"
    assert removal_losses(topics, row(5, 0)) == ([], [])


def test_partitions_that_stay_without_a_majority_are_not_waited_for() -> None:
    class Managers:
        error: MyQueueError | None = None

        def counting_on(self, _: int) -> int:
            if self.error is not None:
                raise self.error
            return 3

    managers: Any = Managers()
    assert [partitions_counting(managers, 2, n) for n in (0, 2, 3, 4)] == [3, 1, 0, 0]
    managers.error = NotLeader("electing")
    assert partitions_counting(managers, 2, 0) is None
    managers.error = InvalidRequest("no")
    with pytest.raises(InvalidRequest):
        partitions_counting(managers, 2, 0)
