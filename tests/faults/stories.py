"""Sound histories, told by a model that has no faults: what the checker must not complain about.

`tell` plays producers, readers, a consumer that takes, members of a group and a topic that comes
and goes on plain lists, in a random but lawful order, and gives the lines they would have noted.
`test_check.py` alters them.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

Event = list[Any]
TOPIC, PARTITIONS, WHO, GROUP = "t", 2, "7", "group/g"


class Story:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 100.0
        self.events: list[Event] = []
        self.log: list[list[str]] = [[] for _ in range(PARTITIONS)]
        self.numbers: dict[str, int] = defaultdict(int)
        self.under_way: list[tuple[str, int, int, int]] = []  # stored, and not told yet
        self.read: dict[str, list[int]] = {"r1": [0] * PARTITIONS, "r2": [0] * PARTITIONS}
        self.committed = [0] * PARTITIONS
        self.taken = [0] * PARTITIONS
        self.got = [0] * PARTITIONS
        self.shared = [0] * PARTITIONS  # committed by members
        self.owner = [("m1", 1)] * PARTITIONS  # member, epoch
        self.calls = self.faults = 0

    def note(self, verb: str, *fields: Any) -> None:
        self.now = round(self.now + self.random.uniform(0.001, 0.05), 4)
        self.events.append([self.now, verb, *fields])

    def send(self) -> None:
        client, partition = self.random.choice(("steady1", "w2")), self.random.randrange(PARTITIONS)
        number = self.numbers[client]
        self.numbers[client] += 1
        self.note("send", client, TOPIC, number)
        what = self.random.random()
        if what < 0.05:
            self.note("fail", client, TOPIC, number, "none", "BUSY")
            return
        if what < 0.15:  # it may be there or not
            if what < 0.10:
                self.log[partition].append(f"{client}:{number}")
            self.note("fail", client, TOPIC, number, "unknown", "TIMED_OUT")
            return
        self.under_way.append((client, number, partition, len(self.log[partition])))
        self.log[partition].append(f"{client}:{number}")

    def ack(self) -> None:
        if self.under_way:
            at = self.random.randrange(len(self.under_way))
            client, number, partition, offset = self.under_way.pop(at)
            self.note("ack", client, TOPIC, number, partition, offset)

    def poll(self, client: str, most: int = 5) -> None:
        partition = self.random.randrange(PARTITIONS)
        first = self.read[client][partition]
        names = self.log[partition][first : first + most]
        if names:
            self.read[client][partition] += len(names)
            self.note("read", client, TOPIC, partition, first, names)

    def commit(self) -> None:
        partition = self.random.randrange(PARTITIONS)
        position = self.read["r1"][partition]
        self.note("commit", WHO, TOPIC, partition, position)
        self.committed[partition] = position
        if self.random.random() < 0.8:
            self.note("committed", WHO, TOPIC, partition, position)

    def look(self) -> None:
        partition = self.random.randrange(PARTITIONS)
        for who, known in ((WHO, self.committed), (GROUP, self.shared)):
            self.note("position", who, TOPIC, partition, known[partition], self.now + 0.001)

    def resume(self) -> None:
        self.note("resume", "r1", WHO, TOPIC)
        self.read["r1"] = list(self.committed)

    def take(self, most: int = 3) -> None:
        self.calls += 1
        self.note("take", "k1", "9", TOPIC, f"call{self.calls}")
        partition = self.random.randrange(PARTITIONS)
        first = self.taken[partition]
        names = self.log[partition][first : first + most]
        self.taken[partition] += len(names)
        rows = [[partition, first + step, name] for step, name in enumerate(names)]
        self.note("taken", "k1", "9", TOPIC, f"call{self.calls}", rows)

    def member(self, most: int = 3) -> None:
        partition = self.random.randrange(PARTITIONS)
        member, epoch = self.owner[partition]
        if self.random.random() < 0.25:
            member, epoch = {"m1": "m2", "m2": "m1"}[member], epoch + 1
            self.owner[partition] = member, epoch
            behind = self.got[partition] - self.shared[partition]
            again = self.random.randint(0, min(2, behind))
            self.got[partition] -= again  # it had not committed these
        asked, first = self.now, self.got[partition]
        names = self.log[partition][first : first + most]
        if names:
            self.got[partition] += len(names)
            self.note("got", member, GROUP, TOPIC, partition, epoch, asked, first, names)
            self.note("commit", GROUP, TOPIC, partition, self.got[partition])
            if self.random.random() < 0.5:
                self.shared[partition] = self.got[partition]
                self.note("committed", GROUP, TOPIC, partition, self.got[partition])

    def topic(self) -> None:
        self.calls += 1
        label = f"v#{self.calls}"
        self.note("make", "v", label)
        self.note("made", "v", label)
        self.note("send", f"v{self.calls}", label, 0)
        self.note("ack", f"v{self.calls}", label, 0, 0, 0)
        if self.random.random() < 0.5:
            self.note("read", f"rv{self.calls}", label, 0, 0, [f"v{self.calls}:0"])
        self.note("listed", self.now + 0.0005, [TOPIC, "v"])
        self.note("drop", "v", label)
        self.note("dropped", "v", label)
        self.note("listed", self.now + 0.0005, [TOPIC])

    def fault(self) -> None:
        self.faults += 1
        self.note("fault", self.faults, "kill", ["broker-1"], self.random.random() < 0.7)
        self.send()
        self.note("healed", self.faults)

    def end(self) -> None:
        while self.under_way:
            self.ack()
        for client in self.read:
            while self.read[client] != [len(log) for log in self.log]:
                self.poll(client)
            self.note("whole", client, TOPIC)
        while self.taken != [len(log) for log in self.log]:
            self.take()
        self.note("end")


def tell(seed: int, steps: int = 400) -> list[Event]:
    story = Story(seed)
    story.note("begin", {"seed": seed})
    story.note("client", "steady1", "ordered")
    story.note("client", "w2", "ordered")
    acts: list[tuple[int, Any]] = [
        (30, story.send), (28, story.ack), (10, lambda: story.poll("r1")),
        (10, lambda: story.poll("r2")), (5, story.commit), (4, story.look), (1, story.resume),
        (8, story.take), (8, story.member), (1, story.topic), (2, story.fault),
    ]  # fmt: skip
    for _ in range(steps):
        story.random.choices([act for _, act in acts], [weight for weight, _ in acts])[0]()
    story.end()
    return story.events
