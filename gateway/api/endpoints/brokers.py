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
from myqueue.gateway.api import parameter_catalog
from myqueue.gateway.api.operations import ADMIN, ApiBlueprint, Facts, RequestContext
from myqueue.gateway.broker_processes import ELSEWHERE, stop_when_unused, wait_for

blueprint = ApiBlueprint("brokers")
_ROW: Final = {
    "id": parameter_catalog.NUMBER,
    "address": parameter_catalog.TEXT,
    "state": parameter_catalog.TEXT,
    "host": parameter_catalog.TEXT,
    "last_heartbeat_ms": parameter_catalog.NUMBER,
    "partitions_led": parameter_catalog.NUMBER,
    "partitions_held": parameter_catalog.NUMBER,
    "partitions_leaving": parameter_catalog.NUMBER,
    "draining": parameter_catalog.FLAG,
    "disk_low": parameter_catalog.FLAG,
    "free_bytes": parameter_catalog.NUMBER,
    "used_bytes": parameter_catalog.NUMBER,
}


@blueprint.operation(
    "GET",
    "/brokers",
    "List brokers",
    also=("/broker",),
    adds={"brokers": parameter_catalog.rows(_ROW)},
)
def list_brokers(ask: RequestContext) -> Facts:
    """List address, state, last heartbeat, partitions led and held, and free disk space of each
    broker; disk_low: so little that it refuses writes.
    """
    return {"brokers": [_row(one) for one in _rows(ask).values()]}


@blueprint.operation(
    "GET", "/brokers/<broker_id>", "One broker", parameters=(parameter_catalog.BROKER,), adds=_ROW
)
def describe_broker(ask: RequestContext, broker_id: int) -> Facts:
    """Show one broker. While it is drained, partitions_held falls; state is drained when nothing is
    left. partitions_leaving counts those that another broker is about to hold in its place.
    """
    return _row(_one(ask, broker_id))


def _rows(ask: RequestContext) -> dict[int, Facts]:
    return {row["node"]: row for row in ask.sdk.read("brokers")["brokers"]}


def _one(ask: RequestContext, number: int) -> Facts:
    """Return one broker. Only the managers' leader may know one that registered a moment ago."""
    found = _rows(ask).get(number)
    if found is None:
        newest = ask.sdk.newest("brokers")["brokers"]
        found = next((row for row in newest if row["node"] == number), None)
    if found is None:
        raise UnknownBroker(f"there is no broker {number}")
    return found


def _row(found: Facts) -> Facts:
    return {
        "id": found["node"],
        "address": found["address"],
        "state": found["state"] if found["alive"] else "silent",
        "last_heartbeat_ms": found["last_seen_ms"],
        "partitions_led": found["leads"],
        "partitions_held": found["replicas"],
        "partitions_leaving": found["leaving"],
        "draining": found["draining"],
        "disk_low": found["disk_low"],
        "free_bytes": found["free_bytes"],
        "used_bytes": found["used_bytes"],
        "host": found["host"],
    }


# -- adding ---------------------------------------------------------------------------------------


@blueprint.operation(
    "POST",
    "/brokers",
    "Add a broker",
    also=("/broker",),
    role=ADMIN,
    keyed=True,
    parameters=(parameter_catalog.ADDRESS, parameter_catalog.PORT, parameter_catalog.COMING_MS),
    adds={"broker_id": parameter_catalog.NUMBER, "message": parameter_catalog.TEXT, **_ROW},
)
def add_broker(ask: RequestContext, address: str | None, port: int | None, wait_ms: int) -> Facts:
    """Add a broker. With an address: the one that runs there, started with the addresses of these
    managers; if it is being drained, that is cancelled. Without: a new broker is started on the
    gateway's machine. It gets its share of all partitions in the next seconds.
    """
    with ask.sdk.wait_slots.hold_for(wait_ms) as may_wait_ms:
        if address is not None or port is not None:
            return _take_in(ask, _place(address, port), may_wait_ms)
        agent = ask.sdk.agent
        if agent is None or not agent.is_running:
            error = Unreachable(
                "no agent that starts brokers runs on the gateway's machine", hint=ELSEWHERE
            )
            error.retriable, error.component = False, "gateway"
            raise error
        number = agent.add_broker(key=ask.key("add_broker") or b"", taken=_rows(ask))
        row = wait_for(ask.sdk, may_wait_ms, lambda: _alive(ask, number))
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


def _take_in(ask: RequestContext, address: str, wait_ms: int) -> Facts:
    daemon = ask.sdk.admin.daemon_at(address)
    number = daemon["node"]
    if daemon["daemon"] != "broker":
        raise InvalidRequest(f"{daemon['daemon']} {number} listens at {address}, not a broker")
    row = wait_for(ask.sdk, wait_ms, lambda: _alive(ask, number))
    if row is None:
        raise NotReady(
            f"broker {number} runs at {address}, but has not joined the cluster yet",
            component=f"broker {number} at {address}",
            hint="Its log says why. A broker that was removed needs a new number or an empty disk.",
        )
    if not row["draining"]:
        return _joined(row, "is part of the cluster")
    ask.sdk.update("undrain_broker", {"node": number}, ask.key("undrain_broker", number))
    return _joined(_one(ask, number), "is no longer drained")


def _alive(ask: RequestContext, number: int) -> Facts | None:
    row = _rows(ask).get(number)
    return row if row is not None and row["alive"] else None


def _joined(row: Facts, event: str) -> Facts:
    number = row["node"]
    message = f"Broker {number} {event}; it gets its share of the partitions in a moment"
    return {"broker_id": number, "message": message, **_row(row)}


# -- draining and removing ------------------------------------------------------------------------


@blueprint.operation(
    "POST",
    "/brokers/<broker_id>/drain",
    "Drain a broker",
    role=ADMIN,
    keyed=True,
    parameters=(parameter_catalog.BROKER, parameter_catalog.GOING_MS),
    adds={
        "broker_id": parameter_catalog.NUMBER,
        "drained": parameter_catalog.FLAG,
        "partitions_left": parameter_catalog.NUMBER,
    },
)
def drain_broker(ask: RequestContext, broker_id: int, wait_ms: int) -> Facts:
    """Move all partitions of a broker to others; it gets no new ones, and clients continue to work.
    409 if too few other brokers are alive.
    """
    left = _drain(ask, broker_id, wait_ms)
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
    parameters=(parameter_catalog.BROKER,),
    adds={"broker_id": parameter_catalog.NUMBER, "message": parameter_catalog.TEXT},
)
def undrain_broker(ask: RequestContext, broker_id: int) -> Facts:
    """Let a broker hold partitions again; it gets its share of them."""
    ask.sdk.update("undrain_broker", {"node": broker_id}, ask.key("undrain_broker", broker_id))
    try:
        is_alive = _one(ask, broker_id)["alive"]
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
        parameter_catalog.BROKER,
        parameter_catalog.DRAIN,
        parameter_catalog.FORCE_REMOVAL,
        parameter_catalog.GOING_MS,
    ),
    adds={
        "broker_id": parameter_catalog.NUMBER,
        "removed": parameter_catalog.FLAG,
        "partitions_left": parameter_catalog.NUMBER,
        "lost": parameter_catalog.NUMBER,
        "stranded": parameter_catalog.NUMBER,
        "lost_partitions": parameter_catalog.TEXTS,
        "stranded_partitions": parameter_catalog.TEXTS,
        "stopped": parameter_catalog.FLAG,
        "message": parameter_catalog.TEXT,
    },
)
def remove_broker(
    ask: RequestContext, broker_id: int, drain: bool, force: bool, wait_ms: int
) -> Facts:
    """Remove a broker permanently; its disk is not erased. With drain=1 its partitions move first:
    removed is false until that is done, and repeating the request then removes it. Without drain:
    409 if it holds partitions, with those that would be lost, and those that would be stranded
    (other brokers have replicas, but too few of them are alive). force=1 removes it all the same.
    Its process is stopped if 'myq up' runs it on the gateway's machine and no partition needs it
    any more.
    """
    if drain:
        left = _drain(ask, broker_id, wait_ms)
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
    row_before = _rows(ask).get(broker_id)
    arguments = {"node": broker_id, "force": force}
    done = ask.sdk.update("remove_broker", arguments, ask.key("remove_broker", broker_id))
    counting, stopped = stop_when_unused(ask.sdk, broker_id, row_before, done["stranded"])
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


def _drain(ask: RequestContext, broker_id: int, wait_ms: int) -> int:
    """Begin draining and wait; return how many partitions are left, 0 if it is done."""
    ask.sdk.update("drain_broker", {"node": broker_id}, ask.key("drain_broker", broker_id))
    left = 0

    def is_empty() -> bool | None:
        nonlocal left
        row = _rows(ask).get(broker_id)
        left = 0 if row is None else replicas_left(row)  # no row: a repeat removed it already
        return left == 0 or None

    with ask.sdk.wait_slots.hold_for(wait_ms) as may_wait_ms:
        wait_for(ask.sdk, may_wait_ms, is_empty)
    return left
