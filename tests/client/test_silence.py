"""What is said of a partition that did not do what it was asked: its silent brokers, or the last
refusal, and never a name twice.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from myqueue import errors
from myqueue.cluster.routing import Broker, Partition
from myqueue.cluster.silent_brokers import silence_at

PARTITION = Partition("orders", 0, 5, 1, 3, (1, 2, 3))
NOT_LEADER = errors.NotLeader(component="tcp://h:1")


def session(*silent: int, known: tuple[int, ...] = (1, 2, 3)) -> Any:
    brokers = {node: Broker(node, f"tcp://h:{node}", "", node not in silent) for node in known}
    routes = SimpleNamespace(brokers=brokers)
    name_of = {f"tcp://h:{node}": f"broker {node} at h:{node}" for node in known}.__getitem__
    return SimpleNamespace(routes=routes, name_of=name_of)


@pytest.mark.parametrize(
    ("silent", "last", "text", "component"),
    [
        ((), None, "no leader is known", "tcp://h:1"),
        ((), NOT_LEADER, "last: tcp://h:1: NOT_LEADER", "tcp://h:1"),
        ((), errors.Busy("full"), "last: BUSY: full", "tcp://h:1"),
        ((3,), NOT_LEADER,
         "broker 3 at h:3 is silent; last: tcp://h:1: NOT_LEADER", "tcp://h:1"),
        ((3,), None, "broker 3 at h:3 is silent; no leader is known", "tcp://h:3"),
        ((2, 3), NOT_LEADER,
         "broker 2 at h:2, broker 3 at h:3 are silent, and 2 of its 3 brokers are needed",
         "tcp://h:1"),
    ],
)  # fmt: skip
def test_silent_brokers_are_named(
    silent: tuple[int, ...], last: errors.MyQueueError | None, text: str, component: str
) -> None:
    found = silence_at(session(*silent), PARTITION, last)
    assert (found.text, found.component) == (text, component)
    assert (found.hint is not None) == (len(silent) > 1)
    assert found.hint is None or "Start brokers 2 and 3 again" in found.hint


def test_a_broker_that_is_not_known_is_named_by_its_number() -> None:
    found = silence_at(session(known=(1,)), PARTITION, None)
    assert found.text.startswith("broker 2, broker 3 are silent")
    assert found.component == "tcp://h:1"


def test_nothing_is_known_of_a_partition_that_is_gone() -> None:
    assert silence_at(session(), None, None).text == "no leader is known"
    assert silence_at(session(), None, NOT_LEADER).component == "tcp://h:1"
