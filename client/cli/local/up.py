"""`myq up`: start a cluster on this machine and wait until it is healthy.

A separate process, the agent (`daemons/agent/agent.py`), starts the daemons: a process whose
children die with it must have no threads, and this one has clients with threads. In the foreground
the agent ends with this process, however that ends; with --detach it stays.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import click

from myqueue.admin.client import Admin
from myqueue.cli.shared import cluster_health, options, output
from myqueue.cli.shared.install_hint import install_command
from myqueue.cli.shared.status_line import Line
from myqueue.cli.shared.streams import quiet_pipe
from myqueue.daemons import config
from myqueue.daemons.agent import cluster_folder, supervisor
from myqueue.daemons.agent.cluster_folder import ClusterFolder, LocalCluster
from myqueue.errors import DirectoryLocked, DiskFull, InvalidSetting, MyQueueError, TroubleError
from myqueue.problems import ENDS_ALONE
from myqueue.wal.config import JournalConfig
from myqueue.wire.program_settings import typed

# The agent needs 13 s at most.
STOP_S = 15.0
GIVE_UP_RESTARTS = 3
LED_S = 3.0

EXAMPLE = """\
from myqueue import MyConsumer, MyProducer
producer = MyProducer(["hello"], "{door}"); producer.send("hello", b"world"); producer.stop()
print(next(MyConsumer(["hello"], "{door}").get_next()).value)"""


@click.command()
@click.option(
    "--data",
    metavar="DIR",
    default=options.DATA,
    show_default=True,
    help="Where the data is stored.",
)
@click.option("--managers", type=int, help="Number of managers. [default: as in the data, or 3]")
@click.option("--brokers", type=int, help="Number of brokers. [default: as in the data, or 3]")
@click.option(
    "--port-base",
    type=int,
    help="First port of managers. Brokers' begin 200 later, peer ports 100 after each;"
    " the gateway's is 1012 before. 0: any free ports. [default: as in the data, or 9092]",
)
@click.option(
    "--gateway/--no-gateway", default=True, show_default=True, help="HTTP and the web console."
)
@click.option("--detach", is_flag=True, help="Return when it is healthy; 'myq down' stops it.")
@click.option(
    "--wait",
    "wait_s",
    type=float,
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long the cluster may take to become healthy.",
)
def up(
    data: str,
    managers: int | None,
    brokers: int | None,
    port_base: int | None,
    gateway: bool,
    detach: bool,
    wait_s: float,
) -> None:
    """Start a cluster on this machine and wait until it is healthy; Ctrl-C stops it in order.

    If DIR has data of a cluster, that cluster is started again, with its ports and its name. A
    daemon that dies is restarted. If all daemons run when the time is over but the cluster is not
    healthy, for example because a partition is lost, 'up' prints the problem and they go on.

    DIR gets a folder for each daemon (manager-1 …, broker-1 …), and node/: cluster.json (name,
    addresses, pids, states), the daemons' settings (.toml) and logs (.log). Nothing is written
    anywhere else.
    """
    folder = ClusterFolder(data)
    gateway = gateway and can_run_gateway()
    refuse(folder, managers, brokers, port_base, gateway)
    words = ["--data", str(folder.data), "--echo", "none" if detach else "warning"]
    words += ["--gateway" if gateway else "--no-gateway"]
    for flag, value in (("managers", managers), ("brokers", brokers), ("port-base", port_base)):
        words += [] if value is None else [f"--{flag}", str(value)]
    check_room(folder, managers, brokers)
    agent = start_agent(folder, words, detach)
    try:
        with signals_raise():
            cluster, problems = wait_until_healthy(folder, agent, time.monotonic() + wait_s)
            with quiet_pipe():
                print_summary(cluster, data, detach, problems)
            if not detach:
                click.echo("Ctrl-C stops it.", err=True)
                code = agent.wait()
                if code:
                    raise TroubleError(f"the agent ended with exit code {code}", hint=look(folder))
    except Stopped:
        stop(agent)
    except BaseException:
        stop(agent)
        raise


class Stopped(BaseException):
    """Raised by Ctrl-C, SIGTERM, or the end of the terminal; not a failure."""


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise Stopped

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def can_run_gateway() -> bool:
    if importlib.util.find_spec("flask") is not None:
        return True
    how = install_command("gateway")
    click.echo(f"Without the gateway: its packages are missing. To add them: {how}", err=True)
    return False


def refuse(
    folder: ClusterFolder,
    managers: int | None,
    brokers: int | None,
    port_base: int | None,
    gateway: bool,
) -> None:
    """Refuse at once what the agent would refuse: a cluster that runs already, a taken port."""
    holder = folder.holder()
    if holder:
        raise DirectoryLocked(
            f"a cluster is already running on {folder.data} (pid {holder})",
            hint="Use it ('myq status'), stop it ('myq down'), or give another --data.",
        )
    try:
        cluster = cluster_folder.plan_cluster(folder.load(), managers, brokers, port_base, gateway)
    except InvalidSetting as error:
        raise click.UsageError(f"{error}. {error.hint}") from None
    cluster_folder.check_ports(cluster)


def check_room(folder: ClusterFolder, managers: int | None, brokers: int | None) -> None:
    """Refuse a disk on which new daemons could not open their logs; warn if it is nearly full."""
    settings = {setting.name: setting for setting in config.SETTINGS}

    def setting(name: str) -> int:
        value = os.environ.get(f"MYQ_{name.upper()}", settings[name].default)
        return int(typed(settings[name], value))

    cluster = cluster_folder.plan_cluster(folder.load(), managers, brokers, None)
    new = [one for one in cluster.daemons if not (folder.data / one.name).exists()]
    each = setting("segment_bytes") + JournalConfig().reserve_bytes
    place = folder.data
    while not place.exists():
        place = place.parent
    free, needed = shutil.disk_usage(place).free, len(new) * each
    has = f"{place} has {output.human_bytes(free)} free"
    if free < needed:
        raise DiskFull(
            f"{has}; {len(new)} new daemons need {output.human_bytes(needed)} to begin with",
            hint="Give a --data on a larger disk, or make room.",
        )
    if free - needed < setting("soft_limit_bytes"):
        limit = output.human_bytes(setting("soft_limit_bytes"))
        click.echo(
            f"{has}. Brokers take no messages while less than {limit} are free (soft_limit_bytes).",
            err=True,
        )


def start_agent(folder: ClusterFolder, words: list[str], detach: bool) -> subprocess.Popen[bytes]:
    folder.node.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "myqueue.daemons.agent.agent", *words]
    tie = functools.partial(supervisor.die_with_parent, os.getpid(), signal.SIGTERM)
    with (folder.node / "node.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log if detach else None,
            start_new_session=True,  # Ctrl-C comes to us alone
            preexec_fn=None if detach else tie,
        )


def wait_until_healthy(
    folder: ClusterFolder, agent: subprocess.Popen[bytes], end: float
) -> tuple[LocalCluster, str]:
    """Return the cluster and its problems, which are "" if it is healthy.

    A cluster that can be used is returned with its problems when the time is over: one unreadable
    partition must not make all others unavailable.
    """
    line = Line()
    try:
        while True:
            cluster = folder.load()
            if agent.poll() is not None:
                raise TroubleError("the cluster could not be started", hint=look(folder))
            if cluster is not None and cluster.pid == agent.pid:
                give_up_on_the_dying(folder, cluster)
                waits_for = what_is_missing(cluster, end)
                if not waits_for:
                    return cluster, ""
                line.show(f"Starting {cluster.cluster}: {waits_for}")
                if time.monotonic() > end:
                    if can_be_used(cluster):
                        return cluster, waits_for
                    said = what_they_say(folder, cluster)
                    raise TroubleError(
                        f"not healthy in time: {waits_for}{said}",
                        hint=look(folder)
                        if said
                        else "Give it more time with --wait. " + look(folder),
                    )
            time.sleep(0.1)
    finally:
        line.clear()


def what_is_missing(cluster: LocalCluster, end: float) -> str:
    """Return what the start waits for now; "" if the cluster is healthy."""
    down = [daemon.name for daemon in cluster.daemons if daemon.state != supervisor.RUNNING]
    if down:
        return f"waiting for {', '.join(down)}"
    timeout_s = max(0.5, min(3.0, end - time.monotonic()))
    found = cluster_health.problems(cluster.address, cluster, timeout_s)
    return "; ".join(problem.text for problem in found if problem.kind in ENDS_ALONE)


def can_be_used(cluster: LocalCluster) -> bool:
    """Do all daemons run, and does a manager lead? Then an operator can find and fix problems."""
    if any(daemon.state != supervisor.RUNNING for daemon in cluster.daemons):
        return False
    try:
        with Admin(cluster.address, timeout=LED_S) as admin:
            known = {row["node"] for row in admin.brokers() if row["alive"]}
            admin.problems()
    except MyQueueError:
        return False
    return known >= {daemon.id for daemon in cluster.of_kind(cluster_folder.BROKER)}


def give_up_on_the_dying(folder: ClusterFolder, cluster: LocalCluster) -> None:
    for daemon in cluster.daemons:
        if daemon.state == supervisor.RESTARTING and daemon.restarts >= GIVE_UP_RESTARTS:
            raise TroubleError(
                f"{daemon.name} ends whenever it is started: "
                f"{last_warning(folder, daemon.name) or 'its log has no error'}",
                hint=f"Its log is {folder.node / daemon.name}.log.",
            )


def what_they_say(folder: ClusterFolder, cluster: LocalCluster) -> str:
    """Return the last warning or error of the first daemon that does not run, if it has one."""
    for daemon in cluster.daemons:
        if daemon.state != supervisor.RUNNING and (said := last_warning(folder, daemon.name)):
            return f"; {daemon.name} says: {said}"
    return ""


def last_warning(folder: ClusterFolder, name: str) -> str:
    """Return the newest warning or error of a daemon's log."""
    try:
        lines = (folder.node / f"{name}.log").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    texts = [supervisor.parse_line(line) for line in lines[-50:]]
    return next(
        (text for level, _, text in reversed(texts) if level in supervisor.ATTENTION_LEVELS), ""
    )


def look(folder: ClusterFolder) -> str:
    return f"Look into the logs in {folder.node}."


def print_summary(cluster: LocalCluster, data: str, detach: bool, problems: str) -> None:
    """Print the cluster's addresses and what to do next."""
    managers, brokers = (
        cluster.of_kind(cluster_folder.MANAGER),
        cluster.of_kind(cluster_folder.BROKER),
    )
    where = "" if data == options.DATA else f" --data {data}"
    how = "runs, but is NOT healthy" if problems else "is healthy"
    click.echo(f"Cluster {cluster.cluster} {how}. Its data is in {data}.")
    if problems:
        click.echo(f"Not healthy: {problems}. 'myq health{where}' shows more.", err=True)
    click.echo(f"  managers  {cluster.address}")
    click.echo(f"  brokers   {', '.join(daemon.address for daemon in brokers)}")
    if cluster.gateway is not None:
        click.echo(f"  gateway   {cluster.gateway} (HTTP; in a browser, the console)")
    click.echo(f"\nThree lines of Python ({os.path.relpath(sys.executable)}):\n")
    click.echo(EXAMPLE.format(door=managers[0].address))
    click.echo(f"\nNext: myq status{where} · myq demo{where} · myq topic create NAME{where}")
    if detach:
        click.echo(f"It runs in the background; 'myq down{where}' stops it.")


def stop(agent: subprocess.Popen[bytes]) -> None:
    """Have the agent stop the daemons; ignore a second Ctrl-C."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    with contextlib.suppress(OSError):  # the terminal may be closed
        if agent.poll() is None:
            click.echo("\nStopping the gateway, brokers, then managers …", err=True)
    agent.terminate()
    how = "Stopped."
    try:
        agent.wait(STOP_S)
    except subprocess.TimeoutExpired:
        agent.kill()  # the kernel then kills its children
        agent.wait()
        how = "Killed what did not stop; no acknowledged message is lost."
    with contextlib.suppress(OSError):
        click.echo(how, err=True)
    for number, handler in before.items():
        signal.signal(number, handler)
