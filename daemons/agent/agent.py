"""The agent: the process behind `myq up` that runs the daemons of this machine, and the gateway.

It writes the configuration of each daemon, starts them, restarts those that die, and stops brokers
before managers, so that the managers learn of every leader that hands over. Commands may ask it to
add a broker or to stop one (`requests.py`). It knows nothing of topics or Raft: clients find out
whether the cluster is healthy.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from myqueue.daemons.agent import cluster_folder, requests, supervisor
from myqueue.daemons.agent.cluster_folder import ClusterFolder, LocalCluster, LocalDaemon
from myqueue.errors import InvalidSetting, MyQueueError

STOP_TIMEOUT_S = 13.0
DROP_TIMEOUT_S = 8.0
# A daemon is stopped before those that it sends requests to.
STAGES = {cluster_folder.GATEWAY: 0, cluster_folder.BROKER: 1, cluster_folder.MANAGER: 2}
# Levels that go to stderr as well as to the log, by the value of --echo.
ECHO_LEVELS = {
    "info": ("info", *supervisor.ATTENTION_LEVELS),
    "warning": supervisor.ATTENTION_LEVELS,
    "none": (),
}


class AgentLog:
    """The agent's log: `node/node.log`, and stderr for lines of these levels."""

    def __init__(self, path: Path, levels: tuple[str, ...]) -> None:
        self._path, self._levels = path, levels

    def __call__(self, level: str, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {level:7} {text}"
        # The reader of stderr may have ended, and the disk may be full: the daemons run on.
        if level in self._levels:
            with contextlib.suppress(OSError):
                click.echo(line, err=True)
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            if file.tell() > supervisor.LOG_BYTES_MAX:
                self._path.replace(f"{self._path}.1")
            file.write(line + "\n")


class Agent:
    """Runs a cluster on this machine. The caller holds the lock of its folder."""

    def __init__(
        self,
        folder: ClusterFolder,
        cluster: LocalCluster,
        command: list[str],
        echo: str = "info",
        gateway: Sequence[str] = (),
    ) -> None:
        """`command`, with a kind and options added, starts a daemon; `gateway` starts a gateway."""
        self._folder, self._cluster = folder, cluster
        self._log = AgentLog(folder.node / "node.log", ECHO_LEVELS[echo])
        self._command, self._gateway = command, gateway
        self._supervisor = supervisor.Supervisor(
            [self._make_program(daemon) for daemon in cluster.daemons],
            folder.node,
            self._log,
            changed=self._save_states,
        )
        self._stop_asked = False

    def run(self) -> None:
        """Run until SIGTERM, Ctrl-C, or the end of the terminal."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        count = len(self._cluster.daemons)
        self._log("info", f"{self._cluster.cluster}: starting {count} daemons")
        self._cluster.state, self._cluster.pid = supervisor.STARTING, os.getpid()
        try:
            self._supervisor.start()
            while not self._stop_asked:
                self._supervisor.turn()
                for answer, request in requests.take_requests(self._folder):
                    self._handle_request(answer, request)
                time.sleep(supervisor.TURN_S)
        finally:
            self._cluster.state = supervisor.STOPPING
            self._log("info", f"{self._cluster.cluster}: stopping")
            self._supervisor.stop(STOP_TIMEOUT_S)
            self._cluster.state, self._cluster.pid = supervisor.STOPPED, None
            self._save_states()
            self._log("info", f"{self._cluster.cluster}: stopped")

    def _handle_request(self, answer: Path, request: dict[str, Any]) -> None:
        """Do what a command asked for (`requests.py`). A failure is only answered and logged."""
        broker, operation = request.get("broker", 0), request.get("errand")
        self._log("info", f"asked to {operation} {broker or ''}".rstrip())
        error, hint = f"the agent knows no request {operation!r}", "Use one version of myqueue."
        try:
            if operation == requests.ADD:
                taken = [number for number in request.get("taken", ()) if type(number) is int]
                broker, error = self._add_broker(str(request.get("key", "")), taken), ""
            elif operation == requests.DROP:
                broker, error = self._drop_broker(broker, request.get("address", "")), ""
        except MyQueueError as failed:
            error, hint = str(failed), failed.hint
        except OSError as failed:
            error, hint = f"{failed.filename}: {failed.strerror}", "See node/node.log."
        if error:
            self._log("warning", error)
        with contextlib.suppress(OSError):
            requests.write_answer(answer, broker, error, hint)

    def _add_broker(self, key: str, taken_numbers: list[int]) -> int:
        """Start one more broker. A request that is repeated, by its key, gets the same broker."""
        brokers = self._cluster.of_kind(cluster_folder.BROKER)
        earlier = [daemon.id for daemon in brokers if key and daemon.key == key]
        if earlier:
            return earlier[0]
        daemon = cluster_folder.plan_next_broker(self._cluster, key, taken_numbers)
        program = self._make_program(daemon)
        self._cluster.daemons.append(daemon)
        self._supervisor.add(program)
        self._save_states()
        return daemon.id

    def _drop_broker(self, broker: int, address: str) -> int:
        """Stop a broker; returns its number, or 0 if no broker of this number runs here.

        If an address is given, it must be the broker's, too. Its folder is kept under another name,
        so that a new broker of this number begins with an empty one.
        """
        brokers = self._cluster.of_kind(cluster_folder.BROKER)
        found = [daemon for daemon in brokers if daemon.id == broker]
        if not found or address not in ("", found[0].address, found[0].url):
            return 0
        (daemon,) = found
        self._supervisor.stop_and_remove(daemon.name, DROP_TIMEOUT_S)
        self._cluster.daemons.remove(daemon)
        self._save_states()
        data = self._folder.data / daemon.name
        if data.exists():
            count = sum(1 for _ in data.parent.glob(f"{daemon.name}.removed-*"))
            data.rename(data.with_name(f"{daemon.name}.removed-{count + 1}"))
        return broker

    def _on_signal(self, number: int, frame: object) -> None:
        self._stop_asked = True

    def _save_states(self) -> None:
        """Write the states of all daemons to `cluster.json`."""
        for daemon, child in zip(self._cluster.daemons, self._supervisor.children, strict=True):
            daemon.state, daemon.pid, daemon.restarts = child.state, child.pid, child.restarts
        states = {daemon.state for daemon in self._cluster.daemons}
        if self._cluster.state == supervisor.STARTING and states == {supervisor.RUNNING}:
            self._cluster.state = supervisor.RUNNING
        try:
            self._folder.save(self._cluster)
        except OSError as error:
            self._log("warning", f"can't write {self._folder.node}: {error.strerror}")

    def _make_program(self, daemon: LocalDaemon) -> supervisor.Program:
        is_gateway = daemon.kind == cluster_folder.GATEWAY
        command = self._gateway if is_gateway else [*self._command, daemon.kind]
        path = self._folder.node / f"{daemon.name}.toml"
        path.write_text(daemon_toml(daemon, self._cluster, self._folder), encoding="utf-8")
        words = [*command, "--config", str(path)]
        return supervisor.Program(daemon.name, words, STAGES[daemon.kind])


def daemon_toml(daemon: LocalDaemon, cluster: LocalCluster, folder: ClusterFolder) -> str:
    """The text of a daemon's configuration file."""
    if daemon.kind == cluster_folder.GATEWAY:
        return _to_toml(
            {
                "cluster": cluster.address,
                "listen": daemon.address,
                "log": "json",
                "agent": str(folder.data),
            }
        )
    managers = cluster.of_kind(cluster_folder.MANAGER)
    settings = {
        "id": daemon.id,
        "cluster": cluster.cluster,
        "data": str(folder.data / daemon.name),
        "listen": daemon.address,
        "peer_listen": daemon.peer_address,
        "managers": [f"{manager.id}@{manager.peer_address}" for manager in managers],
        "log": "json",
    }
    return _to_toml(settings)


def _to_toml(settings: dict[str, Any]) -> str:
    # Numbers, texts and lists of texts have the same form in JSON and TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
    return "\n".join(["# Written by 'myq up' at each start.", *lines, ""])


def clear_own_environment() -> None:
    """Remove MYQ_… from the environment: they are for commands, not for the daemons we start."""
    for name in [name for name in os.environ if name.startswith("MYQ_")]:
        del os.environ[name]


def load_flag_defaults(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> None:
    """Callback of --config: its keys become defaults, which flags and environment override."""
    if value is None:
        return
    try:
        with open(value, "rb") as file:
            settings: dict[str, Any] = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{value}: {error}") from None
    known = {parameter.name for parameter in context.command.params} - {"config"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise click.BadParameter(f"{value}: {', '.join(unknown)}: no such setting")
    context.default_map = settings


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--config",
    type=click.Path(),
    callback=load_flag_defaults,
    expose_value=False,
    is_eager=True,
    help="A TOML file; its keys are the flags below. Flags and MYQ_NODE_… override it.",
)
@click.option("--data", default="myq-data", help="Folder of the daemons.")
@click.option("--managers", type=int, show_default="as the data has, or 3", help="How many.")
@click.option("--brokers", type=int, show_default="as the data has, or 3", help="How many.")
@click.option(
    "--port-base",
    type=int,
    show_default="as the data has, or 9092",
    help="First port; 0: any that are free.",
)
@click.option("--gateway/--no-gateway", default=False, help="Run a gateway too (HTTP, console).")
@click.option(
    "--echo",
    type=click.Choice(list(ECHO_LEVELS)),
    default="info",
    help="From which level on lines go to stderr, besides node/node.log.",
)
def main(
    data: str,
    managers: int | None,
    brokers: int | None,
    port_base: int | None,
    gateway: bool,
    echo: str,
) -> None:
    """Run managers and brokers on this machine, and restart those that die.

    DATA gets a folder for each daemon (manager-1 …, broker-1 …) and node/ for this agent:
    cluster.json (name, addresses, pids, states), lock, and the daemons' settings and logs.
    """
    clear_own_environment()
    folder = ClusterFolder(data)
    python = [sys.executable, "-P", "-m"]
    try:
        with folder.hold_lock():
            cluster = cluster_folder.plan_cluster(
                folder.load(), managers, brokers, port_base, gateway
            )
            cluster_folder.check_ports(cluster)
            daemon, http = [*python, "myqueue.daemons.main"], [*python, "myqueue.gateway.main"]
            Agent(folder, cluster, daemon, echo, http).run()
    except InvalidSetting as error:
        raise click.UsageError(f"{error}. {error.hint}") from None
    except MyQueueError as error:
        raise click.ClickException(f"{error}. {error.hint}") from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or data}: {error.strerror}") from None


if __name__ == "__main__":
    main(prog_name="myq-node", auto_envvar_prefix="MYQ_NODE")
