"""Find out why a partition does not answer: which of its brokers are silent, for error texts.

A broker without a majority can only say that it does not lead, but the operator must know which
brokers to start again. Managers report with each route which brokers are alive, and clients ask for
routes whenever a partition does not answer, so this is known when a deadline passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from myqueue.cluster.routing import Partition
from myqueue.errors import MyQueueError

if TYPE_CHECKING:
    from myqueue.cluster.session import SessionCore


class Silence(NamedTuple):
    """The end of an error's text, after "; ", with its component and hint."""

    text: str
    component: str  # an address; "" if no broker of the partition is known
    hint: str | None


def silence_at(
    session: SessionCore, partition: Partition | None, last: MyQueueError | None
) -> Silence:
    """Describe why a partition did not serve a request; `last`: its last refusal."""
    reason = "" if last is None else str(last)
    if last is not None and last.name not in reason:
        reason = f"{last.name}: {reason}"
    if last is not None and last.component and last.component not in reason:
        reason = f"{last.component}: {reason}"
    reason = f"last: {reason}" if reason else "no leader is known"
    if partition is None:
        return Silence(reason, last.component if last is not None else "", None)
    brokers = session.routes.brokers
    replicas = [(node, brokers.get(node)) for node in partition.replicas]
    silent = [(node, row) for node, row in replicas if row is None or not row.alive]
    component = last.component if last is not None else ""
    if not component:
        component = next((row.address for _, row in (*silent, *replicas) if row is not None), "")
    if not silent:
        return Silence(reason, component, None)
    who = ", ".join(
        session.name_of(row.address) if row is not None else f"broker {node}"
        for node, row in silent
    )
    are, them = ("are", "brokers") if len(silent) > 1 else ("is", "broker")
    needed = len(replicas) // 2 + 1
    text = f"{who} {are} silent, and {needed} of its {len(replicas)} brokers are needed"
    if len(replicas) - len(silent) >= needed:
        return Silence(f"{who} {are} silent; {reason}", component, None)
    numbers = " and ".join(str(node) for node, _ in silent)
    hint = f"Start {them} {numbers} again ('myq status' shows all); work resumes by itself."
    return Silence(text, component, hint)
