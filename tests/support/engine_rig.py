"""Engines on real logs, in one process and one thread: packets go from hand to hand.

`EngineNet` turns its nodes in order, as their loops would; the clock stands still between turns
unless a test moves it. Owners do nothing but note what they are told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft import types as t
from myqueue.daemons.replication.engine import Engine
from myqueue.daemons.replication.replica import Replica
from myqueue.wal.log import Log
from myqueue.wire import protocol

WALL_MS = 1_700_000_000_000
GROUP = 77


class Clock:
    def __init__(self) -> None:
        self.now, self.wall = 1000, WALL_MS

    def now_ms(self) -> int:
        return self.now

    def wall_ms(self) -> int:
        return self.wall


class RecordingOwner:
    """An owner that records every call of the engine."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.applied_entries: list[tuple[int, t.Entry]] = []

    def make_state_machine(self, group: int, about: bytes) -> PartitionMachine:
        return PartitionMachine()

    def applied(self, replica: Replica, entries: list[t.Entry], results: list[Any]) -> None:
        self.applied_entries += [(replica.uid, one) for one in entries]

    def read_ready(self, context: int) -> None:
        self.reads.append(context)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Wire:
    def __init__(self, net: EngineNet, node: int) -> None:
        self._net, self._node = net, node

    def send_to_peer(self, peer: tuple[str, int], frames: list[Any]) -> bool:
        target = self._net.nodes.get(peer[1])
        if target is not None and target.runs and (self._node, peer[1]) not in self._net.cut:
            target.inbox.append((self._node, [bytes(one) for one in frames]))
        return True

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Node:
    """One daemon without its loop."""

    def __init__(self, net: EngineNet, number: int, folder: Path) -> None:
        self.net, self.number, self.folder = net, number, folder
        self.inbox: list[tuple[int, list[bytes]]] = []
        self.owner = RecordingOwner()
        self.holds_reports = False  # the disk says nothing any more
        self.runs = False
        self.health_changes: list[tuple[str, str]] = []  # of all its replicas
        self.open()

    def _report(self, _level: str, event: str, **about: Any) -> None:
        assert event != "replica-health-impossible", about
        if event == "replica-health-changed":
            self.health_changes.append((about["from"], about["to"]))

    def open(self) -> None:
        config = self.net.journal_config
        identity = ("test", f"broker-{self.number}", "broker")
        random = Random(self.number * 1000 + len(self.net.nodes))
        self.log = Log(str(self.folder), identity, config, self.net.clock.wall_ms, random)
        poll = self.log.poll

        def polled() -> list[Any]:
            if self.holds_reports:
                return []
            return poll()

        self.log.poll = polled  # type: ignore[method-assign]
        self.engine = Engine(
            "broker",
            self.number,
            random.getrandbits(60) | 1,
            self.log,
            t.RaftSettings(),
            self.net.clock,
            random,
            Wire(self.net, self.number),
            self.owner,
        )
        self.engine.report = self._report
        self.engine.open_groups()
        self.runs = True

    def create(self, group: int, nodes: list[int]) -> Replica:
        members = [t.replica_id(node, 1) for node in nodes]
        about = protocol.pack(["t", 0, 1, {}])
        return self.engine.create(group, t.replica_id(self.number, 1), members, (), about)

    def replica(self, group: int = GROUP) -> Replica:
        return self.engine.replicas[group]

    def turn(self) -> None:
        if not self.runs:
            return
        engine = self.engine
        engine.now = self.net.clock.now
        engine.receive_journal_reports()
        waiting, self.inbox = self.inbox, []
        for source, frames in waiting:
            engine.receive_packet(source, protocol.decode(frames[0]), frames[1:])
        engine.tick()
        engine.end_turn()

    def close(self) -> None:
        self.holds_reports = False
        if self.runs:
            self.runs = False
            assert self.engine.close()
        self.inbox.clear()

    def restart(self) -> None:
        self.close()
        self.open()


class EngineNet:
    def __init__(self, folder: Path, nodes: int, journal_config: Any) -> None:
        self.clock, self.journal_config = Clock(), journal_config
        self.cut: set[tuple[int, int]] = set()  # (from, to): nothing arrives
        self.nodes: dict[int, Node] = {}
        for number in range(1, nodes + 1):
            self.nodes[number] = Node(self, number, folder / str(number))

    def __enter__(self) -> EngineNet:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.close()

    def create(self, group: int = GROUP) -> None:
        for node in self.nodes.values():
            node.create(group, list(self.nodes))

    def turn(self, passed_ms: int = 10) -> None:
        self.clock.now += passed_ms
        for node in self.nodes.values():
            node.turn()
        time.sleep(0.0005)

    def directions(self) -> list[tuple[int, int]]:
        """Return every pair (from, to)."""
        return [(a, b) for a in self.nodes for b in self.nodes if a != b]

    def until(self, what: str, condition: Callable[[], Any], turns: int = 3000) -> Any:
        for _ in range(turns):
            found = condition()
            if found:
                return found
            self.turn()
        raise AssertionError(f"never: {what}")

    def leader(self, group: int = GROUP) -> Node:
        def find() -> Node | None:
            here = [n for n in self.nodes.values() if n.runs and group in n.engine.replicas]
            ready = [n for n in here if n.replica(group).is_ready]
            return max(ready, key=lambda one: one.replica(group).raft.term) if ready else None

        found: Node = self.until(f"a leader of {group}", find)
        return found

    def write(self, count: int = 1, group: int = GROUP, size: int = 100) -> None:
        """Propose entries of one message each, and wait until the leader has applied them."""
        leader = self.leader(group)
        items = [t.Proposal(1, self.clock.wall + at, t.DATA, bytes(size)) for at in range(count)]
        first = leader.engine.propose(leader.replica(group), items)
        last = first + count - 1
        self.until(f"{last} applied", lambda: leader.replica(group).raft.applied_index >= last)

    def wait_until_settled(self, group: int = GROUP) -> None:
        """Turn until all replicas have applied the same entries."""

        def same() -> bool:
            at = {n.replica(group).raft.applied_index for n in self.nodes.values() if n.runs}
            return len(at) == 1

        self.until("all applied the same", same)
