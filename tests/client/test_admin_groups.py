"""Resets and deletions of groups: what is asked of managers and leaders, and in which order."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from myqueue.admin.calls import Limit
from myqueue.admin.groups import GroupAdmin
from myqueue.cluster.offset_queries import Offsets, read_offsets
from myqueue.consumer.message import TopicPartition
from myqueue.errors import GroupInUse, MisuseError, TimedOut, UnknownGroup, UnknownTopic
from myqueue.wire import protocol as words
from myqueue.wire.clock import now_ms

EPOCH = 90


class Desk(GroupAdmin):
    """A topic t with two partitions, of which group g has read some; all that is asked is noted."""

    def __init__(self) -> None:
        self._limit = Limit(1.0)
        self.log: list[Any] = []
        self.refuse: dict[str, Exception] = {}
        self.is_leaderless = False  # partition 1
        routes = SimpleNamespace(
            topic=lambda name: SimpleNamespace(
                partitions=[SimpleNamespace(group=40), SimpleNamespace(group=41)]
            ),
            leader=lambda group, now: "tcp://a",
        )
        self._session: Any = SimpleNamespace(
            routes=routes, now_ms=lambda: 0, call=self._call, wait=self._wait
        )

    def _read(self, query: str, **arguments: Any) -> dict[str, Any]:
        if query == "topics":
            return {"topics": ["t"]}
        if arguments["group"] != "g":
            raise UnknownGroup("there is no such group")
        return {"topics": ["t", "deleted"], "partitions": [], "members": []}

    def _update(self, operation: str, **arguments: Any) -> dict[str, Any]:
        self.log.append((operation, arguments))
        if operation in self.refuse:
            raise self.refuse[operation]
        return {"epoch": EPOCH}

    def _wait(self, future: Any) -> Any:
        return future.result()

    def _offsets(
        self, topic: str, who: str | None, time_ms: int | None
    ) -> dict[TopicPartition, Offsets]:
        if topic != "t":
            raise UnknownTopic(f"there is no topic {topic!r}")
        return {TopicPartition("t", n): Offsets(0, 10, 4, None, 100) for n in range(2)}

    def _known_offsets(self, topic: str, who: str) -> dict[TopicPartition, Offsets | None]:
        found = self._offsets(topic, who, None)
        return {**found, TopicPartition("t", 1): None} if self.is_leaderless else {**found}

    def _call(self, address: str, kind: int, fields: Any, *, timeout_ms: int) -> Future[Any]:
        who, parts = fields
        self.log.append((who, parts))
        future: Future[Any] = Future()
        rows = [[group, 0, offset, None] for group, offset, _, _ in parts]
        future.set_result(SimpleNamespace(fields=[rows]))
        return future


def test_what_is_wrong_with_a_reset_is_said_before_anybody_has_to_stop() -> None:
    desk = Desk()
    with pytest.raises(UnknownTopic):
        desk.reset_group("g", to="earliest", topics=["typo"], force=True)
    with pytest.raises(MisuseError):
        desk.reset_group("g", to="earliest", partitions=[TopicPartition("t", 7)], force=True)
    with pytest.raises(UnknownGroup):
        desk.reset_group("typo", to="earliest")
    assert desk.log == []  # and no group of this name was made


def test_a_reset_sets_positions_between_its_begin_and_its_end() -> None:
    desk = Desk()
    rows = desk.reset_group("g", to="latest")
    assert [(row["position"], row["new"]) for row in rows] == [(4, 10)] * 2
    assert desk.log == [
        ("begin_reset", {"group": "g", "force": False, "topics": ["t"]}),
        ("group/g", [[40, 10, 0, EPOCH], [41, 10, 0, EPOCH]]),
        ("end_reset", {"group": "g", "epoch": EPOCH}),
    ]


def test_a_group_is_deleted_after_its_positions() -> None:
    desk = Desk()
    desk.delete_group("g")
    assert desk.log == [
        ("begin_reset", {"group": "g"}),
        ("group/g", [[40, words.FORGET, 0, EPOCH], [41, words.FORGET, 0, EPOCH]]),
        ("remove_group", {"group": "g", "epoch": EPOCH}),
    ]
    desk.log.clear()
    with pytest.raises(UnknownGroup):
        desk.delete_group("typo")
    assert desk.log == []


@pytest.mark.parametrize("step", ["begin_reset", "remove_group"])
def test_a_group_that_is_in_use_goes_on(step: str) -> None:
    desk = Desk()
    desk.refuse[step] = GroupInUse("it has members")
    with pytest.raises(GroupInUse) as caught:
        desk.delete_group("g")
    assert step != "begin_reset" or "--force" not in caught.value.hint, "to delete knows none"
    last = cast(tuple[str, Any], desk.log[-1])[0]
    assert last == ("begin_reset" if step == "begin_reset" else "end_reset")


def test_a_partition_without_a_leader_hides_nothing_of_the_others() -> None:
    desk = Desk()
    assert desk.describe_group("g")["lag"] == 12
    desk.is_leaderless = True
    found = desk.describe_group("g")
    assert [row["lag"] for row in found["partitions"]] == [6, None]
    assert found["lag"] is None and found["partitions"][1]["position"] is None


def test_what_no_leader_tells_is_left_out_if_that_is_wanted() -> None:
    routes = SimpleNamespace(leader=lambda group, now: None, partition=lambda group: None)
    session: Any = SimpleNamespace(routes=routes, now_ms=now_ms, refresh=lambda: None)
    assert read_offsets(session, [40], timeout_ms=30, partial=True) == {}
    with pytest.raises(TimedOut):
        read_offsets(session, [40], timeout_ms=30)
