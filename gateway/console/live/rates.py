"""Turn two answers of STATS into rates for the charts. Pure.

A daemon that restarted counts from zero again. It is left out of that one interval, so that a rate
is never negative and never shows a false peak.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from myqueue.gateway.cluster_snapshot import Facts

COUNTERS: Final = {
    "messages_in": "messages_stored_total",
    "messages_out": "fetched_messages_total",
    "bytes_in": "produced_bytes_total",
    "bytes_out": "fetched_bytes_total",
}
SYNC: Final = "wal_flush_seconds"
QUANTILE: Final = 0.99


class Point(NamedTuple):
    """One second of the brokers; None: not known."""

    at_ms: int
    messages_in: float | None = None
    messages_out: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    sync_ms: float | None = None  # 99th percentile of syncing the log, over some seconds


def point(at_ms: int, before: list[Facts], now: list[Facts], passed_s: float) -> Point:
    """Return the rates between two looks at the brokers."""
    pairs = same_lives(before, now)
    if not pairs or passed_s <= 0:
        return Point(at_ms)
    rates = {
        name: sum(new["counters"].get(wire, 0) - old["counters"].get(wire, 0) for old, new in pairs)
        / passed_s
        for name, wire in COUNTERS.items()
    }
    return Point(at_ms, **rates)


def written(before: list[Facts], now: list[Facts], passed_s: float) -> dict[int, float]:
    """Return the messages per second that each broker stored between two looks, by its number."""
    name = COUNTERS["messages_in"]
    return {
        new["node"]: (new["counters"].get(name, 0) - old["counters"].get(name, 0)) / passed_s
        for old, new in same_lives(before, now)
        if passed_s > 0
    }


def same_lives(before: list[Facts], now: list[Facts]) -> list[tuple[Facts, Facts]]:
    """Return (then, now) of the brokers that answered both times and did not restart."""
    old = {row["node"]: row for row in before if is_broker(row)}
    return [
        (old[row["node"]], row)
        for row in now
        if is_broker(row)
        and row["node"] in old
        and row["process"]["pid"] == old[row["node"]]["process"]["pid"]
    ]


def is_broker(row: Facts) -> bool:
    return bool(row.get("daemon") == "broker" and "error" not in row)


def sync_ms(before: list[Facts], now: list[Facts]) -> float | None:
    """Return the 99th percentile of the log syncs between two looks; None if there were none."""
    buckets: list[int] = []
    bounds: list[float] = []
    for old, new in same_lives(before, now):
        later: Any = new["histograms"].get(SYNC)
        if later is None:
            continue
        earlier = old["histograms"].get(SYNC) or ([0] * len(later[0]), 0.0)
        steps = [b - a for a, b in zip(earlier[0], later[0], strict=True)]
        buckets = [a + b for a, b in zip(buckets, steps, strict=True)] if buckets else steps
        bounds = new["bounds"]
    seconds = quantile(buckets, bounds, QUANTILE)
    return None if seconds is None else seconds * 1000


def quantile(buckets: list[int], bounds: list[float], share: float) -> float | None:
    """Return a quantile of a histogram: linear within a bucket, at most the last bound."""
    total = sum(buckets)
    if not total:
        return None
    wanted = total * share
    edges = list(pairwise([0.0, *bounds]))
    for (low, high), inside, upto in zip(edges, buckets, accumulate(buckets), strict=False):
        if inside and upto >= wanted:
            return low + (high - low) * (inside - (upto - wanted)) / inside
    return bounds[-1]
