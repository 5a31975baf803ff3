"""What changes something: forms, without script, by keys alone, and from where they may come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import axe
from browser.chromium import Browser, Page
from browser.common import PICTURES
from browser.gateway import Gateway
from support.processes import Cluster, wait_for

from myqueue.errors import UnknownTopic

TOKENS = {"reader": "read reader-token-0123456789", "boss": "admin boss-token-0123456789"}


def test_a_topic_from_its_creation_to_its_end_by_keys_alone(
    page: Page, gateway: Gateway, cluster: Cluster
) -> None:
    page.go_for(f"{gateway.console}/topics")
    page.run("document.querySelector('.heading .button').focus()")
    page.enter()
    page.wait("the form", "!!document.querySelector('#name')")
    page.fill("#name", "by-keys")
    page.enter()
    page.wait("the topic", "document.querySelector('h1')?.innerText === 'by-keys'")
    assert "Created" in page.text(".done")
    assert len(cluster.admin.describe_topic("by-keys")["partitions"]) == 3
    page.wait("leaders", "[...document.querySelectorAll('tbody td.ok')].length === 3")
    page.go_for(f"{gateway.console}/topics/by-keys/grow", "#count")
    page.fill("#count", "2")
    page.enter()
    page.wait("five partitions", "document.querySelectorAll('tbody tr').length === 5")
    assert len(cluster.admin.describe_topic("by-keys")["partitions"]) == 5
    page.go_for(f"{gateway.console}/topics/by-keys/delete", "#name")
    page.fill("#name", "by-keys")
    page.enter()
    page.wait("the list", "/Deleted by-keys/.test(document.querySelector('.done')?.innerText)")

    def is_gone() -> bool:
        try:
            cluster.admin.describe_topic("by-keys")
        except UnknownTopic:
            return True
        return False

    wait_for("the topic is gone", is_gone)


def test_forms_work_without_script(browser: Browser, gateway: Gateway, cluster: Cluster) -> None:
    with browser.page(script=False) as page:
        page.go_for(f"{gateway.console}/create-topic", "#name")
        page.fill("#name", "plain")
        page.fill("#megabytes", "2.5")
        page.leave_by("main form button")
        assert page.text("h1") == "plain"
        page.go_for(f"{gateway.console}/topics/plain/retention", "#minutes")
        page.fill("#minutes", "1,5")
        page.leave_by("main form button")
        assert "minutes: a number" in page.text(".trouble")
        page.fill("#minutes", "1.5")
        page.leave_by("main form button")
        assert "Retention was changed" in page.text(".done")
        settings = cluster.admin.describe_topic("plain")["settings"]
        assert (settings["retention_bytes"], settings["retention_ms"]) == (2_500_000, 90_000)
        page.go_for(f"{gateway.console}/topics/plain/messages", "#send-value")
        page.fill("#send-value", "hello")
        page.leave_by("main form[method=post] button")
        assert "Stored as plain/" in page.text(".done"), page.text()
        assert "hello" in page.text("table")
        page.go_for(f"{gateway.console}/topics/plain/delete", "#name")
        page.fill("#name", "plane")
        page.leave_by("main form button")
        assert "nothing was deleted" in page.text(".trouble")
        page.fill("#name", "plain")
        page.leave_by("main form button")
        assert "Deleted plain" in page.text(".done")
    assert "plain" not in cluster.admin.topics()


def test_what_is_wrong_is_told_beside_the_form(page: Page, gateway: Gateway) -> None:
    page.go_for(f"{gateway.console}/topics/orders/delete", "#name")
    page.run("document.querySelector('#name').value = 'order'")
    page.leave_by("main form button")
    assert "nothing was deleted" in page.text(".trouble")
    page.go_for(f"{gateway.console}/create-topic", "#name")
    page.fill("#name", "orders")
    page.leave_by("main form button")
    assert "TOPIC_EXISTS 1211" in page.text(".trouble")
    assert page.run("document.querySelector('#name').value") == "orders"
    assert axe.violations(page) == []
    page.complaints.clear()  # the browser itself notes 400 and 409


def test_another_site_can_send_nothing(
    browser: Browser, gateway: Gateway, cluster: Cluster, tmp_path: Path
) -> None:
    """A page from elsewhere has the browser, and so the way, but neither origin nor token."""
    evil = tmp_path / "evil.html"
    evil.write_text(
        f'<form method=post action="{gateway.console}/create-topic"><input name=name value=evil>'
        "<input name=partitions value=1><input name=token value=1.x><button>go</button></form>"
    )
    with browser.page() as page:
        page.go(evil.as_uri())
        page.leave_by("button")
        assert "FORBIDDEN" in page.text()
    assert "evil" not in cluster.admin.topics()


@pytest.fixture(scope="module")
def locked(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with tokens."""
    folder = tmp_path_factory.mktemp("locked")
    file = folder / "tokens"
    file.write_text("".join(f"{line} {name}\n" for name, line in TOKENS.items()))
    file.chmod(0o600)
    gateway = Gateway(cluster.address, folder / "log", "--tokens", str(file))
    yield gateway
    gateway.close()


def log_in(page: Page, who: str) -> None:
    page.fill("#bearer", TOKENS[who].split()[1])
    page.leave_by("main form button")


def test_a_token_opens_the_console(browser: Browser, locked: Gateway) -> None:
    with browser.page() as page:
        page.go(f"{locked.console}/topics/orders?page=1")
        assert page.text("label") == "Token"
        assert axe.violations(page) == []
        page.picture(PICTURES / "login-light.png")
        page.fill("#bearer", "not a token at all")
        page.leave_by("main form button")
        assert "UNAUTHORIZED" in page.text(".trouble")
        log_in(page, "reader")
        assert page.text("h1") == "orders"
        assert page.run("document.cookie") == ""  # no script sees the token
        [cookie] = page.call("Network.getCookies")["cookies"]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        page.wait("it moves", "document.querySelector('.asof time').innerText !== ''")
        # A reader is offered nothing that it may not do, and may not do it without the offer.
        assert "Delete" not in page.text(".heading")
        page.go(f"{locked.console}/topics/orders/delete")
        assert "reader lacks the role admin" in page.text("main")
        page.leave_by("header form button")
        assert page.text("label") == "Token"
        page.go(locked.console)
        assert page.text("label") == "Token"


def test_who_may_administer_may_do_it_here(
    browser: Browser, locked: Gateway, cluster: Cluster
) -> None:
    with browser.page() as page:
        page.go(f"{locked.console}/create-topic")
        log_in(page, "boss")
        page.fill("#name", "made-by-boss")
        page.leave_by("main form button")
        assert page.text("h1") == "made-by-boss"
        assert page.complaints == []
    cluster.admin.delete_topic("made-by-boss")
