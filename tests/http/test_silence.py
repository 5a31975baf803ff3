"""Requests to a partition without a majority: the answer names it and the brokers to start again.

A cluster of its own, since two of its three brokers stay down.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.gateways import Client, Gateway, good
from support.processes import Cluster, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Cluster, Any]]:
    """A topic that has a producer, a consumer and a message; then brokers 2 and 3 are killed."""
    folder = tmp_path_factory.mktemp("silence")
    with (
        Cluster(folder, managers=1) as cluster,
        Gateway(folder, cluster.address, request_timeout_ms=2_000) as gateway,
        Client([gateway.port]) as http,
    ):
        good(http.ask("POST", "/topics", {"topic": "orders"}))
        producer = good(http.ask("POST", "/producers", {"topic": "orders"}))["producer_id"]
        consumer = good(http.ask("POST", "/consumers", {"topic": "orders"}))["consumer_id"]
        body = {"topic": "orders", "producer_id": producer, "message": "x"}
        good(http.ask("POST", "/producer/produce", body))
        cluster.kill(("broker", 2), ("broker", 3))

        def are_missed() -> bool:
            rows = good(http.ask("GET", "/brokers"))["brokers"]
            return [row["id"] for row in rows if row["state"] == "silent"] == [2, 3]

        wait_for("the brokers to be missed", are_missed, 30)
        yield http, cluster, {"producer_id": producer, "consumer_id": consumer}
        gateway.check()


@pytest.mark.parametrize(
    ("request_line", "outcomes"),
    [
        ("POST /producer/produce?message=y&producer_id={producer_id}", ("none", "unknown")),
        ("GET /consumer/consume?consumer_id={consumer_id}", ("none", "unknown")),
        ("GET /size?consumer_id={consumer_id}", ("none",)),
    ],
)
def test_the_partition_and_its_silent_brokers_are_named(
    silent: tuple[Client, Cluster, Any], request_line: str, outcomes: tuple[str, ...]
) -> None:
    """B1: never "NOT_LEADER: NOT_LEADER"; and what only reads is certainly not done."""
    http, cluster, ids = silent
    method, path = request_line.format(**ids).split(" ")
    status, said = http.ask(method, path)
    assert status == (503 if said["outcome"] == "none" else 504), said
    assert said["outcome"] in outcomes and said["retriable"], said
    assert "NOT_LEADER: NOT_LEADER" not in said["message"]
    assert "orders/0" in said["message"]
    for number in (2, 3):
        assert f"broker {number} at {cluster.door(('broker', number))}" in said["message"], said
    assert "silent" in said["message"] and "2 of its 3" in said["message"]
    assert re.fullmatch(r"broker \d at 127\.0\.0\.1:\d+", said["component"]), said
    assert "Start brokers 2 and 3" in said["hint"]


def test_a_daemon_is_named_with_its_address(silent: tuple[Client, Cluster, Any]) -> None:
    http, cluster, _ = silent
    _, said = http.ask("POST", "/topics", {"topic": "orders"})
    assert said["component"] == f"manager 1 at {cluster.door(('manager', 1))}"
