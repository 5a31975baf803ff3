"""Something is down: the console says so within seconds, and still tells what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from browser import axe
from browser.chromium import NARROW, Browser
from browser.common import PICTURES, check
from browser.gateway import Gateway
from support.processes import Cluster, Name

Note = Callable[[str, float], None]
RED = (
    "!!document.querySelector('.health.bad') && !!document.querySelector('.verdict.bad') &&"
    " /silent/.test(document.querySelector('tr[data-key^=\"broker 2\"] td.bad')?.innerText)"
)
WELL = "!!document.querySelector('.verdict.ok') && !document.querySelector('td.bad')"
REFUSED = ("TIMED_OUT", "NO_QUORUM", "NOT_LEADER", "NOT_READY", "UNREACHABLE")


@contextmanager
def down(cluster: Cluster, *names: Name) -> Iterator[None]:
    """Killed, and running again afterwards, whatever the test found."""
    cluster.kill(*names)
    try:
        yield
    finally:
        cluster.start(*names)
        cluster.wait_healthy(120)


def test_a_killed_broker_turns_red(
    browser: Browser, gateway: Gateway, cluster: Cluster, measured: Note
) -> None:
    with browser.page() as page, browser.page(size=NARROW, dark=True) as phone:
        page.go(gateway.console)
        phone.go(gateway.console)
        page.wait("health", WELL)
        with down(cluster, ("broker", 2)):
            _, took = page.wait("the killed broker in red", RED)
            measured("overview: from SIGKILL of a broker to red", took)
            page.wait("missing replicas", "/replicas missing/.test(document.body.innerText)")
            event = "document.querySelector('.events').innerText"
            page.wait("the event", f"/broker 2 fell silent/.test({event})")
            phone.wait("the killed broker in red", RED)
            page.picture(PICTURES / "broker-killed-light.png")
            phone.picture(PICTURES / "broker-killed-narrow-dark.png")
            assert axe.violations(page) == []
            assert axe.violations(phone) == []
        page.wait("all well", WELL, 60)
        check(page, gateway)
        check(phone, gateway)


def test_without_a_majority_pages_tell_what_is_known(
    browser: Browser, gateway: Gateway, cluster: Cluster
) -> None:
    pages = {
        "/topics": "orders",
        "/topics/orders": "broker ",
        "/nodes": "manager 3",
        "/consumers": "orders",
        "/topics/orders/messages": "c-1",
    }
    with browser.page() as page:
        page.go(gateway.console)
        page.wait("health", WELL)
        with down(cluster, ("manager", 1), ("manager", 2)):
            verdict = "document.querySelector('.verdict').innerText"
            page.wait("no leader", f"/no manager leads/.test({verdict})")
            page.picture(PICTURES / "no-majority-light.png")
            for way, known in pages.items():
                page.go(gateway.console + way)
                assert known in page.text("main"), way
                assert page.text(".health") == "Failing"
            page.go(f"{gateway.console}/create-topic")
            page.fill("#name", "later")
            page.leave_by("main form button")
            assert any(name in page.text(".trouble") for name in REFUSED), page.text(".trouble")
        page.go(gateway.console)
        page.wait("all well", WELL, 60)


def test_a_gateway_that_is_gone_is_told(
    browser: Browser, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gateway = Gateway(cluster.address, tmp_path_factory.mktemp("gone") / "log")
    with browser.page() as page:
        page.go(gateway.console)
        gateway.close()
        note = "document.querySelector('#stale').innerText"
        page.wait("the page says so", f"/does not answer/.test({note})")
        assert page.run("document.body.classList.contains('stale')")


def test_without_a_cluster_there_is_a_page_that_says_what_to_do(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gateway = Gateway("127.0.0.1:9", tmp_path_factory.mktemp("alone") / "log")
    try:
        with browser.page() as page:
            page.go(gateway.console)
            assert page.text(".health") == "Down"
            assert "no manager answers" in page.text(".verdict")
            assert axe.violations(page) == []
            page.go(f"{gateway.console}/topics")
            assert "UNREACHABLE 1226" in page.text("main")
            page.picture(PICTURES / "no-cluster-light.png")
    finally:
        gateway.close()
