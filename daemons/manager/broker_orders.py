"""ORDERS: what the managers have committed, as one broker needs to know it.

Built from the tables and from what the broker reports. Every manager answers heartbeats, whether it
leads or not, because a broker follows the highest version that it has seen. The version of a
broker's orders is the index of the last entry that changed something for this broker, so topics of
other brokers and activity of clients do not make it read long lists again.

`life` is the process for which the orders are: the broker's row names the process that registered
last. A broker that was restarted follows no manager that has not applied the registration of its
new life. A manager that has applied it has also applied all that this broker followed before.

Of many partitions a broker is told only those that changed: `since` is the version that the rest
of its orders is of, and `unwanted` names groups that it held and should not. All of them come to
a broker that follows no orders, or older ones than this manager has the changes of; and these may
be long, so `in_parts` divides them.

`wanted` and `brokers` are sent if the broker follows an older version, and from time to time if it
lacks a replica that it should hold, because creating one may have failed. `gone` lists replicas to
remove that the broker is known to have, by group and incarnation: data that is removed is always
named by a committed entry, never concluded from absence. `more` asks for a full heartbeat until one
came, and again while something is to be removed: only a replica that a full heartbeat does not name
is certainly removed (`balancer.controller`). It is also asked for while the broker seems to hold
groups that no manager knows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from myqueue.daemons.manager.cluster_view import BrokerStatus
from myqueue.daemons.metadata.tables import Tables

RESEND_INTERVAL_MS: Final = 2000  # between two orders of the same version
FULL_REQUEST_INTERVAL_MS: Final = 1000
STRAY_CHECK_INTERVAL_MS: Final = 5000  # the stray may be a wrong belief, or stay for ever
REMOVALS_MAX: Final = 5000  # in one answer
ROWS_PER_PART_MAX: Final = 1000  # of `wanted`; with the longest names they fit into an envelope


class _Comparison(NamedTuple):
    """The report of a broker beside the tables."""

    tables: Tables
    life: BrokerStatus
    state: tuple[int, ...]  # changes of both until then
    outdated: list[tuple[int, int]]
    lacks: bool  # a replica that it should hold


class OrdersBuilder:
    """Builds the answers to heartbeats of brokers and remembers when it sent `wanted` to each."""

    def __init__(self) -> None:
        self._wanted_sent_at: dict[int, int] = {}  # node -> time of its last `wanted`
        self._compared: dict[int, _Comparison] = {}  # node -> the last one
        self._next_stray_check_at: dict[int, int] = {}

    def build(
        self,
        tables: Tables,
        node: int,
        life: BrokerStatus,
        transfers: list[list[int]],
        now: int,
        followed: int | None = None,
    ) -> dict[str, Any]:
        """Build ORDERS. `followed`: the version that the broker will follow when it reads them;
        default the one of its last heartbeat.
        """
        followed = life.version if followed is None else followed
        row = tables.brokers.get(node)
        compared = self._compare(tables, node, life)
        outdated = [one for one in compared.outdated if tables.partition(one[0]) is not None]
        removals = {
            (group, incarnation)
            for group, incarnation, _ in tables.pending_removals_of(node)
            if life.holds_replica(group, incarnation)
        }
        gone = sorted(removals.union(outdated))[:REMOVALS_MAX]
        out: dict[str, Any] = {
            "version": row.version if row else 0,
            "life": row.life if row else 0,
            "life_from": row.process_first_incarnation if row else 0,
            "more": self._needs_full_heartbeat(tables, node, life, bool(outdated), now),
            "wanted": None,
            "gone": gone,
            "transfers": transfers,
            "brokers": None,
        }
        if row is None or (row.disk_first_incarnation and not life.full_heartbeat_at):
            return out  # its first full heartbeat shows whether a lost disk is back
        due = now - self._wanted_sent_at.get(node, -RESEND_INTERVAL_MS) >= RESEND_INTERVAL_MS
        if followed < row.version or (compared.lacks and followed == row.version and due):
            self._wanted_sent_at[node] = now
            changed = None
            if life.reads_changes and 0 < followed < row.version:
                changed = tables.groups_changed_since(node, followed)
            out["wanted"] = rows = wanted_rows(tables, node, life, changed)
            if changed is not None:
                out["since"] = followed
                out["unwanted"] = sorted(set(changed) - {row[0] for row in rows})
            founders = {row[0]: tables.partition(row[0]) for row in rows}
            out["founders"] = [
                [group, [list(name) for name in partition.founders]]
                for group, partition in founders.items()
                if partition is not None and partition.founders
            ]
            out["brokers"] = [
                [one.node, one.address, one.peer, one.host]
                for one in sorted(tables.brokers.values(), key=lambda one: one.node)
            ]
        return out

    def _compare(self, tables: Tables, node: int, life: BrokerStatus) -> _Comparison:
        """Compare what the broker has with what it should have, if either changed since the last
        time: there may be thousands of replicas, and heartbeats come all the time.
        """
        last = self._compared.get(node)
        state = life.held_changes, tables.replica_changes.get(node, 0)
        known = last is not None and last.tables is tables and last.life is life
        if last is None or not known or last.state != state:
            held = tables.held.get(node, ())
            last = self._compared[node] = _Comparison(
                tables,
                life,
                state,
                outdated_replicas(tables, node, life),
                not all(life.has(group) for group in held),
            )
        return last

    def _needs_full_heartbeat(
        self, tables: Tables, node: int, life: BrokerStatus, has_outdated: bool, now: int
    ) -> bool:
        if not life.full_heartbeat_at:
            return True
        if has_outdated or tables.gone_by_node.get(node):
            return now - life.full_heartbeat_at >= FULL_REQUEST_INTERVAL_MS
        # A manager that was cut off, or that asked a moment earlier, would otherwise believe for
        # ever that replicas are there whose removal is finished and forgotten.
        next_check_at = self._next_stray_check_at.get(node, 0)
        if now < max(life.full_heartbeat_at + STRAY_CHECK_INTERVAL_MS, next_check_at):
            return False
        self._next_stray_check_at[node] = now + STRAY_CHECK_INTERVAL_MS
        return bool(stray_groups(tables, life))


def in_parts(orders: dict[str, Any]) -> list[dict[str, Any]]:
    """Divide long orders into parts that fit into one envelope each, for a broker to join."""
    rows = orders["wanted"]
    if rows is None or len(rows) <= ROWS_PER_PART_MAX:
        return [orders]
    firsts = range(0, len(rows), ROWS_PER_PART_MAX)
    parts = []
    for number, first in enumerate(firsts):
        part = rows[first : first + ROWS_PER_PART_MAX]
        groups = {row[0] for row in part}
        founders = [one for one in orders["founders"] if one[0] in groups]
        more = {"wanted": part, "founders": founders, "part": number, "parts": len(firsts)}
        if number:
            more |= {"brokers": None, "gone": [], "transfers": [], "unwanted": []}
        parts.append(orders | more)
    return parts


def wanted_rows(
    tables: Tables, node: int, life: BrokerStatus, among: Collection[int] | None = None
) -> list[list[Any]]:
    """Rows of all replicas that this broker should hold, or that leave it: it may lead their group.

    `among`: only those of these groups.

    Replicas that were assigned to its lost disk are left out, as they get a new incarnation. But
    one that it reports is kept: the disk is back.
    """
    disk_from = tables.brokers[node].disk_first_incarnation
    is_current_life = life.incarnation == tables.brokers[node].life
    rows = []
    held, left = tables.held.get(node, set()), tables.left.get(node, set())
    groups = held | left if among is None else {one for one in among if one in held or one in left}
    for group in sorted(groups):
        topic, number = tables.groups[group]
        partition = topic.partitions[number]
        incarnation = dict(partition.replicas).get(node, disk_from)
        is_back = is_current_life and life.held.get(group) == incarnation
        if incarnation < disk_from and not is_back:
            continue
        replicas = [list(name) for name in partition.replicas]
        leaving = [list(name) for name in partition.leaving]
        names = [group, topic.name, number, topic.uid]
        rows.append([*names, replicas, topic.settings, leaving, partition.moved])
    return rows


def stray_groups(tables: Tables, life: BrokerStatus | None) -> list[int]:
    """Groups that this broker reports and that neither belong to a topic nor are to be removed."""
    held = life.held if life is not None else ()
    return sorted(uid for uid in held if uid not in tables.groups and uid not in tables.gone)


def outdated_replicas(tables: Tables, node: int, life: BrokerStatus) -> list[tuple[int, int]]:
    """Replicas that this broker has and that their groups have replaced.

    They are on a disk that was taken for lost (it was not mounted, say), was replaced, and is back.
    No pending removal names them any more, and while they exist the broker does not create their
    replacements. A replica that is neither wanted nor leaving is no member of its group, and a
    broker that follows orders of this version has no newer replica.
    """
    outdated, incarnation_end = [], tables.counters.incarnation
    for group, incarnation in life.held.items():
        partition, name = tables.partition(group), (node, incarnation)
        if partition is None or not 0 < incarnation < incarnation_end:
            continue  # it may be needed
        if name not in partition.replicas and name not in partition.leaving:
            outdated.append((group, incarnation))
    return outdated
