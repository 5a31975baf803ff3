"""Brokers: list, add, drain, remove.

A broker is a process, and a row in the managers' metadata; this module handles both. The agent
(`myqueue.Agent`) starts and stops processes, where the settings name one; elsewhere an operator
starts a broker, and it registers by itself. The managers decide what moves. Draining takes as long
as copying takes, so a request begins it, says how to follow it, and waits only if asked to. Each of
these requests may be repeated: the repeat continues where the first one ended.
"""

from __future__ import annotations

from typing import Final

from myqueue.admin.broker_moves import replicas_left, when_to_stop
from myqueue.errors import InvalidRequest, MyQueueError, NotReady, UnknownBroker, Unreachable
from myqueue.gateway.api import parameter_catalog as catalog
from myqueue.gateway.api.operations import ADMIN, ApiBlueprint, Facts, RequestContext
from myqueue.gateway.broker_processes import ELSEWHERE, stop_when_unused, wait_for

blueprint = ApiBlueprint("brokers")
_ROW: Final = {
    "id": catalog.NUMBER,
    "address": catalog.TEXT,
    "state": catalog.TEXT,
    "host": catalog.TEXT,
    "last_heartbeat_ms": catalog.NUMBER,
    "partitions_led": catalog.NUMBER,
    "partitions_held": catalog.NUMBER,
    "partitions_leaving": catalog.NUMBER,
    "draining": catalog.FLAG,
    "disk_low": catalog.FLAG,
    "free_bytes": catalog.NUMBER,
    "used_bytes": catalog.NUMBER,
}


@blueprint.operation(
    "GET",
    "/brokers",
    "List brokers",
    also=("/broker",),
    adds={"brokers": catalog.rows(_ROW)},
)
def list_brokers(context: RequestContext) -> Facts:
    """List address, state, last heartbeat, partitions led and held, and free disk space of each
    broker; disk_low: so little that it refuses writes.
    """
    return {"brokers": [_answer_row(row) for row in _broker_rows(context).values()]}


@blueprint.operation(
    "GET", "/brokers/<broker_id>", "One broker", parameters=(catalog.BROKER,), adds=_ROW
)
def describe_broker(context: RequestContext, broker_id: int) -> Facts:
    """Show one broker. While it is drained, partitions_held falls; state is drained when nothing is
    left. partitions_leaving counts those that another broker is about to hold in its place.
    """
    return _answer_row(_find_broker(context, broker_id))


def _broker_rows(context: RequestContext) -> dict[int, Facts]:
    return {row["node"]: row for row in context.sdk.read("brokers")["brokers"]}


def _find_broker(context: RequestContext, number: int) -> Facts:
    """Return one broker. Only the managers' leader may know one that registered a moment ago."""
    row = _broker_rows(context).get(number)
    if row is None:
        newest = context.sdk.newest("brokers")["brokers"]
        row = next((newer for newer in newest if newer["node"] == number), None)
    if row is None:
        raise UnknownBroker(f"there is no broker {number}")
    return row


def _answer_row(row: Facts) -> Facts:
    return {
        "id": row["node"],
        "address": row["address"],
        "state": row["state"] if row["alive"] else "silent",
        "last_heartbeat_ms": row["last_seen_ms"],
        "partitions_led": row["leads"],
        "partitions_held": row["replicas"],
        "partitions_leaving": row["leaving"],
        "draining": row["draining"],
        "disk_low": row["disk_low"],
        "free_bytes": row["free_bytes"],
        "used_bytes": row["used_bytes"],
        "host": row["host"],
    }


# -- adding ---------------------------------------------------------------------------------------


@blueprint.operation(
    "POST",
    "/brokers",
    "Add a broker",
    also=("/broker",),
    role=ADMIN,
    keyed=True,
    parameters=(catalog.ADDRESS, catalog.PORT, catalog.COMING_MS),
    adds={"broker_id": catalog.NUMBER, "message": catalog.TEXT, **_ROW},
)
def add_broker(
    context: RequestContext, address: str | None, port: int | None, wait_ms: int
) -> Facts:
    """Add a broker. With an address: the one that runs there, started with the addresses of these
    managers; if it is being drained, that is cancelled. Without: a new broker is started on the
    gateway's machine. It gets its share of all partitions in the next seconds.
    """
    with context.sdk.wait_slots.hold_for(wait_ms) as may_wait_ms:
        if address is not None or port is not None:
            return _take_in(context, _place(address, port), may_wait_ms)
        agent = context.sdk.agent
        if agent is None or not agent.is_running:
            error = Unreachable(
                "no agent that starts brokers runs on the gateway's machine", hint=ELSEWHERE
            )
            error.retriable, error.component = False, "gateway"
            raise error
        number = agent.add_broker(key=context.key("add_broker") or b"", taken=_broker_rows(context))
        row = wait_for(context.sdk, may_wait_ms, lambda: _alive(context, number))
    if row is None:
        message = f"Broker {number} was started; GET /brokers/{number} says when it has registered"
        return {"broker_id": number, "state": "starting", "message": message}
    return _joined(row, "was started")


def _place(address: str | None, port: int | None) -> str:
    """Return host:port; a port alone means this machine. A URL's host is used."""
    _, _, host = (address or "127.0.0.1").rpartition("://")
    host = host.partition("/")[0]
    has_port = ":" in host.rpartition("]")[2]
    if port is None and not has_port:
        raise InvalidRequest(f"address is {host!r}, without a port; write host:port, or give port")
    if port is not None and has_port and not host.endswith(f":{port}"):
        raise InvalidRequest(f"address is {host!r}, and port is {port}: two different ports")
    return host if has_port else f"{host}:{port}"


def _take_in(context: RequestContext, address: str, wait_ms: int) -> Facts:
    daemon = context.sdk.admin.daemon_at(address)
    number = daemon["node"]
    if daemon["daemon"] != "broker":
        raise InvalidRequest(f"{daemon['daemon']} {number} listens at {address}, not a broker")
    row = wait_for(context.sdk, wait_ms, lambda: _alive(context, number))
    if row is None:
        raise NotReady(
            f"broker {number} runs at {address}, but has not joined the cluster yet",
            component=f"broker {number} at {address}",
            hint="Its log says why. A broker that was removed needs a new number or an empty disk.",
        )
    if not row["draining"]:
        return _joined(row, "is part of the cluster")
    context.sdk.update("undrain_broker", {"node": number}, context.key("undrain_broker", number))
    return _joined(_find_broker(context, number), "is no longer drained")


def _alive(context: RequestContext, number: int) -> Facts | None:
    row = _broker_rows(context).get(number)
    return row if row is not None and row["alive"] else None


def _joined(row: Facts, event: str) -> Facts:
    number = row["node"]
    message = f"Broker {number} {event}; it gets its share of the partitions in a moment"
    return {"broker_id": number, "message": message, **_answer_row(row)}


# -- draining and removing ------------------------------------------------------------------------


@blueprint.operation(
    "POST",
    "/brokers/<broker_id>/drain",
    "Drain a broker",
    role=ADMIN,
    keyed=True,
    parameters=(catalog.BROKER, catalog.GOING_MS),
    adds={
        "broker_id": catalog.NUMBER,
        "drained": catalog.FLAG,
        "partitions_left": catalog.NUMBER,
    },
)
def drain_broker(context: RequestContext, broker_id: int, wait_ms: int) -> Facts:
    """Move all partitions of a broker to others; it gets no new ones, and clients continue to work.
    409 if too few other brokers are alive.
    """
    left = _drain(context, broker_id, wait_ms)
    if not left:
        message = f"Broker {broker_id} is drained: it holds no partitions any more"
    else:
        message = (
            f"Broker {broker_id} is moving its partitions to other brokers; {_follow(broker_id)}"
        )
    return {
        "broker_id": broker_id,
        "drained": not left,
        "partitions_left": left,
        "message": message,
    }


@blueprint.operation(
    "POST",
    "/brokers/<broker_id>/undrain",
    "Cancel draining",
    role=ADMIN,
    keyed=True,
    parameters=(catalog.BROKER,),
    adds={"broker_id": catalog.NUMBER, "message": catalog.TEXT},
)
def undrain_broker(context: RequestContext, broker_id: int) -> Facts:
    """Let a broker hold partitions again; it gets its share of them."""
    context.sdk.update(
        "undrain_broker", {"node": broker_id}, context.key("undrain_broker", broker_id)
    )
    try:
        is_alive = _find_broker(context, broker_id)["alive"]
    except MyQueueError:  # not known now, but the drain was cancelled
        is_alive = True
    then = (
        "it gets its share of the partitions in a moment" if is_alive else "it is silent: start it"
    )
    message = f"Broker {broker_id} may hold partitions again; {then}"
    return {"broker_id": broker_id, "message": message}


@blueprint.operation(
    "DELETE",
    "/brokers/<broker_id>",
    "Remove a broker",
    role=ADMIN,
    keyed=True,
    parameters=(
        catalog.BROKER,
        catalog.DRAIN,
        catalog.FORCE_REMOVAL,
        catalog.GOING_MS,
    ),
    adds={
        "broker_id": catalog.NUMBER,
        "removed": catalog.FLAG,
        "partitions_left": catalog.NUMBER,
        "lost": catalog.NUMBER,
        "stranded": catalog.NUMBER,
        "lost_partitions": catalog.TEXTS,
        "stranded_partitions": catalog.TEXTS,
        "stopped": catalog.FLAG,
        "message": catalog.TEXT,
    },
)
def remove_broker(
    context: RequestContext, broker_id: int, drain: bool, force: bool, wait_ms: int
) -> Facts:
    """Remove a broker permanently; its disk is not erased. With drain=1 its partitions move first:
    removed is false until that is done, and repeating the request then removes it. Without drain:
    409 if it holds partitions, with those that would be lost, and those that would be stranded
    (other brokers have replicas, but too few of them are alive). force=1 removes it all the same.
    Its process is stopped if 'myq up' runs it on the gateway's machine and no partition needs it
    any more.
    """
    if drain:
        left = _drain(context, broker_id, wait_ms)
        if left:
            message = (
                f"Broker {broker_id} is moving its partitions to other brokers first;"
                f" {_follow(broker_id)}; then repeat the request to remove it"
            )
            return {
                "broker_id": broker_id,
                "removed": False,
                "partitions_left": left,
                "lost": 0,
                "stranded": 0,
                "lost_partitions": [],
                "stranded_partitions": [],
                "stopped": False,
                "message": message,
            }
    row_before = _broker_rows(context).get(broker_id)
    arguments = {"node": broker_id, "force": force}
    done = context.sdk.update("remove_broker", arguments, context.key("remove_broker", broker_id))
    counting, stopped = stop_when_unused(context.sdk, broker_id, row_before, done["stranded"])
    message = f"Broker {broker_id} was removed, and its process stopped"
    if not stopped:
        message = f"Broker {broker_id} was removed; {when_to_stop(counting)}"
    if done["missed"]:
        message += f"; {done['missed']}"
    return {
        "broker_id": broker_id,
        "removed": True,
        "partitions_left": 0,
        "lost": done["lost"],
        "stranded": done["stranded"],
        "lost_partitions": done["lost_partitions"],
        "stranded_partitions": done["stranded_partitions"],
        "stopped": stopped,
        "message": message,
    }


def _follow(broker_id: int) -> str:
    return f"GET /brokers/{broker_id} says how many are left; its state is drained when it is done"


def _drain(context: RequestContext, broker_id: int, wait_ms: int) -> int:
    """Begin draining and wait; return how many partitions are left, 0 if it is done."""
    context.sdk.update("drain_broker", {"node": broker_id}, context.key("drain_broker", broker_id))
    left = 0

    def is_empty() -> bool | None:
        nonlocal left
        row = _broker_rows(context).get(broker_id)
        left = 0 if row is None else replicas_left(row)  # no row: a repeat removed it already
        return left == 0 or None

    with context.sdk.wait_slots.hold_for(wait_ms) as may_wait_ms:
        wait_for(context.sdk, may_wait_ms, is_empty)
    return left
