"""`myq broker`: list, add, drain, undrain and remove brokers, and show their repairs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from myqueue.admin import broker_moves
from myqueue.admin.client import Admin
from myqueue.admin.local_agent import Agent
from myqueue.cli.shared import cluster_health, connect, options, output
from myqueue.cli.shared.status_line import Line
from myqueue.daemons.agent.cluster_folder import BROKER, ClusterFolder
from myqueue.errors import BrokerInUse, MyQueueError, TimedOut, UnknownBroker, Unreachable
from myqueue.settings import addresses

REGISTERED_S = 60.0
LET_GO_S = 300.0  # other brokers must copy the replicas first
LOOK_S = 0.5
GOES_ON = "It goes on; look again."
COLUMNS = (
    "node",
    "address",
    "host",
    "state",
    "last_seen_ms",
    "replicas",
    "leaving",
    "leads",
    "load",
    "free_bytes",
)

ELSEWHERE = f"On another machine start one: {broker_moves.HOW_TO_START}"


@click.group()
def broker() -> None:
    """Brokers: the daemons that hold the messages."""


@broker.command("list")
@options.options
@output.json_option
def list_(cluster: str | None, data: str | None, as_json: bool) -> None:
    """List the brokers: state, last heartbeat, replicas, partitions they lead, free space.

    States: active; draining: its replicas move to other brokers; drained: it holds no replica;
    dead: it sends no heartbeat. `leaving` counts its replicas that are moving to other brokers.
    """
    with connect.admin(cluster, data) as admin:
        rows = connect.facts_of(admin.brokers())
    if as_json:
        output.write_json("myq.broker.list/1", {"brokers": rows})
    else:
        connect.write_rows(rows, COLUMNS)


@broker.command()
@click.option("--wait", is_flag=True, help="Wait until it has its share of the replicas.")
@click.option(
    "--timeout", "timeout_s", type=float, metavar="SECONDS", help="Stop waiting after this time."
)
@options.data_option
@output.json_option
def add(wait: bool, timeout_s: float | None, data: str | None, as_json: bool) -> None:
    """Add a broker to the cluster that 'myq up' runs on this machine.

    After some seconds the manager moves replicas and leaders to it, a few at a time, until it has
    its share; 'myq broker list' shows the progress. To add a broker on another machine, start
    bin/myq-broker there with the addresses of the managers; it registers by itself.
    """
    where = data or options.DATA
    folder = ClusterFolder(where)
    if not folder.holder():
        raise Unreachable(f"no cluster of 'myq up' runs on {where}", hint=ELSEWHERE)
    with connect.admin(None, where) as admin:
        taken = [row["node"] for row in admin.brokers()]
        number = Agent(folder.data).add_broker(taken=taken)
        row = wait_for(
            f"broker {number} registers",
            REGISTERED_S,
            lambda: next((r for r in rows_of(admin) if r["node"] == number and r["alive"]), None),
        )
        if wait:
            follow(
                f"broker {number} has its share",
                timeout_s,
                lambda: broker_moves.of_spreading(rows_of(admin), number),
                lambda: amiss(admin),
            )
    if as_json:
        output.write_json("myq.broker.add/1", connect.facts_of({"broker": row}))
    else:
        then = "it has its share" if wait else "it gets its share in a moment"
        click.echo(f"Added broker {number} at {row['address']}; {then}.")


@broker.command()
@click.argument("number", type=int)
@click.option("--wait", is_flag=True, help="Wait until it holds no replica.")
@click.option(
    "--timeout", "timeout_s", type=float, metavar="SECONDS", help="Stop waiting after this time."
)
@options.options
def drain(
    number: int, wait: bool, timeout_s: float | None, cluster: str | None, data: str | None
) -> None:
    """Move all replicas off the broker NUMBER; it gets no new ones.

    Clients keep working: a replica is deleted only after its copy on another broker is complete.
    A drained broker may be stopped or removed ('myq broker remove'). 'myq broker undrain' lets it
    hold replicas again.
    """
    with connect.admin(cluster, data) as admin:
        count = admin.drain_broker(number)["replicas"]
        if not wait:
            click.echo(f"Draining broker {number}: {count} replicas. 'myq broker list' shows more.")
            return
        follow(
            f"broker {number} is drained",
            timeout_s,
            lambda: broker_moves.of_draining(rows_of(admin), number),
            lambda: amiss(admin),
        )
    click.echo(f"Broker {number} is drained: it holds nothing any more.")


def amiss(admin: Admin) -> str:
    """Return the problems that `myq health` shows: one of them may block the move."""
    return "; ".join(problem.text for problem in cluster_health.ask(admin))


def follow(
    what: str,
    timeout_s: float | None,
    look: Callable[[], broker_moves.Left | None],
    why: Callable[[], str],
    hint: str = GOES_ON,
) -> None:
    """Show progress until no work is left. `look` returns None while the progress is not known."""
    line, seen = Line(), broker_moves.Pace()

    def is_done() -> bool:
        left = look()
        if left is None:
            return False
        line.show(seen.describe(left, time.monotonic()))
        return left.todo == 0

    try:
        wait_for(what, timeout_s, is_done, lambda: seen.reason or why(), hint)
    finally:
        line.clear()


@broker.command()
@click.argument("number", type=int)
@options.options
def undrain(number: int, cluster: str | None, data: str | None) -> None:
    """Let a drained or draining broker NUMBER hold replicas again."""
    with connect.admin(cluster, data) as admin:
        admin.undrain_broker(number)
        is_dead = any(not row["alive"] for row in rows_of(admin) if row["node"] == number)
    then = "it is dead: start it" if is_dead else "it gets its share in a moment"
    click.echo(f"Broker {number} may hold replicas again; {then}.")


@broker.command()
@click.argument("number", type=int)
@click.option(
    "--force", is_flag=True, help="Remove it even if it holds replicas; shows the loss and asks."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.options
def remove(number: int, force: bool, yes: bool, cluster: str | None, data: str | None) -> None:
    """Remove the broker NUMBER permanently. Drain it first, or use --force.

    With --force, its replicas are rebuilt on other brokers from the remaining copies, if there are
    enough brokers. The command waits until no partition needs the broker. Then it stops a broker
    that 'myq up' runs here and keeps its folder, renamed to end in .removed-…; any other broker you
    may stop yourself. Run an interrupted command again to continue; --force then ends the wait for
    a broker of 'myq up'.
    """
    agent = agent_of(cluster, data)
    with connect.admin(cluster, data) as admin:
        known = next((row for row in admin.brokers() if row["node"] == number), None)
        is_gone, is_here = False, agent is not None and runs_here(agent, number)
        try:
            done = remove_from(admin, number, force, yes)
        except UnknownBroker:  # the leading manager decides; the list may be older
            if not is_here and not admin.counting_on(number):
                raise
            click.echo(f"The managers know no broker {number} any more.")
            is_gone, done = True, {"missed": "", "stranded": 0}
        else:
            click.echo(f"Removed broker {number}.")
        if done["missed"]:
            click.echo(f"What is missed: {done['missed']}.", err=True)
        waits = not (force and is_here) if is_gone else known is None or known["alive"]
        if waits:
            follow(
                f"the partitions of broker {number} let it go: do not stop it yet",
                LET_GO_S,
                lambda: left_on(admin, number, done["stranded"]),
                lambda: amiss(admin),
                "Do the same again later" + ("; --force stops it now." if is_here else "."),
            )
    if agent is not None and agent.drop_broker(number, known["address"] if known else ""):
        click.echo(f"Stopped it; its folder in {agent.data} is kept.")
    else:
        click.echo("Its process may be stopped.")


def agent_of(cluster: str | None, data: str | None) -> Agent | None:
    """Return the agent of the addressed cluster if it runs on this machine, else None."""
    folder = ClusterFolder(data or options.DATA)
    local_cluster = folder.load() if folder.holder() else None
    if local_cluster is None:
        return None
    given = addresses(options.find(cluster, data))  # may name only some of its managers
    return Agent(folder.data) if set(given) <= set(addresses(local_cluster.address)) else None


def runs_here(agent: Agent, number: int) -> bool:
    cluster = ClusterFolder(agent.data).load()
    return cluster is not None and number in [daemon.id for daemon in cluster.of_kind(BROKER)]


def remove_from(admin: Admin, number: int, force: bool, yes: bool) -> dict[str, Any]:
    try:
        return admin.remove_broker(number)
    except BrokerInUse as error:
        if not force:
            raise
        connect.confirm(f"{error}. Remove broker {number} all the same?", yes=yes)
        return admin.remove_broker(number, force=True)


def left_on(admin: Admin, number: int, stranded: int) -> broker_moves.Left | None:
    """Return how many partitions still need the broker; None while no manager leads."""
    left = broker_moves.partitions_counting(admin, number, stranded)
    return None if left is None else broker_moves.Left(f"Letting go of broker {number}", left)


def rows_of(admin: Admin) -> list[dict[str, Any]]:
    """Return the brokers; [] while the managers elect a leader, so that the caller asks again."""
    try:
        return admin.brokers()
    except MyQueueError as error:
        if not error.retriable:
            raise
        return []


def wait_for(
    what: str,
    timeout_s: float | None,
    look: Callable[[], Any],
    why: Callable[[], str] = str,
    hint: str = GOES_ON,
) -> Any:
    """Call `look` until its result is true, and return it.

    TimedOut after `timeout_s`, with the reason that `why` returns.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        result = look()
        if result:
            return result
        if end is not None and time.monotonic() >= end:
            reason = why()
            text = f"not within {timeout_s:g} s: {what}{f' ({reason})' if reason else ''}"
            raise TimedOut(text, hint=hint)
        time.sleep(LOOK_S)


@broker.command()
@options.options
@output.json_option
def repairs(cluster: str | None, data: str | None, as_json: bool) -> None:
    """Show damage that daemons found on their disks, and its repair.

    Covers brokers and managers. `found` is the detector: a start, a read, or the scrubber, which
    rereads every log continuously (scrub_bytes_per_s). Damaged data is copied back from other
    replicas automatically; if no replica that answers has it, the state says so: start the missing
    brokers. Each daemon lists its last twenty repairs since its start.
    """
    with connect.admin(cluster, data) as admin:
        answer = admin.repairs()
    if as_json:
        output.write_json("myq.broker.repairs/1", answer)
        return
    if answer["repairs"]:
        connect.write_rows(answer["repairs"])
    else:
        click.echo("Nothing was found damaged.")
    if answer["silent"]:
        click.echo(f"No answer from {', '.join(answer['silent'])}.", err=True)
    click.echo("\nscrubbers:")
    connect.write_rows(answer["scrubbers"], ("daemon", "bytes_per_s", "rounds", "round_ended_ms"))
