"""Members of a consumer group that are watched, and what must hold of what they saw.

A `GroupMember` polls, notes each message with the epoch under which it had the partition and when
it got it, and commits. As a program it is a process of its own, which may be killed and frozen;
what it saw stands in a file, line by line, as it was seen. `judge_group` compares the notes of all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import TopicPartition
from myqueue.errors import Fenced, MyQueueError


class Seen(NamedTuple):
    partition: int
    offset: int
    epoch: int
    at_s: float  # of the monotonic clock, which all processes of a machine share
    who: str


class Member(threading.Thread):
    """A thread that reads and commits until it is stopped, or dies."""

    def __init__(self, cluster: str, topic: str, name: str, **settings: Any) -> None:
        super().__init__(name=name, daemon=True)
        self.seen: list[Seen] = []
        self.assigned: dict[int, tuple[int, float]] = {}  # partition -> epoch, since when
        self.history: list[tuple[str, float, list[int]]] = []
        self.error: Exception | None = None
        self.fenced = 0
        self._stop_asked = threading.Event()
        self.consumer = Consumer(
            cluster,
            topic,
            name=name,
            on_assign=self._assign,
            on_revoke=self._revoke,
            on_lost=self._lost,
            **settings,
        )

    def _assign(self, names: list[TopicPartition]) -> None:
        now = time.monotonic()
        self.history.append(("assign", now, [one.partition for one in names]))
        for one in names:
            self.assigned[one.partition] = self.consumer._subscription.partition(one).epoch, now

    def _revoke(self, names: list[TopicPartition]) -> None:
        self.history.append(("revoke", time.monotonic(), [one.partition for one in names]))
        for one in names:
            del self.assigned[one.partition]

    def _lost(self, names: list[TopicPartition]) -> None:
        self.history.append(("lost", time.monotonic(), [one.partition for one in names]))
        for one in names:
            self.assigned.pop(one.partition, None)

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                messages = self.consumer.poll(100, 0.1)
                now = time.monotonic()
                for one in messages:
                    epoch = self.assigned[one.partition][0]
                    self.note(Seen(one.partition, one.offset, epoch, now, self.name))
                if messages:
                    self._commit()
        except Exception as error:
            self.error = error

    def note(self, seen: Seen) -> None:
        self.seen.append(seen)

    def _commit(self) -> None:
        try:
            self.consumer.commit(timeout=2)
        except Fenced:
            self.fenced += 1
        except MyQueueError as error:
            if not error.retriable:
                raise

    @property
    def losses(self) -> int:
        return sum(what == "lost" for what, _, _ in self.history)

    def die(self) -> None:
        """End without leaving the group, and without the warning of an unclosed consumer."""
        self.consumer._session.close()
        self.consumer.parting.is_closed = True
        self.stop()

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(20)
        assert not self.is_alive(), f"{self.name} hangs"

    def finish(self) -> None:
        self.stop()
        assert self.error is None, f"{self.name}: {self.error!r}"
        self.consumer.close(5)


class _Program(Member):
    """Each line is written before the next message is looked at."""

    def note(self, seen: Seen) -> None:
        fields = (seen.partition, seen.offset, seen.epoch, repr(seen.at_s), seen.who)
        os.write(1, (" ".join(map(str, fields)) + "\n").encode())


class Process:
    """A member in a process of its own."""

    def __init__(self, folder: Path, cluster: str, topic: str, name: str, group: str) -> None:
        self.name, self.file = name, folder / f"{name}.seen"
        with open(self.file, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__)), cluster, topic, name, group],
                stdout=out,
                stdin=subprocess.DEVNULL,
            )

    @property
    def seen(self) -> list[Seen]:
        rows = [line.split() for line in self.file.read_text().splitlines(True) if "\n" in line]
        return [Seen(int(p), int(o), int(e), float(at), who) for p, o, e, at, who in rows]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


def judge_group(seen: list[Seen], acked: dict[int, int]) -> dict[str, int]:
    """`acked`: partition -> offset behind the last acknowledged message. What must hold:

    one member in each epoch of a partition, who got its messages one after the other; nothing left
    out between epochs; whoever had it before got nothing any more once the next one began.
    """
    epochs: dict[tuple[int, int], list[Seen]] = defaultdict(list)
    for one in seen:
        epochs[one.partition, one.epoch].append(one)
    reached: dict[int, int] = defaultdict(int)  # partition -> offset behind all that was seen
    last: dict[int, Seen] = {}
    again = 0
    for (partition, epoch), rows in sorted(epochs.items()):
        where = f"partition {partition} in epoch {epoch}"
        assert len({one.who for one in rows}) == 1, f"{where}: two members, {rows[0]}"
        offsets = [one.offset for one in rows]
        assert offsets == list(range(offsets[0], offsets[0] + len(rows))), f"{where}: a gap"
        assert offsets[0] <= reached[partition], f"{where}: left out {reached[partition]}…"
        before = last.get(partition)
        assert before is None or before.at_s <= rows[0].at_s, f"{where}: {before} came later"
        again += reached[partition] - offsets[0]
        reached[partition] = max(reached[partition], offsets[-1] + 1)
        last[partition] = rows[-1]
    for partition, end in acked.items():
        assert reached[partition] >= end, f"partition {partition}: read to {reached[partition]}"
    return {"messages": len(seen), "again": again, "epochs": len(epochs)}


class OrphanedPartition(NamedTuple):
    """A partition whose owner died, and how long it was until somebody else got its messages."""

    partition: int
    died_s: float
    waited_s: float
    since_last_death_s: float  # who was to get it may have died as well


def orphaned_partitions(seen: list[Seen], deaths: dict[str, float]) -> list[OrphanedPartition]:
    """Of each death: the partitions of which the dead one had got the last message until then.

    `deaths`: name -> when. One that nobody got anything of any more waits for ever (inf).
    """
    by_partition: dict[int, list[Seen]] = defaultdict(list)
    for one in sorted(seen, key=lambda one: one.at_s):
        by_partition[one.partition].append(one)
    found = []
    for partition, rows in sorted(by_partition.items()):
        for who, died_s in deaths.items():
            before = [one for one in rows if one.at_s <= died_s]
            if not before or before[-1].who != who:
                continue
            at_s = next(
                (one.at_s for one in rows if one.at_s > died_s and one.who != who), float("inf")
            )
            last_s = max(one for one in deaths.values() if one <= at_s)
            found.append(OrphanedPartition(partition, died_s, at_s - died_s, at_s - last_s))
    return found


if __name__ == "__main__":
    cluster, topic, name, group = sys.argv[1:]
    member = _Program(cluster, topic, name, group=group, session_timeout_ms=2000)
    member.run()
    if member.error is not None:
        raise member.error
