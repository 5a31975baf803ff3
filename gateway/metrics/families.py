"""Turn what daemons reported into families of metrics. Pure: it asks nothing.

Labels are `daemon` (manager, broker), `node`, `topic`, `partition`, `consumer`, `group` (of
consumers). Rows that a large cluster has many of are bounded (`PARTITIONS_MAX`, `CONSUMERS_MAX`,
`GROUPS_MAX`), and `myq_omitted` says how many were left out; Raft is reported by daemon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from myqueue.errors import MyQueueError
from myqueue.gateway.cluster_snapshot import ClusterSnapshot, Facts
from myqueue.gateway.metrics import catalog as names
from myqueue.problems import REPORTED

PREFIX: Final = "myq_"
PARTITIONS_MAX: Final = 2000  # of all topics
CONSUMERS_MAX: Final = 50  # whose lag is asked for: those seen last
GROUPS_MAX: Final = 50  # of consumers; those with members first

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
Row = tuple[Sequence[str], float]
DAEMON: Final = ("daemon", "node")


@dataclass(slots=True)
class ScrapeData:
    """All answers of one scrape; what was not answered is empty."""

    look: ClusterSnapshot
    version: str
    statuses: list[Facts] = field(default_factory=list)
    topics: list[Facts] = field(default_factory=list)
    health: Facts = field(default_factory=dict)
    lags: dict[int, int | MyQueueError] = field(default_factory=dict)
    groups: list[Facts] = field(default_factory=list)  # of consumers
    groups_omitted: int = 0
    group_lags: dict[str, dict[str, int]] = field(default_factory=dict)  # by name and topic


def families(told: ScrapeData) -> Iterator[Family]:
    look = told.look
    name = str(look.cluster.get("cluster", ""))
    yield gauge("build_info", ("version", "cluster"), [((told.version, name), 1)])
    yield gauge("cluster_reachable", (), [((), look.is_reachable)])
    yield gauge("healthy", (), [((), look.is_healthy)])
    yield gauge("scrape_duration_seconds", (), [((), look.took_s)])
    problem_kinds = [row["problem"] for row in look.problems or ()]
    kinds = dict.fromkeys((*REPORTED, *problem_kinds)) if look.problems is not None else ()
    yield gauge("problems", ("problem",), [((one,), problem_kinds.count(one)) for one in kinds])
    yield from _daemons(look.stats)
    yield from _brokers(look.brokers)
    yield from _raft(told.statuses)
    yield from _topics(told.topics)
    yield from _clients(told)


def gauge(name: str, labels: Sequence[str], rows: Iterable[Row]) -> GaugeMetricFamily:
    _, help_ = names.OTHERS.get(name) or names.all_names()[name]
    family = GaugeMetricFamily(PREFIX + name, help_, labels=labels)
    for values, number in rows:
        family.add_metric(list(values), float(number))
    return family


# -- what daemons count ---------------------------------------------------------------------------


def _daemons(stats: list[Facts]) -> Iterator[Family]:
    yield gauge("up", DAEMON, [(_who(row), "error" not in row) for row in stats])
    answered = [row for row in stats if "error" not in row]
    cpu = CounterMetricFamily(
        f"{PREFIX}process_cpu_seconds", names.OTHERS["process_cpu_seconds_total"][1], labels=DAEMON
    )
    for row in answered:
        cpu.add_metric(_who(row), row["process"]["cpu_seconds"])
    yield cpu
    memory = [(_who(row), row["process"]["resident_bytes"]) for row in answered]
    yield gauge("process_resident_memory_bytes", DAEMON, memory)
    for name in _known_first(names.COUNTERS, answered, "counters"):
        yield _counted(name, answered)
    for name in _known_first(names.GAUGES, answered, "gauges"):
        ours, help_ = names.GAUGES.get(name, (name, "A gauge of a newer daemon."))
        family = GaugeMetricFamily(PREFIX + ours, help_, labels=DAEMON)
        for row in answered:
            if name in row["gauges"]:
                family.add_metric(_who(row), row["gauges"][name])
        yield family
    for name in _known_first(names.HISTOGRAMS, answered, "histograms"):
        yield _histogram(name, answered)


def _known_first(known: Iterable[str], rows: list[Facts], part: str) -> list[str]:
    reported = sorted({name for row in rows for name in row[part]})
    return list(dict.fromkeys((*known, *reported)))


def _counted(name: str, rows: list[Facts]) -> Family:
    """Make the family of one counter. One that a daemon has not counted yet is 0: rates need the
    step from there.
    """
    help_ = names.COUNTERS.get(name, "A number of a newer daemon.")
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(
        PREFIX + name.removesuffix("_total"), help_, labels=DAEMON
    )
    for row in rows:
        family.add_metric(_who(row), row["counters"].get(name, 0))
    return family


def _histogram(name: str, rows: list[Facts]) -> Family:
    help_ = names.HISTOGRAMS.get(name, "A histogram of a newer daemon.")
    family = HistogramMetricFamily(PREFIX + name, help_, labels=DAEMON)
    for row in rows:
        buckets, total = row["histograms"].get(name) or ([0] * (len(row["bounds"]) + 1), 0.0)
        bounds = [*map(str, map(float, row["bounds"])), "+Inf"]
        family.add_metric(
            _who(row), list(zip(bounds, accumulate(buckets), strict=True)), sum_value=total
        )
    return family


def _who(row: Facts) -> list[str]:
    return [str(row["daemon"]), str(row["node"])]


def _brokers(rows: list[Facts]) -> Iterator[Family]:
    def of(name: str, key: str, scale: float = 1.0) -> Family:
        return gauge(name, ("node",), [((str(row["node"]),), row[key] * scale) for row in rows])

    yield of("broker_load_messages_per_second", "load")
    yield of("broker_last_seen_timestamp_seconds", "last_seen_ms", 0.001)
    yield of("broker_disk_low", "disk_low")
    yield of("broker_replicas", "replicas")
    yield of("broker_replicas_leaving", "leaving")
    yield of("broker_draining", "draining")


# -- Raft, by daemon ------------------------------------------------------------------------------


def _raft(statuses: list[Facts]) -> Iterator[Family]:
    rows = [(_who(row), row) for row in statuses if "error" not in row]
    roles: list[Row] = []
    for who, row in rows:
        led = sum(bool(group["leads"]) for group in row["groups"])
        roles += [((*who, "leader"), led), ((*who, "follower"), len(row["groups"]) - led)]
    yield gauge("raft_groups", (*DAEMON, "role"), roles)
    for name, key, most in (
        ("raft_term", "term", True),
        ("raft_commit_index", "commit", False),
        ("raft_applied_index", "applied", False),
    ):
        yield gauge(name, DAEMON, [(who, _over(row["groups"], key, most)) for who, row in rows])
    refused = [(who, len(row.get("refused", ()))) for who, row in rows]
    yield gauge("raft_groups_refused", DAEMON, refused)
    unhealthy: list[Row] = []
    for who, row in rows:
        states = Counter(one["state"] for one in row.get("health", {}).values())
        unhealthy += [((*who, state), count) for state, count in sorted(states.items())]
    yield gauge("replicas_unhealthy", (*DAEMON, "health"), unhealthy)


def _over(groups: list[Facts], key: str, most: bool) -> int:
    values = [int(group[key]) for group in groups]
    return max(values, default=0) if most else sum(values)


# -- topics and clients ---------------------------------------------------------------------------


def _topics(topics: list[Facts]) -> Iterator[Family]:
    """Make the families of topics, as many complete topics as fit under PARTITIONS_MAX."""
    counts = accumulate(len(topic["partitions"]) for topic in topics)
    kept = [one for one, upto in zip(topics, counts, strict=True) if upto <= PARTITIONS_MAX]
    labels = ("topic",)
    yield gauge(
        "topic_partitions", labels, [((one["topic"],), len(one["partitions"])) for one in kept]
    )
    yield gauge("topic_replicas", labels, [((one["topic"],), one["replication"]) for one in kept])
    yield gauge("topic_bytes", labels, [((one["topic"],), one["bytes"]) for one in kept])
    rows: list[tuple[tuple[str, str], Any]] = [
        ((one["topic"], str(part["partition"])), part) for one in kept for part in one["partitions"]
    ]
    for name, key in (
        ("partition_start_offset", "start"),
        ("partition_end_offset", "end"),
        ("partition_bytes", "bytes"),
        ("partition_leader", "leader"),
    ):
        yield gauge(name, ("topic", "partition"), [(where, part[key]) for where, part in rows])


def _clients(told: ScrapeData) -> Iterator[Family]:
    health = told.health
    for kind in ("producers", "consumers"):
        clients = health.get(kind, [])
        rows = [
            ((state,), sum(one["active"] is active for one in clients))
            for state, active in (("active", True), ("inactive", False))
        ]
        yield gauge(kind, ("state",), rows if health else [])
    topics = {one["id"]: one["topic"] for one in health.get("consumers", ())}
    lags = {number: lag for number, lag in told.lags.items() if isinstance(lag, int)}
    yield gauge(
        "consumer_lag_messages",
        ("topic", "consumer"),
        [((topics.get(number, ""), str(number)), lag) for number, lag in sorted(lags.items())],
    )
    group_lags = dict(sorted(told.group_lags.items()))
    members = [((row["group"],), row["members"]) for row in told.groups]
    yield gauge("group_members", ("group",), members)
    yield gauge(
        "group_lag_messages",
        ("group", "topic"),
        [
            ((name, topic), lag)
            for name, of in group_lags.items()
            for topic, lag in sorted(of.items())
        ],
    )
    upto = accumulate(len(one["partitions"]) for one in told.topics)
    kept = sum(one <= PARTITIONS_MAX for one in upto)
    topics_known = told.look.cluster.get("counts", {}).get("topics", kept)
    yield gauge(
        "omitted",
        ("kind",),
        [
            (("topics",), max(0, topics_known - kept)),
            (("clients",), health.get("omitted", 0)),
            (("lags",), max(0, len(topics) - len(lags))),
            (("groups",), told.groups_omitted),
            (("group_lags",), max(0, len(told.groups) - len(group_lags))),
        ],
    )
