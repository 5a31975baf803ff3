"""Start a real cluster for tests of applications: real daemons and disks, in a temporary folder.

    with myqueue.testing.cluster(brokers=3) as c:
        c.admin().create_topic("orders", partitions=3)
        c.producer().send("orders", b"17 apples").result(10)
        c.kill("broker", 1)                     # SIGKILL; the agent restarts it
        print([m.value for m in c.consumer(["orders"], idle_timeout=2)])

and with pytest, in `conftest.py`: `from myqueue.testing import myqueue_cluster`.

The cluster is the one of `myq up`, on free ports. It ends with the block, and also if this process
dies: a keeper process reads from a pipe, which the kernel closes then, runs `myq down` and removes
the folder.
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
    """A running cluster; `cluster()` makes it.

    `address` names its managers, `gateway` its HTTP address (None without one), `data` its folder.
    Daemons are named by kind ("manager", "broker") and number, from 1; a wrong name is
    InvalidSetting.
    """

    def __init__(self, data: str) -> None:
        self.data = data
        self._clients: list[Any] = []
        self._held = False
        status = self._status()
        managers = [row["address"] for row in status["daemons"] if row["kind"] == "manager"]
        self.address = ",".join(managers)
        self.gateway: str | None = status["gateway"]  # http://host:port

    # -- clients; closed with the cluster ---------------------------------------------------------

    def admin(self, **arguments: Any) -> Admin:
        """Make an `Admin` of this cluster; the cluster closes it."""
        from myqueue.admin.client import Admin

        return self._keep(Admin(self.address, **arguments))

    def producer(self, **settings: Any) -> Producer:
        """Make a `Producer` of this cluster, with these arguments; the cluster closes it."""
        from myqueue.producer.producer import Producer

        return self._keep(Producer(self.address, **settings))

    def consumer(self, topics: str | Iterable[str], **arguments: Any) -> Consumer:
        """Make a `Consumer` of this cluster, with these arguments; the cluster closes it."""
        from myqueue.consumer.consumer import Consumer

        return self._keep(Consumer(self.address, topics, **arguments))

    def _keep(self, client: T) -> T:
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        """Close all clients that this cluster has made."""
        for client in reversed(self._clients):
            # Undelivered messages are for the test to check, not an error of its end.
            with contextlib.suppress(MyQueueError):
                client.close(timeout=1.0)
        self._clients.clear()

    # -- daemons ----------------------------------------------------------------------------------

    def daemons(self) -> list[dict[str, Any]]:
        """Return `{"kind", "id", "state", "address", "pid"}` of each daemon."""
        return list(self._status()["daemons"])

    def pid(self, kind: str, number: int) -> int:
        """Return the process id of a running daemon."""
        for row in self.daemons():
            if (row["kind"], row["id"]) == (kind, number) and row["pid"]:
                return int(row["pid"])
        raise InvalidSetting(f"no {kind} {number} runs here")

    def kill(self, kind: str, number: int) -> None:
        """Send SIGKILL. The agent restarts it after half a second, or longer if it died before."""
        _end(self.pid(kind, number), signal.SIGKILL)

    def stop(self, kind: str, number: int, *, kill: bool = False) -> None:
        """Send SIGTERM (or SIGKILL); the daemon stays down until `start`."""
        pid = self.pid(kind, number)
        self._hold()  # a frozen agent restarts nothing
        _end(pid, signal.SIGKILL if kill else signal.SIGTERM)

    def start(self) -> None:
        """Have all stopped daemons run again; `wait_healthy` waits for them."""
        self._release()

    def restart(self, kind: str, number: int) -> None:
        """Stop a daemon in order and start it again; return when the cluster is healthy."""
        _end(self.pid(kind, number), signal.SIGTERM)
        self.wait_healthy()

    def freeze(self, kind: str, number: int) -> None:
        """Send SIGSTOP: until `thaw` its connections stay open and it answers nothing."""
        os.kill(self.pid(kind, number), signal.SIGSTOP)

    def thaw(self, kind: str, number: int) -> None:
        """End `freeze`."""
        os.kill(self.pid(kind, number), signal.SIGCONT)

    def wait_healthy(self, timeout: float = HEALTHY_S) -> None:
        """Wait until all daemons run and every partition has a leader and all its replicas.

        Raises TimedOut after `timeout` seconds (default: 60), with the problems that are left.
        """
        end = time.monotonic() + timeout
        while True:
            status = self._status()
            if status["healthy"]:
                return
            if time.monotonic() > end:
                raise TimedOut(f"not healthy in {timeout} s: {status.get('problems')}")
            time.sleep(0.1)

    def logs(self) -> dict[str, str]:
        """Return each daemon's log, by name; for the message of a test that fails."""
        paths = sorted((Path(self.data) / "node").glob("*.log"))
        return {path.stem: path.read_text("utf-8", "replace") for path in paths}

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
    """Start a cluster, wait until it is healthy, and stop it at the end of the block.

    brokers, managers: how many (default: 3 each).
    gateway: start a gateway as well; its address is `.gateway`.
    data: a folder for its data, which stays; None uses a temporary one, which is removed.
    timeout: seconds to become healthy (default: 90).

    Raises TroubleError with the last lines of the logs if it does not start.
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
    """Has the process ended? A zombie has: a frozen agent does not collect it."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


def _last_words(folder: str) -> str:
    paths = sorted((Path(folder) / "node").glob("*.log"))
    tails = [f"{path.name}: {path.read_text('utf-8', 'replace')[-500:]}" for path in paths]
    return "\n".join(tails) or "It wrote no log."


# -- the keeper -----------------------------------------------------------------------------------


def _start_keeper(folder: str, *, remove: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "myqueue.testing", folder, *(["remove"] * remove)]
    # In a session of its own, so that Ctrl-C ends the test and not the keeper.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _keep(folder: str, remove: bool) -> None:
    """Wait until the process that started us closes the pipe or dies; then end the cluster."""
    sys.stdin.buffer.read()
    path = Path(folder) / "node" / "cluster.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        os.kill(int(json.loads(path.read_text())["pid"]), signal.SIGCONT)
    _myq("down", "--data", folder)
    if remove:
        shutil.rmtree(folder, ignore_errors=True)


# -- pytest ---------------------------------------------------------------------------------------


def __getattr__(name: str) -> Any:
    """Make the fixture when it is asked for, so that only tests need pytest."""
    if name != "myqueue_cluster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    pytest = import_module("pytest")  # not a library of ours
    globals()[name] = pytest.fixture(scope="session", name=name)(_session_cluster)
    return globals()[name]


def _session_cluster() -> Iterator[Cluster]:
    """Share a cluster of three managers and three brokers among all tests of the session."""
    with cluster() as running:
        yield running


def __dir__() -> list[str]:
    return sorted({*globals(), "myqueue_cluster"})


if __name__ == "__main__":
    _keep(sys.argv[1], "remove" in sys.argv[2:])
