"""What must hold of messages that were sent, acknowledged and read. Each rule has a name.

LOST            acknowledged, and not there
TWICE           in the log at two places
DIFFERENT       one place, two messages: two readers, or a reader and an acknowledgement, disagree
NEVER_SENT      read, and nobody sent it, or not yet, or to another topic
AFTER_FAILURE   failed for certain, and there all the same
REORDERED       of one producer, in one partition, not in the order of its numbers
OVERTAKEN       acknowledged before the other was even sent, and stands behind it
SKIPPED         a reader went on beyond what it had not got
BACK            a reader got again what it had got
UNSETTLED       neither acknowledged nor failed when all came to their end

A judge takes the lines of a history one by one (`faults/history.py`) and reports to `found`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable

Found = Callable[[str, str], None]  # (rule, what was seen)
Place = tuple[str, int, int]  # topic, partition, offset


class Peaks:
    """The highest offset of a partition that was done by a time; times come in order."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._offsets: list[int] = []

    def add(self, at: float, offset: int) -> None:
        if not self._offsets or offset > self._offsets[-1]:
            self._times.append(at)
            self._offsets.append(offset)

    def before(self, at: float) -> int:
        """-1: nothing was done before that."""
        count = bisect_left(self._times, at)
        return self._offsets[count - 1] if count else -1


class Messages:
    """Judges messages: its methods take the lines of a history in order, `end` the whole of it.

    Each violation is reported to `found` with the name of its rule.
    """

    def __init__(self, found: Found) -> None:
        self.found = found
        self.ordered: set[str] = set()
        self.sent: dict[str, tuple[float, str]] = {}  # -> when, topic
        self.acked: dict[str, Place] = {}
        self.failed: dict[str, tuple[str, str]] = {}  # -> outcome, error
        self.log: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        self.where: dict[str, Place] = {}
        self.next: dict[tuple[str, str, int], int] = {}  # (client, topic, partition) -> offset
        self.reached: dict[tuple[str, str, int], int] = defaultdict(int)  # behind all it got
        self.resumed: set[tuple[str, str]] = set()  # (client, topic): not from the beginning
        self.wholes: list[tuple[str, str]] = []
        self.dropped: set[str] = set()
        self.read = 0
        self._peaks: dict[tuple[str, int], Peaks] = defaultdict(Peaks)
        self._ended = False

    # -- producers -------------------------------------------------------------------------------

    def on_client(self, _at: float, name: str, _how: str) -> None:
        self.ordered.add(name)

    def on_send(self, at: float, client: str, topic: str, number: int) -> None:
        self.sent.setdefault(f"{client}:{number}", (at, topic))

    def on_ack(
        self, at: float, client: str, topic: str, number: int, partition: int, offset: int
    ) -> None:
        name, place = f"{client}:{number}", (topic, partition, offset)
        before = self.acked.setdefault(name, place)
        if before != place:
            self.found("TWICE", f"{name} was acknowledged at {before} and at {place}")
            return
        peaks, sent = self._peaks[topic, partition], self.sent.get(name)
        if sent is None:
            self.found("NEVER_SENT", f"{name} was acknowledged and not sent")
        elif (peak := peaks.before(sent[0])) > offset:
            self.found(
                "OVERTAKEN",
                f"{name} is at {place}, but offset {peak} had been acknowledged before it was sent",
            )
        peaks.add(at, offset)

    def on_fail(
        self, _at: float, client: str, _topic: str, number: int, outcome: str, error: str
    ) -> None:
        self.failed[f"{client}:{number}"] = outcome, error

    # -- readers ---------------------------------------------------------------------------------

    def on_resume(self, _at: float, client: str, _who: str, topic: str) -> None:
        self.resumed.add((client, topic))
        for key in [key for key in self.next if key[:2] == (client, topic)]:
            del self.next[key]

    def on_read(
        self, at: float, client: str, topic: str, partition: int, first: int, names: list[str]
    ) -> None:
        key = client, topic, partition
        due = self.next.get(key)
        if due is None and (client, topic) not in self.resumed:
            due = 0
        if due is not None and first != due:
            where = f"{client} in {topic}/{partition}: {first} came, {due} was due"
            self.found("SKIPPED" if first > due else "BACK", where)
        self.next[key] = first + len(names)
        self.reached[key] = max(self.reached[key], first + len(names))
        for step, name in enumerate(names):
            self.seen(at, client, (topic, partition, first + step), name)

    def seen(self, at: float, client: str, place: Place, name: str) -> None:
        """A message was read there, by whatever way."""
        self.read += 1
        topic, partition, offset = place
        log = self.log[topic, partition]
        known = log.get(offset)
        if known == name:
            return
        if known is not None:
            self.found("DIFFERENT", f"{client} read {name} at {place}, others {known}")
            return
        log[offset] = name
        before = self.where.setdefault(name, place)
        if before != place:
            self.found("TWICE", f"{name} is at {before} and at {place}")
        sent = self.sent.get(name)
        if sent is None or sent[0] > at:
            self.found("NEVER_SENT", f"{client} read {name} at {place}; nobody had sent that")
        elif sent[1] != topic:
            self.found("NEVER_SENT", f"{client} read {name} at {place}; it was sent to {sent[1]}")

    def on_whole(self, _at: float, client: str, topic: str) -> None:
        self.wholes.append((client, topic))

    def on_drop(self, _at: float, _name: str, topic: str) -> None:
        self.dropped.add(topic)

    def on_end(self, _at: float) -> None:
        self._ended = True

    # -- the verdict -----------------------------------------------------------------------------

    def judge(self) -> None:
        ends = self._judge_acknowledged()
        for client, topic in self.wholes:
            for (of, partition), end in ends.items():
                reached = self.reached[client, topic, partition]
                if of == topic and reached < end:
                    what = f"{client} said it got all of {topic}/{partition}, and got {reached}"
                    self.found("LOST", f"{what} of at least {end}")
        for name, (outcome, error) in self.failed.items():
            if outcome == "none" and name in self.where:
                self.found(
                    "AFTER_FAILURE",
                    f"{name} failed for certain ({error}), and is at {self.where[name]}",
                )
        for (topic, partition), log in self.log.items():
            self._judge_order(topic, partition, log)
        if self._ended:
            for name in self.sent.keys() - self.acked.keys() - self.failed.keys():
                self.found("UNSETTLED", f"{name} was sent at {self.sent[name][0]} and never heard")

    def _judge_acknowledged(self) -> dict[tuple[str, int], int]:
        """Offsets behind what was acknowledged; of topics that are still there."""
        ends: dict[tuple[str, int], int] = defaultdict(int)
        for name, place in self.acked.items():
            topic, partition, offset = place
            there = self.log.get((topic, partition), {}).get(offset)
            if topic in self.dropped:
                if there is not None and there != name:
                    self.found("DIFFERENT", f"{name} was acknowledged at {place}, where {there} is")
                continue
            ends[topic, partition] = max(ends[topic, partition], offset + 1)
            if there != name:
                instead = "nobody read it" if there is None else f"{there} is there"
                self.found("LOST", f"{name} was acknowledged at {place}: {instead}")
        return ends

    def _judge_order(self, topic: str, partition: int, log: dict[int, str]) -> None:
        newest: dict[str, int] = {}
        for offset in sorted(log):
            client, _, number = log[offset].rpartition(":")
            if client not in self.ordered:
                continue
            if int(number) < newest.get(client, -1):
                what = f"{client}:{number} stands behind {client}:{newest[client]}"
                self.found("REORDERED", f"{what}, at {topic}/{partition}/{offset}")
            newest[client] = max(newest.get(client, -1), int(number))

    def counts(self) -> dict[str, int]:
        unknown = sum(outcome != "none" for outcome, _ in self.failed.values())
        return {
            "sent": len(self.sent),
            "acknowledged": len(self.acked),
            "failed": len(self.failed),
            "unknown": unknown,
            "read": self.read,
        }
