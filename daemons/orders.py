"""ORDERS: what managers have committed, as one broker needs to hear it.

Made from the tables and what is known of the broker; every manager answers beats, whether it leads
or not, since a broker follows the highest version that it has seen. The version of a broker's
orders is the index of the last entry that changed something for it, so that other brokers' topics
and clients' activity do not make it read long lists again.

`wanted` and `brokers` go out if the broker follows an older version, and from time to time if it
does not hold what it should: making a replica may have failed. `gone` are deleted groups that the
broker is known to have. A full beat is asked for (`more`) until one came, and again when something
was deleted: only what a full beat does not name is certainly removed (`forgettable`).
"""

from __future__ import annotations

from typing import Any, Final

from myqueue.daemons.liveness import BrokerLife
from myqueue.daemons.tables import Tables

AGAIN_MS: Final = 2000  # between two orders of the same version
FULL_AGAIN_MS: Final = 1000
GONE_MAX: Final = 5000  # named in one answer


class Orders:
    """Answers to the beats of all brokers; remembers when it said what."""

    def __init__(self) -> None:
        self._told: dict[int, int] = {}  # node -> when it was last told what it should hold

    def answer(
        self, tables: Tables, node: int, life: BrokerLife, transfers: list[list[int]], now: int
    ) -> dict[str, Any]:
        row = tables.brokers.get(node)
        gone = [group for group in _gone_from(tables, node) if life.has(group)][:GONE_MAX]
        out: dict[str, Any] = {
            "version": row.version if row else 0, "more": self._needs_full(tables, node, life, now),
            "wanted": None, "gone": gone, "transfers": transfers, "brokers": None,
        }  # fmt: skip
        if row is None:
            return out
        lacks = not all(map(life.has, tables.held.get(node, ())))
        due = now - self._told.get(node, -AGAIN_MS) >= AGAIN_MS
        if life.version < row.version or (lacks and life.version == row.version and due):
            self._told[node] = now
            out["wanted"] = wanted(tables, node)
            out["brokers"] = [
                [one.node, one.address, one.peer, one.host]
                for one in sorted(tables.brokers.values(), key=lambda one: one.node)
            ]
        return out

    def _needs_full(self, tables: Tables, node: int, life: BrokerLife, now: int) -> bool:
        if life.held is None:
            return True
        waits = any(node in gone.nodes for gone in tables.gone.values())
        return waits and now - life.full_at >= FULL_AGAIN_MS


def wanted(tables: Tables, node: int) -> list[list[Any]]:
    """All that this broker should hold."""
    rows = []
    for group in sorted(tables.held.get(node, ())):
        topic, number = tables.groups[group]
        replicas = [list(one) for one in topic.partitions[number].replicas]
        rows.append([group, topic.name, number, topic.uid, replicas, topic.settings])
    return rows


def _gone_from(tables: Tables, node: int) -> list[int]:
    return sorted(one.group for one in tables.gone.values() if node in one.nodes)


def forgettable(tables: Tables, node: int, life: BrokerLife) -> list[int]:
    """Deleted groups that this broker certainly has not, and will not make any more.

    It has not, says a full beat; it will not, as it followed orders made after the deletion then.
    """
    return [
        group for group in _gone_from(tables, node)
        if not life.has(group) and life.full_version >= tables.gone[group].index
    ]  # fmt: skip
