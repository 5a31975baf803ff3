"""`myq bench … --nemesis`: run a measurement while faults are injected (`faults.py`).

During the measurement a *witness* sends numbered messages to a topic of its own at a steady rate.
The gaps in its acknowledgements show how long clients waited in each fault. At the end all messages
are read back: no acknowledged message may be missing or be stored twice.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from random import Random
from typing import Any, NamedTuple

import click

from myqueue.admin.client import Admin
from myqueue.cli.bench.faults import WELL_S, Hurt, Nemesis
from myqueue.cli.shared import options
from myqueue.consumer.consumer import Consumer
from myqueue.daemons.agent.cluster_folder import ClusterFolder
from myqueue.errors import InvalidRequest, MyQueueError, TimedOut, Unreachable
from myqueue.producer.delivery import RecordMetadata
from myqueue.producer.producer import Producer

PARTITIONS = 3
RATE_PER_S = 300
READ_S = 120.0
AFTER_S = 3.0  # a fault may still delay clients for this time after it was healed

WARNING = (
    "--nemesis KILLS, FREEZES AND RESTARTS daemons of the cluster on {folder}, drains\n"
    "brokers for some seconds, and makes topics of its own."
)
OF_DAEMONS = ("server_", "broker_")


class Acknowledged(NamedTuple):
    """The place of an acknowledged message, and the time of its acknowledgement."""

    partition: int
    offset: int
    at_s: float


# -- the verdict ----------------------------------------------------------------------------------


def interruption_s(times: Iterable[list[float]], hurt: Hurt) -> float:
    """Return the longest wait for an acknowledgement that began during a fault, or soon after.

    `times` has the ordered times of the acknowledgements of each partition.
    """
    worst = 0.0
    for partition_times in times:
        last = hurt.begin_s
        for at in partition_times:
            if last > hurt.end_s + AFTER_S:
                break
            if at > hurt.begin_s:
                worst, last = max(worst, at - last), at
    return worst


def missing_and_doubled(
    acked: dict[int, Acknowledged], found: Iterable[tuple[int, int, int]]
) -> tuple[list[int], list[int]]:
    """Return the numbers missing at their acknowledged offset, and the numbers stored twice.

    `found` has (partition, offset, number) of each message that was read back.
    """
    rows = list(found)
    at = {(partition, offset): number for partition, offset, number in rows}
    lost = [number for number, (p, o, _) in acked.items() if at.get((p, o)) != number]
    counted = Counter(number for _, _, number in rows)
    return sorted(lost), sorted(number for number, count in counted.items() if count > 1)


def share(ordered: list[float], part: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 3)


# -- the witness ----------------------------------------------------------------------------------


class Witness(threading.Thread):
    """Send number after number, to each partition in turn, and record acknowledgements."""

    def __init__(self, where: str, topic: str) -> None:
        super().__init__(name="witness", daemon=True)
        self._topic, self._producer = topic, Producer(where)
        self._ended = threading.Event()
        self.acked: dict[int, Acknowledged] = {}
        self.failed: list[BaseException] = []
        self.sent = 0

    def run(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            due = max(due + 1 / RATE_PER_S, time.monotonic() - 0.1)
            number, self.sent = self.sent, self.sent + 1
            try:
                delivery = self._producer.send(
                    self._topic, b"%d" % number, partition=number % PARTITIONS
                )
            except MyQueueError as error:
                self.failed.append(error)
                continue
            delivery.add_done_callback(self._noting(number))

    def _noting(self, number: int) -> Callable[[Future[RecordMetadata]], None]:
        def done(delivery: Future[RecordMetadata]) -> None:
            error = delivery.exception()
            if error is not None:
                self.failed.append(error)
                return
            at = delivery.result()
            self.acked[number] = Acknowledged(at.partition, at.offset, time.monotonic())

        return done

    def finish(self) -> None:
        self._ended.set()
        self.join(WELL_S)
        try:
            self._producer.close()
        except MyQueueError:
            pass  # `failed` has each of them already

    def times(self) -> list[list[float]]:
        rows = sorted(self.acked.values(), key=lambda row: row.at_s)
        return [[r.at_s for r in rows if r.partition == number] for number in range(PARTITIONS)]

    def read_back(self, where: str) -> list[tuple[int, int, int]]:
        """Read back every message, at least up to the last acknowledged one."""
        ends = [0] * PARTITIONS
        for at in self.acked.values():
            ends[at.partition] = max(ends[at.partition], at.offset + 1)
        reached, rows = [0] * PARTITIONS, []
        deadline = time.monotonic() + READ_S
        with Consumer(where, [self._topic], start="earliest") as consumer:
            while any(now < end for now, end in zip(reached, ends, strict=True)):
                if time.monotonic() > deadline:
                    raise TimedOut(f"{reached} of {ends} messages were read back in time")
                for message in consumer.poll(20_000, 0.5):
                    rows.append((message.partition, message.offset, int(message.value)))
                    reached[message.partition] = message.offset + 1
        return rows


# -- both, around a measurement -------------------------------------------------------------------


def agreed(
    data: str | None,
    other: str | None,
    yes: bool,
    option: str = "--nemesis",
    warning: str = WARNING,
) -> ClusterFolder:
    """Ask for confirmation, and return the cluster to inject faults into.

    `option` asked for the faults; `warning` says what happens to `{folder}`. `other` is a cluster
    named by an address; it is refused, as it may serve other users.
    """
    if other:
        raise InvalidRequest(
            f"{option} hurts only a cluster that 'myq up' runs on this machine",
            hint="Name its folder with --data instead of an address.",
        )
    folder = ClusterFolder(data or options.DATA)
    if not folder.holder():
        raise Unreachable(
            f"no cluster is running on {folder.data}", hint="Start one first: 'myq up'."
        )
    click.secho(warning.format(folder=folder.data), err=True, fg="red", bold=True)
    if not yes and not sys.stdin.isatty():
        raise click.UsageError(f"{option} asks first; where nobody can answer, say --yes.")
    if not yes:
        click.confirm("Is that what you want?", abort=True, err=True)
    return folder


def under(folder: ClusterFolder, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run `measure` under faults; return its figures, and the faults under "nemesis"."""
    where, topic = options.find(None, str(folder.data)), f"witness-{secrets.token_hex(4)}"
    with Admin(where) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
        witness = Witness(where, topic)
        nemesis = Nemesis(folder, admin, where, topic, Random(secrets.randbits(64)))
        witness.start()
        nemesis.start()
        try:
            found = measure()
        finally:
            nemesis.finish()
            witness.finish()
        if nemesis.error is not None:
            raise nemesis.error
        report = felt(witness, nemesis, witness.read_back(where))
        if not report["lost"] and not report["doubled"]:
            admin.delete_topic(topic)
        else:
            report["kept_topic"] = topic
    # The CPU and memory of daemons that were killed during the measurement are not known.
    kept = {name: value for name, value in found.items() if not name.startswith(OF_DAEMONS)}
    return {**kept, "nemesis": report}


def felt(witness: Witness, nemesis: Nemesis, found: list[tuple[int, int, int]]) -> dict[str, Any]:
    times, hurts = witness.times(), nemesis.hurts
    gaps = [round(interruption_s(times, hurt), 3) for hurt in hurts]
    lost, doubled = missing_and_doubled(witness.acked, found)
    errors = Counter(error.name for error in witness.failed if isinstance(error, MyQueueError))
    return {
        "kinds": dict(Counter(hurt.how for hurt in hurts).most_common()),
        "interruption_p50_s": share(sorted(gaps), 0.5),
        "interruption_p99_s": share(sorted(gaps), 0.99),
        "interruption_max_s": max(gaps, default=None),
        "faults": [[hurt.whom, hurt.how, gap] for hurt, gap in zip(hurts, gaps, strict=True)],
        "sent": witness.sent,
        "acknowledged": len(witness.acked),
        "failed": len(witness.failed),
        "errors": dict(errors),
        "lost": len(lost),
        "doubled": len(doubled),
        "revenants": nemesis.revenants,
        "again": nemesis.again if nemesis.revenants else None,
        "whole": not (lost or doubled or nemesis.revenants),
    }


def lines(report: dict[str, Any]) -> Iterable[str]:
    """Format the report for people."""
    for whom, how, gap in report["faults"]:
        yield f"  {how:7} {whom:14} {gap:6.2f} s without acknowledgements"
    kinds = ", ".join(f"{count} {how}" for how, count in report["kinds"].items()) or "no faults"
    yield (
        f"{kinds}; without acknowledgements p50"
        f" {report['interruption_p50_s']} s, p99 {report['interruption_p99_s']} s,"
        f" longest {report['interruption_max_s']} s"
    )
    yield (
        f"The witness sent {report['sent']:,}: {report['acknowledged']:,} acknowledged,"
        f" {report['failed']:,} failed."
    )
    if report["whole"]:
        yield "Kept: all that was acknowledged was read back, once, at its offset."
    else:
        lost, doubled, revenants = report["lost"], report["doubled"], report["revenants"]
        kept = f" {report['kept_topic']} was kept." if "kept_topic" in report else ""
        of_old = f", {revenants:,} of a deleted topic in {report['again']}" if revenants else ""
        yield f"BROKEN: {lost:,} lost, {doubled:,} twice{of_old}.{kept}"
