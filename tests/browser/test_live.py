"""The console moves: charts, numbers, the tail; and focus stays where it is meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from browser.chromium import Page
from browser.common import PICTURES, script
from browser.gateway import Gateway
from support.processes import Cluster, wait_for

from myqueue import Consumer, Producer

Note = Callable[[str, float], None]
FIRST_VALUE = "document.querySelector('#tail tbody td:nth-child(5)')?.innerText"


@pytest.mark.usefixtures("load")
def test_charts_and_numbers_move_under_load(page: Page, gateway: Gateway, measured: Note) -> None:
    page.go(gateway.console)
    tile = "document.querySelector('.tile dd').innerText"
    _, took = page.wait("a rate of messages", f"parseFloat({tile}) > 50")
    measured("overview: a load that began shows in the number", took)
    line = "document.querySelector('[data-chart=messages] path.line1').getAttribute('d')"
    before = page.run(line)
    page.wait("the chart draws on", f"{line} !== {script(before)} && {line}.split('L').length > 4")
    named = "document.querySelector('[data-line=messages_out] b').innerText"
    page.wait("what is read shows as well", f"parseFloat({named}) > 50")
    assert "/s" in page.run(named)
    page.go_for(f"{gateway.console}/topics")
    cell = "document.querySelector('tr[data-key^=orders] td:nth-child(6)').innerText"
    page.wait("the topic's own rate", f"parseFloat({cell}) > 50")
    page.picture(PICTURES / "topics-load.png")


@pytest.mark.usefixtures("load")
def test_focus_stays_while_numbers_move_and_pause_stops_them(page: Page, gateway: Gateway) -> None:
    page.go_for(f"{gateway.console}/topics/orders")
    page.run("document.querySelector('tbody a').focus()")
    size = "document.querySelector('.tile:nth-child(4) dd').innerText"
    before = page.run(size)
    page.wait("messages move", f"{size} !== {script(before)}")
    assert page.run("document.activeElement.closest('tbody') !== null")
    page.click("#pause")
    time.sleep(1.5)  # what was under way arrives; then nothing may change for a while
    before = page.run(size)
    time.sleep(1.5)
    assert page.run(size) == before
    page.click("#pause")
    page.wait("messages move again", f"{size} !== {script(before)}")


def test_a_lag_goes_down_while_somebody_looks(
    page: Page, gateway: Gateway, cluster: Cluster
) -> None:
    page.go_for(f"{gateway.console}/consumers")
    lag = f"{row_of(2)}?.cells[4].innerText"
    page.wait("it has something to read", f"parseInt({lag}) > 0")
    with Consumer(cluster.address, ["orders"], consumer_id=2) as consumer:

        def read_all() -> bool:
            consumer.poll(timeout=0.5)
            consumer.commit()
            return sum(consumer.lag().values()) == 0

        wait_for("all was read", read_all, 30)
        page.wait("no lag", f"{lag} === '0'")
        assert page.run(f"{row_of(2)}.cells[3].innerText") == "now"


def test_who_is_silent_is_marked_as_inactive(
    page: Page, gateway: Gateway, cluster: Cluster
) -> None:
    """P5, B7: the last activity of every client, and who is not active any more."""
    page.go_for(f"{gateway.console}/consumers")
    mark = f"{row_of(3)}?.cells[2].innerText"
    cluster.admin.alter_cluster({"inactive_ms": 1_000})
    try:
        page.wait("inactive", f"{mark} === 'inactive'")
        assert page.run(f"{row_of(3)}.cells[3].innerText").endswith(" ago")
        page.go_for(f"{gateway.console}/producers")
        page.wait(
            "inactive", "document.querySelector('tbody td:nth-child(3)').innerText === 'inactive'"
        )
        cluster.admin.alter_cluster({"inactive_ms": 86_400_000})
        page.go_for(f"{gateway.console}/consumers")
        page.wait("active again by the longer measure", f"{mark} === 'active'")
    finally:
        cluster.admin.alter_cluster({"inactive_ms": None})


def row_of(client: int) -> str:
    """The table's row of a producer or consumer, for a script."""
    rows = "[...document.querySelectorAll('tbody tr')]"
    return f"{rows}.find(one => one.cells[0].innerText === '{client}')"


def test_the_tail_shows_a_message_at_once(
    page: Page, gateway: Gateway, cluster: Cluster, measured: Note
) -> None:
    page.go_for(f"{gateway.console}/topics/orders/tail", "#tail")
    times = []
    with Producer(cluster.address) as producer:
        for number in range(5):
            value = f"tail {number} <i>"
            producer.send("orders", value.encode(), key=b"k").result(30)
            _, took = page.wait("the message on top", f"{FIRST_VALUE} === {script(value)}")
            times.append(took)
    measured("tail: from stored to shown, longest of five", max(times))
    assert max(times) < 20
    assert page.run("document.querySelectorAll('#tail tbody tr').length") == 5
    page.click("#tail-pause")
    page.click("#tail-clear")
    assert page.run("document.querySelectorAll('#tail tbody tr').length") == 0


def test_a_test_message_is_sent_from_the_tail(page: Page, gateway: Gateway) -> None:
    page.go_for(f"{gateway.console}/topics/orders/tail", "#tail")
    page.fill("#send-key", "c-1")
    page.fill("#send-value", "line one\nline two ✓")
    page.click("form[data-quiet] button")
    page.wait(
        "where it is stored",
        "/Stored in partition/.test(document.querySelector('output').innerText)",
    )
    page.wait("the message on top", f"/line one⏎line two ✓/.test({FIRST_VALUE})")
    assert page.run("document.querySelector('#tail tbody td:nth-child(4)').innerText") == "c-1"


def test_a_flood_is_sampled_and_says_so(page: Page, gateway: Gateway, cluster: Cluster) -> None:
    cluster.admin.create_topic("flood")
    page.go_for(f"{gateway.console}/topics/flood/tail", "#tail")
    page.click("#tail-pause")
    time.sleep(3)  # a question that was under way is over
    with Producer(cluster.address) as producer:
        producer.send_many("flood", [b"flood"] * 5_000).result(30)
    page.click("#tail-pause")
    page.wait("skipped", "/skipped/.test(document.querySelector('#tail-skipped').innerText)")
    assert page.run("document.querySelectorAll('#tail tbody tr').length") <= 500
