"""Logs of several brokers with replicated partitions, made by the real storage engine in no time.

What a cluster would write, without one: each broker's `Log` gets the groups, votes, entries, commit
hints and saved state of its replicas. So a test of what reads logs has a whole data folder in a
tenth of a second, and can leave anything out or do it wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

from support.partition_commands import commit_command

from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.log import next_chain
from myqueue.daemons.replication.open_group import pack_group_description
from myqueue.errors import JournalBusy
from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.log import Log
from myqueue.wire import batch, protocol

WALL_MS = 1_700_000_000_000
TERM = 3


def replica_id(node: int) -> int:
    return t.replica_id(node, 1)


def values_of(topic: str, first: int, count: int, size: int) -> list[bytes]:
    """Return values that differ for every message and that a test can compute."""
    return [
        (b"%s %d " % (topic.encode(), one)).ljust(size, b".") for one in range(first, first + count)
    ]


def make_entry(
    log: list[t.Entry], kind: int, payload: bytes, count: int, term: int = TERM
) -> t.Entry:
    """Make the entry that follows these."""
    last = log[-1] if log else None
    index = last[t.INDEX] + 1 if last else 1
    offset = last[t.OFFSET] + last[t.COUNT] if last else 0
    chain = next_chain(last[t.CHAIN] if last else 0, term, payload)
    stamp = 0 if kind == t.NOOP else WALL_MS + 10 * index
    return (index, term, offset, count, stamp, kind, chain, payload)


@dataclass
class Topic:
    """One partition's log, the same on all its replicas."""

    name: str
    group: int
    partition: int = 0
    uid: int = 900
    entries: list[t.Entry] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)

    def noop(self, term: int = TERM) -> None:
        self.entries.append(make_entry(self.entries, t.NOOP, b"", 0, term))

    def data(
        self,
        count: int,
        *,
        producer: int = 7,
        size: int = 40,
        term: int = TERM,
        epoch: int = 0,
        sequence: int | None = None,
        codec: int = batch.PLAIN,
        keys: list[Any] | None = None,
        headers: list[Any] | None = None,
        times: list[int] | None = None,
    ) -> None:
        sequence = self.sequences.get(producer, 0) if sequence is None else sequence
        offset = self.end
        columns = [values_of(self.name, offset, count, size), keys, headers, times]
        payload = batch.make(
            columns,
            WALL_MS + offset,
            producer=producer,
            epoch=epoch,
            sequence=sequence,
            codec=codec,
        )
        self.sequences[producer] = sequence + count
        self.entries.append(make_entry(self.entries, t.DATA, payload, count, term))

    def commit(self, consumer: str, offset: int) -> None:
        self.command(commit_command([[consumer, offset, 1, 1]]))

    def command(self, payload: bytes) -> None:
        self.entries.append(make_entry(self.entries, t.COMMAND, payload, 0))

    @property
    def end(self) -> int:
        return self.entries[-1][t.OFFSET] + self.entries[-1][t.COUNT] if self.entries else 0


def some_topics(rounds: int = 30, count: int = 2, groups: int = 3) -> list[Topic]:
    """Topics `a`, `b` … with batches of two producers, commits of a consumer."""
    topics = [Topic("abcdefgh"[at // count], 100 + at, at % count) for at in range(groups)]
    for topic in topics:
        topic.noop()
        for one in range(rounds):
            topic.data(5 + one % 3, producer=7 + one % 2)
            if one % 5 == 4:
                topic.commit("reader", topic.end - 2)
    return topics


class Broker:
    """One broker's folder while it is being written."""

    def __init__(
        self, folder: Path, node: int, segment_bytes: int = 1 << 16, wall_ms: int = WALL_MS
    ) -> None:
        self.folder, self.node = folder, node
        config = JournalConfig(segment_bytes=segment_bytes, soft_limit_bytes=0, reserve_bytes=0)
        name = ("test", f"broker-{node}", "broker")
        self.log = Log(str(folder), name, config, lambda: wall_ms + 1000, Random(node))
        self.machines: dict[int, PartitionMachine] = {}

    def create(self, topic: Topic, nodes: Iterable[int], vote: int = 0, term: int = TERM) -> None:
        voters = tuple(replica_id(one) for one in nodes)
        about = protocol.pack([topic.name, topic.partition, topic.uid, {}])
        config = t.Config(voters, ())
        journal = self.log.journal
        journal.create_group(
            topic.group, pack_group_description(replica_id(self.node), config, about)
        )
        journal.hard_state(topic.group, term, vote or voters[0])
        self.machines[topic.group] = PartitionMachine()

    def append(self, topic: Topic, entries: list[t.Entry]) -> None:
        for at in range(0, len(entries), 8):
            self.retried(lambda at=at: self.log.journal.append(topic.group, entries[at : at + 8]))
        self.flush()

    def retried(self, call: Any) -> None:
        while True:
            try:
                call()
                return
            except JournalBusy:
                self.flush()
                sleep(0.001)

    def flush(self) -> None:
        self.log.journal.submit()
        self.log.poll()

    def commit_hint(self, topic: Topic, index: int) -> None:
        self.log.journal.commit_hint(topic.group, index)
        self.flush()

    def apply(self, topic: Topic, entries: list[t.Entry]) -> None:
        """Apply committed entries as a daemon does: the store gets the state."""
        machine = self.machines[topic.group]
        machine.apply(entries)
        puts, deletes = machine.take_changes()
        self.log.index.apply({topic.group: (machine.applied_index, puts, deletes)})

    def reclaim(self, now_ms: int) -> None:
        """Run one pass of reclaim, as the daemon's loop steps it."""
        self.flush()
        deadline = monotonic() + 20
        reclaimer = self.log.reclaimer
        reclaimer.begin(now_ms)
        while reclaimer.step():
            self.flush()
            assert monotonic() < deadline, "a pass that does not end"
            sleep(0.0002)

    def close(self) -> None:
        self.flush()
        assert self.log.close()


def write_cluster(
    folder: Path,
    topics: list[Topic],
    nodes: Iterable[int] = (1, 2, 3),
    *,
    segment_bytes: int = 1 << 16,
    apply: bool = True,
) -> dict[int, Path]:
    """Write the logs of a healthy cluster; return the brokers' folders by node."""
    nodes = tuple(nodes)
    out = {}
    for node in nodes:
        broker = Broker(folder / f"broker-{node}", node, segment_bytes)
        for topic in topics:
            broker.create(topic, nodes)
        write_replica(broker, topics, apply=apply)
        broker.close()
        out[node] = broker.folder
    return out


def write_reclaimed_cluster(
    folder: Path, quiet: list[Topic], nodes: Iterable[int] = (1, 2, 3), *, hints: bool = True
) -> None:
    """Topics that fell quiet, and a busy one after them that is deleted; then all was reclaimed
    that could be. So nothing of the quiet ones stands where it was written.
    """
    nodes = tuple(nodes)
    for node in nodes:
        broker = Broker(folder / f"broker-{node}", node)
        for topic in quiet:
            broker.create(topic, nodes)
            broker.append(topic, topic.entries)
            if hints:
                broker.commit_hint(topic, topic.entries[-1][t.INDEX])
            broker.apply(topic, topic.entries)
        first = broker.log.journal.end[0]
        busy = Topic("busy", 999)
        broker.create(busy, nodes)
        while broker.log.journal.end[0] < first + 3:
            had = len(busy.entries)
            busy.data(8, size=1000)
            broker.append(busy, busy.entries[had:])
        broker.commit_hint(busy, busy.entries[-1][t.INDEX])
        broker.log.journal.remove_group(busy.group)
        for at in range(40):
            broker.reclaim(at * 20_000)
            if min(broker.log.journal.segments) > first:
                break
        assert min(broker.log.journal.segments) > first
        broker.close()


def write_replica(broker: Broker, topics: list[Topic], *, apply: bool = True) -> None:
    """Entries of the topics in turns, with hints of what is committed."""
    at = 0
    while any(at < len(topic.entries) for topic in topics):
        for topic in topics:
            part = topic.entries[at : at + 10]
            if part:
                broker.append(topic, part)
        at += 10
    for topic in topics:
        if topic.entries:
            broker.commit_hint(topic, topic.entries[-1][t.INDEX])
            if apply:
                broker.apply(topic, topic.entries)


__all__ = [
    "Broker",
    "Topic",
    "some_topics",
    "values_of",
    "write_cluster",
    "write_reclaimed_cluster",
]
