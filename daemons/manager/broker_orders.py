"""ORDERS: what managers have committed, as one broker needs to hear it.

Made from the tables and what is known of the broker; every manager answers beats, whether it leads
or not, since a broker follows the highest version that it has seen. The version of a broker's
orders is the index of the last entry that changed something for it, so that other brokers' topics
and clients' activity do not make it read long lists again.

`life` is the process for which these orders are: the broker's row names the one that registered
last. A broker that was restarted follows nobody who has not applied the registration of its new
life, and whoever has, has applied everything that this broker ever followed before.

`wanted` and `brokers` go out if the broker follows an older version, and from time to time if it
does not hold what it should: making a replica may have failed. `gone` are replicas to be removed
that the broker is known to have, by group and incarnation (W6). A full beat is asked for (`more`)
until one came, and again when something is to be removed: only what a full beat does not name is
certainly removed (`forgettable`). So it is while a broker seems to hold what nobody knows.
"""

from __future__ import annotations

from typing import Any, Final

from myqueue.daemons.manager.cluster_view import BrokerLife
from myqueue.daemons.metadata.tables import Tables

AGAIN_MS: Final = 2000  # between two orders of the same version
FULL_AGAIN_MS: Final = 1000
STRAY_AGAIN_MS: Final = 5000  # it may have none, or have it for good
GONE_MAX: Final = 5000  # named in one answer


class Orders:
    """Answers to the beats of all brokers; remembers when it said what."""

    def __init__(self) -> None:
        self._told: dict[int, int] = {}  # node -> when it was last told what it should hold

    def answer(
        self, tables: Tables, node: int, life: BrokerLife, transfers: list[list[int]], now: int
    ) -> dict[str, Any]:
        row = tables.brokers.get(node)
        old = outlived(tables, node, life)
        named = {
            (group, incarnation) for group, incarnation, _ in gone_from(tables, node)
            if life.holds(group, incarnation)
        }  # fmt: skip
        gone = sorted(named.union(old))[:GONE_MAX]
        out: dict[str, Any] = {
            "version": row.version if row else 0, "life": row.life if row else 0,
            "life_from": row.process_first_incarnation if row else 0,
            "more": self._needs_full(tables, node, life, bool(old), now),
            "wanted": None, "gone": gone, "transfers": transfers, "brokers": None,
        }  # fmt: skip
        if row is None or (row.disk_first_incarnation and not life.full_at):
            return out  # whether a disk that was lost is back, its first full beat tells
        lacks = not all(life.has(group) for group in tables.held.get(node, ()))
        due = now - self._told.get(node, -AGAIN_MS) >= AGAIN_MS
        if life.version < row.version or (lacks and life.version == row.version and due):
            self._told[node] = now
            out["wanted"] = rows = wanted(tables, node, life)
            founders = {one[0]: tables.partition(one[0]) for one in rows}
            out["founders"] = [
                [group, [list(name) for name in one.founders]]
                for group, one in founders.items() if one is not None and one.founders
            ]  # fmt: skip
            out["brokers"] = [
                [one.node, one.address, one.peer, one.host]
                for one in sorted(tables.brokers.values(), key=lambda one: one.node)
            ]
        return out

    def _needs_full(
        self, tables: Tables, node: int, life: BrokerLife, has_old: bool, now: int
    ) -> bool:
        if not life.full_at:
            return True
        if has_old or any(node in gone.nodes for gone in tables.gone.values()):
            return now - life.full_at >= FULL_AGAIN_MS
        # Of what was to go and is forgotten, a manager that was cut off, or asked a moment before,
        # would believe for ever that it is there.
        return now - life.full_at >= STRAY_AGAIN_MS and bool(unknown_groups(tables, life))


def wanted(tables: Tables, node: int, life: BrokerLife) -> list[list[Any]]:
    """All that this broker should hold, and those groups whose leaving member it is: it may lead.

    What was drawn for a disk that it has no more is left out: it is being drawn anew. Unless it
    has just that: the disk is back.
    """
    disk_from = tables.brokers[node].disk_first_incarnation
    is_its_word = life.incarnation == tables.brokers[node].life
    rows = []
    for group in sorted(tables.held.get(node, set()) | tables.left.get(node, set())):
        topic, number = tables.groups[group]
        one = topic.partitions[number]
        drawn = dict(one.replicas).get(node, disk_from)
        if drawn < disk_from and not (is_its_word and life.held.get(group) == drawn):
            continue
        replicas, leaving = [list(r) for r in one.replicas], [list(r) for r in one.leaving]
        rows.append(
            [group, topic.name, number, topic.uid, replicas, topic.settings, leaving, one.moved]
        )
    return rows


def unknown_groups(tables: Tables, life: BrokerLife | None) -> list[int]:
    """What this broker told that it holds, and is neither of a topic nor to be removed."""
    held = life.held if life is not None else ()
    return sorted(one for one in held if one not in tables.groups and one not in tables.gone)


def outlived(tables: Tables, node: int, life: BrokerLife) -> list[tuple[int, int]]:
    """Replicas that this broker has, of groups that have gone on without them: of a disk that was
    taken for lost (not mounted, say), replaced, and is back. Nobody waits for their removal any
    more, and what was drawn instead is not made beside them. A name is neither wanted nor leaving
    only if it is no member, and a broker that follows orders of this version has no newer one.
    """
    out, drawn_to = [], tables.counters.incarnation
    for group, incarnation in life.held.items():
        partition, name = tables.partition(group), (node, incarnation)
        if partition is None or not 0 < incarnation < drawn_to:
            continue  # nobody can tell whether that is needed
        if name not in partition.replicas and name not in partition.leaving:
            out.append((group, incarnation))
    return out


def gone_from(tables: Tables, node: int) -> list[tuple[int, int, int]]:
    """(group, incarnation, index of the entry that said so) of what this broker is to remove."""
    return sorted(
        (one.group, incarnation, index)
        for one in tables.gone.values()
        for at, incarnation, index in one.replicas
        if at == node
    )


def forgettable(tables: Tables, node: int, life: BrokerLife) -> list[int]:
    """Groups of which it certainly has no replica that is to go, and will not make any more.

    It has not, says a full beat; it will not, as it followed orders made after the removal then.
    """
    stays: set[int] = set()
    groups = set()
    for group, incarnation, index in gone_from(tables, node):
        groups.add(group)
        if life.holds(group, incarnation) or life.full_version < index:
            stays.add(group)
    return sorted(groups - stays)
