"""`myq bench … --nemesis`: the same measurement while the cluster is hurt (`faults.py`).

Beside the measurement a *witness* sends numbered messages to a topic of its own at a steady rate.
From its acknowledgements follows how long clients had to wait for each fault; in the end everything
is read back and held against them: nothing acknowledged may be missing or be there twice.
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
AFTER_S = 3.0  # what a fault did may show so long after it was healed

OF_DAEMONS = ("server_", "broker_")


class Acknowledged(NamedTuple):
    partition: int
    offset: int
    at_s: float


# -- the verdict ----------------------------------------------------------------------------------


def interruption_s(times: Iterable[list[float]], hurt: Hurt) -> float:
    """The longest wait of any partition for an acknowledgement that began while it lasted, or soon
    after. `times`: of each partition's acknowledgements, in order.
    """
    worst = 0.0
    for of in times:
        last = hurt.begin_s
        for at in of:
            if last > hurt.end_s + AFTER_S:
                break
            if at > hurt.begin_s:
                worst, last = max(worst, at - last), at
    return worst


def missing_and_doubled(
    acked: dict[int, Acknowledged], found: Iterable[tuple[int, int, int]]
) -> tuple[list[int], list[int]]:
    """Numbers that are not where they were acknowledged, and numbers that are there twice.
    `found`: (partition, offset, number) of all that was read back.
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


# -- who feels it ---------------------------------------------------------------------------------


class Witness(threading.Thread):
    """Sends number after number, to each partition in turn."""

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
            pass  # each of them was noted

    def times(self) -> list[list[float]]:
        rows = sorted(self.acked.values(), key=lambda one: one.at_s)
        return [[r.at_s for r in rows if r.partition == number] for number in range(PARTITIONS)]

    def read_back(self, where: str) -> list[tuple[int, int, int]]:
        """All up to what was acknowledged last, at least."""
        ends = [0] * PARTITIONS
        for at in self.acked.values():
            ends[at.partition] = max(ends[at.partition], at.offset + 1)
        reached, rows = [0] * PARTITIONS, []
        deadline = time.monotonic() + READ_S
        with Consumer(where, [self._topic], start="earliest") as consumer:
            while any(now < end for now, end in zip(reached, ends, strict=True)):
                if time.monotonic() > deadline:
                    raise TimedOut(f"{reached} of {ends} messages were read back in time")
                for one in consumer.poll(20_000, 0.5):
                    rows.append((one.partition, one.offset, int(one.value)))
                    reached[one.partition] = one.offset + 1
        return rows


# -- both, around a measurement -------------------------------------------------------------------


def agreed(data: str | None, other: str | None, yes: bool) -> ClusterFolder:
    """The cluster that may be hurt, by somebody who means it. `other`: one that was named by an
    address, which could be anybody's.
    """
    if other:
        raise InvalidRequest(
            "--nemesis hurts only a cluster that 'myq up' runs on this machine",
            hint="Name its folder with --data instead of an address.",
        )
    folder = ClusterFolder(data or options.DATA)
    if not folder.holder():
        raise Unreachable(
            f"no cluster is running on {folder.data}", hint="Start one first: 'myq up'."
        )
    text = (
        f"--nemesis KILLS, FREEZES AND RESTARTS daemons of the cluster on {folder.data}, drains\n"
        "brokers for some seconds, and makes topics of its own."
    )
    click.secho(text, err=True, fg="red", bold=True)
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("--nemesis asks first; where nobody can answer, say --yes.")
    if not yes:
        click.confirm("Is that what you want?", abort=True, err=True)
    return folder


def under(folder: ClusterFolder, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `measure` found, and beside it under "nemesis" what was done and what was felt."""
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
    # What daemons used is not known of those that were killed on the way.
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
        "sent": witness.sent, "acknowledged": len(witness.acked), "failed": len(witness.failed),
        "errors": dict(errors), "lost": len(lost), "doubled": len(doubled),
        "revenants": nemesis.revenants,
        "again": nemesis.again if nemesis.revenants else None,
        "whole": not (lost or doubled or nemesis.revenants),
    }  # fmt: skip


def lines(report: dict[str, Any]) -> Iterable[str]:
    """For people."""
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
