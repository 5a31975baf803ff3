"""The commands of `myq bench`: measurements of a cluster through the public client.

`produce`, `consume`, `latency`, `e2e` and `http` are one measurement each. `all` runs the first
four in turn and prints one object with the keys of the peers' benchmark, and the floor of the
machine. Each measurement uses a topic of its own, which is deleted afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from myqueue import __version__
from myqueue.acks import AckLedger
from myqueue.admin.client import Admin
from myqueue.cli import FAILED
from myqueue.cli.bench import measurements, nemesis
from myqueue.cli.bench.floor import zeromq
from myqueue.cli.bench.parts import STAMP_BYTES, sync_floor
from myqueue.cli.shared import options as address
from myqueue.cli.shared import output
from myqueue.cluster.session import Session
from myqueue.daemons.agent.cluster_folder import ClusterFolder
from myqueue.errors import InvalidRequest, UnknownTopic

DURABILITY = "Raft quorum, fdatasync of the log on each of them before the acknowledgement"
SCALE_FAULTS = "--faults KILLS A BROKER AND RESTARTS ALL DAEMONS of the cluster on {folder}."


@click.group()
def bench() -> None:
    """Measure throughput and latency of a cluster.

    Each command creates a topic of its own, unless --topic names one, and deletes it afterwards.
    """


def _nemesis(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask for confirmation of --nemesis."),
        click.option(
            "--nemesis",
            is_flag=True,
            help="During the measurement kill, freeze and restart daemons of the cluster that"
            " 'myq up' runs here, drain brokers and recreate a topic; report how long clients"
            " waited. Exit code 1 if an acknowledged message is lost or stored twice.",
        ),
    ):
        function = option(function)
    return function


def _victim(options: dict[str, Any], other: str | None) -> ClusterFolder | None:
    """Return the cluster to inject faults into, after the user confirmed it; None without."""
    if not options.get("nemesis"):
        return None
    return nemesis.agreed(options["data"], other, options["yes"])


def _measure(victim: ClusterFolder | None, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return measure() if victim is None else nemesis.under(victim, measure)


def _common(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        output.json_option,
        click.option("--keep", is_flag=True, help="Do not delete the topic afterwards."),
        click.option(
            "--replication",
            default=0,
            help="Replicas of each partition. [default: 3, or all brokers]",
        ),
        click.option("--partitions", default=1, show_default=True, help="Partitions of the topic."),
        click.option("--topic", help="Use this existing topic instead of a new one."),
        click.option("--size", default=100, show_default=True, help="Bytes of a message."),
    ):
        function = option(function)
    return address.options(function)


def _sizes(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Parse a list of numbers (a click callback)."""
    try:
        sizes = [int(word.replace("_", "")) for word in value.split(",") if word.strip()]
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers.") from None
    if min(sizes, default=0) < 0:
        raise click.BadParameter(f"{value!r} has a number below 0.")
    return tuple(size for size in sizes if size)


_seconds = click.option("--seconds", default=10.0, show_default=True, help="How long to measure.")
_messages = click.option("--messages", default=2000, show_default=True, help="Messages to send.")
_rate = click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=1000.0,
    show_default=True,
    help="Messages per second.",
)


def _load_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--warmup", default=1.0, show_default=True, help="Seconds before counting starts."
        ),
        click.option(
            "--batch-bytes", default=256 << 10, show_default=True, help="Bytes of a full batch."
        ),
        click.option(
            "--in-flight",
            default=16,
            show_default=True,
            help="Batches that may be unacknowledged at a time.",
        ),
        click.option("--single", is_flag=True, help="No batching: send each message by itself."),
        click.option(
            "--compression",
            default="none",
            show_default=True,
            help="Codec of batches: none or zlib.",
        ),
    ):
        function = option(function)
    return function


@contextmanager
def _topic(options: dict[str, Any]) -> Iterator[tuple[Session, str, str]]:
    """Yield (session, cluster, name of the topic); delete a topic that was created here.

    Puts the cluster to inject faults into, or None, into `options["victim"]`.
    """
    if options["size"] < STAMP_BYTES:
        raise InvalidRequest(f"--size {options['size']}: at least {STAMP_BYTES} bytes")
    victim = options["victim"] = _victim(options, options["cluster"])
    data = options["data"] if victim is None else str(victim.data)
    cluster = address.find(options["cluster"], data)
    name = options["topic"]
    with Session(cluster, name="bench") as session, Admin(session) as admin:
        if name is None:
            name = f"bench-{random.SystemRandom().getrandbits(40):010x}"
            admin.create_topic(
                name, partitions=options["partitions"], replication=options["replication"]
            )
        elif name not in admin.topics():
            raise UnknownTopic(f"there is no topic {name!r}")
        try:
            yield session, cluster, name
        finally:
            if options["topic"] is None and not options["keep"]:
                admin.delete_topic(name)
            elif options["topic"] is None:
                click.echo(f"Kept the topic {name}.", err=True)


def _load(options: dict[str, Any], cluster: str, topic: str) -> measurements.Load:
    return measurements.Load(
        cluster,
        topic,
        options["size"],
        options["seconds"],
        options["warmup"],
        options["batch_bytes"],
        options["in_flight"],
        options["single"],
        options["compression"],
    )


def _print_figures(kind: str, options: dict[str, Any], figures: dict[str, Any]) -> None:
    facts = {
        "peer": "myqueue",
        "size": options["size"],
        "partitions": options["partitions"],
        "durability": DURABILITY,
        "versions": {"myqueue": __version__},
        **figures,
    }
    felt = facts.get("nemesis")
    if options["as_json"]:
        output.write_json(f"myq.bench.{kind}/1", facts)
    else:
        rows = [
            [name, str(value) if isinstance(value, dict | list) else value]
            for name, value in facts.items()
            if value not in (None, [], {}) and name != "nemesis"
        ]
        output.write_table(["what", "value"], rows)
        click.echo("\n".join(nemesis.lines(felt) if felt else ()), nl=bool(felt))
    if felt and not felt["whole"]:
        click.get_current_context().exit(FAILED)


@bench.command()
@_common
@_nemesis
@_load_options
@_seconds
@click.option(
    "--acks",
    metavar="FILE",
    help="Write each acknowledgement to FILE for 'myq spark verify'. Implies --keep.",
)
def produce(acks: str | None, **options: Any) -> None:
    """Send as many messages as possible; only acknowledged ones count."""
    options["keep"] |= acks is not None  # or every message in the ledger would be missing
    with _topic(options) as (session, cluster, topic), ExitStack() as stack:
        load = _load(options, cluster, topic)
        if acks is not None:
            load = load._replace(acks=stack.enter_context(AckLedger(acks)))
        _print_figures(
            "produce",
            options,
            _measure(options["victim"], lambda: measurements.produce(load, session)),
        )


@bench.command()
@_common
@_nemesis
@_load_options
@_seconds
def consume(**options: Any) -> None:
    """Read a topic from the beginning.

    Without --topic, a new topic is filled for --seconds first.
    """
    with _topic(options) as (session, cluster, topic):
        if options["topic"] is None:
            measurements.produce(_load(options, cluster, topic), session)
        figures = _measure(
            options["victim"], lambda: measurements.consume(cluster, topic, options["seconds"])
        )
        _print_figures("consume", options, figures)


@bench.command()
@_common
@_nemesis
@_messages
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Messages per second. [default: each one when the one before is acknowledged]",
)
def latency(messages: int, rate: float | None, **options: Any) -> None:
    """Measure from send to acknowledgement.

    Messages are sent one at a time, or at a steady --rate; then each counts from when it was due.
    """
    with _topic(options) as (_, cluster, topic):
        size = options["size"]
        figures = _measure(
            options["victim"], lambda: measurements.latency(cluster, topic, size, messages, rate)
        )
        _print_figures("latency", options, figures)


@bench.command()
@_common
@_nemesis
@_rate
@_seconds
def e2e(rate: float, seconds: float, **options: Any) -> None:
    """Measure from send to receipt in another process.

    Messages are sent at a steady --rate.
    """
    with _topic(options) as (_, cluster, topic):
        size = options["size"]
        figures = _measure(
            options["victim"], lambda: measurements.end_to_end(cluster, topic, size, rate, seconds)
        )
        _print_figures("e2e", options, figures)


@bench.command()
@click.option(
    "--gateway", metavar="URL", help="http://host:port. [default: the gateway of 'myq up']"
)
@click.option("--token", default="", help="Bearer token, if the gateway requires one.")
@click.option(
    "--connections", default=16, show_default=True, help="Connections; each always has a request."
)
@click.option("--batch", default=100, show_default=True, help="Messages in a batch.")
@click.option("--size", default=100, show_default=True, help="Bytes of a message.")
@click.option("--partitions", default=1, show_default=True, help="Partitions of the topic.")
@click.option("--keys", is_flag=True, help="Send an Idempotency-Key in each request.")
@_seconds
@_nemesis
@address.data_option
@output.json_option
def http(gateway: str | None, data: str | None, **options: Any) -> None:
    """Measure a gateway over HTTP.

    Three phases of --seconds each: produce single messages, consume them, produce batches.
    """
    from myqueue.cli.bench import http as bench_http

    victim = _victim({**options, "data": data}, gateway)
    url = gateway or address.find_gateway(data)
    given = {name: value for name, value in options.items() if name not in ("nemesis", "yes")}
    figures = _measure(victim, lambda: bench_http.measure(url, **given))
    _print_figures("http", options, figures)


@bench.command()
@click.option(
    "--partitions",
    default="100,1000,10000",
    show_default=True,
    metavar="N,…",
    callback=_sizes,
    help="Numbers of partitions; 0: none.",
)
@click.option(
    "--clients",
    default="100,1000,10000",
    show_default=True,
    metavar="N,…",
    callback=_sizes,
    help="Numbers of registered clients, half producers, half consumers; 0: none.",
)
@click.option("--per-topic", default=1, show_default=True, help="Partitions of a topic.")
@click.option(
    "--replication", default=0, help="Replicas of each partition. [default: 3, or all brokers]"
)
@click.option(
    "--seconds", default=600.0, show_default=True, help="Time for all; sizes left are skipped."
)
@click.option(
    "--faults",
    is_flag=True,
    help="Also kill a broker, then restart all daemons of the cluster that 'myq up' runs here, and"
    " measure until each partition takes messages again.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation of --faults.")
@address.options
@output.json_option
def scale(cluster: str | None, data: str | None, **options: Any) -> None:
    """Measure how costs grow with the number of partitions, and of clients.

    For each number: seconds and CPU seconds of all daemons to create, to send the first messages
    and the next ones, to delete; memory, CPU and bytes of heartbeats of idle daemons. The row of
    size 0 is the cluster as it was. Its topics begin with bench-scale-, and are deleted.
    """
    from myqueue.cli.bench import scale as bench_scale

    victim = (
        nemesis.agreed(data, cluster, options["yes"], "--faults", SCALE_FAULTS)
        if options["faults"]
        else None
    )
    folder = ClusterFolder(data) if data and not cluster else None
    where = address.find(cluster, data if victim is None else str(victim.data))
    plan = bench_scale.Plan(
        options["partitions"],
        options["clients"],
        options["per_topic"],
        options["replication"],
        options["seconds"],
        victim,
        victim or folder,
    )
    with Session(where, name="bench") as session:
        facts = bench_scale.measure(session, where, plan)
    if options["as_json"]:
        output.write_json("myq.bench.scale/1", {"versions": {"myqueue": __version__}, **facts})
        return
    for kind in ("partitions", "clients"):
        rows = facts[kind]
        heads = list(dict.fromkeys(name for row in rows for name in row if name != "error"))
        if rows:
            click.echo(f"{kind}:")
            output.write_table(heads, [[row.get(head) for head in heads] for row in rows])
        for row in rows:
            if "error" in row:
                click.echo(f"{row['size']} {kind}: {row['error']}", err=True)
    for line in facts["skipped"]:
        click.echo(f"Skipped {line}.", err=True)
    if any("error" in row for kind in ("partitions", "clients") for row in facts[kind]):
        click.get_current_context().exit(FAILED)


@bench.command(name="all")
@_common
@_load_options
@_seconds
@_rate
@_messages
def everything(rate: float, messages: int, **options: Any) -> None:
    """Run latency, e2e, produce and consume in turn.

    Also measures the floor of this machine: synced appends and bare ZeroMQ.
    """
    figures: dict[str, Any] = {"extra": {}, "errors": []}

    def step(name: str, measure: Callable[[], dict[str, Any]]) -> None:
        try:
            figures.update(measure())
        except Exception as error:  # a phase that failed is a result
            figures["errors"].append(f"{name}: {error}")

    size, seconds = options["size"], options["seconds"]
    figures["extra"].update(sync_floor(options["data"]), **zeromq(size))
    with _topic(options) as (_, cluster, topic):
        step("latency", lambda: measurements.latency(cluster, topic, size, messages))
    with _topic(options) as (_, cluster, topic):
        step("e2e", lambda: measurements.end_to_end(cluster, topic, size, rate, seconds))
    with _topic(options) as (session, cluster, topic):
        step("produce", lambda: measurements.produce(_load(options, cluster, topic), session))
        step("consume", lambda: measurements.consume(cluster, topic, seconds))
    with _topic(options) as (session, cluster, topic):
        single = {**options, "single": True, "in_flight": 64}
        step(
            "single",
            lambda: {
                "extra": figures["extra"]
                | {
                    "single_msgs_s": measurements.produce(_load(single, cluster, topic), session)[
                        "produce_msgs_s"
                    ]
                }
            },
        )
    _print_figures("all", options, figures)
