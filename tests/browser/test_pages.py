"""Every page, in light, dark and narrow: nothing to complain about, and readable for everybody."""

from __future__ import annotations

import pytest
from browser import axe
from browser.chromium import NARROW, WIDE, Browser, Page
from browser.common import PICTURES, check
from browser.gateway import Gateway
from support.processes import Cluster

PAGES = {
    "overview": "",
    "topics": "/topics",
    "create": "/create-topic",
    "topic": "/topics/orders",
    "messages": "/topics/orders/messages?limit=10",
    "message": "/topics/orders/messages/0/0",
    "tail": "/topics/orders/tail",
    "topic-consumers": "/topics/orders/consumers",
    "grow": "/topics/orders/grow",
    "retention": "/topics/orders/retention",
    "delete": "/topics/orders/delete",
    "groups": "/groups",
    "group": "/groups/packing",
    "reset": "/groups/packing/reset",
    "reset-plan": "/groups/packing/reset?from=back&count=5",
    "delete-group": "/groups/packing/delete",
    "consumers": "/consumers",
    "producers": "/producers",
    "nodes": "/nodes",
    "broker": "/nodes/broker/1",
    "manager": "/nodes/manager/1",
    "drain": "/nodes/broker/1/drain",
    "remove": "/nodes/broker/1/remove",
    "add-broker": "/add-broker",
    "empty": "/topics/empty/messages",
    "hostile": "/topics/hostile/messages",
}
LOOKS = {
    "light": {"size": WIDE},
    "dark": {"size": WIDE, "dark": True},
    "narrow": {"size": NARROW},
}


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_is_sound(browser: Browser, gateway: Gateway, look: str) -> None:
    with browser.page(**LOOKS[look]) as page:
        wrong = {}
        for name, way in PAGES.items():
            page.go_for(gateway.console + way)
            assert page.text("h1"), name
            if name == "overview":
                page.wait("health", "document.querySelector('.health').innerText === 'Healthy'")
                page.wait("charts", "document.querySelectorAll('.plot svg path').length >= 3")
            found = axe.violations(page, only_looks=look != "light")
            if found:
                wrong[name] = found
            page.picture(PICTURES / f"{name}-{look}.png", whole=name != "tail")
        assert wrong == {}
        check(page, gateway)


def test_every_page_is_there_without_script(browser: Browser, gateway: Gateway) -> None:
    with browser.page(script=False) as page:
        for name, way in PAGES.items():
            page.go_for(gateway.console + way)
            assert page.text("h1"), name
        page.go(gateway.console)
        assert "Averages by minute" in page.text()
        assert "broker 3" in page.text()
        page.picture(PICTURES / "overview-no-script.png")
        page.go_for(f"{gateway.console}/topics/orders/tail")
        assert "needs the script" in page.text()
        check(page, gateway)


def test_what_is_missing_is_told_in_a_page(browser: Browser, gateway: Gateway) -> None:
    with browser.page() as page:
        for way, told in {
            "/topics/nowhere": ("there is no topic 'nowhere'", "UNKNOWN_TOPIC 1210", "manager"),
            "/topics/orders/messages/0/999999": ("has no message 999,999", "OFFSET_OUT_OF_RANGE"),
            "/topics/orders/messages?partition=9": ("orders has no partition 9", "INVALID_REQUEST"),
            "/nodes/broker/77": ("there is no broker 77", "NOT_FOUND"),
        }.items():
            page.go(gateway.console + way)
            for text in told:
                assert text in page.text("main"), way
            assert axe.violations(page) == []
        page.picture(PICTURES / "error-light.png")


def test_numbers_are_those_of_the_cluster(page: Page, gateway: Gateway, cluster: Cluster) -> None:
    page.go_for(f"{gateway.console}/topics/orders")
    for part in cluster.admin.describe_topic("orders")["partitions"]:
        row = page.run(
            f"[...document.querySelectorAll('tbody tr')][{part['partition']}].innerText"
        ).split()
        assert f"broker {part['leader']}" in " ".join(row)
        assert f"{part['end']:,}" in row
    page.go_for(f"{gateway.console}/consumers")
    lag = sum(cluster.admin.lag("orders", consumer_id=1).values())
    row_of_1 = (
        "[...document.querySelectorAll('tbody tr')].find(one => one.cells[0].innerText === '1')"
    )
    page.wait("its lag", f"{row_of_1}?.cells[4].innerText === '{lag:,}'")
    page.go_for(f"{gateway.console}/producers")
    assert "orders" in page.text("tbody")
    assert "active" in page.text("tbody")


def test_keys_lead_everywhere(page: Page, gateway: Gateway) -> None:
    page.go(gateway.console)
    stops = axe.tab_stops(page)
    assert stops[0] == "Skip to the content"
    for wanted in (
        "Overview",
        "Topics",
        "Groups",
        "Consumers",
        "Producers",
        "Nodes",
        "Pause",
        "broker 1",
    ):
        assert wanted in stops
    page.go_for(f"{gateway.console}/topics/orders/messages?limit=2")
    stops = axe.tab_stops(page)
    for wanted in ("partition", "from", "limit", "Show", "send-key", "send-value", "Send"):
        assert wanted in stops


def test_hostile_messages_are_shown_as_text(page: Page, gateway: Gateway) -> None:
    page.go_for(f"{gateway.console}/topics/hostile/messages")
    text = page.text("table")
    assert "<script>document.title" in text
    assert "{{ 7 * 7 }}" in text
    assert "\\u{202e}" in text and "\u202e" not in text
    assert "00 ff fe 80" in text
    for offset in range(6):
        page.go_for(f"{gateway.console}/topics/hostile/messages/0/{offset}")
        assert page.text("h1") == f"Message {offset}"
        assert "<b>" in page.text("main")
    assert "gone" not in page.run("document.title")
    assert page.run("document.querySelectorAll('img').length") == 1  # ours


def test_no_text_overruns_its_tile(browser: Browser, gateway: Gateway) -> None:
    """The longest state there is, in windows of several widths."""
    script = """(() => {
        const one = document.querySelector('.tile dd');
        one.textContent = 'replicas missing';
        return one.scrollWidth <= one.clientWidth;
    })()"""
    with browser.page() as page:
        for width in (1280, 1000, 360):
            page.resize((width, 800))
            page.go(f"{gateway.console}/topics/orders")
            assert page.run(script), width
