"""Why a partition does not answer: which of its brokers are silent, by number and address.

A broker that lost its majority can only say that it does not lead. What people need to hear then is
which other brokers to start again. Managers tell with each route which brokers they hear, and
clients ask for routes whenever a partition does not answer, so this is known when a deadline ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from myqueue.cluster.routing import Partition
from myqueue.errors import MyQueueError

if TYPE_CHECKING:
    from myqueue.cluster.session import SessionCore


class Silence(NamedTuple):
    """`text` follows "; " in the message of an error; `component` is who it is about."""

    text: str
    component: str  # an address; "" if no broker of the partition is known
    hint: str | None


def silence_at(
    session: SessionCore, partition: Partition | None, last: MyQueueError | None
) -> Silence:
    """What is known of a partition that did not do what it was asked; `last`: its last refusal."""
    said = "" if last is None else str(last)
    if last is not None and last.name not in said:
        said = f"{last.name}: {said}"
    if last is not None and last.component and last.component not in said:
        said = f"{last.component}: {said}"
    said = f"last: {said}" if said else "no leader is known"
    if partition is None:
        return Silence(said, last.component if last is not None else "", None)
    brokers = session.routes.brokers
    held = [(node, brokers.get(node)) for node in partition.replicas]
    silent = [(node, row) for node, row in held if row is None or not row.alive]
    component = last.component if last is not None else ""
    if not component:
        component = next((row.address for _, row in (*silent, *held) if row is not None), "")
    if not silent:
        return Silence(said, component, None)
    who = ", ".join(
        session.name_of(row.address) if row is not None else f"broker {node}"
        for node, row in silent
    )
    are, them = ("are", "brokers") if len(silent) > 1 else ("is", "broker")
    needed = len(held) // 2 + 1
    text = f"{who} {are} silent, and {needed} of its {len(held)} brokers are needed"
    if len(held) - len(silent) >= needed:
        return Silence(f"{who} {are} silent; {said}", component, None)
    numbers = " and ".join(str(node) for node, _ in silent)
    hint = f"Start {them} {numbers} again ('myq status' shows all); work resumes by itself."
    return Silence(text, component, hint)
