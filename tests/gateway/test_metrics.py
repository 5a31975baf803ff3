"""/metrics of a real cluster: what it says is true, parsed by the reader that users have.

METRICS.md and the table of names are compared with what is exported, and the table with what the
daemons' sources count, so that no number is without an explanation.
"""

import re
from collections.abc import Iterator

import flask
import pytest
from flask.testing import FlaskClient
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from support.processes import Cluster, wait_for
from tidy.tree import files, read

from myqueue import Producer, Session
from myqueue.gateway.metrics import catalog, endpoint, families

ROW = re.compile(r"^\| `myq_(\w+)` \| (\w+) \| ([\w, ]*) \| (.+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("metrics"), managers=1, brokers=2) as cluster:
        cluster.admin.create_topic("orders", partitions=2)
        with Producer(cluster.address) as producer:
            producer.send_many("orders", [b"x" * 100] * 50).result(30)
        cluster.admin.register_consumer("orders")
        yield cluster


class HasSession:
    """What the endpoint takes from the gateway's SDK."""

    def __init__(self, address: str) -> None:
        self.session = Session(address)


@pytest.fixture(scope="module")
def web(cluster: Cluster) -> Iterator[FlaskClient]:
    app = flask.Flask("test")
    sdk = app.extensions["myqueue"] = HasSession(cluster.address)
    app.register_blueprint(endpoint.blueprint)
    app.add_url_rule("/fails", view_func=lambda: 1 / 0)
    yield app.test_client()
    sdk.session.close()


def scrape(web: FlaskClient) -> dict[str, Metric]:
    answer = web.get("/metrics")
    assert answer.status_code == 200
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    return {one.name: one for one in text_string_to_metric_families(answer.text)}


def value(found: dict[str, Metric], metric: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    samples = [
        sample.value
        for family in found.values()
        for sample in family.samples
        if sample.name == metric and labels.items() <= sample.labels.items()
    ]
    assert samples, f"no {metric}{labels}"
    return sum(samples)


def test_numbers_are_those_of_the_cluster(cluster: Cluster, web: FlaskClient) -> None:
    def all_told() -> dict[str, Metric] | None:
        found = scrape(web)
        ends = value(found, "myq_partition_end_offset", topic="orders")
        return found if ends == 50 and value(found, "myq_consumer_lag_messages") == 50 else None

    found = wait_for("offsets of 50 messages", all_told, 30)
    assert value(found, "myq_up") == 3
    assert value(found, "myq_healthy") == 1
    assert value(found, "myq_problems") == 0
    assert value(found, "myq_messages_stored_total", daemon="broker") == 50
    assert value(found, "myq_produced_bytes_total", daemon="broker") > 5_000
    assert value(found, "myq_topic_partitions", topic="orders") == 2
    assert value(found, "myq_topic_replicas", topic="orders") == 2
    assert value(found, "myq_raft_groups", daemon="broker", role="leader") == 2
    assert value(found, "myq_raft_groups", daemon="broker", role="follower") == 2
    assert value(found, "myq_raft_term", daemon="manager") >= 1
    assert value(found, "myq_raft_applied_index", daemon="manager", node="1") > 3
    assert value(found, "myq_disk_free_bytes", daemon="broker", node="1") > 1 << 20
    assert value(found, "myq_wal_flush_seconds_count", daemon="broker") > 2
    assert value(found, "myq_consumers") == 1
    assert value(found, "myq_process_resident_memory_bytes", daemon="broker") > 1 << 20


def test_openmetrics_for_who_asks_and_nonsense_is_harmless(web: FlaskClient) -> None:
    wanted = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = web.get("/metrics", headers=wanted)
    assert answer.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert len(list(read_openmetrics(answer.text))) > 50
    for accept in ("application/openmetrics-text; version=x", "text/plain;version=;=,;"):
        assert web.get("/metrics", headers={"Accept": accept}).status_code == 200


def test_own_requests_are_counted_by_route(web: FlaskClient) -> None:
    for path in ("/nowhere/1", "/nowhere/2"):
        assert web.get(path).status_code == 404
    assert web.get("/fails").status_code == 500
    web.open("/nowhere", method="BREW")
    found = scrape(web)
    assert value(found, "myq_http_requests_total", route="unknown", method="GET", code="404") == 2
    assert value(found, "myq_http_requests_total", route="unknown", method="other") == 1
    assert value(found, "myq_http_requests_total", route="/fails", code="500") == 1
    assert value(found, "myq_http_request_duration_seconds_count", route="/fails") == 1
    assert value(found, "myq_http_requests_in_progress") == 1  # the scrape itself


def test_the_page_lists_what_is_exported_and_nothing_else(web: FlaskClient) -> None:
    rows = {row[0]: row[1:] for row in ROW.findall(read("gateway/METRICS.md"))}
    known = catalog.all_names()
    assert {name: (kind, help_) for name, (kind, _, help_) in rows.items()} == known
    found = scrape(web)
    kinds = {
        family.name + "_total" * (family.type == "counter"): family.type
        for family in found.values()
    }
    assert kinds == {f"myq_{name}": kind for name, (kind, _) in known.items()}
    for family in found.values():
        name = family.name.removeprefix("myq_") + "_total" * (family.type == "counter")
        told = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert not family.samples or told == set(rows[name][1].replace(",", "").split()), name


def test_every_number_of_the_daemons_is_explained() -> None:
    sources = [read(name) for name in files() if re.fullmatch(r"daemons/(?!raft/)[\w/]+\.py", name)]
    counters = {name for text in sources for name in re.findall(r"counts\[\s*\"(\w+)\"\s*\]", text)}
    histograms = {name for text in sources for name in re.findall(r"histograms\[\"(\w+)\"\]", text)}
    assert counters == set(catalog.COUNTERS), "explain it in gateway/metrics/catalog.py"
    assert histograms == set(catalog.HISTOGRAMS)


def test_a_daemon_that_does_not_answer_fails_nothing(cluster: Cluster, web: FlaskClient) -> None:
    cluster.pause(("broker", 2))
    found = scrape(web)
    assert value(found, "myq_up", daemon="broker", node="2") == 0
    assert value(found, "myq_up") == 2

    def is_seen() -> bool:
        found = scrape(web)
        return value(found, "myq_problems", problem="broker-silent") == 1

    wait_for("managers notice the silent broker", is_seen, 30)
    assert value(scrape(web), "myq_healthy") == 0
    cluster.resume(("broker", 2))
    cluster.pause(("manager", 1))
    found = scrape(web)
    assert value(found, "myq_cluster_reachable") == 0
    assert value(found, "myq_up", daemon="manager") == 0
    assert value(found, "myq_up", daemon="broker") == 2
    assert "myq_partition_bytes" not in found or not found["myq_partition_bytes"].samples
    cluster.resume(("manager", 1))
    cluster.wait_healthy()
    assert value(scrape(web), "myq_healthy") == 1


def test_unhealthy_replicas_are_counted_by_health() -> None:
    states = dict(enumerate(["repairing", "closed", "repairing"]))
    broker = {"daemon": "broker", "node": 1, "groups": [], "refused": {}}
    health = {str(uid): {"state": state, "reason": ""} for uid, state in states.items()}
    older = broker | {"node": 2}
    found = {one.name: one for one in families._raft([broker | {"health": health}, older])}
    samples = found["myq_replicas_unhealthy"].samples
    assert {tuple(one.labels.values()): one.value for one in samples} == {
        ("broker", "1", "closed"): 1,
        ("broker", "1", "repairing"): 2,
    }
