"""What is answered, against what `/openapi.json` says of it: each member of a row stands there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.gateways import Client, bad, good
from support.processes import wait_for

pytestmark = pytest.mark.slow
NewTopic = Callable[..., str]
# What may be another a moment later.
MOVING = {"leader", "term", "silent", "end", "bytes"}


def schema_of(http: Client, method: str, path: str) -> dict[str, Any]:
    """The members of a success, by name, without the status."""
    operation = good(http.ask("GET", "/openapi.json"))["paths"][path][method.lower()]
    content = operation["responses"]["200"]["content"]["application/json"]
    found: dict[str, Any] = content["schema"]["properties"]
    return {name: schema for name, schema in found.items() if name != "status"}


def members_of(answer: dict[str, Any]) -> set[str]:
    return answer.keys() - {"status"}


def test_every_member_of_a_broker_is_named(http: Client) -> None:
    named = schema_of(http, "GET", "/brokers/{broker_id}")
    one = good(http.ask("GET", "/brokers/2"))
    assert members_of(one) == named.keys()
    assert one["used_bytes"] > 0 < one["free_bytes"] and not (one["draining"] or one["disk_low"])
    rows = schema_of(http, "GET", "/brokers")["brokers"]["items"]["properties"]
    (row, *_) = good(http.ask("GET", "/brokers"))["brokers"]
    assert row.keys() == rows.keys() == named.keys()


def test_one_topic_is_shown_as_in_the_list(http: Client, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    wait_for("leaders", lambda: all(row["leader"] for row in shown(http, topic)["partitions"]))
    one = shown(http, topic)
    rows = good(http.ask("GET", "/topics", detail=1))["topics"]
    (row,) = [row for row in rows if row["topic"] == topic]
    assert row.keys() == members_of(one) and row["settings"] == one["settings"]
    assert (one["topic"], one["replication"], one["messages"]) == (topic, 3, 0)
    assert [steady(part) for part in row["partitions"]] == [
        steady(part) for part in one["partitions"]
    ]
    named = schema_of(http, "GET", "/topics/{topic}")
    assert members_of(one) == named.keys()
    assert one["partitions"][0].keys() == named["partitions"]["items"]["properties"].keys()


def shown(http: Client, topic: str) -> dict[str, Any]:
    return good(http.ask("GET", f"/topics/{topic}"))


def steady(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in MOVING}


def test_a_topic_that_is_none_is_not_shown(http: Client, topic: str) -> None:
    bad(http.ask("GET", f"/topics/{topic}"), 404, "UNKNOWN_TOPIC")
    bad(http.ask("GET", "/topics/no%20name"), 400, "INVALID_NAME")


def test_partitions_say_who_is_to_lead_and_who_is_silent(http: Client, new_topic: NewTopic) -> None:
    topic = new_topic(2)

    def first() -> dict[str, Any]:
        return good(http.ask("GET", "/partitions", topic=topic, partition=0))

    found = wait_for("a leader", lambda: (row := first())["leader"] and row)
    assert found["term"] > 0 and (found["leaving"], found["silent"]) == ([], [])
    assert found["preferred"] == found["brokers"][0]["id"]
    named = schema_of(http, "GET", "/partitions")
    assert members_of(found) | {"partitions"} == named.keys()
    (row, _) = good(http.ask("GET", "/partitions", topic=topic))["partitions"]
    assert row.keys() == named["partitions"]["items"]["properties"].keys()
