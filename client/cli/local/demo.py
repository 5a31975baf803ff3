"""`myq demo`: kill leaders, and show that no acknowledged message is lost.

A producer sends numbered messages and notes each acknowledged one with its offset. While it sends,
the broker that leads the partition gets SIGKILL, twice, and the agent restarts it. Then all
messages are read back and compared with the notes.
"""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import click

from myqueue.acks import AckLedger
from myqueue.admin.client import Admin
from myqueue.cli import FAILED
from myqueue.cli.bench.faults import send_signal
from myqueue.cli.shared import options, output
from myqueue.cli.shared.start_point import ranges
from myqueue.cli.shared.status_line import Line
from myqueue.cluster.session import Session
from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import Message
from myqueue.daemons.agent import cluster_folder, supervisor
from myqueue.daemons.agent.cluster_folder import ClusterFolder
from myqueue.errors import MyQueueError, TimedOut, Unreachable
from myqueue.producer.delivery import RecordMetadata
from myqueue.producer.producer import Producer

WAIT_S = 30.0
PAUSE_S = 1.0
RATE_PER_S = 2000

Found = TypeVar("Found")


@dataclass
class Ledger:
    """Acknowledged values by offset, and the longest time without an acknowledgement."""

    stored: dict[int, bytes] = field(default_factory=dict)
    failed: list[BaseException] = field(default_factory=list)
    sent: int = 0
    gap_s: float = 0.0
    last: float = 0.0

    def note(self, value: bytes) -> Callable[[Future[RecordMetadata]], None]:
        def done(delivery: Future[RecordMetadata]) -> None:
            error = delivery.exception()
            if error is not None:
                self.failed.append(error)
                return
            now = time.monotonic()
            self.gap_s = max(self.gap_s, now - self.last) if self.last else 0.0
            self.last = now
            self.stored[delivery.result().offset] = value

        return done


@click.command()
@click.option("--kills", default=2, show_default=True, help="How many times the leader is killed.")
@click.option(
    "--acks",
    metavar="FILE",
    help="Write acknowledged messages to this file, for 'spark verify', and keep the topic.",
)
@options.data_option
@output.json_option
def demo(kills: int, acks: str | None, data: str | None, as_json: bool) -> None:
    """Kill leaders of the cluster that 'myq up' runs here, and show that nothing is lost.

    The demo creates a topic and deletes it at the end. The exit code is 1 if a message was lost,
    doubled or out of order.
    """
    folder = ClusterFolder(data or options.DATA)
    if not folder.holder():
        raise Unreachable(
            f"no cluster is running on {folder.data}", hint="Start one first: 'myq up'."
        )
    where, topic = options.find(None, str(folder.data)), f"demo-{secrets.token_hex(3)}"
    show = (lambda text: None) if as_json else click.echo
    with Admin(where) as admin, Session(where, name="myq demo") as session:
        admin.create_topic(topic)
        copies = admin.describe_topic(topic)["replication"]
        show(f"Topic {topic}: one partition, on the disks of {copies} broker{'s' * (copies > 1)}.")
        ledger = Ledger()
        with (
            AckLedger(acks) if acks else nullcontext() as file,
            producing(where, topic, ledger, file),
        ):
            for number in range(kills):
                time.sleep(PAUSE_S)
                victim = kill_leader(admin, folder, topic)
                count = len(ledger.stored)
                show(f"SIGKILL {number + 1}: {victim}, which led; {count:,} acknowledged.")
                back_again(folder, victim)
            time.sleep(PAUSE_S)
        show(f"All daemons run again. {ledger.sent:,} sent, {len(ledger.stored):,} acknowledged.")
        problems = verify(list(everything(session, topic, ledger)), ledger)
        if not problems and not acks:  # the ledger is checked against the messages later
            admin.delete_topic(topic)
        elif not problems:
            show(f"Kept the topic {topic}.")
    if as_json:
        output.write_json(
            "myq.demo/1",
            {
                "ok": not problems,
                "problems": problems,
                "sent": ledger.sent,
                "kills": kills,
                "acknowledged": len(ledger.stored),
                "longest_gap_s": ledger.gap_s,
            },
        )
    elif problems:
        click.echo("\n".join(["BROKEN:", *problems, f"The topic {topic} was kept."]))
    else:
        show(
            f"Kept: every acknowledged message was read back once, in order, at its offset.\n"
            f"The longest time without an acknowledgement was {ledger.gap_s:.2f} s."
        )
    if problems:
        click.get_current_context().exit(FAILED)


class producing:
    """Sends numbered messages from another thread while the block runs; then waits for all."""

    def __init__(self, where: str, topic: str, ledger: Ledger, file: AckLedger | None) -> None:
        self._topic, self._ledger, self._file = topic, ledger, file
        self._producer = Producer(where)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo", daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(10 / RATE_PER_S):
            for _ in range(10):
                value = b"message %d" % self._ledger.sent
                self._ledger.sent += 1
                delivery = self._producer.send(self._topic, value, partition=0)
                if self._file is not None:
                    self._file.follow(delivery, value)
                delivery.add_done_callback(self._ledger.note(value))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        if kind is None:
            self._producer.flush()
        self._producer.close()


def kill_leader(admin: Admin, folder: ClusterFolder, topic: str) -> str:
    """Send SIGKILL to the broker that leads the partition; return its name."""
    leader = until(lambda: leader_of(admin, topic), f"no leader of {topic}")
    cluster = folder.load()
    for daemon in cluster.of_kind(cluster_folder.BROKER) if cluster else ():
        if daemon.id == leader and daemon.pid and cluster and cluster.pid:
            send_signal(daemon, cluster.pid, signal.SIGKILL)
            return daemon.name
    raise Unreachable(f"broker {leader}, which leads, does not run on this machine")


def leader_of(admin: Admin, topic: str) -> int:
    """Ask the replicas who leads: routes may still name the leader that was killed before."""
    members = admin.raft_status(topic, 0)["members"]
    leading = [row for row in members if row.get("leads")]
    return int(max(leading, key=lambda row: int(row["term"]))["node"]) if leading else 0


def back_again(folder: ClusterFolder, name: str) -> None:
    """Wait until the agent has restarted this daemon."""
    time.sleep(PAUSE_S)  # the agent looks ten times a second

    def runs() -> bool:
        cluster = folder.load()
        daemons = cluster.daemons if cluster else []
        return any(d.name == name and d.state == supervisor.RUNNING for d in daemons)

    until(runs, f"{name} was not started again")


def until(look: Callable[[], Found], what: str) -> Found:
    line, end = Line(), time.monotonic() + WAIT_S
    try:
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > end:
                raise TimedOut(what)
            line.show("Waiting …")
            time.sleep(0.1)
    finally:
        line.clear()


def everything(session: Session, topic: str, ledger: Ledger) -> Iterator[Message]:
    """Read all messages, at least up to the last acknowledged one.

    A new leader may report an older end for a moment.
    """
    end = max(ranges(session, topic)[0].end, max(ledger.stored, default=-1) + 1)
    with Consumer(session, [topic], start="earliest") as consumer:
        deadline = time.monotonic() + WAIT_S
        position = 0
        while position < end:
            if time.monotonic() > deadline:
                raise TimedOut(f"{position} of {end} messages were read back in time")
            for message in consumer.poll(1000, 0.5):
                position = message.offset + 1
                yield message


def verify(messages: list[Message], ledger: Ledger) -> list[str]:
    """Return what contradicts the acknowledgements; empty if no message was lost."""
    problems: list[str] = []
    found = {message.offset: message.value for message in messages}
    if [message.offset for message in messages] != sorted(found):
        problems.append("offsets were read twice or out of order")
    lost = [offset for offset, value in ledger.stored.items() if found.get(offset) != value]
    if lost:
        problems.append(f"{len(lost):,} acknowledged messages are not at their offset: {lost[:5]}")
    values = [message.value for message in messages]
    if len(set(values)) != len(values):
        problems.append(f"{len(values) - len(set(values)):,} messages are there twice")
    numbers = [int(value.rpartition(b" ")[2]) for value in values]
    if numbers != sorted(numbers):
        problems.append("messages are not in the order in which they were sent")
    definite = [error for error in ledger.failed if isinstance(error, MyQueueError)]
    if definite:
        problems.append(f"{len(ledger.failed):,} messages failed, first: {definite[0]}")
    return problems
