"""Managing brokers and consumer groups: what is going on, and changing it after being asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import axe
from browser.chromium import NARROW, WIDE, Browser, Page
from browser.common import PICTURES
from browser.gateway import Gateway
from support.agents import myq, one_of_each
from support.processes import Cluster

from myqueue import Consumer, Producer

LAG = "[...document.querySelectorAll('.tile')].find(one => /Lag/.test(one.innerText)).innerText"


def member(cluster: Cluster, topic: str, group: str) -> Consumer:
    """One that has everything and has read all of it."""
    with Producer(cluster.address) as producer:
        for partition in range(2):
            producer.send_many(topic, [b"17 apples"] * 10, partition=partition).result(30)
    consumer = Consumer(cluster.address, [topic], group=group, name="reader")
    got = 0
    while got < 20:
        got += len(consumer.poll(max_messages=20, timeout=1.0))
    consumer.commit()
    return consumer


def test_a_group_is_set_back_after_its_plan_was_seen(
    page: Page, gateway: Gateway, cluster: Cluster
) -> None:
    cluster.admin.create_topic("bills", partitions=2)
    with member(cluster, "bills", "billing"):
        page.go_for(f"{gateway.console}/groups?filter=bill")
        page.wait("its lag", "document.querySelector('tbody tr')?.cells[4].innerText === '0'")
        page.leave_by("tbody th a")
        assert page.text("h1") == "billing"
        page.wait("it is stable", "/stable/.test(document.querySelector('.tile').innerText)")
        assert "bills/0, bills/1" in page.text("table")
        page.leave_by(".heading .button")
        page.leave_by("main form button")  # to the earliest, all topics
        assert page.text("section table").count("-10") == 2
        assert axe.violations(page) == []
        page.leave_by("main nav.crumbs a:last-of-type")
        assert cluster.admin.describe_group("billing")["lag"] == 0, "a plan changes nothing"
        page.go_for(f"{gateway.console}/groups/billing/reset?from=offset&offset=4", "form.danger")
        # Not without the box: the browser refuses, and the gateway would.
        page.click("form.danger button")
        assert page.text("h1") == "Reset positions of billing" and not page.text(".trouble")
        page.run("document.querySelector('#force').removeAttribute('required')")
        page.leave_by("form.danger button")
        assert "GROUP_IN_USE" in page.text(".trouble")
        page.complaints.clear()  # the browser itself notes 409
        page.go_for(f"{gateway.console}/groups/billing/reset?from=offset&offset=4", "#force")
        page.click("#force")
        page.leave_by("form.danger button")
        assert "positions were reset" in page.text(".done")
    page.wait("nobody is in it", "/empty/.test(document.querySelector('.tile').innerText)")
    assert cluster.admin.describe_group("billing")["lag"] in range(13)


def test_a_group_is_set_back_without_script(
    browser: Browser, gateway: Gateway, cluster: Cluster
) -> None:
    cluster.admin.create_topic("plain-bills", partitions=2)
    member(cluster, "plain-bills", "plain").close()
    with browser.page(script=False) as page:
        page.go_for(f"{gateway.console}/groups/plain")
        page.leave_by(".heading .button")
        page.leave_by("main form button")
        page.leave_by("form.danger button")
        assert "positions were reset" in page.text(".done")
        assert cluster.admin.describe_group("plain")["lag"] == 20
        page.go(f"{gateway.console}/groups/plain/reset?from=offset&offset=x")
        assert "offset is a number" in page.text(".trouble")
        page.go(f"{gateway.console}/groups/nobody")
        assert "UNKNOWN_GROUP" in page.text("main")
        page.go_for(f"{gateway.console}/groups/plain/delete", "form.danger")
        page.fill("#name", "plain")
        page.leave_by("form.danger button")
        assert "Deleted plain" in page.text(".done")
        assert "plain" not in [row["group"] for row in cluster.admin.groups()]


def test_what_can_not_be_done_with_a_broker_is_said(page: Page, gateway: Gateway) -> None:
    """Three copies need three brokers, and no agent runs beside this gateway."""
    page.go_for(f"{gateway.console}/nodes/broker/3/drain", "form.danger")
    page.leave_by("form.danger button")
    assert "TOO_FEW_BROKERS" in page.text(".trouble")
    page.go_for(f"{gateway.console}/nodes/broker/3/remove", "#typed")
    assert "Better drain it first" in page.text("form.danger")
    page.run("document.querySelector('#typed').value = '4'")
    page.leave_by("form.danger button")
    assert "nothing was done" in page.text(".trouble")
    page.go_for(f"{gateway.console}/add-broker")
    assert "bin/myq-broker" in page.text("main")
    page.complaints.clear()  # the browser itself notes 409


# -- a cluster of its own, with an agent ----------------------------------------------------------


@pytest.fixture
def console(tmp_path: Path) -> Iterator[str]:
    with one_of_each(tmp_path) as home:
        yield json.loads(myq(home, "status", "--json"))["gateway"] + "/console"


def test_a_broker_is_added_emptied_and_removed(browser: Browser, console: str) -> None:
    """By keys where a form asks. The page shows how it becomes empty."""
    with browser.page() as page:
        page.go_for(f"{console}/create-topic", "#name")
        page.fill("#name", "t")
        page.run("document.querySelector('#partitions').value = 6")
        page.run("document.querySelector('#replication').value = 1")
        page.enter()
        page.wait("the topic", "document.querySelector('h1')?.innerText === 't'")
        page.go_for(f"{console}/add-broker", "form button")
        page.run("document.querySelector('main form button').focus()")
        page.enter()
        page.wait("it is told", "/Broker 2 is starting/.test(document.body.innerText)")
        rows = "[...document.querySelectorAll('section:first-of-type tbody tr')]"
        page.wait(
            "both are alive", f"{rows}.filter(one => /alive/.test(one.innerText)).length === 2"
        )
        page.go_for(f"{console}/nodes/broker/1/drain", "form button")
        page.picture(PICTURES / "drain-light.png")
        page.run("document.querySelector('main form button').focus()")
        page.enter()
        page.wait("how far it is", "!!document.querySelector('.progress')")
        page.picture(PICTURES / "draining-light.png")
        page.wait(
            "it is empty", "/holds nothing/.test(document.querySelector('.progress')?.innerText)"
        )
        assert page.run("document.querySelector('progress').value") == 1
        assert axe.violations(page) == []
        for name, size in (("light", WIDE), ("narrow", NARROW)):
            page.resize(size)
            page.picture(PICTURES / f"drained-{name}.png")
        page.resize(WIDE)
        page.go_for(f"{console}/nodes/broker/1/undrain", "form button")
        page.leave_by("main form button")
        assert page.run("!document.querySelector('.progress')")
        page.go_for(f"{console}/nodes/broker/1/drain", "form button")
        page.leave_by("main form button")
        page.wait(
            "it is empty", "/holds nothing/.test(document.querySelector('.progress')?.innerText)"
        )
        page.go_for(f"{console}/nodes/broker/1/remove", "form button")
        page.leave_by("main form button")
        assert "Broker 1 was removed, and its process stopped" in page.text(".done")
        page.wait("it is gone", f"{rows}.length === 1")
        page.go_for(f"{console}/nodes/broker/2/remove", "#typed")
        assert "only copy" in page.text("form.danger") and "t/0" in page.text("form.danger")
        assert page.complaints == []
