"""Batches that nobody can unpack, over HTTP: told with the way on, or passed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from support.batches import forged
from support.gateways import Client, Gateway, bad, good
from support.processes import Cluster

from myqueue import MyConsumer, Producer, errors
from myqueue.cluster.leader_request import ask_leader
from myqueue.cluster.session import Session
from myqueue.wire import protocol as words

pytestmark = pytest.mark.slow


def poisoned(count: int) -> bytes:
    """A batch that brokers take: only its last value is of no use."""
    values: list[Any] = [b"v"] * (count - 1)
    body: bytes = msgpack.packb(([*values, 7], None, None, None))
    return forged(body, count)


@pytest.fixture
def filled(new_topic: Callable[..., str], cluster: Cluster) -> str:
    """Offsets 3 to 6 of ten can't be read."""
    name = new_topic()
    with Session(cluster.address, name="test") as session:
        (topic,) = session.ensure_topics([name]).result(20)
        with Producer(session) as producer:
            producer.send_many(name, [b"0", b"1", b"2"]).result(20)
            ask_leader(
                session,
                topic.partitions[0],
                words.PRODUCE,
                ([topic.partitions[0].group],),
                [poisoned(4)],
                timeout_ms=20_000,
            ).result(20)
            producer.send_many(name, [b"7", b"8", b"9"]).result(20)
    return name


def consumer(http: Client, topic: str) -> int:
    return int(good(http.ask("POST", "/consumer/register", {"topic": topic}))["consumer_id"])


PATHS = {"consume": "/consumer/consume", "logs": "/logs", "messages": "/messages"}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_exactly_it_is_passed_over(http: Client, filled: str, path: str) -> None:
    number, found, skipped = consumer(http, filled), [], []
    asked = {"consumer_id": number, "partition": 0, "on_damaged": "skip"}
    for call in range(6):
        key = {"Idempotency-Key": f"{path} {call}"}
        answer = good(http.ask("GET", path, asked, headers=key))
        assert good(http.ask("GET", path, asked, headers=key)) == answer, "the same message again"
        found.append((answer["offset"], answer["message"]))
        skipped += answer.get("skipped", [])
    assert found == [(at, str(at)) for at in (0, 1, 2, 7, 8, 9)]
    assert skipped == [{"topic": filled, "partition": 0, "offset": 3, "count": 4}]
    assert http.ask("GET", path, asked)[1]["empty"] is True


@pytest.mark.parametrize("key", ["", "again"])
@pytest.mark.parametrize("wait_ms", [0, 500])
def test_the_error_says_how_to_go_on(http: Client, filled: str, key: str, wait_ms: int) -> None:
    headers = {"Idempotency-Key": key} if key else {}
    asked: dict[str, Any] = {
        "topic": filled,
        "consumer_id": consumer(http, filled),
        "max": 9,
        "wait_ms": wait_ms,
    }
    told = http.ask("GET", "/consumer/consume", asked, headers=headers)
    answer = bad(told, 500, "BATCH_UNREADABLE")
    assert (answer["topic"], answer["partition"]) == (filled, 0)
    assert (answer["offset"], answer["next_offset"]) == (3, 7)
    assert "offsets 3 to 6 can't be read" in answer["message"] and answer["outcome"] == "unknown"
    assert "on_damaged=skip" in answer["hint"] and "offset 7" in answer["hint"]
    taken = [row["offset"] for row in answer["messages"]]
    assert taken == [0, 1, 2, 7, 8], "all that was taken and can be read"
    asked["on_damaged"] = "skip"
    rest = good(http.ask("GET", "/consumer/consume", asked, headers=headers))
    assert [row["offset"] for row in rest["messages"]] == (taken if key else [9])
    asked["on_damaged"] = "ignore"
    refused = bad(http.ask("GET", "/consumer/consume", asked), 400, "INVALID_REQUEST")
    assert "one of raise, skip" in refused["message"]


def test_my_consumer(gateway: Gateway, filled: str) -> None:
    with MyConsumer([filled], gateway.url, idle_timeout=1, on_damaged="skip") as one:
        assert [message.offset for message in one.get_next()] == [0, 1, 2, 7, 8, 9]
        assert one.skipped() == {(filled, 0): 4}
    with MyConsumer([filled], gateway.url, idle_timeout=1) as one:
        found: list[int] = []
        for _ in range(4):
            with pytest.raises(errors.BatchUnreadable) as caught:
                found += [message.offset for message in one.get_next()]
            assert (caught.value.offset, caught.value.next_offset) == (3, 7)
        found = [message.offset for message in one.get_next()]
        assert found == [7, 8, 9] and one.skipped() == {}
