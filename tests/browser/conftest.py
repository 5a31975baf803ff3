"""One cluster, one gateway and one browser for all of these tests; and the times they measured.

Limits in the tests are generous, because the machine may be busy; what was measured is printed at
the end, and that is to be compared with what the console promises.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest
from browser.chromium import Browser, Page, find
from browser.common import HOSTILE, check
from browser.gateway import Gateway
from support.processes import Cluster

from myqueue import Consumer, MyProducer, Producer


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str, float], None]:
    """Notes how long something took, for the end of the run."""

    def note(what: str, seconds: float) -> None:
        record_property("measured", f"{what}: {seconds:.2f} s")

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        str(text)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == "measured"
    ]
    if lines:
        terminalreporter.section("measured by the browser")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if find() is None:
        pytest.skip("no Chromium here (Debian: apt install chromium)")
    browser = Browser(tmp_path_factory.mktemp("browser") / "profile")
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With topics, messages, producers and consumers, so that there is something to see."""
    with Cluster(tmp_path_factory.mktemp("cluster") / "c") as cluster:
        admin = cluster.admin
        admin.create_topic("orders", partitions=3)
        admin.create_topic("hostile", partitions=1)
        admin.create_topic("empty", partitions=2, replication=1)
        with Producer(cluster.address) as producer:
            for number in range(120):
                order = json.dumps({"order": number, "customer": f"c-{number % 7}", "apples": 3})
                producer.send("orders", order.encode(), key=f"c-{number % 7}")
            for value in HOSTILE:
                producer.send("hostile", value, key=value, headers={"<b>": value})
        for topic in ("orders", "orders", "hostile"):
            admin.register_consumer(topic)
        MyProducer(["orders"], cluster.address).stop()
        cluster.wait_healthy()
        with Consumer(cluster.address, ["orders"], group="packing", name="packer") as member:
            while member.poll(max_messages=60, timeout=1.0) == []:
                pass
            member.commit()
            yield cluster


@pytest.fixture(scope="session")
def gateway(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    gateway = Gateway(cluster.address, tmp_path_factory.mktemp("gateway") / "log")
    yield gateway
    gateway.close()


@pytest.fixture
def page(browser: Browser, gateway: Gateway) -> Iterator[Page]:
    """A tab that must have nothing to complain about, and asks nobody but the gateway."""
    with browser.page() as page:
        yield page
        check(page, gateway)


@pytest.fixture
def load(cluster: Cluster) -> Iterator[None]:
    """Messages that come and are read, some hundreds a second."""
    stop = threading.Event()

    def write() -> None:
        with Producer(cluster.address) as producer:
            while not stop.wait(0.02):
                producer.send_many("orders", [b"17 apples" * 5] * 10)

    def read() -> None:
        with Consumer(cluster.address, ["orders"], start="latest") as consumer:
            while not stop.is_set():
                consumer.poll(timeout=0.2)

    threads = [threading.Thread(target=one) for one in (write, read)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join(30)
