"""Consumers' requests for the echo cluster: FETCH, OFFSETS, COMMIT, registrations.

`serve_reads(cluster)` gives each daemon a script that answers them by the rules of PROTOCOL.md,
from the logs that producers fill. `fill` appends without a producer.
"""

from __future__ import annotations

import time
from typing import Any

from support.fake_cluster.peer import Answer, EchoCluster, EchoDaemon, Log, refuse

from myqueue import errors
from myqueue.wire import batch
from myqueue.wire import protocol as words

EMPTY_S = 0.01  # an answer without messages takes so long: the daemon has one thread


class Reads:
    """Shared by the daemons of a cluster."""

    def __init__(self, cluster: EchoCluster) -> None:
        self.cluster = cluster
        self.positions: dict[tuple[str, int], int] = {}
        self.starts: dict[int, int] = {}
        self.clients = 0
        self.fetched_bytes = 0

    def script(self, daemon: EchoDaemon) -> Any:
        def answer(envelope: words.Envelope, frames: list[bytes]) -> list[Answer] | None:
            _, kind, request, *fields = envelope
            if kind == words.FETCH:
                return [self.fetch(daemon, request, fields[2], fields[3])]
            if kind == words.OFFSETS:
                rows = [self.offsets(daemon, fields[0], fields[1], g) for g in fields[2]]
                return [[words.encode(words.POSITIONS, request, rows)]]
            if kind == words.COMMIT:
                rows = [self.commit(daemon, fields[0], part) for part in fields[1]]
                return [[words.encode(words.COMMITTED, request, rows)]]
            if kind == words.UPDATE and fields[1].startswith("register_"):
                return self.register(request, fields[1], fields[2]["topic"])
            return None

        return answer

    def refused(self, daemon: EchoDaemon, group: int) -> tuple[int, dict[str, Any] | None]:
        node, _ = self.cluster.leaders.get(group, (0, 0))
        if not node:
            return errors.UnknownPartition.code, None
        if node != daemon.node:
            address = self.cluster.daemons[node - 1].address
            return errors.NotLeader.code, {"leader": node, "address": address}
        return 0, None

    def fetch(self, daemon: EchoDaemon, request: int, max_bytes: int, parts: list[Any]) -> Answer:
        rows, frames, size = [], [], 0
        for group, offset in parts:
            code, details = self.refused(daemon, group)
            heads: list[list[int]] = []
            start, end = self.starts.get(group, 0), 0
            if not code:
                log = self.cluster.logs[group]
                end = log.end
                if not start <= offset <= end:
                    code = errors.OffsetOutOfRange.code
                for base, data in [] if code else log.batches:
                    if base + batch.header(data).count > offset and (not size or size < max_bytes):
                        heads.append([base, 1])
                        frames.append(data)
                        size += len(data)
            rows.append([group, code, start, end, heads, details])
        self.fetched_bytes += size
        if not frames and not any(row[1] for row in rows):
            time.sleep(EMPTY_S)
        return [words.encode(words.FETCHED, request, rows), *frames]

    def offsets(
        self, daemon: EchoDaemon, who: str | None, time_ms: int | None, group: int
    ) -> list[Any]:
        code, _ = self.refused(daemon, group)
        if code:
            return [group, code, 0, 0, None, None, 0]
        log = self.cluster.logs[group]
        times = ((base, batch.header(data).time_ms) for base, data in log.batches)
        at = next((base for base, ms in times if time_ms is not None and ms >= time_ms), None)
        position = self.positions.get((who, group)) if who else None
        return [group, 0, self.starts.get(group, 0), log.end, position, at, 0]

    def commit(self, daemon: EchoDaemon, who: str, part: list[int]) -> list[Any]:
        group, offset = part[:2]
        code, details = self.refused(daemon, group)
        if code:
            return [group, code, 0, details]
        self.positions[who, group] = max(offset, self.positions.get((who, group), 0))
        return [group, 0, self.positions[who, group], None]

    def register(self, request: int, operation: str, topic: str) -> list[Answer]:
        cluster, created = self.cluster, False
        if topic not in cluster.topics:
            if operation == "register_consumer":
                return refuse(request, errors.UnknownTopic, f"there is no topic {topic!r}")
            cluster.topic(topic)
            created = True
        self.clients += 1
        result: dict[str, Any] = {"topic_uid": cluster.topics[topic][0]}
        if operation == "register_consumer":
            numbers = list(range(len(cluster.topics[topic])))
            result |= {"consumer_id": self.clients, "partitions": numbers}
        else:
            result |= {"producer_id": self.clients, "epoch": 0, "created": created}
        return [[words.encode(words.UPDATED, request, cluster.index, result)]]


def serve_reads(cluster: EchoCluster) -> Reads:
    reads = Reads(cluster)
    for daemon in cluster.daemons:
        daemon.script = reads.script(daemon)
    return reads


def fill(log: Log, count: int, *, time_ms: int = 1_000) -> None:
    """Append one batch; the value of each message is its offset."""
    values = [str(offset).encode() for offset in range(log.end, log.end + count)]
    log.append(batch.make([values, None, None, None], time_ms))
