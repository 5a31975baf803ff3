"""What probes say of a cluster where something is wrong: all of it, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support.gateways import Client, Gateway, bad, good
from support.processes import Cluster, wait_for

pytestmark = pytest.mark.slow
TOKEN = "reader-token-0123456789"
MANY = 300  # partitions: leaderless and without a replica, more than managers tell at once


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker: without it, nothing has a leader."""
    with Cluster(tmp_path_factory.mktemp("small"), managers=1, brokers=1) as cluster:
        cluster.admin.create_topic("orders", partitions=7)
        cluster.wait_healthy()
        yield cluster


@pytest.fixture(scope="module")
def probed(small: Cluster) -> Iterator[Client]:
    with (
        Gateway(small.folder, small.address) as gateway,
        Client([gateway.port]) as http,
    ):
        yield http
        gateway.check()


@pytest.fixture(scope="module")
def with_tokens(small: Cluster) -> Iterator[Client]:
    """A gateway that asks for a token; this client has none."""
    file = small.folder / "tokens"
    file.write_text(f"read {TOKEN} reader\nwrite {TOKEN}-writes writer")
    file.chmod(0o600)
    with (
        Gateway(small.folder, small.address, "tokens", tokens=file) as gateway,
        Client([gateway.port]) as http,
    ):
        yield http
        gateway.check()


def failed(http: Client, kind: str, count: int) -> dict[str, Any]:
    """What /healthz says when so many problems of a kind are known."""

    def look() -> dict[str, Any] | None:
        status, answer = http.ask("GET", "/healthz")
        kinds = Counter(row["problem"] for row in answer.get("problems", ()))
        return bad((status, answer), 503, "NOT_READY") if kinds[kind] == count else None

    found: dict[str, Any] = wait_for(f"{count} are {kind}", look, 60)
    return found


def test_healthz_lists_everything_when_something_stops(
    small: Cluster, probed: Client, with_tokens: Client
) -> None:
    well = good(probed.ask("GET", "/healthz"))
    assert well["problems"] == [] and "omitted" not in well
    assert "problems" not in good(with_tokens.ask("GET", "/healthz"))
    small.kill(("broker", 1))
    found = failed(probed, "leaderless", 7)
    assert Counter(row["problem"] for row in found["problems"]) == {
        "broker-silent": 1,
        "leaderless": 7,
        "under-replicated": 7,
    }
    rows = [row for row in found["problems"] if row["problem"] == "leaderless"]
    assert [(row["topic"], row["partition"]) for row in rows] == [("orders", n) for n in range(7)]
    assert "omitted" not in found and found["outcome"] == "none" and found["retriable"]
    shown = ", ".join(f"orders/{number}" for number in range(5))
    assert found["message"] == f"7 partitions without a leader: {shown} and 2 more"
    ready = bad(probed.ask("GET", "/readyz"), 503, "NOT_READY")
    assert ready["message"] == found["message"] and "/healthz" in ready["hint"]
    assert "problems" not in ready
    for path in ("/healthz", "/readyz"):
        for token in ("", "wrong-token-0123456789", f"{TOKEN}-writes"):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            told = bad(with_tokens.ask("GET", path, headers=headers), 503, "NOT_READY")
            assert told["message"] == "7 problems" and "orders" not in str(told)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        told = bad(with_tokens.ask("GET", path, headers=headers), 503, "NOT_READY")
        assert told["message"] == found["message"]
        assert ("problems" in told) == (path == "/healthz")
    small.start(("broker", 1))
    small.wait_healthy()
    wait_for("it is well", lambda: good(probed.ask("GET", "/healthz"))["problems"] == [])


def test_how_many_more_there_are_is_said(small: Cluster, probed: Client) -> None:
    small.admin.create_topic("many", partitions=MANY)
    small.kill(("broker", 1))
    left_out = 1 + 2 * (MANY + 7) - 500  # the broker, and twice each partition

    def all_are_told() -> bool:
        found = bad(probed.ask("GET", "/healthz"), 503, "NOT_READY")
        return len(found["problems"]) == 500 and found["omitted"] == left_out

    wait_for("all are told", all_are_told, 60)


def test_what_may_not_fail_any_more_is_named(http: Client, cluster: Cluster) -> None:
    """One of three managers is silent: two are a majority, and one would be none."""
    (_, leader) = cluster.managers_leader()
    other = ("manager", leader % 3 + 1)
    cluster.kill(other)
    said = f"manager {other[1]} is silent"

    def critical() -> bool:
        return http.ask("GET", "/readyz?check=quorum-critical")[1]["message"] == said

    wait_for(said, critical, 60)
    silent = {"problem": "manager-silent", "node": other[1]}
    assert silent in good(http.ask("GET", "/healthz"))["problems"]
    cluster.start(other)
    cluster.wait_healthy()


def test_the_list_is_documented_for_both_answers(http: Client) -> None:
    responses = good(http.ask("GET", "/openapi.json"))["paths"]["/healthz"]["get"]["responses"]
    well, wrong = (
        responses[status]["content"]["application/json"]["schema"] for status in ("200", "503")
    )
    form, beside = wrong["allOf"]
    assert form == {"$ref": "#/components/schemas/Failure"}
    for name in ("problems", "omitted"):
        assert well["properties"][name] == beside["properties"][name]
