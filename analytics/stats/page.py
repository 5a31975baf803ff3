"""The page of `myq spark stats`: its facts come in, HTML goes out. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from myqueue.analytics.html import svg
from myqueue.analytics.html.page import Size, human, page, table, tiles
from myqueue.analytics.stats.topic_columns import TOPIC_COLUMNS

PARTITIONS_SHOWN = 60
ELECTIONS_SHOWN = 200


def plot(title: str, text: str, drawing: str) -> str:
    """A plot with its title and a line of text."""
    return f"<div class='plot'><h3>{escape(title)}</h3><p>{escape(text)}</p>{drawing}</div>"


def stats_page(facts: dict[str, Any]) -> str:
    took = facts["took_s"]
    body = [
        tiles([
            ("messages", f"{facts['messages']:,}"), ("batches", f"{facts['entries']:,}"),
            ("stored", human(facts["bytes"])),
            ("messages per batch", f"{facts['messages_per_batch']:,.1f}"),
            ("overhead per message", f"{facts['overhead_per_message']:,.1f} B"),
            ("topics", f"{len(facts['topics']):,}"),
            ("partitions", f"{len(facts['partitions']):,}"),
            ("producers", f"{facts['producers_known']:,}"),
            ("elections", f"{len(facts['elections']):,}"), ("logs", f"{facts['logs']:,}"),
        ]),
        *(f"<p class='unsure'>Note: {escape(note)}.</p>" for note in facts["notes"]),
        "<h2>Over time</h2><div class='plots'>", *_over_time(facts), "</div>",
        "<h2>Sizes and delays</h2><div class='plots'>", *_sizes(facts), "</div>",
        "<h2>How even it is</h2><div class='plots'>", *_skew(facts), "</div>",
        "<h2>Topics</h2>",
        table(
            [column.heading for column in TOPIC_COLUMNS],
            [
                [column.cell(topic[column.key]) for column in TOPIC_COLUMNS]
                for topic in facts["topics"]
            ],
        ),
        "<h2>Producers</h2>",
        table(
            ["producer", "messages", "batches", "stored", "messages per batch"],
            [
                [
                    str(sums["producer"] or "none"), sums["messages"], sums["entries"],
                    Size(sums["bytes"]), sums["messages"] / max(sums["entries"], 1),
                ]
                for sums in facts["producers"]
            ],
        ),
        "<h2>Elections</h2>",
        table(
            ["time (UTC)", "partition", "term", "index"],
            [
                [
                    svg.moment(election["time_ms"]), _partition(election),
                    election["term"], election["index"],
                ]
                for election in facts["elections"][-ELECTIONS_SHOWN:]
            ],
        ),
    ]  # fmt: skip
    speed = facts["bytes_read"] / max(took, 1e-9) / 1e6
    sub = f"{', '.join(facts['paths'])} · {human(facts['bytes_read'])} read in {took:.1f} s"
    return page("myq spark stats", f"{sub} ({speed:,.0f} MB/s)", body)


def _partition(facts: dict[str, Any]) -> str:
    return f"{facts['topic']}/{facts['partition']}"


def _over_time(facts: dict[str, Any]) -> Iterable[str]:
    minutes = facts["minutes"]
    step = minutes["step_minutes"]
    per = "minute" if step == 1 else f"{step} minutes"
    text = f"per {per}, by the leader's stamp"
    yield plot("Messages", text, svg.curves(minutes["times_ms"], minutes["messages"]))
    yield plot("Bytes", text, svg.curves(minutes["times_ms"], {"bytes": minutes["bytes"]}))
    growth = {
        disk["daemon"]: [(time_ms, size) for time_ms, size in disk["points"]]
        for disk in facts["growth"]
    }
    yield plot("Growth", "bytes of entries on each disk, by segment", svg.lines(growth))
    times = [election["time_ms"] for election in facts["elections"] if election["time_ms"]]
    counted = [(moment, number + 1) for number, moment in enumerate(sorted(times))]
    yield plot("Elections", "leaders that opened a term, summed up", svg.lines({"all": counted}))


def _sizes(facts: dict[str, Any]) -> Iterable[str]:
    for name, key, unit in (
        ("Sizes of values", "sizes", " B"),
        ("Messages in a batch", "batches", ""),
        ("From the sender's clock to the leader's stamp", "sent_to_stamped_ms", " ms"),
        ("From the leader's stamp to a commit hint", "stamped_to_hint_ms", " ms"),
    ):
        spread = facts[key]
        text = (
            f"p50 {spread['p50']:,.4g}{unit}, p90 {spread['p90']:,.4g}, "
            f"p99 {spread['p99']:,.4g}, max {spread['max']:,}{unit}"
        )
        if not spread["count"]:
            text = "none were met in what was read"
        elif key == "stamped_to_hint_ms":
            text += "; hints are a second apart, so this is an upper bound of the commit's delay"
        yield plot(name, text, svg.histogram(spread["buckets"], unit.strip() and unit))


def _skew(facts: dict[str, Any]) -> Iterable[str]:
    partitions = facts["partitions"][:PARTITIONS_SHOWN]
    labels = [_partition(sums) for sums in partitions]
    messages = [sums["messages"] for sums in partitions]
    yield plot("Messages by partition", "", svg.bars(labels, messages))
    replicas = facts["replicas"][:PARTITIONS_SHOWN]
    labels = [_partition(logs) for logs in replicas]
    most = [max(logs["behind"].values(), default=0) for logs in replicas]
    text = "entries that the shortest log lacks of the longest one, at the tail"
    yield plot("Replicas behind", text, svg.bars(labels, most))
