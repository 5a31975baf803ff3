"""All clients of a run of the nemesis, from their first call to the last."""

from __future__ import annotations

import time
from random import Random

from faults.clients import Client, OnceWriter, Reader, Writer, runs_of
from faults.history import History
from faults.more_clients import GroupMember, TakeClient, Volatile, Watcher
from support.processes import Cluster, wait_for

from myqueue.admin.client import Admin
from myqueue.consumer.consumer import Consumer
from myqueue.errors import MyQueueError

GROUP = "crowd"
STEADY_PER_S, OTHERS_PER_S = 60.0, 20.0
DRAINED_S = 120.0  # so long what is left may take to be read when all is well again


class Crowd:
    """Writers, readers, takers, members of a group; and a topic that comes and goes."""

    def __init__(
        self, cluster: Cluster, history: History, topic: str, partitions: int, random: Random
    ) -> None:
        where, self.topic, self.history = cluster.address, topic, history
        self.admin = Admin(where, timeout=5)
        ids = [int(self.admin.register_consumer(topic)["consumer_id"]) for _ in range(3)]
        seeds = iter(random.sample(range(1 << 30), 8))
        self.writers: list[Client] = [
            Writer(f"{how}{n}", history, where, topic, how, rate, partitions)
            for n, (how, rate) in enumerate(
                [
                    ("steady", STEADY_PER_S),
                    ("steady", STEADY_PER_S),
                    ("keyed", OTHERS_PER_S),
                    ("free", OTHERS_PER_S),
                ],
                1,
            )
        ]
        self.writers.append(OnceWriter("once", history, where, topic, next(seeds)))
        self.volatile = Volatile("volatile", history, where, next(seeds))
        self.readers = [
            Reader("reader1", history, where, topic, ids[0], next(seeds)),
            Reader("reader2", history, where, topic, ids[1], next(seeds)),
            Reader("plain", history, where, topic, None),
        ]
        self.takers = [TakeClient(f"taker{n}", history, where, topic, ids[2]) for n in (1, 2)]
        self.members = [GroupMember(where, topic, f"member{n}", history, GROUP) for n in (1, 2)]
        self.watcher = Watcher("watcher", history, where, topic, ids[:2], GROUP)
        others = (*self.readers, *self.takers, self.watcher, self.volatile)
        self.all: list[Client] = [*self.writers, *others]

    def start(self) -> None:
        for one in (*self.all, *self.members):
            one.start()

    def check(self) -> None:
        """All are still at work."""
        for one in (*self.all, *self.members):
            if one.error is not None:
                raise AssertionError(f"{one.name}: {one.error!r}") from one.error

    def abandon(self) -> None:
        """The run has failed: nobody waits for them."""
        for one in self.all:
            one.stopped.set()
        for member in self.members:
            member.ask_to_stop()

    def stop_writing(self) -> None:
        for writer in (*self.writers, self.volatile):
            writer.stopped.set()
        for writer in (*self.writers, self.volatile):
            writer.finish()

    def wait_until_read(self) -> None:
        """Readers, takers and the group have come to the end."""
        begin = time.monotonic()

        def left(seconds: float = DRAINED_S) -> float:
            return max(1.0, begin + seconds - time.monotonic())

        ends = {at.partition: found.end for at, found in self.admin.offsets(self.topic).items()}

        def is_read() -> bool:
            self.check()
            return all(reader.has_read(ends) for reader in self.readers)

        wait_for(f"readers to come to the end, {ends}", is_read, left())
        wait_for("takers to take all", self._all_taken, left())
        wait_for("the group to read all", self._all_shared, left())

    def _all_taken(self) -> bool:
        self.check()
        try:
            return self.takers[0].left() == 0
        except MyQueueError:
            return False

    def _all_shared(self) -> bool:
        self.check()
        try:
            return sum(self.admin.lag(self.topic, group=GROUP).values()) == 0
        except MyQueueError:
            return False

    def finish(self) -> None:
        for one in (*self.takers, *self.readers, self.watcher):
            one.stopped.set()
        for one in (*self.takers, *self.readers, self.watcher):
            one.finish()
        for member in self.members:
            member.finish()
        self.admin.close()


def audit(cluster: Cluster, history: History, topic: str) -> None:
    """Somebody who comes later reads it all, from the beginning."""
    with Admin(cluster.address, timeout=20) as admin:
        ends = {at.partition: found.end for at, found in admin.offsets(topic).items()}
    reached = dict.fromkeys(ends, 0)
    end = time.monotonic() + DRAINED_S
    with Consumer(cluster.address, [topic]) as consumer:
        while reached != ends:
            assert time.monotonic() < end, f"the auditor came to {reached}, not to {ends}"
            for partition, first, names in runs_of(consumer.poll(5000, 0.5)):
                history.note("read", "auditor", topic, partition, first, names)
                reached[partition] = first + len(names)
    history.note("whole", "auditor", topic)
