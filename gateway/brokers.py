"""Brokers: who they are (C6). To add and remove them is for a later version."""

from __future__ import annotations

from typing import Any, Final

from myqueue.errors import NotSupportedYet
from myqueue.gateway import names
from myqueue.gateway.routes import ADMIN, Ask, Facts, Noun

blueprint = Noun("brokers")
LATER: Final = "brokers can't be added, drained or removed while the cluster runs in this version"


@blueprint.operation(
    "GET", "/brokers", "List brokers", also=("/broker",), adds={"brokers": names.ROWS}
)
def list_brokers(ask: Ask) -> Facts:
    """Of each: address, state, when it was heard last, partitions that it leads and holds."""
    return {"brokers": [_row(one) for one in ask.sdk.read("brokers")["brokers"]]}


def _row(found: dict[str, Any]) -> Facts:
    return {
        "id": found["node"], "address": found["address"],
        "state": found["state"] if found["alive"] else "silent",
        "last_heartbeat_ms": found["last_seen_ms"], "partitions_led": found["leads"],
        "partitions_held": found["replicas"], "disk_low": found["disk_low"],
        "free_bytes": found["free_bytes"], "used_bytes": found["used_bytes"], "host": found["host"],
    }  # fmt: skip


@blueprint.operation(
    "POST", "/brokers", "Add a broker", also=("/broker",), role=ADMIN,
    parameters=(names.ADDRESS, names.PORT), adds={"broker_id": names.NUMBER},
)  # fmt: skip
def add_broker(ask: Ask, address: str | None, port: int | None) -> Facts:
    """Not supported yet: answers 501."""
    raise NotSupportedYet(LATER, hint="Start one with 'myq up --brokers N' or bin/myq-broker.")


@blueprint.operation(
    "DELETE",
    "/brokers/<broker_id>",
    "Remove a broker",
    role=ADMIN,
    parameters=(names.BROKER, names.DRAIN),
)
def remove_broker(ask: Ask, broker_id: int, drain: bool) -> Facts:
    """Not supported yet: answers 501."""
    raise NotSupportedYet(LATER)
