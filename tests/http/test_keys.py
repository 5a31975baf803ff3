"""`Idempotency-Key`: a repeat gets the first answer, by any gateway, after any restart (H4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.gateways import Client, Gateway
from support.processes import Cluster

pytestmark = pytest.mark.slow
NewTopic = Callable[..., str]


def keyed(client: Client, method: str, path: str, values: dict[str, Any], key: str) -> Any:
    headers = {"Idempotency-Key": key}
    if method == "GET":
        status, answer = client.ask(method, path, headers=headers, **values)
    else:
        status, answer = client.ask(method, path, values, headers=headers)
    assert status == 200, answer
    return answer


def refused(client: Client, path: str, values: dict[str, Any], key: str) -> tuple[int, str, str]:
    status, answer = client.ask("POST", path, values, headers={"Idempotency-Key": key})
    return status, answer["name"], answer["outcome"]


@pytest.fixture
def others(folder: Path, cluster: Cluster, gateway: Gateway) -> Any:
    """The same gateway again, another one, and that one after it was killed and started again."""
    other = Gateway(folder, cluster.address, "other").start()

    def clients() -> Any:
        yield Client([gateway.port])
        yield Client([other.port])
        other.kill()
        other.start()
        yield Client([other.port])

    yield clients
    other.check()
    other.kill()


def test_produce(http: Client, new_topic: NewTopic, others: Any) -> None:
    topic = new_topic(3)
    _, made = http.ask("POST", "/producer/register", {"topic": topic})
    said = {"topic": topic, "producer_id": made["producer_id"]}
    requests = {
        "one": {"message": "1"},
        "with-key": {"message": "2", "key": "k"},
        "named": {"message": "3", "partition": 1},
        "many": {"messages": ["4", "5", "6"]},
        "spread": {"messages": [{"message": str(n), "key": str(n)} for n in range(7, 17)]},
    }
    first = {
        key: keyed(http, "POST", "/producer/produce", said | more, key)
        for key, more in requests.items()
    }
    for client in others():
        for key, more in requests.items():
            again = keyed(client, "POST", "/producer/produce", said | more, key)
            assert again == first[key], key
        client.close()
    for key, more in (
        ("many", {"messages": ["4", "5"]}),
        ("many", {"messages": ["4", "5", "7"]}),
        ("one", {"message": "2"}),
        ("named", {"message": "4", "partition": 1}),
        ("with-key", {"message": "3", "key": "k"}),
    ):
        assert refused(http, "/producer/produce", said | more, key) == (409, "KEY_REUSED", "none")
    _, reader = http.ask("POST", "/consumer/register", {"topic": topic})
    found = keyed(
        http,
        "GET",
        "/consumer/consume",
        {"topic": topic, "consumer_id": reader["consumer_id"], "max": 100},
        "all",
    )
    texts = sorted(int(row["message"]) for row in found["messages"])
    assert texts == list(range(1, 17))


def test_a_key_belongs_to_who_sent_it(http: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    places = []
    for _ in range(2):
        _, made = http.ask("POST", "/producer/register", {"topic": topic})
        body = {"topic": topic, "producer_id": made["producer_id"], "message": "x"}
        places.append(keyed(http, "POST", "/producer/produce", body, "same")["offset"])
    assert places == [0, 1]
    status, answer = http.ask(
        "POST", "/producer/produce", body, headers={"Idempotency-Key": "x" * 300}
    )
    assert (status, answer["name"]) == (400, "INVALID_REQUEST")


def test_consume(http: Client, new_topic: NewTopic, others: Any) -> None:
    """Also where the way led through partitions that were empty then, and are not any more."""
    topic = new_topic(3)
    _, made = http.ask("POST", "/producer/register", {"topic": topic})
    said = {"topic": topic, "producer_id": made["producer_id"], "partition": 1}
    _, reader = http.ask("POST", "/consumer/register", {"topic": topic})
    wanted = {"topic": topic, "consumer_id": reader["consumer_id"]}
    for number in range(8):
        http.ask("POST", "/producer/produce", said | {"message": str(number)})
    first = {key: keyed(http, "GET", "/consumer/consume", wanted, key) for key in ("a", "b", "c")}
    assert [row["message"] for row in first.values()] == ["0", "1", "2"]
    first["d"] = keyed(http, "GET", "/consumer/consume", wanted | {"wait_ms": 2000}, "d")
    first["e"] = keyed(http, "GET", "/consumer/consume", wanted | {"max": 3}, "e")
    for partition in (0, 2):
        http.ask("POST", "/producer/produce", said | {"partition": partition, "message": "later"})
    more = {"d": {"wait_ms": 100}, "e": {"max": 3}}
    for client in others():
        for key, answer in first.items():
            again = keyed(client, "GET", "/consumer/consume", wanted | more.get(key, {}), key)
            assert again == answer, key
        client.close()
    fewer = refused(http, "/consumer/consume", wanted | {"max": 2}, "e")
    assert fewer == (409, "KEY_REUSED", "none"), "three were taken with it"
    rest = keyed(http, "GET", "/consumer/consume", wanted | {"max": 10}, "rest")["messages"]
    assert sorted(row["message"] for row in rest) == ["7", "later", "later"]


def test_changes_of_the_cluster(http: Client, topic: str, others: Any) -> None:
    body = {"topic": topic, "partitions": 2}
    key = f"create {topic}"
    first = keyed(http, "POST", "/topics", body, key)
    consumer = keyed(http, "POST", "/consumer/register", {"topic": topic}, key)
    producer = keyed(http, "POST", "/producer/register", {"topic": topic}, key)
    added = keyed(http, "POST", "/partitions", {"topic": topic}, key)
    setting = {"inactive_ms": 31_000}
    changed = keyed(http, "POST", "/settings", setting, key)
    assert changed["settings"].items() >= setting.items()
    back = {"settings": {"inactive_ms": None}}
    assert http.ask("POST", "/settings", back)[1]["settings"]["inactive_ms"] == 30_000
    for client in others():
        assert keyed(client, "POST", "/topics", body, key) == first
        assert keyed(client, "POST", "/consumer/register", {"topic": topic}, key) == consumer
        again = keyed(client, "POST", "/producer/register", {"topic": topic}, key)
        assert again == producer | {"partitions": [0, 1, 2]}  # those that there are now
        assert keyed(client, "POST", "/partitions", {"topic": topic}, key) == added
        assert keyed(client, "POST", "/settings", setting, key) == changed
        client.close()
    assert http.ask("POST", "/topics", body)[0] == 409
    for other in ({"partitions": 3}, {"retention_ms": 60_000}):
        assert refused(http, "/topics", body | other, key) == (409, "KEY_REUSED", "none")
    assert refused(http, "/settings", {"inactive_ms": 32_000}, key)[:2] == (409, "KEY_REUSED")
    now = http.ask("GET", "/settings")[1]["settings"]
    assert now["inactive_ms"] == 30_000, "a repeat changes nothing"
