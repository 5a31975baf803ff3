"""Managers of consumer groups for the echo cluster: who asks is a member, and has what it is given.

`serve_groups(cluster)` goes on top of `serve_reads`. There is one member, and no sessions.
"""

from __future__ import annotations

import time
from typing import Any

from support.fake_cluster.peer import Answer, EchoCluster, Script

from myqueue.wire import protocol as words

MEMBER, SESSION_MS = 50, 10_000
HELD_S = 0.02  # an answer without news takes so long: the daemon has one thread


class Groups:
    """Shared by the daemons of a cluster."""

    def __init__(self, cluster: EchoCluster) -> None:
        self.cluster, self.version = cluster, 1
        self.rows: list[list[Any]] = []
        self.done: list[str] = []  # joins and leaves
        self.released: list[list[int]] = []
        self.loses_commits = False

    def give(self, topic: str, *shares: tuple[int, int, bool]) -> None:
        """Set all partitions of the member: (number, epoch, whether it must release it)."""
        groups = self.cluster.topics[topic]
        self.rows = [[groups[n], topic, n, epoch, go, False] for n, epoch, go in shares]
        self.version += 1

    def script(self, before: Script) -> Script:
        def answer(envelope: words.Envelope, frames: list[bytes]) -> list[Answer] | None:
            _, kind, request, *fields = envelope
            if kind == words.UPDATE and fields[1] in ("join_group", "leave_group"):
                self.done.append(fields[1])
                result = {"member": MEMBER, "session_ms": SESSION_MS}
                return [[words.encode(words.UPDATED, request, self.version, result)]]
            if kind == words.MEMBER:
                self.released += fields[4]
                if fields[2] >= self.version:
                    time.sleep(HELD_S)
                told = (self.version, SESSION_MS, self.rows)
                return [[words.encode(words.MEMBERSHIP, request, *told)]]
            if kind == words.COMMIT and all(part[1] == words.NO_OFFSET for part in fields[1]):
                rows = [[part[0], 0, words.NO_OFFSET, None] for part in fields[1]]
                return [[words.encode(words.COMMITTED, request, rows)]]
            if kind == words.COMMIT and self.loses_commits:
                return []
            return before(envelope, frames)

        return answer


def serve_groups(cluster: EchoCluster) -> Groups:
    groups = Groups(cluster)
    for daemon in cluster.daemons:
        daemon.script = groups.script(daemon.script)
    return groups
