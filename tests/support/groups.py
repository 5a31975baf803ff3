"""Consumer groups as the managers describe them, and a watch over their positions."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from support.processes import Cluster
from support.traffic import Writer

from myqueue.consumer.message import TopicPartition
from myqueue.errors import MyQueueError


def describe_group(cluster: Cluster, group: str) -> Any:
    asked = {"group": group}
    return cluster.session.read("group", asked, linearizable=True, timeout_ms=5000).result()


def is_assigned(cluster: Cluster, group: str, members: int) -> bool:
    try:
        found = describe_group(cluster, group)
    except MyQueueError:
        return False
    owners = [row["member"] for row in found["partitions"]]
    return found["state"] == "stable" and len(set(owners) - {0}) == members and all(owners)


class PositionWatch(threading.Thread):
    """A thread that checks that committed positions never go back."""

    def __init__(self, cluster: Cluster, topic: str, group: str) -> None:
        super().__init__(daemon=True)
        self.cluster, self.topic, self.group = cluster, topic, group
        self.known: dict[TopicPartition, int] = {}
        self.looks = 0
        self.wrong = ""
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(0.2) and not self.wrong:
            try:
                found = self.cluster.admin.positions(self.topic, group=self.group)
            except MyQueueError:
                continue
            self.looks += 1
            for name, position in found.items():
                if (position or 0) < self.known.get(name, 0):
                    self.wrong = f"{name} went back from {self.known[name]} to {position}"
                self.known[name] = position or 0

    def finish(self) -> None:
        self._end.set()
        self.join(30)
        assert not self.wrong, self.wrong
        assert self.looks > 3


def ends_of(writer: Writer) -> dict[int, int]:
    """Return, for each partition, the offset after its last message acknowledged to `writer`."""
    ends: dict[int, int] = defaultdict(int)
    for one in writer.acked.values():
        ends[one.partition] = max(ends[one.partition], one.offset + 1)
    return ends
