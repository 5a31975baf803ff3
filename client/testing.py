"""A real cluster for tests of applications: real daemons, real disks, in a temporary folder.

    with myqueue.testing.cluster(brokers=3) as c:
        c.admin().create_topic("orders", partitions=3)
        c.producer().send("orders", b"17 apples").result(10)
        c.kill("broker", 1)                     # SIGKILL; the agent starts it again
        print([m.value for m in c.consumer(["orders"], idle_timeout=2)])

and with pytest, in `conftest.py`: `from myqueue.testing import myqueue_cluster`.

The cluster is the one of `myq up`, on free ports. It ends with the block, and also if this process
dies on the way: a keeper process waits for the end of a pipe, which the kernel sees to, then runs
`myq down` and removes the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from myqueue.errors import InvalidSetting, MyQueueError, TimedOut, TroubleError

if TYPE_CHECKING:
    from myqueue.admin.client import Admin
    from myqueue.consumer.consumer import Consumer
    from myqueue.producer.producer import Producer

T = TypeVar("T")
START_S: Final = 90.0
HEALTHY_S: Final = 60.0
_MYQ: Final = [sys.executable, "-P", "-m", "myqueue.cli"]


class Cluster:
    """A running cluster. Daemons are named by kind ("manager", "broker") and number, from 1."""

    def __init__(self, data: str) -> None:
        self.data = data
        self._clients: list[Any] = []
        self._held = False
        status = self._status()
        doors = [row["address"] for row in status["daemons"] if row["kind"] == "manager"]
        self.address = ",".join(doors)
        self.gateway: str | None = status["gateway"]  # http://host:port

    # -- clients; closed with the cluster ---------------------------------------------------------

    def admin(self, **arguments: Any) -> Admin:
        from myqueue.admin.client import Admin

        return self._keep(Admin(self.address, **arguments))

    def producer(self, **settings: Any) -> Producer:
        from myqueue.producer.producer import Producer

        return self._keep(Producer(self.address, **settings))

    def consumer(self, topics: str | Iterable[str], **arguments: Any) -> Consumer:
        from myqueue.consumer.consumer import Consumer

        return self._keep(Consumer(self.address, topics, **arguments))

    def _keep(self, client: T) -> T:
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        for client in reversed(self._clients):
            # What a test left undelivered is for that test to look at, not for the end of it.
            with contextlib.suppress(MyQueueError):
                client.close(timeout=1.0)
        self._clients.clear()

    # -- daemons ----------------------------------------------------------------------------------

    def daemons(self) -> list[dict[str, Any]]:
        """`{"kind", "id", "state", "address", "pid"}` of each."""
        return list(self._status()["daemons"])

    def pid(self, kind: str, number: int) -> int:
        for row in self.daemons():
            if (row["kind"], row["id"]) == (kind, number) and row["pid"]:
                return int(row["pid"])
        raise InvalidSetting(f"no {kind} {number} runs here")

    def kill(self, kind: str, number: int) -> None:
        """SIGKILL. The agent starts it again, after half a second or (repeated) somewhat more."""
        _end(self.pid(kind, number), signal.SIGKILL)

    def stop(self, kind: str, number: int, *, kill: bool = False) -> None:
        """SIGTERM (or SIGKILL), and it stays down until `start`."""
        pid = self.pid(kind, number)
        self._hold()  # an agent that stands still starts nothing
        _end(pid, signal.SIGKILL if kill else signal.SIGTERM)

    def start(self) -> None:
        """All that were stopped run again; see `wait_healthy`."""
        self._release()

    def restart(self, kind: str, number: int) -> None:
        """Stopped in order and started again; returns when the cluster is healthy."""
        _end(self.pid(kind, number), signal.SIGTERM)
        self.wait_healthy()

    def freeze(self, kind: str, number: int) -> None:
        """SIGSTOP: its connections stay, and it says nothing, until `thaw`."""
        os.kill(self.pid(kind, number), signal.SIGSTOP)

    def thaw(self, kind: str, number: int) -> None:
        os.kill(self.pid(kind, number), signal.SIGCONT)

    def wait_healthy(self, timeout: float = HEALTHY_S) -> None:
        """Until all daemons run and every partition has a leader and all its replicas."""
        end = time.monotonic() + timeout
        while True:
            status = self._status()
            if status["healthy"]:
                return
            if time.monotonic() > end:
                raise TimedOut(f"not healthy in {timeout} s: {status.get('problems')}")
            time.sleep(0.1)

    def logs(self) -> dict[str, str]:
        """What each daemon said, by name; for the message of a test that fails."""
        found = sorted((Path(self.data) / "node").glob("*.log"))
        return {path.stem: path.read_text("utf-8", "replace") for path in found}

    def _status(self) -> dict[str, Any]:
        done = _myq("status", "--json", "--data", self.data)
        try:
            status: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise TroubleError(f"myq status: {done.stderr.strip() or done.stdout}") from None
        return status

    def _agent(self) -> int:
        return int(json.loads((Path(self.data) / "node" / "cluster.json").read_text())["pid"])

    def _hold(self) -> None:
        if not self._held:
            os.kill(self._agent(), signal.SIGSTOP)
            self._held = True

    def _release(self) -> None:
        if self._held:
            os.kill(self._agent(), signal.SIGCONT)
            self._held = False


@contextlib.contextmanager
def cluster(
    *,
    brokers: int = 3,
    managers: int = 3,
    gateway: bool = False,
    data: str | None = None,
    timeout: float = START_S,
) -> Iterator[Cluster]:
    """Start a cluster, wait until it is healthy, and stop it in the end.

    `gateway`: with HTTP as well, at `.gateway`. It lives in a temporary folder that is removed,
    unless `data` names one that stays.
    """
    folder = data or tempfile.mkdtemp(prefix="myqueue-")
    keeper = _start_keeper(folder, remove=data is None)
    try:
        words = ["--brokers", str(brokers), "--managers", str(managers), "--wait", str(timeout)]
        words += ["--gateway" if gateway else "--no-gateway"]
        done = _myq("up", "--detach", "--data", folder, "--port-base", "0", *words)
        if done.returncode:
            raise TroubleError(f"myq up: {done.stderr.strip()}", hint=_last_words(folder))
        running = Cluster(folder)
        try:
            yield running
        finally:
            running.close_clients()
            running.start()
    finally:
        if keeper.stdin is not None:
            keeper.stdin.close()
        keeper.wait()


def _myq(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_MYQ, *words], capture_output=True, text=True, check=False)


def _end(pid: int, number: signal.Signals, timeout: float = 20.0) -> None:
    """Send the signal and wait until the process runs no more."""
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, number)
        end = time.monotonic() + timeout
        while not _has_ended(pid):
            if time.monotonic() > end:
                raise TimedOut(f"pid {pid} runs on {timeout} s after {number.name}")
            time.sleep(0.01)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def _has_ended(pid: int) -> bool:
    """Gone, or a zombie that an agent that stands still has not buried."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


def _last_words(folder: str) -> str:
    found = sorted((Path(folder) / "node").glob("*.log"))
    tails = [f"{path.name}: {path.read_text('utf-8', 'replace')[-500:]}" for path in found]
    return "\n".join(tails) or "It wrote no log."


# -- the keeper -----------------------------------------------------------------------------------


def _start_keeper(folder: str, *, remove: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "myqueue.testing", folder, *(["remove"] * remove)]
    # A session of its own: Ctrl-C is for the test, and what follows is for the keeper.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _keep(folder: str, remove: bool) -> None:
    """Waits until the process that started it closes the pipe or dies; then all ends."""
    sys.stdin.buffer.read()
    path = Path(folder) / "node" / "cluster.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        os.kill(int(json.loads(path.read_text())["pid"]), signal.SIGCONT)
    _myq("down", "--data", folder)
    if remove:
        shutil.rmtree(folder, ignore_errors=True)


# -- pytest ---------------------------------------------------------------------------------------


def __getattr__(name: str) -> Any:
    """The fixture is made when somebody asks for it, so that pytest is needed by tests only."""
    if name != "myqueue_cluster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    pytest = import_module("pytest")  # not a library of ours
    globals()[name] = pytest.fixture(scope="session", name=name)(_session_cluster)
    return globals()[name]


def _session_cluster() -> Iterator[Cluster]:
    """A cluster of three managers and three brokers for all tests of the session."""
    with cluster() as running:
        yield running


def __dir__() -> list[str]:
    return sorted({*globals(), "myqueue_cluster"})


if __name__ == "__main__":
    _keep(sys.argv[1], "remove" in sys.argv[2:])
