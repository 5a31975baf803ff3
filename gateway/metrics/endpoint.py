"""`/metrics`: the cluster and this gateway, in the text formats of Prometheus and OpenMetrics.

A scrape asks the managers and every daemon at that moment, with a deadline; between scrapes nothing
is kept but this gateway's counts of its own requests. A daemon that does not answer shows as
`myq_up 0`, a cluster that does not as `myq_cluster_reachable 0`; the scrape itself succeeds.
METRICS.md lists every metric.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import flask
from flask import Blueprint, Response
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import myqueue
from myqueue import Session
from myqueue.gateway.cluster_snapshot import SnapshotReader, attempt
from myqueue.gateway.drop_reasons import REASONS
from myqueue.gateway.metrics import catalog as names
from myqueue.gateway.metrics import families as cluster

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROUTES: Final = ("method", "route")
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")

blueprint = Blueprint("metrics", __name__)
# Nobody needs a series with the creation time of each series.
disable_created_metrics()  # type: ignore[no-untyped-call]


class RequestMetrics:
    """Counts of this gateway's own requests. Routes are patterns, so that paths are not labels."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.answered = Counter(
            "myq_http_requests",
            names.OTHERS["http_requests_total"][1],
            (*ROUTES, "code"),
            registry=self.registry,
        )
        self.durations = Histogram(
            "myq_http_request_duration_seconds",
            names.OTHERS["http_request_duration_seconds"][1],
            ROUTES,
            buckets=BOUNDS,
            registry=self.registry,
        )
        self.now = Gauge(
            "myq_http_requests_in_progress",
            names.OTHERS["http_requests_in_progress"][1],
            registry=self.registry,
        )
        self._dropped = Counter(
            "myq_http_connections_dropped",
            names.OTHERS["http_connections_dropped_total"][1],
            ("reason",),
            registry=self.registry,
        )
        for reason in REASONS:
            self._dropped.labels(reason)

    def count_dropped(self, reason: str) -> None:
        self._dropped.labels(reason).inc()


class ClusterCollector(Collector):
    """Yields the families of the cluster as they are written, then the gateway's own."""

    def __init__(self, looker: SnapshotReader, own: CollectorRegistry) -> None:
        self._looker, self._own = looker, own

    def collect(self) -> Iterable[Metric]:
        yield from cluster.families(gather(self._looker))
        yield from self._own.collect()


def gather(looker: SnapshotReader) -> cluster.ScrapeData:
    begin = time.monotonic()
    snapshot = looker.look()
    report = cluster.ScrapeData(snapshot, myqueue.__version__)
    if snapshot.is_reachable:
        admin, errors = looker.admin, snapshot.errors
        many = snapshot.cluster.get("counts", {}).get("partitions", 0)
        report.topics = attempt(errors, lambda: looker.topics(cluster.PARTITIONS_MAX, many)) or []
        report.health = attempt(errors, admin.health) or {}
        report.statuses = attempt(errors, lambda: looker.statuses(snapshot)) or []
        last = sorted(report.health.get("consumers", ()), key=lambda row: -row["last_seen_ms"])
        # Without a leader of the managers lags are not read: nobody could act on them.
        groups = attempt(errors, admin.groups) or []
        groups.sort(key=lambda row: (not row["members"], row["group"]))
        report.groups = groups[: cluster.GROUPS_MAX]
        report.groups_omitted = len(groups) - len(report.groups)
        if snapshot.problems is not None:
            report.group_lags = looker.group_lags(report.groups)
            report.lags = looker.lags(last[: cluster.CONSUMERS_MAX])
    snapshot.took_s = time.monotonic() - begin
    return report


@blueprint.record_once
def _begin(state: flask.blueprints.BlueprintSetupState) -> None:
    state.app.extensions["myqueue.requests"] = RequestMetrics()


@blueprint.before_app_request
def _came() -> None:
    flask.g.myqueue_came_s = time.monotonic()
    _requests().now.inc()


@blueprint.after_app_request
def _answered(response: Response) -> Response:
    flask.g.myqueue_code = response.status_code
    return response


@blueprint.teardown_app_request
def _gone(_error: BaseException | None) -> None:
    """Count a request when it ends, also after an error that nothing handled."""
    came_s = flask.g.pop("myqueue_came_s", None)
    if came_s is None:
        return
    rule = flask.request.url_rule
    method = flask.request.method
    labels = (method if method in METHODS else "other", rule.rule if rule else "unknown")
    requests = _requests()
    requests.now.dec()
    requests.answered.labels(*labels, str(flask.g.pop("myqueue_code", 500))).inc()
    requests.durations.labels(*labels).observe(time.monotonic() - came_s)


def _requests() -> RequestMetrics:
    requests: RequestMetrics = flask.current_app.extensions["myqueue.requests"]
    return requests


@blueprint.get("/metrics")
def metrics() -> Response:
    extensions = flask.current_app.extensions
    looker = extensions.get("myqueue.looker")
    if looker is None:
        session: Session = extensions["myqueue"].session
        looker = extensions["myqueue.looker"] = SnapshotReader(session)
    try:
        encode, content_type = choose_encoder(flask.request.headers.get("Accept", ""))
    except (TypeError, ValueError):  # the header has an invalid version
        encode, content_type = choose_encoder("")
    return Response(
        encode(ClusterCollector(looker, _requests().registry)), content_type=content_type
    )
