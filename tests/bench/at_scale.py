"""Costs of the pure code of managers and brokers with very many partitions, without sockets.

    PYTHONPATH=tests .venv/bin/python tests/bench/at_scale.py --brokers 100 --partitions 100000

Runs the metadata machine, the view of heartbeats, the building of orders, the balancer, and one
broker's raft groups. Prints seconds and bytes of each round. No sockets and no disk: a cluster
costs more. `daemons/SCALE.md` says what follows from it.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from time import perf_counter
from typing import Any

from myqueue.daemons.manager.balancer.controller import ClusterController
from myqueue.daemons.manager.broker_orders import OrdersBuilder, in_parts
from myqueue.daemons.manager.cluster_view import ClientActivity, ClusterView
from myqueue.daemons.metadata.arguments import PARTITIONS_PER_CALL
from myqueue.daemons.metadata.machine import MetadataMachine, pack_command
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.groups import RaftGroups
from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.membership import ConfigHistory
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.replication import packets
from myqueue.wire import protocol

LIFE = 1000  # of the process of broker 0
ROW = "{:44} {:>12} {:>14}  {}"


class Report:
    """Prints figures as they come, and keeps them for --json."""

    def __init__(self, *, is_quiet: bool) -> None:
        self.rows: list[dict[str, Any]] = []
        self._is_quiet = is_quiet
        self._print("round", "seconds", "bytes", "")

    def time(self, what: str, work: Callable[[], Any], note: str = "", times: int = 1) -> Any:
        """Run work; its result, if bytes or a list of them, is measured, too."""
        begin = perf_counter()
        for _ in range(times):
            result = work()
        self.add(what, (perf_counter() - begin) / times, _size(result), note)
        return result

    def add(self, what: str, seconds: float, size: int | None, note: str = "") -> None:
        self.rows.append({"round": what, "seconds": seconds, "bytes": size, "note": note})
        self._print(what, f"{seconds:.6f}", "" if size is None else str(size), note)

    def _print(self, *cells: str) -> None:
        if not self._is_quiet:
            print(ROW.format(*cells), flush=True)


def _size(result: Any) -> int | None:
    if isinstance(result, bytes):
        return len(result)
    if isinstance(result, list) and result and all(isinstance(one, bytes) for one in result):
        return sum(map(len, result))
    return None


class Managers:
    """The state of one manager: its machine, its view, and the heartbeats of all brokers."""

    def __init__(self, brokers: int) -> None:
        self.machine, self.view = MetadataMachine("scale"), ClusterView()
        self.nodes = range(1, brokers + 1)
        self.now, self.log_bytes = 100_000, 0
        self.view.note_tick(self.now)
        self.run("alter_cluster", settings={"partitions_max": 1_000_000})
        self.run("alter_cluster", settings={"replicas_per_broker_max": 10_000})
        for node in self.nodes:
            self.run("register_broker", **self.identity(node), life=LIFE + node)

    @property
    def tables(self) -> Any:
        return self.machine.tables

    def identity(self, node: int) -> dict[str, Any]:
        addresses = {"address": f"tcp://10.0.0.{node}:9292", "peer": f"10.0.0.{node}:9392"}
        return {"node": node, "disk": f"disk-{node}", "host": f"host-{node}", **addresses}

    def run(self, operation: str, **arguments: Any) -> None:
        """Apply a command, as a manager does with a committed entry."""
        index = self.machine.applied_index + 1
        payload = pack_command(index.to_bytes(16, "big"), operation, arguments)
        self.log_bytes += len(payload)
        entry: Any = (index, 1, 0, 0, self.now, t.COMMAND, 0, payload)
        (result,) = self.machine.apply([entry])
        if isinstance(result, Exception):
            raise result
        self.machine.take_changes()

    def create(self, partitions: int) -> None:
        for number, first in enumerate(range(0, partitions, PARTITIONS_PER_CALL)):
            count = min(PARTITIONS_PER_CALL, partitions - first)
            self.run("create_topic", topic=f"topic-{number:05}", partitions=count, replication=3)

    def beat(self, node: int, *, is_full: bool) -> bytes:
        """A heartbeat of a broker that has all it should have, and leads what it should lead."""
        rows, tables = [], self.tables
        for group in sorted(tables.held[node]) if is_full else ():
            partition = tables.partition(group)
            leader, own = partition.nodes[0], dict(partition.replicas)[node]
            members = [[*one, True] for one in partition.replicas] if leader == node else None
            rows.append([group, own, leader == node, 2, leader, 0, 1000, 100_000, members])
        state = {name: value for name, value in self.identity(node).items() if name != "node"}
        state |= {"incarnation": LIFE + node, "version": tables.brokers[node].version}
        state |= {"full": is_full, "groups": rows, "producers": [], "consumers": []}
        state |= {"disk_low": False, "free_bytes": 1 << 40, "load": 100, "health": []}
        state["reads_changes"] = True
        if is_full:
            state["held"] = [row[:2] for row in rows]
        return protocol.pack(state)

    def receive(self, node: int, beat: bytes) -> None:
        self.view.receive_broker_heartbeat(node, protocol.unpack(beat), self.now, self.now)


def measure_metadata(report: Report, managers: Managers, partitions: int) -> None:
    before = managers.log_bytes
    begin = perf_counter()
    managers.create(partitions)
    seconds = perf_counter() - begin
    size = managers.log_bytes - before
    report.add("create all partitions", seconds, size, f"{1e6 * seconds / partitions:.0f} us each")
    snapshot = report.time("snapshot of the managers' state", managers.machine.snapshot)
    other = MetadataMachine("scale")
    report.time("load a snapshot", lambda: other.restore(snapshot))


def measure_heartbeats(report: Report, managers: Managers) -> None:
    fulls = {node: managers.beat(node, is_full=True) for node in managers.nodes}
    first, size = managers.nodes[0], len(fulls)
    report.add("a full heartbeat", 0, len(fulls[first]), "limit 1,048,576")

    def receive_all(beats: dict[int, bytes]) -> list[bytes]:
        for node, beat in beats.items():
            managers.receive(node, beat)
        return list(beats.values())

    report.time("receive full heartbeats of all brokers", lambda: receive_all(fulls))
    managers.now += 6000  # their brokers count as settled
    managers.view.note_tick(managers.now)
    quiet = {node: managers.beat(node, is_full=False) for node in managers.nodes}
    for _ in range(14):  # alive without a gap
        managers.now += 450
        managers.view.note_tick(managers.now)
        receive_all(quiet)
    report.time(
        "receive quiet heartbeats of all brokers", lambda: receive_all(quiet), f"{size} each 450 ms"
    )
    builder, view = OrdersBuilder(), managers.view

    def build_all() -> list[bytes]:
        return [
            protocol.pack(
                builder.build(managers.tables, node, view.brokers[node], [], managers.now)
            )
            for node in managers.nodes
        ]

    report.time("orders for all brokers, first time", build_all, "compares all replicas")
    report.time("orders for all brokers, nothing new", build_all, f"{size} each 450 ms")
    managers.run("create_topic", topic="one-more", partitions=1, replication=3)
    report.time("orders for all brokers, one new partition", build_all)
    life = view.brokers[first]

    def build_full() -> list[bytes]:
        orders = builder.build(managers.tables, first, life, [], managers.now, followed=0)
        return [protocol.pack(part) for part in in_parts(orders)]

    parts = report.time("all orders of one broker", build_full)
    report.rows[-1]["parts"] = len(parts)
    managers.run("delete_topic", topic="one-more")


def measure_balancer(report: Report, managers: Managers) -> None:
    controller = ClusterController(managers.view, ClientActivity())
    tables, view = managers.tables, managers.view

    def operations() -> int:
        managers.now += 500
        view.note_tick(managers.now)
        for node in alive:
            view.brokers[node].beat_at = managers.now
        return len(controller.next_operations(tables, {}, managers.now))

    alive = list(managers.nodes)
    report.time("due operations, all is even", operations, "each 500 ms, at the leader", times=5)

    def transfers() -> None:
        for node in managers.nodes:
            controller.next_transfers(tables, node, managers.now)

    report.time("transfers of leadership, all brokers", transfers, "each 1000 ms, at the leader")
    managers.now += 1000
    report.time("the same, nothing new", transfers)
    new = managers.nodes[-1] + 1
    managers.nodes = range(1, new + 1)
    managers.run("register_broker", **managers.identity(new), life=LIFE + new)
    view.receive_broker_heartbeat(
        new, protocol.unpack(managers.beat(new, is_full=True)), managers.now, managers.now
    )
    alive = list(managers.nodes)
    for _ in range(12):
        operations()
    report.time("due operations, a broker is new", operations, "first of many", times=3)
    alive.remove(1)
    managers.run("alter_cluster", settings={"replace_after_ms": 2000})
    for _ in range(10):  # until it counts as dead
        operations()
    report.time("due operations, a broker is dead", operations, times=3)


def measure_raft(report: Report, managers: Managers) -> None:
    """One broker's groups, of which it leads those that it should: heartbeats and a lost peer."""
    own, settings = managers.nodes[0], t.RaftSettings()
    random, now = Random(1), 1_000_000
    host = RaftGroups(own, 1, settings)
    begin = perf_counter()
    for group in sorted(managers.tables.held[own]):
        replicas = managers.tables.partition(group).replicas
        voters = tuple(t.replica_id(*one) for one in replicas)
        leader = voters[0]
        mine = next(one for one in voters if t.node_of(one) == own)
        log = RaftLog(lookup=lambda index: (0, 0))
        configs = ConfigHistory(0, t.Config(voters, ()))
        node = RaftNode(
            *(group, mine, configs, log),
            term=2,
            vote=0,
            applied_index=0,
            commit_index=0,
            settings=settings,
            random=random,
            alive_until=host.suspicion.alive_until,
            now=now,
        )
        host.add(node)
        if leader != mine:
            host.call(group, RaftNode.leader_announced, leader, 2, now, host.out)
    host.end_turn(now)
    note = f"{len(host.groups)} groups"
    report.add("open the groups of a broker", perf_counter() - begin, None, note)

    def beats() -> list[bytes]:
        nonlocal now
        now += settings.heartbeat_ms
        for number in managers.nodes:
            host.suspicion.hear(number, now)
        host.tick(now)
        _, out = host.end_turn(now)
        rows = packets.RowCache()
        return [bytes(f) for one in out.values() for fs in packets.encode(one, rows) for f in fs]

    report.time("raft heartbeats of a broker to all", beats, f"each {settings.heartbeat_ms} ms")
    leaders = Counter(t.node_of(node.leader) for node in host.groups.values())
    lost = max(leaders.keys() - {own}, key=leaders.__getitem__)
    host.peer(lost).alive = True
    begin = perf_counter()
    host.disconnected(lost, now)
    host.end_turn(now)
    note = f"it led {leaders[lost]} of these groups; {len(leaders)} brokers lead them"
    report.add("a peer is lost", perf_counter() - begin, None, note)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    report, managers = Report(is_quiet=given.json), Managers(given.brokers)
    measure_metadata(report, managers, given.partitions)
    measure_heartbeats(report, managers)
    measure_raft(report, managers)
    measure_balancer(report, managers)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report.add("memory of this process, at most", 0, peak)
    if given.json:
        print(
            json.dumps(
                {"brokers": given.brokers, "partitions": given.partitions, "rounds": report.rows}
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
