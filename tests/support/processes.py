"""A cluster of real daemons, each a process of its own, that a test may kill, pause and restart.

The test is their supervisor: nothing restarts by itself, so what happens is what the test did. All
are on loopback, on ports that were free, with their data in the test's folder; whatever the test
started is ended with it, by pid.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import SystemRandom
from typing import Any

from myqueue.admin.client import Admin
from myqueue.cluster.session import Session
from myqueue.errors import MyQueueError
from myqueue.wire import protocol

Name = tuple[str, int]  # ("broker", 2)
PORTS = range(12_000, 30_000)  # below those that the kernel gives to outgoing connections


def _ports_of_this_worker() -> list[int]:
    """Those of other workers differ, so that a daemon that was killed finds its own free again."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = PORTS[worker % workers :: workers]
    return SystemRandom().sample(ports, len(ports))


_ports = itertools.cycle(_ports_of_this_worker())


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, and that no other test of this process was given."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            one = socket.socket()
            try:
                one.bind(("127.0.0.1", next(_ports)))
            except OSError:
                one.close()
                continue
            held.append(one)
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Poll until `condition` holds: the state of other processes has no event."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return found


class Cluster:
    """Three managers and three brokers, unless asked otherwise."""

    def __init__(self, folder: Path, managers: int = 3, brokers: int = 3, **settings: Any) -> None:
        self.folder, self.settings = folder, settings
        self.names: list[Name] = [("manager", n) for n in range(1, managers + 1)]
        self.names += [("broker", n) for n in range(1, brokers + 1)]
        ports = iter(free_ports(2 * len(self.names)))
        self.ports = {name: (next(ports), next(ports)) for name in self.names}
        self.processes: dict[Name, subprocess.Popen[bytes]] = {}
        self.paused: set[Name] = set()
        self._admin: Admin | None = None
        self._session: Session | None = None

    # -- daemons -------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return ",".join(self.door(name) for name in self.names if name[0] == "manager")

    def at(self, name: Name) -> str:
        """The address of its machine."""
        return "127.0.0.1"

    def door(self, name: Name) -> str:
        return f"{self.at(name)}:{self.ports[name][0]}"

    def data(self, name: Name) -> Path:
        return self.folder / f"{name[0]}-{name[1]}"

    def log(self, name: Name) -> str:
        return (self.folder / f"{name[0]}-{name[1]}.log").read_text()

    def command(self, name: Name) -> list[str]:
        kind, number = name
        client, peer = self.ports[name]
        out = [
            *(sys.executable, "-P", "-m", "myqueue.daemons.main", kind),
            *("--id", str(number), "--cluster", "test", "--data", str(self.data(name))),
            *("--listen", f"127.0.0.1:{client}", "--peer-listen", f"127.0.0.1:{peer}"),
        ]
        for other in self.names:
            if other[0] == "manager":
                out += ["--managers", f"{other[1]}@127.0.0.1:{self.ports[other][1]}"]
        for key, value in self.settings.items():
            out += [f"--{key.replace('_', '-')}", str(value)]
        return out

    def next_broker(self) -> Name:
        return ("broker", max(number for kind, number in self.names if kind == "broker") + 1)

    def add_broker(self) -> Name:
        """Start one more broker, which registers by itself."""
        name = self.next_broker()
        client, peer = free_ports(2)
        self.ports[name] = (client, peer)
        self.names.append(name)
        self.start(name)
        return name

    def wipe(self, name: Name) -> None:
        """Remove the data of a daemon, as if its disk was replaced."""
        shutil.rmtree(self.data(name))

    def start(self, *names: Name) -> None:
        for name in names or self.names:
            assert name not in self.processes, f"{name} runs"
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / f"{name[0]}-{name[1]}.log", "ab") as log:
                self.processes[name] = subprocess.Popen(
                    self.command(name), stderr=log, stdin=subprocess.DEVNULL
                )

    def kill(self, *names: Name) -> None:
        """Send SIGKILL; what the daemon wrote stays in the page cache."""
        for name in names:
            self.processes[name].kill()
        for name in names:
            self.processes.pop(name).wait(10)
            self.paused.discard(name)

    def stop(self, *names: Name, within_s: float = 10.0) -> None:
        """Send SIGTERM; a daemon that does not end cleanly fails the test."""
        for name in names:
            self.processes[name].terminate()
        for name in names:
            code = self.processes.pop(name).wait(within_s)
            assert code == 0, f"{name} ended with {code}:\n{self.log(name)[-2000:]}"

    def pause(self, name: Name) -> None:
        os.kill(self.processes[name].pid, signal.SIGSTOP)
        self.paused.add(name)

    def resume(self, name: Name) -> None:
        os.kill(self.processes[name].pid, signal.SIGCONT)
        self.paused.discard(name)

    def check_alive(self) -> None:
        """Check that no daemon ended by itself."""
        for name, process in self.processes.items():
            code = process.poll()
            assert code is None, f"{name} ended with {code}:\n{self.log(name)[-3000:]}"

    def close(self) -> None:
        for client in (self._admin, self._session):
            if client is not None:
                client.close()
        for name in list(self.paused):
            self.resume(name)
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(10)
        self.processes.clear()

    def __enter__(self) -> Cluster:
        self.start()
        try:
            self.wait_healthy()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- what it says --------------------------------------------------------------------------

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self.address)
        return self._admin

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = Session(self.address, name="test", request_timeout_ms=1000)
        return self._session

    def problems(self) -> list[Any] | None:
        """Return the problems that the managers' leader reports; None if it does not answer."""
        try:
            asked = self.session.read("problems", linearizable=True, timeout_ms=1000)
            return list(asked.result()["problems"])
        except MyQueueError:
            return None

    def wait_healthy(self, seconds: float = 30.0) -> None:
        wanted = sum(kind == "broker" for kind, _ in self.names)

        def is_healthy() -> bool:
            self.check_alive()
            if self.problems() != []:
                return False
            try:
                rows = self.session.read("brokers", timeout_ms=1000).result()["brokers"]
            except MyQueueError:
                return False
            return sum(row["alive"] for row in rows) == wanted

        try:
            wait_for("a healthy cluster", is_healthy, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.problems()}") from None

    def leader_of(self, topic: str, partition: int = 0) -> Name:
        """Wait for a leader of the partition, and return its broker."""

        def find() -> int:
            try:
                found = self.session.read("topic", {"topic": topic}, timeout_ms=1000).result()
            except MyQueueError:
                return 0
            return int(found["partitions"][partition]["leader"])

        return ("broker", wait_for(f"a leader of {topic}/{partition}", find))

    def managers_leader(self) -> Name:
        def find() -> int:
            for name in self.running("manager"):
                address = f"tcp://{self.door(name)}"
                try:
                    asked = self.session.call(address, protocol.STATUS, (0,), timeout_ms=1000)
                    groups = asked.result().envelope[3]["groups"]
                except MyQueueError:
                    continue
                if any(group["ready"] for group in groups):
                    return name[1]
            return 0

        return ("manager", wait_for("a leader of the managers", find))

    def running(self, kind: str) -> Iterable[Name]:
        return [one for one in self.processes if one[0] == kind and one not in self.paused]
