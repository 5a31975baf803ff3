"""Soft state from beats: who lives, who leads, how much there is."""

from __future__ import annotations

from typing import Any

import pytest
from support.manager_rig import FakeBroker

from myqueue.daemons.manager.cluster_view import BROKER_SILENT_AFTER_MS, ClientActivity, ClusterView
from myqueue.errors import InvalidRequest


class Heard:
    """ClusterView that hears brokers."""

    def __init__(self) -> None:
        self.cluster_view = ClusterView()
        self.now = 1000

    def beat(self, node: int, *groups: list[Any], **changes: Any) -> None:
        broker = FakeBroker(node)
        broker.full = False
        state = broker.state(groups=list(groups), **changes)
        self.cluster_view.receive_broker_heartbeat(node, state, self.now, 5_000_000 + self.now)

    def leader(self, group: int) -> tuple[int, int]:
        return self.cluster_view.leader_of(group, self.now)


def row(group: int, leads: bool, term: int, end: int = 0) -> list[Any]:
    return [group, 50 + group, leads, term, 0, 0, end, 0, None]


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_b6_a_silent_broker_is_not_alive(heard: Heard) -> None:
    assert not heard.cluster_view.is_broker_alive(1, heard.now)
    heard.beat(1)
    heard.now += BROKER_SILENT_AFTER_MS
    assert heard.cluster_view.is_broker_alive(1, heard.now)
    assert heard.cluster_view.silent_brokers([1, 2], heard.now) == [2]
    heard.now += 1
    assert not heard.cluster_view.is_broker_alive(1, heard.now)
    assert heard.cluster_view.silent_brokers([2, 1], heard.now) == [1, 2]


def test_alive_for_begins_again_after_a_silence(heard: Heard) -> None:
    assert heard.cluster_view.broker_alive_ms(1, heard.now) == -1
    heard.beat(1)
    for _ in range(5):
        heard.now += BROKER_SILENT_AFTER_MS
        heard.beat(1)
    assert heard.cluster_view.broker_alive_ms(1, heard.now) == 5 * BROKER_SILENT_AFTER_MS
    heard.now += BROKER_SILENT_AFTER_MS + 1
    assert heard.cluster_view.broker_alive_ms(1, heard.now) == -1
    heard.beat(1)
    assert heard.cluster_view.broker_alive_ms(1, heard.now) == 0
    heard.now += 300
    heard.beat(1, incarnation=5)  # a restart is a silence, however short
    assert heard.cluster_view.broker_alive_ms(1, heard.now) == 0


def test_the_highest_term_is_right(heard: Heard) -> None:
    assert heard.leader(7) == (0, 0)
    heard.beat(1, row(7, True, 3))
    heard.beat(2, row(7, False, 4))
    assert heard.leader(7) == (1, 3)
    heard.beat(2, row(7, True, 4))
    assert heard.leader(7) == (2, 4)
    heard.beat(1, row(7, False, 4))
    assert heard.leader(7) == (2, 4)


def test_b6_a_leader_on_a_silent_broker_is_nobody(heard: Heard) -> None:
    """Not even if another one, of an older term, still claims to lead."""
    heard.beat(2, row(7, True, 4))
    heard.now += BROKER_SILENT_AFTER_MS + 1
    heard.beat(1, row(7, True, 3))
    assert heard.leader(7) == (0, 4)
    heard.beat(1, row(7, True, 5))
    assert heard.leader(7) == (1, 5)


def test_a_new_life_of_a_broker_begins_with_nothing(heard: Heard) -> None:
    heard.beat(1, row(7, True, 3, end=10))
    assert heard.cluster_view.brokers[1].has(7)
    heard.beat(1, incarnation=99)
    assert heard.leader(7) == (0, 0)
    assert heard.cluster_view.best_report(7) is None
    assert not heard.cluster_view.brokers[1].has(7)


def test_what_a_full_beat_does_not_name_is_gone(heard: Heard) -> None:
    heard.beat(1, row(7, True, 3), row(8, True, 1))
    heard.beat(1, row(8, True, 2), full=True, held=[[8, 58], [9, 59]])
    life = heard.cluster_view.brokers[1]
    assert [life.has(group) for group in (7, 8, 9)] == [False, True, True]
    assert heard.leader(7) == (0, 0)
    assert heard.cluster_view.groups_led_by(1) == [8]
    heard.beat(1, row(10, False, 2))
    assert life.has(10) and life.has(9)


def test_sizes_are_the_leaders_or_the_longest(heard: Heard) -> None:
    heard.beat(1, row(7, False, 3, end=10))
    heard.beat(2, row(7, False, 3, end=12))
    report = heard.cluster_view.best_report(7)
    assert report is not None and report.end == 12
    heard.beat(1, row(7, True, 4, end=11))
    report = heard.cluster_view.best_report(7)
    assert report is not None and report.end == 11


@pytest.mark.parametrize(
    "changes",
    [
        {"disk": 5},
        {"incarnation": -1},
        {"version": None},
        {"full": 1},
        {"held": ["x"]},
        {"groups": [[1, 2, 3]]},
        {"groups": [[7, 5, 1, 3, 0, 0, 0, 0, None]]},
        {"groups": [[7, 5, True, 3, 0, 0, 0, 0, [[1, 2]]]]},
        {"lost": [7]},
        {"load": 1.5},
        {"producers": [True]},
    ],
)
def test_a_malformed_beat_changes_nothing(heard: Heard, changes: dict[str, Any]) -> None:
    broker = FakeBroker(1)
    with pytest.raises(InvalidRequest):
        heard.cluster_view.receive_broker_heartbeat(1, broker.state() | changes, heard.now, 0)
    assert heard.cluster_view.brokers == {}


def test_fields_of_newer_versions_do_no_harm(heard: Heard) -> None:
    heard.beat(1, colour="blue")
    assert heard.cluster_view.is_broker_alive(1, heard.now)


# -- clients --------------------------------------------------------------------------------------


def test_activity_is_taken_once_in_the_order_of_ids() -> None:
    activity = ClientActivity()
    activity.record(0, 5, 100, is_direct=True)
    activity.record(0, 3, 200, is_direct=False)
    activity.record(0, 5, 90, is_direct=False)
    activity.record(1, 5, 300, is_direct=False)
    assert activity.take(10, direct_only=False) == {
        "producers": [[3, 200], [5, 100]],
        "consumers": [[5, 300]],
    }
    assert activity.take(10, direct_only=False) == {"producers": [], "consumers": []}
    assert activity.last_seen_wall_ms(0, 5) == 100
    assert activity.last_seen_wall_ms(1, 9) == 0


def test_a_follower_gives_away_only_what_it_heard_itself() -> None:
    activity = ClientActivity()
    activity.record(0, 1, 100, is_direct=True)
    activity.record(0, 2, 100, is_direct=False)
    assert activity.take(10, direct_only=True)["producers"] == [[1, 100]]
    assert activity.take(10, direct_only=False)["producers"] == [[2, 100]]


def test_activity_is_taken_in_portions_and_forgotten_in_time() -> None:
    activity = ClientActivity()
    for number in range(5):
        activity.record(0, number, 100 + number, is_direct=False)
    assert len(activity.take(2, direct_only=False)["producers"]) == 2
    activity.forget_before(104)
    assert activity.take(9, direct_only=False)["producers"] == [[4, 104]]
    assert activity.last_seen_wall_ms(0, 3) == 0
