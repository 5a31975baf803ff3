"""Brokers come and go over HTTP (P4, K6): with the agent of `myq up`, and without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agents import myq, one_of_each
from support.gateways import Client, bad, good
from support.processes import Cluster, free_ports, wait_for

from myqueue import Producer, errors

pytestmark = pytest.mark.slow


def test_p4_a_broker_that_runs_is_named_by_its_address(http: Client, cluster: Cluster) -> None:
    port = cluster.ports["broker", 2][0]
    for values in (
        {"address": f"127.0.0.1:{port}"},
        {"broker_addr": f"tcp://127.0.0.1:{port}"},
        {"broker_addr": "localhost", "port": str(port)},
        {"port": port},
    ):
        found = good(http.ask("POST", "/broker", values))
        assert (found["broker_id"], found["state"]) == (2, "active"), values
    (nobody,) = free_ports(1)
    bad(http.ask("POST", "/brokers", {"port": nobody}), 503, "UNREACHABLE")
    manager = f"127.0.0.1:{cluster.ports['manager', 1][0]}"
    refused = bad(http.ask("POST", "/brokers", {"address": manager}), 400, "INVALID_REQUEST")
    assert "manager 1" in refused["message"]
    bad(http.ask("POST", "/brokers", {"address": "127.0.0.1"}), 400, "INVALID_REQUEST")
    bad(http.ask("POST", "/brokers", {"address": "a:1", "port": 2}), 400, "INVALID_REQUEST")
    bad(http.ask("POST", "/brokers", {"address": "a b", "port": 2}), 400, "INVALID_SETTING")


def test_p4_what_can_not_be_done_is_refused(
    http: Client, cluster: Cluster, topic: str, new_topic: Any
) -> None:
    """Without an agent none is started; three copies need three brokers; nothing is lost so."""
    new_topic()
    alone = bad(http.ask("POST", "/brokers"), 503, "UNREACHABLE")
    assert not alone["retriable"] and "bin/myq-broker" in alone["hint"]
    for path, more in (("/brokers/3/drain", {}), ("/brokers/3", {"drain": 1})):
        method = "POST" if path.endswith("drain") else "DELETE"
        bad(http.ask(method, path, **more), 409, "TOO_FEW_BROKERS")
    single = f"0-{topic}"  # the answer names the first few, and other tests have topics too
    cluster.admin.create_topic(single, partitions=3, replication=1)
    holder = cluster.leader_of(single)[1]
    refused = bad(http.ask("DELETE", f"/brokers/{holder}"), 409, "BROKER_IN_USE")
    assert f"{single}/0" in refused["message"] and refused["outcome"] == "none"
    for method, path in (
        ("DELETE", "/brokers/99"),
        ("DELETE", "/brokers/99?drain=1"),
        ("POST", "/brokers/99/drain"),
        ("POST", "/brokers/99/undrain"),
    ):
        bad(http.ask(method, path), 404, "UNKNOWN_BROKER")
    bad(http.ask("DELETE", "/brokers/x"), 400, "INVALID_REQUEST")
    assert good(http.ask("GET", "/brokers/3"))["state"] == "active"
    good(http.ask("POST", "/brokers/3/undrain"))
    cluster.admin.delete_topic(single)


# -- with an agent --------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with one_of_each(tmp_path) as home:
        yield home


def test_p4_a_broker_is_started_emptied_and_removed(home: Path) -> None:
    """With messages in it: all of them are there afterwards. The same request again goes on."""
    found = json.loads(myq(home, "status", "--json"))
    managers = [row["address"] for row in found["daemons"] if row["kind"] == "manager"]
    with (
        Client([int(found["gateway"].rpartition(":")[2])]) as http,
        Producer(managers[0]) as producer,
    ):
        good(http.ask("POST", "/topics", {"topic": "t", "partitions": 4, "replication": 1}))
        producer.send_many("t", [b"%d" % n for n in range(100)]).result(30)
        bad(http.ask("DELETE", "/brokers/1"), 409, "BROKER_IN_USE")
        bad(http.ask("POST", "/brokers/1/drain"), 409, "TOO_FEW_BROKERS")
        key = {"Idempotency-Key": "one more"}
        for _ in range(2):
            added = good(http.ask("POST", "/brokers", {"wait_ms": 30_000}, headers=key))
            assert (added["broker_id"], added["state"]) == (2, "active"), added
        assert [row["id"] for row in good(http.ask("GET", "/brokers"))["brokers"]] == [1, 2]
        begun = good(http.ask("DELETE", "/brokers/1", drain=1))
        assert not begun["removed"] and "GET /brokers/1" in begun["message"], begun
        assert good(http.ask("GET", "/brokers/1"))["state"] in ("draining", "drained")

        def is_removed() -> bool:
            gone = good(http.ask("DELETE", "/brokers/1", drain=1, wait_ms=2_000, headers=None))
            assert not gone["lost"]
            if gone["removed"]:
                assert gone["stopped"] and "process stopped" in gone["message"]
            return bool(gone["removed"])

        wait_for("broker 1 is removed", is_removed, 60)
        bad(http.ask("GET", "/brokers/1"), 404, "UNKNOWN_BROKER")
        bad(http.ask("DELETE", "/brokers/1"), 404, "UNKNOWN_BROKER")
        kept = [row["id"] for row in json.loads(myq(home, "status", "--json"))["daemons"]]
        assert kept.count(2) == 1 and (home / "myq-data" / "broker-1.removed-1").is_dir()
        reader = good(http.ask("POST", "/consumers", {"topic": "t"}))["consumer_id"]
        asked = {"topic": "t", "consumer_id": reader, "max": 200}
        rows = good(http.ask("GET", "/consumer/consume", **asked))["messages"]
        assert sorted(int(row["message"]) for row in rows) == list(range(100))
        last = bad(http.ask("DELETE", "/brokers/2"), 409, "BROKER_IN_USE")
        assert "only one" in last["message"]
        assert last["code"] == errors.BrokerInUse.code
