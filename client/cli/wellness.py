"""Is a cluster well? One question to its leader, and one for its routes.

Well means: the managers have a leader that a majority follows, every broker is registered and was
heard lately, and every partition has a leader.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from myqueue import protocol
from myqueue.daemons import local
from myqueue.daemons.local import Cluster
from myqueue.errors import MyQueueError
from myqueue.session import Session

NAMED_MAX = 3  # partitions in one sentence


class Problem(NamedTuple):
    """Critical: something can't be read or written now."""

    critical: bool
    text: str


def problems(address: str, cluster: Cluster | None, timeout_s: float) -> list[Problem]:
    """What is not well. `cluster` says which brokers there ought to be."""
    timeout_ms = max(1, int(timeout_s * 1000))
    with Session(address, name="myq", request_timeout_ms=timeout_ms) as session:
        try:
            # Only a leader whose followers have just confirmed it may answer this.
            session.wait(session.read("cluster", linearizable=True))
        except MyQueueError as error:
            return [Problem(True, f"no manager leads: {error}")]
        try:
            routes = session.wait(session.call(session.managers, protocol.ROUTE, ([], 0)))
        except MyQueueError as error:
            return [Problem(True, f"no manager tells routes: {error}")]
    _, brokers, topics, _ = routes.fields
    expected = {daemon.id for daemon in cluster.of_kind(local.BROKER)} if cluster else set()
    return [*of_brokers(brokers, expected), *of_partitions(topics)]


def of_brokers(brokers: list[Any], expected: set[int]) -> list[Problem]:
    missing = sorted(expected - {node for node, *_ in brokers})
    silent = [node for node, _, _, alive in brokers if not alive]
    return [
        *(Problem(False, f"broker {node} is not registered") for node in missing),
        *(Problem(False, f"broker {node} is silent") for node in silent),
    ]


def of_partitions(topics: list[Any]) -> list[Problem]:
    lost = [
        f"{name}/{number}"
        for name, _, _, partitions in topics
        for number, _, leader, *_ in partitions
        if not leader
    ]
    if not lost:
        return []
    more = f" and {len(lost) - NAMED_MAX:,} more" if len(lost) > NAMED_MAX else ""
    return [Problem(True, f"no leader: {', '.join(lost[:NAMED_MAX])}{more}")]
