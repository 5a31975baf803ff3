"""The agent: the process behind `myq up` that runs the daemons of this machine, and the gateway.

It writes each one's configuration, starts them, starts again what dies, and stops brokers
before managers, so that the managers hear of every leader that hands over. Commands may ask it for
one more broker, or to let one go (`requests.py`). It knows nothing of topics or Raft: whether the
cluster is *well* is for clients to ask.
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
from myqueue.daemons.agent.cluster_folder import Cluster, Daemon, Folder
from myqueue.errors import InvalidSetting, MyQueueError

STOP_S = 13.0
DROP_S = 8.0
# Who asks goes before whom it asks.
STAGES = {cluster_folder.GATEWAY: 0, cluster_folder.BROKER: 1, cluster_folder.MANAGER: 2}
# What comes on stderr, besides going to the log.
ECHO = {"info": ("info", *supervisor.LOUD), "warning": supervisor.LOUD, "none": ()}


class Voice:
    """What the agent has to say: in `node/node.log`, and, if it is of these levels, on stderr."""

    def __init__(self, path: Path, levels: tuple[str, ...]) -> None:
        self._path, self._levels = path, levels

    def __call__(self, level: str, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {level:7} {text}"
        # Whoever started us may be gone, and the disk may be full: the daemons run on.
        if level in self._levels:
            with contextlib.suppress(OSError):
                click.echo(line, err=True)
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            if file.tell() > supervisor.LOG_BYTES_MAX:
                self._path.replace(f"{self._path}.1")
            file.write(line + "\n")


class Node:
    """A cluster on this machine, while it runs. Its folder's lock is held by the caller."""

    def __init__(
        self, folder: Folder, cluster: Cluster, command: list[str], echo: str = "info",
        gateway: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`command` starts a daemon when its kind and its options are added; `gateway` one."""
        self._folder, self._cluster = folder, cluster
        self._voice = Voice(folder.node / "node.log", ECHO[echo])
        self._command, self._gateway = command, gateway
        self._supervisor = supervisor.Supervisor(
            [self._program(daemon) for daemon in cluster.daemons],
            folder.node,
            self._voice,
            changed=self._changed,
        )
        self._stop_asked = False

    def run(self) -> None:
        """Until SIGTERM, Ctrl-C, or the end of the terminal."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        count = len(self._cluster.daemons)
        self._voice("info", f"{self._cluster.cluster}: starting {count} daemons")
        self._cluster.state, self._cluster.pid = supervisor.STARTING, os.getpid()
        try:
            self._supervisor.start()
            while not self._stop_asked:
                self._supervisor.turn()
                for answer, errand in requests.waiting(self._folder):
                    self._run_errand(answer, errand)
                time.sleep(supervisor.TURN_S)
        finally:
            self._cluster.state = supervisor.STOPPING
            self._voice("info", f"{self._cluster.cluster}: stopping")
            self._supervisor.stop(STOP_S)
            self._cluster.state, self._cluster.pid = supervisor.STOPPED, None
            self._changed()
            self._voice("info", f"{self._cluster.cluster}: stopped")

    def _run_errand(self, answer: Path, errand: dict[str, Any]) -> None:
        """What a command asked for (`requests.py`); a failure is told to it, and nothing else."""
        broker, what = errand.get("broker", 0), errand.get("errand")
        self._voice("info", f"asked to {what} {broker or ''}".rstrip())
        error, hint = f"the agent knows no errand {what!r}", "Use one version of myqueue."
        try:
            if what == requests.ADD:
                taken = [one for one in errand.get("taken", ()) if type(one) is int]
                broker, error = self._add_broker(str(errand.get("key", "")), taken), ""
            elif what == requests.DROP:
                broker, error = self._drop_broker(broker, errand.get("address", "")), ""
        except MyQueueError as failed:
            error, hint = str(failed), failed.hint
        except OSError as failed:
            error, hint = f"{failed.filename}: {failed.strerror}", "See node/node.log."
        if error:
            self._voice("warning", error)
        with contextlib.suppress(OSError):
            requests.answer(answer, broker, error, hint)

    def _add_broker(self, key: str, taken: list[int]) -> int:
        """A request that came before, told by its key, gets the broker that it got then."""
        brokers = self._cluster.of_kind(cluster_folder.BROKER)
        before = [daemon.id for daemon in brokers if key and daemon.key == key]
        if before:
            return before[0]
        daemon = cluster_folder.one_more_broker(self._cluster, key, taken)
        program = self._program(daemon)
        self._cluster.daemons.append(daemon)
        self._supervisor.add(program)
        self._changed()
        return daemon.id

    def _drop_broker(self, broker: int, address: str) -> int:
        """Its folder is kept, under another name: a broker of this number begins with none. 0: none
        of this number and, if one was given, this address runs here.
        """
        found = [one for one in self._cluster.of_kind(cluster_folder.BROKER) if one.id == broker]
        if not found or address not in ("", found[0].address, found[0].url):
            return 0
        (daemon,) = found
        self._supervisor.drop(daemon.name, DROP_S)
        self._cluster.daemons.remove(daemon)
        self._changed()
        data = self._folder.data / daemon.name
        if data.exists():
            count = sum(1 for _ in data.parent.glob(f"{daemon.name}.removed-*"))
            data.rename(data.with_name(f"{daemon.name}.removed-{count + 1}"))
        return broker

    def _on_signal(self, number: int, frame: object) -> None:
        self._stop_asked = True

    def _changed(self) -> None:
        """Write down who runs."""
        for daemon, child in zip(self._cluster.daemons, self._supervisor.children, strict=True):
            daemon.state, daemon.pid, daemon.restarts = child.state, child.pid, child.restarts
        states = {daemon.state for daemon in self._cluster.daemons}
        if self._cluster.state == supervisor.STARTING and states == {supervisor.RUNNING}:
            self._cluster.state = supervisor.RUNNING
        try:
            self._folder.save(self._cluster)
        except OSError as error:
            self._voice("warning", f"can't write {self._folder.node}: {error.strerror}")

    def _program(self, daemon: Daemon) -> supervisor.Program:
        is_gateway = daemon.kind == cluster_folder.GATEWAY
        command = self._gateway if is_gateway else [*self._command, daemon.kind]
        path = self._folder.node / f"{daemon.name}.toml"
        path.write_text(settings_of(daemon, self._cluster, self._folder), encoding="utf-8")
        words = [*command, "--config", str(path)]
        return supervisor.Program(daemon.name, words, STAGES[daemon.kind])


def settings_of(daemon: Daemon, cluster: Cluster, folder: Folder) -> str:
    """A daemon's configuration file."""
    if daemon.kind == cluster_folder.GATEWAY:
        return _toml({
            "cluster": cluster.address, "listen": daemon.address, "log": "json",
            "agent": str(folder.data),
        })  # fmt: skip
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
    return _toml(settings)


def _toml(settings: dict[str, Any]) -> str:
    # Numbers, texts and lists of texts are written alike in JSON and TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
    return "\n".join(["# Written by 'myq up' at each start.", *lines, ""])


def own_environment() -> None:
    """Settings in the caller's environment are for commands, not for every daemon we start."""
    for name in [name for name in os.environ if name.startswith("MYQ_")]:
        del os.environ[name]


def read_config(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Callback of --config: its keys become defaults, which flags and environment override."""
    if value is None:
        return
    try:
        with open(value, "rb") as file:
            found: dict[str, Any] = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{value}: {error}") from None
    known = {parameter.name for parameter in context.command.params} - {"config"}
    unknown = sorted(set(found) - known)
    if unknown:
        raise click.BadParameter(f"{value}: {', '.join(unknown)}: no such setting")
    context.default_map = found


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--config", type=click.Path(), callback=read_config, expose_value=False, is_eager=True,
    help="A TOML file; its keys are the flags below. Flags and MYQ_NODE_… override it.",
)  # fmt: skip
@click.option("--data", default="myq-data", help="Folder of the daemons.")
@click.option("--managers", type=int, show_default="as the data has, or 3", help="How many.")
@click.option("--brokers", type=int, show_default="as the data has, or 3", help="How many.")
@click.option(
    "--port-base", type=int, show_default="as the data has, or 9092",
    help="First port; 0: any that are free.",
)  # fmt: skip
@click.option(
    "--gateway/--no-gateway", default=False, help="Run a gateway beside them (HTTP, console)."
)
@click.option(
    "--echo", type=click.Choice(list(ECHO)), default="info",
    help="From which level on lines go to stderr, besides node/node.log.",
)  # fmt: skip
def main(
    data: str, managers: int | None, brokers: int | None, port_base: int | None, gateway: bool,
    echo: str,
) -> None:  # fmt: skip
    """Run managers and brokers on this machine, and start again what dies.

    DATA gets a folder for each daemon (manager-1 …, broker-1 …) and node/ for this agent:
    cluster.json (name, addresses, pids, states), lock, and the daemons' settings and logs.
    """
    own_environment()
    folder = Folder(data)
    python = [sys.executable, "-P", "-m"]
    try:
        with folder.locked():
            cluster = cluster_folder.plan(folder.load(), managers, brokers, port_base, gateway)
            cluster_folder.check_ports(cluster)
            daemon, http = [*python, "myqueue.daemons.main"], [*python, "myqueue.gateway.main"]
            Node(folder, cluster, daemon, echo, http).run()
    except InvalidSetting as error:
        raise click.UsageError(f"{error}. {error.hint}") from None
    except MyQueueError as error:
        raise click.ClickException(f"{error}. {error.hint}") from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or data}: {error.strerror}") from None


if __name__ == "__main__":
    main(prog_name="myq-node", auto_envvar_prefix="MYQ_NODE")
