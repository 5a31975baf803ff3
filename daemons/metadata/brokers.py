"""Operations on brokers and replicas: register, drain, remove a broker; move and settle replicas.

`operations.py` says how an operation is made. A move changes which brokers *should* hold a
partition: the new replica gets a name, the old one is *leaving*. The raft group itself does the
rest, step by step (`daemons/broker/reconcile_members.py`). When its leader reports that a leaving
replica is no member any more, `settle_replicas` lets its broker remove it. Each operation names
exactly the replica it means, so a proposal that comes late, or twice, changes nothing.
"""

from __future__ import annotations

from typing import Any

from myqueue.daemons.metadata import placement
from myqueue.daemons.metadata.arguments import Arguments
from myqueue.daemons.metadata.records import ACTIVE, DRAINING, BrokerRow, PartitionRow
from myqueue.daemons.metadata.tables import Tables
from myqueue.daemons.metadata.topics import OperationContext, OperationResult, host_label
from myqueue.errors import BrokerInUse, IdentityMismatch, TooFewBrokers, UnknownBroker

NAMES_SHOWN_MAX = 5  # partitions in one sentence
REPORTED_MAX = 100  # in one result

# -- daemons --------------------------------------------------------------------------------------


def read_daemon_identity(args: Arguments) -> tuple[int, str, str, str, str]:
    """Read which daemon registers, and its addresses."""
    node, disk = args.number("node", low=1, high=(1 << 31) - 1), args.text("disk")
    address, peer, host = args.text("address"), args.text("peer"), args.text("host", "")
    return node, disk, address, peer, host


def register_broker(call: OperationContext, args: Arguments) -> OperationResult:
    """Register a broker that is new, restarted, or moved. Its orders name this life of its process.

    With another disk it is the same broker without its replicas: replicas made for the old disk are
    lost, get new names, and are never used under the old ones.
    """
    new = BrokerRow(*read_daemon_identity(args), call.time_ms, version=call.index)
    new.life = args.number("life", 0)
    args.done()
    tables = call.tables
    if tables.removed.get(new.node) == new.disk:
        raise IdentityMismatch(f"broker {new.node} was removed, with disk {new.disk}")
    before, drawn = tables.brokers.get(new.node), tables.counters.incarnation
    new.process_first_incarnation = drawn
    if before is None or before.disk != new.disk:
        # A leaving replica may be wanted again, and would be empty under a name that voted.
        is_known = tables.held[new.node] or tables.left[new.node]
        new.disk_first_incarnation = drawn if is_known else 0
    else:
        new.since_ms, new.disk_first_incarnation = before.since_ms, before.disk_first_incarnation
        if before.life == new.life:
            new.process_first_incarnation = before.process_first_incarnation
    new.state = before.state if before is not None else new.state
    tables.put_broker(new)
    here = (new.address, new.peer, new.host)
    if before is None or here != (before.address, before.peer, before.host):
        tables.bump_orders_version(
            tables.brokers, call.index
        )  # the orders of all brokers name its addresses
    return {"node": new.node}


def _get_broker(call: OperationContext, node: int) -> BrokerRow:
    broker = call.tables.brokers.get(node)
    if broker is None:
        raise UnknownBroker(f"there is no broker {node}")
    return broker


def drain_broker(call: OperationContext, args: Arguments) -> OperationResult:
    """Drain a broker: from now on it gives its replicas away, as long as others can take them.

    A repeated request ignores brokers that have fallen silent since: the drain goes on when they
    are back.
    """
    node, avoid = args.number("node"), args.numbers("avoid")
    args.done()
    tables, broker = call.tables, _get_broker(call, node)
    silent = set(avoid) if broker.state != DRAINING else set()
    active = {one.node for one in tables.brokers.values() if one.state == ACTIVE} - {node}
    others = len(active - silent)
    wide = [topic.name for _, topic in sorted(tables.topics.items()) if topic.replication > others]
    if wide:
        listed = ", ".join(wide[:NAMES_SHOWN_MAX]) + (" …" if len(wide) > NAMES_SHOWN_MAX else "")
        away = ", ".join(map(str, sorted(active & silent)))
        raise TooFewBrokers(
            f"without broker {node} there are {others} brokers to hold replicas"
            + (f" (of the others, {away} is silent)" if away else "")
            + f": too few for {listed}",
            hint="Start those that are silent, or add a broker first."
            if away
            else "Add a broker first.",
        )
    broker.state = DRAINING
    tables.put_broker(broker)
    return {"node": node, "replicas": len(tables.held[node])}


def undrain_broker(call: OperationContext, args: Arguments) -> OperationResult:
    node = args.number("node")
    args.done()
    broker = _get_broker(call, node)
    broker.state = ACTIVE
    call.tables.put_broker(broker)
    return {"node": node}


def remove_broker(call: OperationContext, args: Arguments) -> OperationResult:
    """Remove a broker that holds nothing, or with `force` any broker.

    Partitions that only it holds are lost. For `stranded` partitions others have replicas, but no
    majority: these partitions wait for more of them.
    """
    node, force, avoid = args.number("node"), args.flag("force", False), args.numbers("avoid")
    waiting = set(args.numbers("stranded"))
    args.done()
    tables = call.tables
    _get_broker(call, node)
    groups = sorted(tables.held[node] | tables.left[node])
    only = [group for group in groups if _is_sole_replica(tables, group, node)]
    stranded = [group for group in groups if group in waiting and group not in only]
    if len(tables.brokers) == 1 and not force:
        raise BrokerInUse(
            f"broker {node} is the only one: without it there is no place for any message",
            hint="Add another one first, or insist (force).",
        )
    if groups and not force:
        missed = _loss_summary(tables, only, stranded)
        more = f"; {missed}" if missed else ""
        raise BrokerInUse(f"broker {node} holds {len(groups)} replicas{more}")
    for group in groups:
        partition = tables.partition(group)
        if partition is not None and group not in only:
            _replace_replica_on(call, partition, node, avoid)
    result = {
        "node": node,
        "replicas": len(groups),
        "lost": len(only),
        "stranded": len(stranded),
        "lost_partitions": _partition_names(tables, only)[:REPORTED_MAX],
        "stranded_partitions": _partition_names(tables, stranded)[:REPORTED_MAX],
        "missed": _loss_summary(tables, only, stranded),
    }
    tables.remove_broker(node)
    tables.bump_orders_version(tables.brokers, call.index)
    return result


def _loss_summary(tables: Tables, only: list[int], stranded: list[int]) -> str:
    texts = []
    if only:
        texts.append(
            f"it alone has {_partition_list_text(tables, only)}, whose messages are lost without it"
        )
    if stranded:
        texts.append(
            f"without it too few replicas of {_partition_list_text(tables, stranded)} answer:"
            " nobody can read or write there until their other brokers are back"
        )
    return "; ".join(texts)


def _is_sole_replica(tables: Tables, group: int, node: int) -> bool:
    partition = tables.partition(group)
    return partition is not None and partition.nodes == [node] and not partition.leaving


def _partition_names(tables: Tables, groups: list[int]) -> list[str]:
    places = [(topic.name, number) for topic, number in map(tables.groups.__getitem__, groups)]
    return [f"{name}/{number}" for name, number in sorted(places)]


def _partition_list_text(tables: Tables, groups: list[int]) -> str:
    named = _partition_names(tables, groups)
    return ", ".join(named[:NAMES_SHOWN_MAX]) + (
        f" and {len(named) - NAMES_SHOWN_MAX:,} more" if len(named) > NAMES_SHOWN_MAX else ""
    )


def _replace_replica_on(
    call: OperationContext, partition: PartitionRow, node: int, avoid: list[int]
) -> None:
    """Replace the partition's replica on `node`, or drop it if there is no other broker."""
    tables = call.tables
    for place, replica in enumerate(partition.replicas):
        if replica[0] != node:
            continue
        if not partition.moved:  # its group may not be founded yet; only its founders can do that
            partition.founders = list(partition.replicas)
        to = _returning_node(tables, partition, node, avoid) or _best_other_broker(
            tables, partition, node, avoid
        )
        if to:
            _replace_replica(call, partition, place, to)
        elif len(partition.replicas) > 1:
            with tables.change_partition(partition):
                partition.leaving.append(partition.replicas.pop(place))
                partition.moved, partition.is_moving = call.index, True
            tables.bump_orders_version(partition.all_node_ids, call.index)
        return


def _returning_node(tables: Tables, partition: PartitionRow, node: int, avoid: list[int]) -> int:
    """Return a node whose leaving replica may stay instead; 0: none."""
    for one, drawn in partition.leaving:
        row = tables.brokers.get(one)
        is_here = row is not None and row.state == ACTIVE and row.disk_first_incarnation <= drawn
        if is_here and one not in (node, *partition.nodes, *avoid):
            return one
    return 0


def _best_other_broker(tables: Tables, partition: PartitionRow, node: int, avoid: list[int]) -> int:
    """Return a broker that could take one more replica of the partition; 0: none."""
    most, silent = tables.settings["replicas_per_broker_max"], set(avoid)
    taken = set(partition.all_node_ids)
    loads = [
        placement.BrokerLoad(one.node, host_label(one), len(tables.held[one.node]))
        for one in tables.brokers.values()
        if one.state == ACTIVE and one.node not in silent and len(tables.held[one.node]) < most
    ]
    hosts = [
        host_label(tables.brokers[one])
        for one in partition.nodes
        if one != node and one in tables.brokers
    ]
    return placement.best_broker_for_replica(
        [one for one in loads if one.node not in taken and one.node != node], hosts
    )


def forget_gone(call: OperationContext, args: Arguments) -> OperationResult:
    """Forget removals: a broker that follows this version of its orders no longer holds these."""
    node, groups, version = args.number("node"), args.numbers("groups"), args.number("version")
    args.done()
    tables = call.tables
    for group in groups:
        gone = tables.gone.get(group)
        if gone is not None:
            gone.replicas = [one for one in gone.replicas if one[0] != node or one[2] > version]
            tables.put_pending_removal(gone)
    return {}


# -- replicas -------------------------------------------------------------------------------------


def move_replicas(call: OperationContext, args: Arguments) -> OperationResult:
    """Apply `moves`: [raft uid, node, incarnation, to].

    `to` equal to node: a new replica on the same broker. Node 0: one more replica, for a partition
    that has fewer than its topic promises. A move of a replica that is not wanted any more, or to a
    broker that has one already, is skipped.
    """
    moves = args.rows("moves", 4)
    args.done()
    tables, done = call.tables, 0
    most = tables.settings["replicas_per_broker_max"]
    for group, node, incarnation, to in moves:
        partition, broker = tables.partition(group), tables.brokers.get(to)
        if partition is None or broker is None:
            continue
        known = (
            (node, incarnation) in partition.replicas if node else group in tables.under_replicated
        )
        if not known:
            continue
        if to != node:
            full = len(tables.held[to]) >= most or broker.state != ACTIVE
            if full or to in partition.nodes or (not node and to in partition.all_node_ids):
                continue
        if node:
            _replace_replica(call, partition, partition.replicas.index((node, incarnation)), to)
        else:
            _add_replica(call, partition, to)
        done += 1
    return {"moved": done}


def _replace_replica(call: OperationContext, partition: PartitionRow, place: int, to: int) -> None:
    """Replace one replica by another on `to`.

    A leaving replica that is wanted again keeps its name: its data were not removed, or it would
    not be among those that leave.
    """
    tables, before = call.tables, partition.replicas[place]
    # Of several there, the newest is the one that `_returning_node` and the plan mean.
    leaves = [one for one in partition.leaving if one[0] == to != before[0]]
    back = max(leaves, default=None)
    new = back or _allocate_replica(tables, to)
    with tables.change_partition(partition):
        partition.leaving = [one for one in partition.leaving if one != back] + [before]
        partition.replicas[place] = new
        partition.moved, partition.is_moving = call.index, True
    tables.bump_orders_version(partition.all_node_ids, call.index)
    _rebalance_leader(tables, partition)


def _add_replica(call: OperationContext, partition: PartitionRow, to: int) -> None:
    tables = call.tables
    new = _allocate_replica(tables, to)
    with tables.change_partition(partition):
        partition.replicas.append(new)
        partition.moved, partition.is_moving = call.index, True
    tables.bump_orders_version(partition.all_node_ids, call.index)


def _allocate_replica(tables: Tables, node: int) -> tuple[int, int]:
    """Name a new replica: a name that was never used."""
    tables.counters.incarnation += 1
    tables.mark_counters_changed()
    return node, tables.counters.incarnation - 1


def _rebalance_leader(tables: Tables, partition: PartitionRow) -> None:
    first, *others = partition.nodes
    best = min(others, key=lambda one: (tables.led[one], one), default=first)
    if tables.led[best] + 1 < tables.led[first]:
        _set_preferred_leader(tables, partition, best)


def _set_preferred_leader(tables: Tables, partition: PartitionRow, node: int) -> None:
    with tables.change_partition(partition):
        place = partition.nodes.index(node)
        partition.replicas.insert(0, partition.replicas.pop(place))


def settle_replicas(call: OperationContext, args: Arguments) -> OperationResult:
    """Note what the leader of a group reports of its members, as of the last move (`moved`).

    `gone`: leaving replicas that are no members any more. `done`: the members are exactly the
    wanted ones.
    """
    group, moved, done = args.number("group"), args.number("moved"), args.flag("done", False)
    pairs = set(args.pairs("gone"))
    args.done()
    tables = call.tables
    partition = tables.partition(group)
    if partition is None or partition.moved != moved or not partition.is_moving:
        return {}
    gone = [one for one in partition.leaving if one in pairs]
    nodes = partition.all_node_ids
    with tables.change_partition(partition):
        partition.leaving = [one for one in partition.leaving if one not in pairs]
        partition.is_moving = bool(partition.leaving) or not done
        if not partition.is_moving:
            partition.founders = []
    known = [one for one in gone if one[0] in tables.brokers]
    if known:
        tables.add_pending_removal(group, known, call.index)
        tables.bump_orders_version(nodes, call.index)
    return {}


def prefer_replica(call: OperationContext, args: Arguments) -> OperationResult:
    """Make another of the wanted replicas the preferred leader."""
    group, node = args.number("group"), args.number("node")
    args.done()
    partition: Any = call.tables.partition(group)
    if partition is not None and node in partition.nodes[1:]:
        _set_preferred_leader(call.tables, partition, node)
    return {}
