"""Brokers: who they are, and how they come and go (C6, P4).

A broker is a process, and what the managers know of it; this is where both meet. Starting and
stopping the process is the agent's work (`myqueue.Agent`), where this gateway was told of one;
elsewhere somebody starts a broker and it registers by itself. What moves is decided by the
managers: draining takes as long as copying takes, so a request begins it, says how to follow it,
and waits only if it is told to. Each of these requests may be sent again: it goes on where the
first one ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeVar

from myqueue import Agent
from myqueue.errors import InvalidRequest, MyQueueError, NotReady, UnknownBroker, Unreachable
from myqueue.gateway.api import parameter_catalog
from myqueue.gateway.api.operations import ADMIN, ApiBlueprint, Facts, RequestContext
from myqueue.gateway.cluster_client import ClusterClient

T = TypeVar("T")
log = logging.getLogger("myqueue.gateway")
blueprint = ApiBlueprint("brokers")
LOOK_S: Final = 0.1
LET_GO_MS: Final = 10_000  # of a request that removes; it takes as long as a change of members
ELSEWHERE: Final = (
    "Start one yourself: bin/myq-broker --id N --cluster NAME --data DIR --listen HOST:PORT"
    " --peer-listen HOST:PORT --managers ID@HOST:PORT … --keys DIR; it registers by itself."
    " Or give the gateway --agent DIR, the folder of a 'myq up' beside it."
)
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
    """Of each: address, state, when it was heard last, partitions that it leads and holds, and how
    much room its disk has; disk_low: so little that it refuses writes.
    """
    return {"brokers": [_row(one) for one in _rows(ask).values()]}


@blueprint.operation(
    "GET", "/brokers/<broker_id>", "One broker", parameters=(parameter_catalog.BROKER,), adds=_ROW
)
def describe_broker(ask: RequestContext, broker_id: int) -> Facts:
    """The same of one. While it is drained, partitions_held falls, and it is done when state is
    drained; partitions_leaving are those that another broker is about to hold in its place.
    """
    return _row(_one(ask, broker_id))


def _rows(ask: RequestContext) -> dict[int, Facts]:
    return {row["node"]: row for row in ask.sdk.read("brokers")["brokers"]}


def _one(ask: RequestContext, number: int) -> Facts:
    """One that registered a moment ago may be known to the managers' leader only."""
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


def _wait(sdk: ClusterClient, wait_ms: int, look: Callable[[], T | None]) -> T | None:
    """What it finds; None if that was not in time. The state of others has no event."""
    end, stopping = monotonic() + wait_ms / 1000, sdk.wait_slots.stopping
    while True:
        found = look()
        left_s = end - monotonic()
        if found is not None or left_s <= 0 or stopping.wait(min(LOOK_S, left_s)):
            return found


# -- they come ------------------------------------------------------------------------------------


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
    """With an address: the broker that runs there, which was started with the addresses of these
    managers; one that is being drained is taken back. Without one a new broker is started on the
    gateway's machine. It gets its share of all partitions in the next seconds.
    """
    with ask.sdk.wait_slots.hold_for(wait_ms) as may_wait_ms:
        if address is not None or port is not None:
            return _take_in(ask, _place(address, port), may_wait_ms)
        agent = ask.sdk.agent
        if agent is None or not agent.is_running:
            error = Unreachable("no agent that starts brokers runs beside it", hint=ELSEWHERE)
            error.retriable, error.component = False, "gateway"
            raise error
        number = agent.add_broker(key=ask.key("add_broker") or b"", taken=_rows(ask))
        row = _wait(ask.sdk, may_wait_ms, lambda: _alive(ask, number))
    if row is None:
        said = f"Broker {number} was started; GET /brokers/{number} says when it has registered"
        return {"broker_id": number, "state": "starting", "message": said}
    return _joined(row, "was started")


def _place(address: str | None, port: int | None) -> str:
    """host:port; of this machine if there is a port alone. Of a URL what stands for the host."""
    _, _, host = (address or "127.0.0.1").rpartition("://")
    host = host.partition("/")[0]
    is_whole = ":" in host.rpartition("]")[2]
    if port is None and not is_whole:
        raise InvalidRequest(f"address is {host!r}, without a port; write host:port, or give port")
    if port is not None and is_whole and not host.endswith(f":{port}"):
        raise InvalidRequest(f"address is {host!r}, and port is {port}: two different ports")
    return host if is_whole else f"{host}:{port}"


def _take_in(ask: RequestContext, address: str, wait_ms: int) -> Facts:
    told = ask.sdk.admin.daemon_at(address)
    number = told["node"]
    if told["daemon"] != "broker":
        raise InvalidRequest(f"{told['daemon']} {number} listens at {address}, and no broker")
    row = _wait(ask.sdk, wait_ms, lambda: _alive(ask, number))
    if row is None:
        raise NotReady(
            f"broker {number} runs at {address}, and the managers have not taken it in so far",
            component=f"broker {number} at {address}",
            hint="Its log says why: one that was removed needs a number or a disk of its own.",
        )
    if not row["draining"]:
        return _joined(row, "is there")
    ask.sdk.update("undrain_broker", {"node": number}, ask.key("undrain_broker", number))
    return _joined(_one(ask, number), "is taken back")


def _alive(ask: RequestContext, number: int) -> Facts | None:
    row = _rows(ask).get(number)
    return row if row is not None and row["alive"] else None


def _joined(row: Facts, what: str) -> Facts:
    number = row["node"]
    said = f"Broker {number} {what}; it gets its share of the partitions in a moment"
    return {"broker_id": number, "message": said, **_row(row)}


# -- they go --------------------------------------------------------------------------------------


@blueprint.operation(
    "POST",
    "/brokers/<broker_id>/drain",
    "Empty a broker",
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
    """It gives all its partitions to others and gets no new ones; clients go on meanwhile. 409 if
    the others are too few for that.
    """
    left = _drain(ask, broker_id, wait_ms)
    if left is None:
        said = f"Broker {broker_id} is drained: it holds nothing any more"
    else:
        said = f"Broker {broker_id} gives its partitions to others; {_follow(broker_id)}"
    return {
        "broker_id": broker_id,
        "drained": left is None,
        "partitions_left": left or 0,
        "message": said,
    }


@blueprint.operation(
    "POST",
    "/brokers/<broker_id>/undrain",
    "Take a broker back",
    role=ADMIN,
    keyed=True,
    parameters=(parameter_catalog.BROKER,),
    adds={"broker_id": parameter_catalog.NUMBER, "message": parameter_catalog.TEXT},
)
def undrain_broker(ask: RequestContext, broker_id: int) -> Facts:
    """It may hold partitions again, and gets its share of them."""
    ask.sdk.update("undrain_broker", {"node": broker_id}, ask.key("undrain_broker", broker_id))
    try:
        is_alive = _one(ask, broker_id)["alive"]
    except MyQueueError:  # nobody can tell right now; but it is done
        is_alive = True
    then = (
        "it gets its share of the partitions in a moment" if is_alive else "it is silent: start it"
    )
    said = f"Broker {broker_id} may hold partitions again; {then}"
    return {"broker_id": broker_id, "message": said}


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
    """For good; what it has on its disk is not deleted. With drain=1 its partitions move first:
    removed is false as long as that lasts, and the same request again removes it when it is done.
    Without, 409 if it holds partitions, and what would be lost, or stranded: of that others have
    replicas, but too few of them answer. force=1: all the same. Its process is stopped if it runs
    on the gateway's machine under 'myq up', and no partition counts on it any more.
    """
    if drain:
        left = _drain(ask, broker_id, wait_ms)
        if left is not None:
            said = (
                f"Broker {broker_id} gives its partitions to others first; {_follow(broker_id)},"
                " and the same request again removes it then"
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
                "message": said,
            }
    known = _rows(ask).get(broker_id)
    arguments = {"node": broker_id, "force": force}
    done = ask.sdk.update("remove_broker", arguments, ask.key("remove_broker", broker_id))
    counting, stopped = let_go(ask.sdk, broker_id, known, done["stranded"])
    said = f"Broker {broker_id} was removed, and its process stopped"
    if not stopped:
        said = f"Broker {broker_id} was removed; {when_to_stop(counting)}"
    if done["missed"]:
        said += f"; {done['missed']}"
    return {
        "broker_id": broker_id,
        "removed": True,
        "partitions_left": 0,
        "lost": done["lost"],
        "stranded": done["stranded"],
        "lost_partitions": done["lost_partitions"],
        "stranded_partitions": done["stranded_partitions"],
        "stopped": stopped,
        "message": said,
    }


def let_go(sdk: ClusterClient, node: int, known: Facts | None, stranded: int) -> tuple[int, bool]:
    """Of a broker that was removed: how many partitions count on it still, and whether its process
    was stopped. Stopped before they have let it go, it could leave them without a majority.
    `known`: what it was before; None if this is a repeat, and somebody has to be asked.
    """
    counting = 1
    if known is not None:
        counting = known["replicas"] + known["leaving"] if known["alive"] else 0  # at most

    def is_let_go() -> bool | None:
        nonlocal counting
        try:
            counting = max(0, sdk.admin.counting_on(node) - stranded)
        except MyQueueError as error:
            if not error.retriable:
                raise
        return counting == 0 or None

    try:
        if counting:
            with sdk.wait_slots.hold_for(LET_GO_MS) as may_wait_ms:
                _wait(sdk, may_wait_ms, is_let_go)
        address = known["address"] if known is not None else ""
        return counting, counting == 0 and _stop(sdk.agent, node, address)
    except MyQueueError as error:
        log.warning("broker %d was removed, and not stopped: %s", node, error)
        return counting, False


def _stop(agent: Agent | None, node: int, address: str) -> bool:
    """If the agent beside this gateway runs it."""
    if agent is None or not agent.is_running:
        return False
    return agent.drop_broker(node, address)


def when_to_stop(counting: int) -> str:
    if not counting:
        return "its process may be stopped"
    return (
        f"its process goes on while {counting} of its partitions count on it; stop it when they"
        " have let it go: 'myq broker remove' with its number, on its machine, waits for that"
    )


def _follow(broker_id: int) -> str:
    return f"GET /brokers/{broker_id} says how many are left, and drained when it is done"


def _drain(ask: RequestContext, broker_id: int, wait_ms: int) -> int | None:
    """Begins it; None if it is done when the time is over, else how many partitions are left."""
    ask.sdk.update("drain_broker", {"node": broker_id}, ask.key("drain_broker", broker_id))
    left: int | None = 0

    def is_empty() -> bool | None:
        nonlocal left
        row = _rows(ask).get(broker_id)
        left = None if row is None else _left(row)  # removed meanwhile: by a repeat of this
        return True if left is None else None

    with ask.sdk.wait_slots.hold_for(wait_ms) as may_wait_ms:
        _wait(ask.sdk, may_wait_ms, is_empty)
    return left


def _left(row: Facts) -> int | None:
    """One that is silent can't say that it has deleted what is elsewhere by now."""
    left: int = row["replicas"] + row["leaving"]
    is_done = row["state"] == "drained" or (not left and not row["alive"])
    return None if is_done else left
