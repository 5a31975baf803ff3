"""`myq broker`: the daemons that hold the messages: list them, add one, empty one, let one go."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from myqueue.admin.client import Admin
from myqueue.admin.local_agent import Agent
from myqueue.cli.shared import cluster_health, connect, drain_progress, options, output
from myqueue.cli.shared.status_line import Line
from myqueue.daemons.agent.cluster_folder import BROKER, ClusterFolder
from myqueue.errors import BrokerInUse, MyQueueError, TimedOut, UnknownBroker, Unreachable
from myqueue.settings import addresses

REGISTERED_S = 60.0
LET_GO_S = 300.0  # it takes as long as others need for their copies
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

ELSEWHERE = (
    "On another machine start one: bin/myq-broker --id N --cluster NAME --data DIR"
    " --listen HOST:PORT --peer-listen HOST:PORT --managers ID@HOST:PORT … --keys DIR;"
    " it registers by itself."
)


@click.group()
def broker() -> None:
    """Brokers: the daemons that hold the messages."""


@broker.command("list")
@options.options
@output.json_option
def list_(cluster: str | None, data: str | None, as_json: bool) -> None:
    """List the brokers: state, when they were heard last, what they hold and lead.

    States: active; draining: it gives its replicas away; drained: it holds nothing any more; dead:
    it is not heard. `leaving` are replicas that others are about to hold in its place.
    """
    with connect.admin(cluster, data) as admin:
        rows = connect.facts_of(admin.brokers())
    if as_json:
        output.write_json("myq.broker.list/1", {"brokers": rows})
    else:
        connect.write_rows(rows, COLUMNS)


@broker.command()
@click.option("--wait", is_flag=True, help="Until it has its share of the replicas.")
@click.option(
    "--timeout", "timeout_s", type=float, metavar="SECONDS", help="Give up waiting after so long."
)
@options.data_option
@output.json_option
def add(wait: bool, timeout_s: float | None, data: str | None, as_json: bool) -> None:
    """Start one more broker in the cluster that 'myq up' runs on this machine.

    When it has lived for some seconds it is given its share of all replicas, a few at a time, and
    of the leaders; 'myq broker list' shows how far that is. On another machine a broker is added
    by starting it there: bin/myq-broker with the addresses of the managers; it registers by itself.
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
                lambda: drain_progress.of_spreading(rows_of(admin), number),
                lambda: amiss(admin),
            )
    if as_json:
        output.write_json("myq.broker.add/1", connect.facts_of({"broker": row}))
    else:
        then = "it has its share" if wait else "it gets its share in a moment"
        click.echo(f"Added broker {number} at {row['address']}; {then}.")


@broker.command()
@click.argument("number", type=int)
@click.option("--wait", is_flag=True, help="Until it holds nothing any more.")
@click.option(
    "--timeout", "timeout_s", type=float, metavar="SECONDS", help="Give up waiting after so long."
)
@options.options
def drain(
    number: int, wait: bool, timeout_s: float | None, cluster: str | None, data: str | None
) -> None:
    """Have the broker NUMBER give all its replicas to others; it gets no new ones.

    Clients go on meanwhile: each replica is whole elsewhere before it goes. Afterwards the broker
    may be stopped, or removed ('myq broker remove'); 'myq broker undrain' takes it back.
    """
    with connect.admin(cluster, data) as admin:
        count = admin.drain_broker(number)["replicas"]
        if not wait:
            click.echo(f"Draining broker {number}: {count} replicas. 'myq broker list' shows more.")
            return
        follow(
            f"broker {number} is drained",
            timeout_s,
            lambda: drain_progress.of_draining(rows_of(admin), number),
            lambda: amiss(admin),
        )
    click.echo(f"Broker {number} is drained: it holds nothing any more.")


def amiss(admin: Admin) -> str:
    """What may hold a move up: all that `myq health` would say."""
    try:
        told = admin.problems()
    except MyQueueError as error:
        return f"no manager leads: {error}"
    found = cluster_health.of(told)
    return "; ".join(problem.text for problem in found)


def follow(
    what: str, timeout_s: float | None, look: Callable[[], drain_progress.Left | None],
    why: Callable[[], str], hint: str = GOES_ON,
) -> None:  # fmt: skip
    """Shows how far it is until nothing is left. None: nobody can tell right now."""
    line, seen = Line(), drain_progress.Pace()

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
    """Let the broker NUMBER hold replicas again."""
    with connect.admin(cluster, data) as admin:
        admin.undrain_broker(number)
        is_dead = any(not row["alive"] for row in rows_of(admin) if row["node"] == number)
    then = "it is dead: start it" if is_dead else "it gets its share in a moment"
    click.echo(f"Broker {number} may hold replicas again; {then}.")


@broker.command()
@click.argument("number", type=int)
@click.option("--force", is_flag=True, help="Even if it holds replicas. Says what is lost, asks.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.options
def remove(number: int, force: bool, yes: bool, cluster: str | None, data: str | None) -> None:
    """Let the broker NUMBER go for good: one that was drained, or with --force any.

    Replicas of which there are others are made anew from these where there is a broker for it. It
    waits until they need the broker no more: one that 'myq up' runs here is stopped then, its
    folder is kept, with .removed-… behind its name; of another one it says that you may stop it. If
    that was broken off, the same command again goes on with it; with --force it waits no longer.
    """
    agent = agent_of(cluster, data)
    with connect.admin(cluster, data) as admin:
        known = next((row for row in admin.brokers() if row["node"] == number), None)
        is_gone, is_here = False, agent is not None and runs_here(agent, number)
        try:
            done = remove_from(admin, number, force, yes)
        except UnknownBroker:  # says their leader; a list may be older
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
    """The one that runs the cluster that is meant, on this machine."""
    folder = ClusterFolder(data or options.DATA)
    found = folder.load() if folder.holder() else None
    if found is None:
        return None
    meant = addresses(options.find(cluster, data))  # some of its managers are enough
    return Agent(folder.data) if set(meant) <= set(addresses(found.address)) else None


def runs_here(agent: Agent, number: int) -> bool:
    found = ClusterFolder(agent.data).load()
    return found is not None and number in [one.id for one in found.of_kind(BROKER)]


def remove_from(admin: Admin, number: int, force: bool, yes: bool) -> dict[str, Any]:
    try:
        return admin.remove_broker(number)
    except BrokerInUse as error:
        if not force:
            raise
        connect.confirm(f"{error}. Remove broker {number} all the same?", yes=yes)
        return admin.remove_broker(number, force=True)


def left_on(admin: Admin, number: int, stranded: int) -> drain_progress.Left | None:
    """Of two voters, the one that is left can't change the members alone."""
    try:
        left = admin.counting_on(number) - stranded
    except MyQueueError as error:
        if not error.retriable:
            raise
        return None
    return drain_progress.Left(f"Letting go of broker {number}", max(0, left))


def rows_of(admin: Admin) -> list[dict[str, Any]]:
    """Nobody, while the managers elect a leader: whoever waits looks again."""
    try:
        return admin.brokers()
    except MyQueueError as error:
        if not error.retriable:
            raise
        return []


def wait_for(
    what: str, timeout_s: float | None, look: Callable[[], Any], why: Callable[[], str] = str,
    hint: str = GOES_ON,
) -> Any:  # fmt: skip
    """What `look` finds; `why` says what holds it up, if something does."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if end is not None and time.monotonic() >= end:
            reason = why()
            text = f"not within {timeout_s:g} s: {what}{f' ({reason})' if reason else ''}"
            raise TimedOut(text, hint=hint)
        time.sleep(LOOK_S)


@broker.command()
@options.options
@output.json_option
def repairs(cluster: str | None, data: str | None, as_json: bool) -> None:
    """Show what daemons found damaged on their disks, and what became of it.

    Managers, too. `found` says by whom: a start, a read, or the scrubber, which reads every log
    again and again (scrub_bytes_per_s). What is damaged comes back from other replicas by itself;
    if none that answers has it, the state says so: start their brokers. Of what is repaired the
    last twenty of each daemon are shown, since its start.
    """
    with connect.admin(cluster, data) as admin:
        found = admin.repairs()
    if as_json:
        output.write_json("myq.broker.repairs/1", found)
        return
    if found["repairs"]:
        connect.write_rows(found["repairs"])
    else:
        click.echo("Nothing was found damaged.")
    if found["silent"]:
        click.echo(f"No answer from {', '.join(found['silent'])}.", err=True)
    click.echo("\nscrubbers:")
    connect.write_rows(found["scrubbers"], ("daemon", "bytes_per_s", "rounds", "round_ended_ms"))
