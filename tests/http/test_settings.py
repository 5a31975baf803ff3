"""Settings of the cluster: looked at and changed over HTTP, shown in the console."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.gateways import Client, Gateway, bad, good
from support.processes import Cluster, wait_for

from myqueue import errors

pytestmark = pytest.mark.slow


@pytest.fixture
def changing(cluster: Cluster) -> Iterator[None]:
    """For tests that change what others rely on."""
    yield
    names = cluster.admin.cluster()["settings"]
    cluster.admin.alter_cluster(dict.fromkeys(names))


def settings(http: Client) -> dict[str, Any]:
    found: dict[str, Any] = good(http.ask("GET", "/settings"))["settings"]
    return found


def test_they_are_told_and_changed(http: Client, cluster: Cluster, changing: None) -> None:
    before = settings(http)
    assert before == cluster.admin.cluster()["settings"]
    assert (before["replace_after_ms"], before["moves_per_broker"]) == (300_000, 4)
    now = before
    for body, query, change in (
        ({"replace_after_ms": 600_000}, {}, {"replace_after_ms": 600_000}),
        (None, {"groups_max": "77"}, {"groups_max": 77}),
        (
            {"consumers_max": "88"},
            {"inactive_ms": 40_000},
            {"consumers_max": 88, "inactive_ms": 40_000},
        ),
        ({"settings": {"moves_per_broker": 0}}, {}, {"moves_per_broker": 0}),
        ({"settings": {"groups_max": None}}, {}, {"groups_max": 10_000}),
    ):
        now = now | change
        assert good(http.ask("POST", "/settings", body, **query))["settings"] == now
        assert settings(http) == cluster.admin.cluster()["settings"] == now
    nulls = dict.fromkeys(now)
    assert good(http.ask("POST", "/settings", {"settings": nulls}))["settings"] == before


def test_what_is_none_or_out_of_range_is_refused(http: Client) -> None:
    before = settings(http)
    bad(http.ask("POST", "/settings"), 400, "INVALID_REQUEST")
    bad(http.ask("POST", "/settings", {"settings": {}}), 400, "INVALID_REQUEST")
    bad(http.ask("POST", "/settings", {"settings": 5}), 400, "INVALID_REQUEST")
    for wrong in (
        {"retention_ms": 1},
        {"moves_per_broker": 1001},
        {"moves_per_broker": True},
        {"groups_max": "many"},
        {"inactive_ms": -1},
        {"inactive_ms": 1e9},
    ):
        said = bad(http.ask("POST", "/settings", wrong), 400, "INVALID_SETTING")
        assert next(iter(wrong)) in said["message"]
    bad(http.ask("DELETE", "/settings"), 405, "METHOD_NOT_ALLOWED")
    assert settings(http) == before


def test_who_meets_a_limit_is_told_which_setting_raises_it(
    http: Client, cluster: Cluster, changing: None, new_topic: Callable[..., str]
) -> None:
    """B1: a manager's advice for this case alone reaches whoever asked, by both ways."""
    name = new_topic()
    good(http.ask("POST", "/consumers", {"topic": name}))
    good(http.ask("POST", "/settings", {"consumers_max": 1}))
    with pytest.raises(errors.TimedOut, match="as many consumers as may be") as refused:
        cluster.admin.register_consumer(name)
    said = bad(http.ask("POST", "/consumers", {"topic": name}), 503, "TIMED_OUT")
    assert said["hint"] == refused.value.hint == "Raise consumers_max."


def test_the_console_shows_them(gateway: Gateway, http: Client, changing: None) -> None:
    """On the page of nodes, in words, and which command changes them."""
    good(http.ask("POST", "/settings", {"moves_per_broker": 0, "inactive_ms": 45_000}))

    def facts() -> dict[str, str]:
        return dict(re.findall(r"<dt>(\w+)</dt><dd>([^<]+)</dd>", page(gateway)))

    wait_for("its look at them", lambda: facts().get("inactive_ms") == "45 s")
    found = facts()
    assert found.keys() == settings(http).keys()
    assert (found["moves_per_broker"], found["replace_after_ms"]) == ("none are moved", "5 min")
    assert found["consumers_max"] == "100,000"
    assert "<code>myq config cluster --set NAME=VALUE</code>" in page(gateway)


def page(gateway: Gateway) -> str:
    with urllib.request.urlopen(f"{gateway.url}/console/nodes", timeout=30) as answer:
        text: str = answer.read().decode()
    return text
