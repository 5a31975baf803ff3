"""The faults that `myq bench … --nemesis` injects into the cluster that `myq up` runs here.

One fault at a time, so that a majority always answers; the next one only after the managers report
no problem:

- *kill*: a daemon gets SIGKILL; the agent starts it again,
- *freeze*: a daemon is stopped for up to three seconds, then continued,
- *restart*: a daemon gets SIGTERM and transfers its leadership; the agent starts it again,
- *drain*: a broker's replicas move to other brokers for up to three seconds, then it is undrained.
  Only where the other brokers could hold all of them,
- *topic*: a topic is deleted and created again under its name; no old message may be in it.

Only daemons of this cluster get signals: each by its pid, and only if it is a child of the
cluster's agent. Brokers that lead are chosen more often than others.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from myqueue.admin.client import Admin
from myqueue.cli.shared import cluster_health
from myqueue.consumer.consumer import Consumer
from myqueue.daemons.agent import cluster_folder, supervisor
from myqueue.daemons.agent.cluster_folder import ClusterFolder, LocalCluster, LocalDaemon
from myqueue.errors import MyQueueError, TimedOut, TooFewBrokers, UnknownTopic, Unreachable
from myqueue.producer.producer import Producer

KILL, FREEZE, RESTART, DRAIN, TOPIC = "kill", "freeze", "restart", "drain", "topic"
WEIGHTS = {KILL: 4, FREEZE: 3, RESTART: 3, DRAIN: 1, TOPIC: 1}
FREEZE_S, DRAIN_S = (0.5, 3.0), (0.5, 3.0)
NOTICED_S, CALM_S = 1.5, 1.0  # from a fault to the first check of health; between two faults
WELL_S = 60.0


class Hurt(NamedTuple):
    """One fault: its victim, its kind, and its time (seconds of the monotonic clock)."""

    whom: str
    how: str
    begin_s: float
    end_s: float


def send_signal(daemon: LocalDaemon, agent: int, number: signal.Signals) -> bool:
    """Send a signal to a child of the agent; False if the process ended or is not its child."""
    if not daemon.pid:
        return False
    try:
        handle = os.pidfd_open(daemon.pid)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{daemon.pid}/stat", encoding="ascii", errors="replace") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        if parent != agent:
            return False
        signal.pidfd_send_signal(handle, number)
    except (OSError, ValueError):
        return False  # the process has just ended
    finally:
        os.close(handle)
    return True


class Nemesis(threading.Thread):
    """The thread that injects faults, one after another, until `finish`."""

    def __init__(
        self, folder: ClusterFolder, admin: Admin, where: str, topic: str, random: Random
    ) -> None:
        """`topic` is the witness's: the leaders of its partitions are chosen more often."""
        super().__init__(name="nemesis", daemon=True)
        self._folder, self._admin, self._where, self._topic = folder, admin, where, topic
        self._random = random
        self._ended = threading.Event()
        self.again = f"again-{secrets.token_hex(4)}"
        self._lives = 0  # how often the topic `again` was created
        self.hurts: list[Hurt] = []
        self.revenants = 0  # messages of a deleted topic that its successor returned
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._ended.wait(CALM_S):
                self.round()
        except Exception as error:
            self.error = error
        finally:
            if not self.revenants:
                with suppress(MyQueueError):
                    self._admin.delete_topic(self.again)

    def finish(self) -> None:
        self._ended.set()
        self.join(2 * WELL_S)

    def round(self, how: str = "") -> None:
        """Inject one fault of this kind, or of any; nothing if it is not possible now."""
        cluster = self._folder.load()
        if cluster is None or not cluster.pid:
            raise Unreachable(f"the cluster on {self._folder.data} is not running any more")
        (drawn,) = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        how, begin = how or drawn, time.monotonic()
        whom = self._do(how, cluster)
        if whom is None:
            return
        # Managers notice a dead broker after 1.2 s of silence; until then they report no problem.
        time.sleep(max(0.0, begin + NOTICED_S - time.monotonic()))
        self._wait_well()
        self.hurts.append(Hurt(whom, how, begin, time.monotonic()))

    def _do(self, how: str, cluster: LocalCluster) -> str | None:
        """Inject the fault; return its victim, or None if it was not possible now."""
        if how == TOPIC:
            return self._delete_and_make_again()
        if how == DRAIN:
            return self._drain(cluster)
        victim, agent = self._victim(cluster.daemons), cluster.pid or 0
        if how == FREEZE:
            done = self._freeze(victim, agent)
        else:
            number = signal.SIGKILL if how == KILL else signal.SIGTERM
            done = send_signal(victim, agent, number)
            if done:
                self._wait_back(victim)
        return victim.name if done else None

    def _victim(self, daemons: list[LocalDaemon]) -> LocalDaemon:
        """Choose a broker (a leader half of the time) or, one time in four, a manager."""
        kind = self._random.choice(
            (
                cluster_folder.BROKER,
                cluster_folder.BROKER,
                cluster_folder.BROKER,
                cluster_folder.MANAGER,
            )
        )
        able = [
            daemon
            for daemon in daemons
            if daemon.kind == kind and daemon.state == supervisor.RUNNING
        ]
        if not able:
            raise Unreachable(f"no {kind} runs on this machine")
        if kind == cluster_folder.BROKER and self._random.random() < 0.5:
            leaders = {row["leader"] for row in self._rows()}
            able = [daemon for daemon in able if daemon.id in leaders] or able
        return self._random.choice(able)

    def _rows(self) -> list[dict[str, Any]]:
        try:
            return list(self._admin.describe_topic(self._topic)["partitions"])
        except MyQueueError:
            return []

    def _freeze(self, victim: LocalDaemon, agent: int) -> bool:
        if not send_signal(victim, agent, signal.SIGSTOP):
            return False
        try:
            self._ended.wait(self._random.uniform(*FREEZE_S))
        finally:
            send_signal(victim, agent, signal.SIGCONT)
        return True

    def _drain(self, cluster: LocalCluster) -> str | None:
        """Drain one local broker; never one that an operator is draining already."""
        ours = {daemon.id for daemon in cluster.of_kind(cluster_folder.BROKER)}
        active = [row["node"] for row in self._admin.brokers() if row["state"] == "active"]
        able = [node for node in active if node in ours]
        if not able:
            return None
        number = self._random.choice(able)
        try:
            self._admin.drain_broker(number)
            self._ended.wait(self._random.uniform(*DRAIN_S))
        except TooFewBrokers:
            return None
        finally:  # a drain whose reply was lost may have started, too
            self._take_back(number)
        return f"{cluster_folder.BROKER}-{number}"

    def _take_back(self, number: int) -> None:
        end = time.monotonic() + WELL_S
        while True:
            try:
                self._admin.undrain_broker(number)
                return
            except MyQueueError as error:
                if time.monotonic() > end:
                    raise TimedOut(
                        f"broker {number} is still being drained: {error}",
                        hint=f"Take it back: myq broker undrain {number}",
                    ) from error
                time.sleep(0.5)

    def _delete_and_make_again(self) -> str:
        with suppress(UnknownTopic):  # the first time
            self._admin.delete_topic(self.again)
        self._admin.create_topic(self.again, partitions=1)
        self._lives += 1
        value = b"life %d" % self._lives
        with Producer(self._where) as producer:
            producer.send(self.again, value)
        end = time.monotonic() + WELL_S
        with Consumer(self._where, [self.again], start="earliest") as consumer:
            while not (values := [message.value for message in consumer.poll(100, 0.5)]):
                if time.monotonic() > end:
                    raise TimedOut(f"nothing could be read from {self.again!r}, made anew")
        self.revenants += sum(read_value != value for read_value in values)
        return self.again

    def _wait_back(self, ended: LocalDaemon) -> None:
        """Wait until the agent has started the daemon again."""
        end = time.monotonic() + WELL_S
        while time.monotonic() < end:
            cluster = self._folder.load()
            for daemon in cluster.daemons if cluster is not None else ():
                if daemon.name == ended.name and daemon.pid not in (None, ended.pid):
                    return
            time.sleep(0.1)
        raise TimedOut(f"{ended.name} was not started again; see 'myq status'")

    def _wait_well(self) -> None:
        """Wait until the managers report no problem."""
        end = time.monotonic() + WELL_S
        while time.monotonic() < end:
            problems = [problem.text for problem in cluster_health.ask(self._admin)]
            if not problems:
                return
            time.sleep(0.1)
        what = "; ".join(problems)
        raise TimedOut(f"not well {WELL_S:.0f} s after a fault: {what}. See 'myq status'")
