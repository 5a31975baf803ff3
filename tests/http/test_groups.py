"""Consumer groups over HTTP: who has what, how far they are, and setting them back."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from support.gateways import Client, Gateway, bad, good
from support.processes import Cluster, wait_for

from myqueue import Consumer, Producer

pytestmark = pytest.mark.slow
NewTopic = Callable[..., str]


def positions(answer: dict[str, Any]) -> dict[int, tuple[int | None, int]]:
    return {row["partition"]: (row["position"], row["new"]) for row in answer["partitions"]}


def lag_of(http: Client, group: str) -> Any:
    rows = good(http.ask("GET", "/groups", detail=1))["groups"]
    return next((row["lag"] for row in rows if row["group"] == group), None)


def test_a_group_is_shown_and_set_back(
    http: Client, gateway: Gateway, cluster: Cluster, topic: str, new_topic: NewTopic
) -> None:
    name, way = new_topic(2), f"/groups/{topic}"
    reset = f"{way}/reset"
    with Producer(cluster.address) as producer:
        before_ms = time.time_ns() // 1_000_000 - 60_000
        for partition in range(2):
            producer.send_many(name, [b"x"] * 10, partition=partition).result(30)
    bad(http.ask("GET", way), 404, "UNKNOWN_GROUP")
    bad(http.ask("POST", reset, {"to": "latest"}), 404, "UNKNOWN_GROUP")
    with Consumer(cluster.address, [name], group=topic, name="reader") as consumer:
        got = 0
        while got < 20:
            got += len(consumer.poll(max_messages=20, timeout=1.0))
        consumer.commit()

        def found() -> dict[str, Any]:
            return good(http.ask("GET", way))

        (member,) = wait_for("it is stable", lambda: found()["state"] == "stable" and found())[
            "members"
        ]
        assert member["name"] == "reader"
        assert abs(member["last_seen_ms"] - time.time() * 1000) < 10_000
        with urllib.request.urlopen(f"{gateway.url}/console/groups/{topic}", timeout=30) as page:
            assert "Its last heartbeat" in page.read().decode()
        assert member["assigned"] == [{"topic": name, "partition": n} for n in range(2)]
        assert [row["member"] for row in found()["partitions"]] == [member["member"]] * 2
        assert (found()["lag"], found()["topics"]) == (0, [name])
        in_use = bad(http.ask("POST", reset, {"to": "earliest"}), 409, "GROUP_IN_USE")
        assert "1 members" in in_use["message"] and in_use["outcome"] == "none"
        plan = good(http.ask("POST", reset, {"to": "earliest", "dry_run": True}))
        assert not plan["executed"] and positions(plan) == {0: (10, 0), 1: (10, 0)}
        bad(http.ask("DELETE", way), 409, "GROUP_IN_USE")
        assert found()["lag"] == 0
    wait_for("it is empty", lambda: good(http.ask("GET", way))["state"] == "empty")
    assert [row["member"] for row in good(http.ask("GET", way))["partitions"]] == [None, None]
    steps: list[tuple[dict[str, Any], dict[int, tuple[int, int]]]] = [
        ({"to": "earliest"}, {0: (10, 0), 1: (10, 0)}),
        ({"offset": 7, "topic": name, "partition": 1}, {1: (0, 7)}),
        ({"shift": "-2", "topic_name": name}, {0: (0, 0), 1: (7, 5)}),
        ({"offset": 10**9}, {0: (0, 10), 1: (5, 10)}),
        ({"time_ms": before_ms}, {0: (10, 0), 1: (10, 0)}),
        ({"shift": 4}, {0: (0, 4), 1: (0, 4)}),
    ]
    for values, wanted in steps:
        done = good(http.ask("POST", reset, values))
        assert done["executed"] and positions(done) == wanted, values
    assert good(http.ask("GET", way))["lag"] == 12
    assert wait_for("its lag", lambda: lag_of(http, topic)) == 12
    wait_for("the lag is a metric", lambda: _metric(gateway, topic, name) == 12)
    with Consumer(cluster.address, [name], group=topic, idle_timeout=30) as again:
        rest = [message.offset for _, message in zip(range(12), again, strict=False)]
    assert sorted(rest) == sorted([*range(4, 10)] * 2)
    wait_for("it is empty again", lambda: good(http.ask("GET", way))["state"] == "empty")
    good(http.ask("DELETE", way))
    bad(http.ask("GET", way), 404, "UNKNOWN_GROUP")
    bad(http.ask("DELETE", way), 404, "UNKNOWN_GROUP")
    plan = good(http.ask("POST", reset, {"to": "latest", "topic": name, "dry_run": True}))
    assert positions(plan) == {0: (None, 10), 1: (None, 10)}  # they are forgotten
    good(http.ask("POST", reset, {"to": "latest", "topic": name}))
    assert [row["position"] for row in good(http.ask("GET", way))["partitions"]] == [10, 10]


def _metric(gateway: Gateway, group: str, topic: str) -> float | None:
    with urllib.request.urlopen(f"{gateway.url}/metrics", timeout=40) as answer:
        text = answer.read().decode()
    start = f'myq_group_lag_messages{{group="{group}",topic="{topic}"}} '
    return next(
        (float(line[len(start) :]) for line in text.split("\n") if line.startswith(start)), None
    )


def test_what_is_wrong_is_said(http: Client, topic: str, new_topic: NewTopic) -> None:
    name = new_topic()
    reset = f"/groups/{topic}/reset"
    good(http.ask("POST", reset, {"to": "earliest", "topic": name}))
    for values in (
        {},
        {"to": "start"},
        {"to": "latest", "offset": 1},
        {"offset": -1},
        {"shift": "x"},
        {"to": "latest", "partition": 0},
        {"time_ms": "soon"},
        {"shift": 1 << 80},
    ):
        bad(http.ask("POST", reset, values), 400, "INVALID_REQUEST")
    bad(http.ask("POST", reset, {"to": "latest", "topic": "no-such"}), 404, "UNKNOWN_TOPIC")
    wrong = {"to": "latest", "topic": name, "partition": 9}
    bad(http.ask("POST", reset, wrong), 404, "UNKNOWN_PARTITION")
    bad(http.ask("GET", "/groups/no%20name"), 400, "INVALID_NAME")
    bad(http.ask("GET", "/groups/no-such"), 404, "UNKNOWN_GROUP")
    bad(http.ask("GET", reset), 405, "METHOD_NOT_ALLOWED")
    assert topic in [row["group"] for row in good(http.ask("GET", "/groups"))["groups"]]
