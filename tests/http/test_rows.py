"""Every row of the API against real daemons: what it does, how it may be asked, how it refuses."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.gateways import Client, Gateway, ask

pytestmark = pytest.mark.slow
NewTopic = Callable[..., str]


def good(answer: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    assert answer[0] == 200, answer
    return answer[1]


def bad(answer: tuple[int, dict[str, Any]], status: int, name: str) -> dict[str, Any]:
    assert (answer[0], answer[1]["name"]) == (status, name), answer
    return answer[1]


def register(http: Client, topic: str) -> tuple[int, int]:
    producer = good(http.ask("POST", "/producer/register", {"topic": topic}))["producer_id"]
    consumer = good(http.ask("POST", "/consumer/register", {"topic": topic}))["consumer_id"]
    return producer, consumer


def produce(http: Client, topic: str, producer: int, message: str, **more: Any) -> dict[str, Any]:
    body = {"topic": topic, "producer_id": producer, "message": message, **more}
    return good(http.ask("POST", "/producer/produce", body))


def consume(http: Client, topic: str, consumer: int, **more: Any) -> dict[str, Any]:
    query = {"topic": topic, "consumer_id": consumer, **more}
    return good(http.ask("GET", "/consumer/consume", **query))


def test_topics_are_created_once_listed_and_deleted(http: Client, topic: str) -> None:
    """Q1, Q2: a second creation of the same name fails with an informative message."""
    found = good(
        http.ask("POST", "/topics", {"topic": topic, "partitions": 2, "retention_ms": 9**9})
    )
    assert found["message"] == f"Topic '{topic}' created successfully"
    again = bad(http.ask("POST", "/topics", {"name": topic}), 409, "TOPIC_EXISTS")
    assert topic in again["message"] and again["component"].startswith("manager ")
    assert topic in good(http.ask("GET", "/topics"))["topics"]
    rows = good(http.ask("GET", "/topics", detail=1))["topics"]
    (row,) = [row for row in rows if row["topic"] == topic]
    assert row["settings"]["retention_ms"] == 9**9 and len(row["partitions"]) == 2
    settings = f"/topics/{topic}/settings"
    changed = good(http.ask("POST", settings, {"retention_ms": 60_000, "retention_bytes": 5}))
    assert changed["settings"].items() >= {"retention_ms": 60_000, "retention_bytes": 5}.items()
    changed = good(http.ask("POST", settings, {"settings": {"retention_ms": None}}))
    assert changed["settings"].items() >= {"retention_ms": 0, "retention_bytes": 5}.items()
    bad(http.ask("POST", settings, {}), 400, "INVALID_REQUEST")
    bad(http.ask("POST", settings, {"colour": 1}), 400, "INVALID_SETTING")
    bad(http.ask("POST", "/topics/no-such/settings", {"retention_ms": 1}), 404, "UNKNOWN_TOPIC")
    bad(http.ask("POST", "/topics", {"topic": f"{topic}-x", "colour": 1}), 400, "INVALID_SETTING")
    bad(
        http.ask("POST", "/topics", {"topic": f"{topic}-x", "replication": 9}),
        409,
        "TOO_FEW_BROKERS",
    )
    for name in ("a/b", "", "\ud800", 5, "x" * 201):
        bad(http.ask("POST", "/topics", {"topic": name}), 400, "INVALID_NAME")
    huge = {"topic": f"{topic}-x", "retention_ms": 1 << 70}
    bad(http.ask("POST", "/topics", huge), 400, "INVALID_REQUEST")
    good(http.ask("DELETE", f"/topics/{topic}"))
    bad(http.ask("DELETE", f"/topics/{topic}"), 404, "UNKNOWN_TOPIC")
    assert topic not in good(http.ask("GET", "/topics"))["topics"]


def test_ids_belong_to_a_topic(http: Client, new_topic: NewTopic, topic: str) -> None:
    """Q3, Q4, Q5: errors for unknown topic, unknown id, id of another topic."""
    bad(http.ask("POST", "/consumer/register", {"topic": topic}), 404, "UNKNOWN_TOPIC")
    made = good(http.ask("POST", "/producers", {"topic": topic}))  # Q4: creates the topic
    assert isinstance(made["producer_id"], int)
    other = new_topic(2, "-other")
    producer, consumer = register(http, other)
    found = good(http.ask("POST", "/consumers", {"topic_name": other}))
    assert found["partitions"] == [0, 1] and found["consumer_id"] > consumer
    body = {"topic": topic, "producer_id": producer, "message": "x"}
    bad(http.ask("POST", "/producer/produce", body), 409, "WRONG_TOPIC")
    bad(http.ask("POST", "/producer/produce", body | {"producer_id": 9**9}), 404, "UNKNOWN_CLIENT")
    bad(http.ask("POST", "/producer/produce", body | {"topic": "no-such"}), 404, "UNKNOWN_TOPIC")
    query: dict[str, Any] = {"topic": topic, "consumer_id": consumer}
    for path in ("/consumer/consume", "/size"):
        bad(http.ask("GET", path, **query), 409, "WRONG_TOPIC")
        bad(http.ask("GET", path, **query | {"consumer_id": 9**9}), 404, "UNKNOWN_CLIENT")
        bad(http.ask("GET", path, **query | {"topic": "no-such"}), 404, "UNKNOWN_TOPIC")


def test_every_consumer_gets_every_message(http: Client, new_topic: NewTopic) -> None:
    """Q6, Q7, P6: removes the next message for this consumer; nothing left is no error."""
    topic = new_topic()
    producer, consumer = register(http, topic)
    other = good(http.ask("POST", "/consumer/register", topic=topic))["consumer_id"]
    places = [produce(http, topic, producer, f"m{n}") for n in range(3)]
    assert [row["offset"] for row in places] == [0, 1, 2]
    size = {"topic": topic, "consumer_id": consumer}
    for left, text in ((3, "m0"), (2, "m1"), (1, "m2")):
        assert good(http.ask("GET", "/size", **size))["size"] == left
        found = consume(http, topic, consumer)
        assert (found["message"], found["partition"]) == (text, 0)
    empty = consume(http, topic, consumer)
    assert empty["message"] is None and empty["empty"] is True
    assert good(http.ask("GET", "/size", {"topic": topic, "consumer_id": str(other)}))["size"] == 3
    taken = consume(http, topic, other, max=10)["messages"]
    assert [row["message"] for row in taken] == ["m0", "m1", "m2"]
    assert consume(http, topic, other, max=10)["messages"] == []


def test_every_spelling_of_a_request(http: Client, new_topic: NewTopic) -> None:
    """Query and body, every name, numbers and digits, GET with a body, POST to consume."""
    topic = new_topic(2)
    producer, consumer = register(http, topic)
    bodies: list[dict[str, Any]] = [
        {"topic": topic, "producer_id": producer, "message": "1", "partition": 0},
        {
            "topic_name": topic,
            "producer_id": str(producer),
            "log_message": "2",
            "partition_id": "0",
        },
        {"name": topic, "id": producer, "message": "3", "partition": "0"},
    ]
    for body in bodies:
        assert good(http.ask("POST", "/producer/produce", body))["partition"] == 0
    for body in bodies:
        good(http.ask("POST", "/producer/produce", **body))
    good(http.ask("POST", "/producer/produce", {"message": "7"}, **bodies[0] | {"message": "7"}))
    texts = []
    where: dict[str, Any] = {"topic": topic, "consumer_id": consumer, "partition": 0}
    for method, in_body in (("GET", True), ("GET", False), ("POST", True), ("POST", False)):
        answer = (
            http.ask(method, "/consumer/consume", where)
            if in_body
            else http.ask(method, "/consumer/consume", **where)
        )
        texts.append(good(answer)["message"])
    texts.append(good(http.ask("GET", "/logs", where))["message"])
    texts.append(good(http.ask("GET", "/messages", **where))["message"])
    texts.append(
        good(http.ask("GET", "/consumer/consume", {"topic_name": topic}, id=consumer))["message"]
    )
    assert texts == ["1", "2", "3", "1", "2", "3", "7"]
    odd = dict(bodies[0], topic_name="another")
    bad(http.ask("POST", "/producer/produce", odd), 400, "INVALID_REQUEST")
    bad(http.ask("POST", "/producer/produce", bodies[0], topic="another"), 400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "change",
    [
        {"producer_id": None},
        {"producer_id": "x"},
        {"producer_id": -1},
        {"producer_id": 1.5},
        {"producer_id": True},
        {"message": None},
        {"message": 5},
        {"message": "\ud800"},
        {"partition": "one"},
        {"encoding": "rot13"},
        {"message": "*", "encoding": "base64"},
        {"messages": []},
        {"messages": "x"},
        {"messages": ["a"]},
    ],
)
def test_what_is_missing_or_wrong_is_named(
    http: Client, new_topic: NewTopic, change: dict[str, Any]
) -> None:
    topic = new_topic()
    producer, _ = register(http, topic)
    body = {"topic": topic, "producer_id": producer, "message": "x"} | change
    answer = bad(http.ask("POST", "/producer/produce", body), 400, "INVALID_REQUEST")
    assert any(name in answer["message"] for name in change), answer


@pytest.mark.parametrize("body", [b"{", b"[1]", b"5", b"\xff", b'{"a": NaN}', b"[" * 5000])
def test_only_json_objects_are_taken(http: Client, body: bytes) -> None:
    bad(http.ask("POST", "/topics", body), 400, "MALFORMED")


def test_partitions_are_named_counted_and_added(http: Client, new_topic: NewTopic) -> None:
    """P3, K5, K6: a named partition; 404 for one that is not there; more of them."""
    topic = new_topic(2)
    producer, consumer = register(http, topic)
    wrong = {"topic": topic, "producer_id": producer, "message": "x", "partition": 2}
    assert not bad(http.ask("POST", "/logs", wrong), 404, "UNKNOWN_PARTITION")["retriable"]
    bad(http.ask("POST", "/logs", {**wrong, "partition": None}), 400, "INVALID_REQUEST")
    query = {"topic": topic, "consumer_id": consumer, "partition": 2}
    for path in ("/logs", "/messages", "/size", "/consumer/consume"):
        bad(http.ask("GET", path, **query), 404, "UNKNOWN_PARTITION")
    added = good(http.ask("POST", "/partitions", {"topic": topic, "producer_id": producer}))
    assert added["partition"] == 2 and added["partitions"] == [2]
    good(http.ask("POST", "/messages", wrong))
    assert good(http.ask("GET", "/size", **query))["size"] == 1
    rows = good(http.ask("GET", "/partitions", topic=topic))["partitions"]
    assert [row["partition"] for row in rows] == [0, 1, 2]
    one = good(http.ask("GET", "/partitions", topic=topic, partition=2))
    assert len(one["brokers"]) == 3 and one["leader"] in one["brokers"]
    bad(http.ask("GET", "/partitions", topic=topic, partition=3), 404, "UNKNOWN_PARTITION")
    bad(http.ask("GET", "/partitions", topic="no-such"), 404, "UNKNOWN_TOPIC")
    assert consume(http, topic, consumer, max=5)["messages"][0]["partition"] == 2


def test_batches_keys_and_bytes(http: Client, new_topic: NewTopic) -> None:
    """A list in one request; base64 both ways; equal keys share a partition."""
    topic = new_topic(3)
    producer, consumer = register(http, topic)
    raw = b"\xff\x00bytes"
    coded = base64.b64encode(raw).decode()
    said = {"topic": topic, "producer_id": producer}
    found = good(http.ask("POST", "/producer/produce", {**said, "messages": ["a", "b"] * 20}))
    assert len(found["offsets"]) == 40
    keyed = [{"message": f"k{n}", "key": f"key {n % 5}"} for n in range(20)]
    found = good(http.ask("POST", "/producer/produce", {**said, "messages": keyed}))
    partitions = found.get("partitions", [found["partition"]] * 20)
    assert all(len({partitions[n] for n in range(m, 20, 5)}) == 1 for m in range(5))
    body = {**said, "message": coded, "key": coded, "encoding": "base64"}
    at = good(http.ask("POST", "/producer/produce", body))["partition"]
    mixed = [{"message": coded, "encoding": "base64"}, "ü"]
    good(http.ask("POST", "/producer/produce", {**said, "messages": mixed}))
    rows = consume(http, topic, consumer, max=200)["messages"]
    assert len(rows) == 63 and sum(row["message"] == "ü" for row in rows) == 1
    binary = [row for row in rows if row.get("encoding") == "base64"]
    assert [base64.b64decode(row["message"]) for row in binary] == [raw, raw]
    assert {row.get("key") for row in binary} == {coded, None} and binary[0]["partition"] in range(
        3
    )
    assert at in {row["partition"] for row in binary}
    produce(http, topic, producer, "text")
    assert base64.b64decode(consume(http, topic, consumer, encoding="base64")["message"]) == b"text"


def test_a_message_that_is_too_large(http: Client, topic: str) -> None:
    good(http.ask("POST", "/topics", {"topic": topic, "settings": {"message_bytes_max": 1000}}))
    producer, _ = register(http, topic)
    body = {"topic": topic, "producer_id": producer, "message": "x" * 2000}
    bad(http.ask("POST", "/producer/produce", body), 413, "MESSAGE_TOO_LARGE")
    headers = {"Idempotency-Key": "k"}
    bad(http.ask("POST", "/producer/produce", body, headers=headers), 413, "MESSAGE_TOO_LARGE")


def test_heartbeats_and_health(http: Client, new_topic: NewTopic) -> None:
    """P5, B7: who was heard when; any request counts as a heartbeat."""
    topic = new_topic()
    producer, consumer = register(http, topic)
    good(http.ask("POST", "/producer/heartbeat", {"producer_id": producer}))
    good(http.ask("POST", "/consumer/heartbeat", id=consumer))
    bad(http.ask("POST", "/producer/heartbeat", id=9**9), 404, "UNKNOWN_CLIENT")
    bad(http.ask("POST", "/consumer/heartbeat", id=9**9), 404, "UNKNOWN_CLIENT")
    found = good(http.ask("GET", "/health"))
    for kind, number in (("producers", producer), ("consumers", consumer)):
        (row,) = [row for row in found[kind] if row["id"] == number]
        assert row["active"] and row["topic"] == topic and row["last_heartbeat_ms"]
    assert len(found["brokers"]) == len(found["managers"]) == 3


def test_brokers_raft_and_where(http: Client, new_topic: NewTopic) -> None:
    """K6: who they are, who leads, where a message is."""
    topic = new_topic()
    producer, _ = register(http, topic)
    produce(http, topic, producer, "x")
    for path in ("/brokers", "/broker"):
        rows = good(http.ask("GET", path))["brokers"]
        assert [row["id"] for row in rows] == [1, 2, 3]
        assert all(row["state"] == "active" and row["last_heartbeat_ms"] for row in rows)
    one = good(http.ask("GET", "/brokers/2"))
    assert (one["id"], one["state"], one["partitions_leaving"]) == (2, "active", 0)
    bad(http.ask("GET", "/brokers/99"), 404, "UNKNOWN_BROKER")
    managers = good(http.ask("GET", "/raft_status"))
    assert managers["leader"] in (1, 2, 3) and managers["commit"] >= managers["applied"] > 0
    group = good(http.ask("GET", "/raft_status", group=f"{topic}/0"))
    assert len(group["members"]) == 3 and group["term"] > 0
    bad(http.ask("GET", "/raft_status", group="nothing"), 400, "INVALID_REQUEST")
    bad(http.ask("GET", "/raft_status", group="no-such/0"), 404, "UNKNOWN_TOPIC")
    place = good(http.ask("GET", "/where", topic=topic, partition=0, offset=0))
    assert len(place["replicas"]) == 3 and len(place["group"]) == 16
    bad(http.ask("GET", "/where", topic=topic, partition=0, offset=7), 400, "OFFSET_OUT_OF_RANGE")
    bad(http.ask("GET", "/where", topic=topic, partition=9, offset=0), 404, "UNKNOWN_PARTITION")


def test_probes_and_paths_that_are_none(gateway: Gateway, http: Client) -> None:
    """H6: alive and ready are two questions; everything else has the contract's form."""
    for path in ("/", "/livez", "/readyz", "/readyz?check=quorum-critical", "/healthz"):
        good(http.ask("GET", path, headers={"Accept": "application/json"}))
    document = good(http.ask("GET", "/openapi.json"))
    assert document["openapi"].startswith("3.1") and "/where" in document["paths"]
    bad(http.ask("GET", "/no/such/path"), 404, "NOT_FOUND")
    bad(http.ask("PATCH", "/topics"), 405, "METHOD_NOT_ALLOWED")
    bad(http.ask("DELETE", "/consumer/consume"), 405, "METHOD_NOT_ALLOWED")
    bad(http.ask("GET", "/readyz?check=other"), 400, "INVALID_REQUEST")
    bad(http.ask("GET", "/topics?detail=%ff"), 400, "MALFORMED")
    assert http.ask("HEAD", "/topics")[0] == 200


def test_pages_of_other_origins_change_nothing(gateway: Gateway, http: Client) -> None:
    """H1: a browser on this machine would send what a foreign page tells it to."""
    foreign = {"Origin": "http://evil.example"}
    bad(http.ask("POST", "/topics", {"topic": "evil"}, headers=foreign), 403, "FORBIDDEN")
    own = {"Origin": gateway.url}
    bad(http.ask("POST", "/topics", {"topic": "e/vil"}, headers=own), 400, "INVALID_NAME")


def test_a_second_gateway_knows_what_the_first_did(
    http: Client, new_topic: NewTopic, cluster: Any, folder: Any
) -> None:
    """It holds no state: an id from one is used at another at once."""
    topic = new_topic()
    with Gateway(folder, cluster.address, "second") as second:
        for _ in range(5):
            producer, consumer = register(http, topic)
            body = {"topic": topic, "producer_id": producer, "message": "x"}
            good(ask(second.port, "POST", "/producer/produce", body))
            found = ask(second.port, "GET", "/consumer/consume", topic=topic, consumer_id=consumer)
            assert good(found)["message"] == "x"
        second.check()
        assert json.loads(json.dumps(good(ask(second.port, "GET", "/topics"))))["topics"]
        assert second.stop() < 10


def test_repair_state_is_told_of_every_daemon(http: Client) -> None:
    """W21: what is damaged somewhere, and what became of it, is told over HTTP too."""
    found = good(http.ask("GET", "/repairs"))
    assert (found["repairs"], found["silent"]) == ([], [])
    daemons = {row["daemon"] for row in found["scrubbers"]}
    assert {"manager 1", "broker 1"} <= daemons
    assert all(row["bytes_per_s"] > 0 for row in found["scrubbers"])
