"""The nemesis: hurts a cluster of real daemons at random, and heals what it did.

It goes in rounds. A round has a mood: *gentle* hurts one manager and one broker at most, so that
every group keeps a majority and clients are owed progress; *rough* hurts whom it likes, when only
safety is owed; *damage* takes one broker down in order, spoils its data, and waits until it is
whole again; *quiet* does nothing. Within a round faults begin and end at times of their own.

What happens is decided by the seed and by what the cluster does (who leads when it is asked), so a
seed gives the same kind of day, not the same second. Kinds of faults are in `kinds*.py`.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import NamedTuple

from faults.history import History
from support.hosts import Hosts
from support.processes import Cluster, Name

from myqueue.errors import MyQueueError

GENTLE, ROUGH, DAMAGE, QUIET = "gentle", "rough", "damage", "quiet"
MOODS = ((6, GENTLE), (2, ROUGH), (2, DAMAGE), (2, QUIET))
ROUND_S = 5.0
CONVERGE_S = 120.0  # at rest it takes a few seconds; this holds on a busy machine too
DISK_FAILED = 4  # a daemon's exit code


class Fault(NamedTuple):
    """What is done to whom, and how it is undone."""

    victims: tuple[Name, ...]
    begin: Callable[[], object]
    end: Callable[[], object]
    seconds: tuple[float, float] = (0.3, 4.0)  # how long it lasts, at least and at most
    keeps_majority: bool = True  # if nobody else is hurt


class Kind(NamedTuple):
    name: str
    mood: str
    weight: int
    make: Callable[[Nemesis], Fault | None]  # None: not now


class Active(NamedTuple):
    number: int
    name: str
    fault: Fault


class Nemesis:
    """Begins and ends faults of `kinds` in a cluster, as `random` draws them, and notes each.

    `run` goes on for some seconds; `heal` ends every fault; `must_be_whole` waits until all
    replicas of `topic` are there again.
    """

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        topic: str,
        partitions: int,
        random: Random,
        kinds: Iterable[Kind],
    ) -> None:
        self.cluster, self.history, self.random = cluster, history, random
        self.topic, self.partitions = topic, partitions
        self.kinds = list(kinds)
        self.active: list[Active] = []
        self.done: Counter[str] = Counter()
        self.doomed: set[Name] = set()  # may end by themselves: their disk fails
        # Segments whose bytes are not what was written; they go when all in them is repaired.
        self.damaged: defaultdict[Name, set[Path]] = defaultdict(set)
        self.added: Name | None = None  # a broker that came later
        self.leaving: Name | None = None  # was ordered to be removed, and nobody said that it was
        self._numbers = 0

    # -- whom ------------------------------------------------------------------------------------

    @property
    def hosts(self) -> Hosts:
        assert isinstance(self.cluster, Hosts)
        return self.cluster

    def hurt(self) -> set[Name]:
        return {name for one in self.active for name in one.fault.victims}

    def daemons(self, kind: str) -> list[Name]:
        """Unhurt ones that run."""
        hurt = self.hurt()
        return [name for name in self.cluster.running(kind) if name not in hurt]

    def anyone(self, kind: str | None = None) -> Name | None:
        """A broker, mostly one that leads something; or a manager, mostly the leader."""
        kind = kind or self.random.choice(("broker", "broker", "broker", "manager"))
        able = self.daemons(kind)
        if self.random.random() < 0.6:
            leader = self.leader() if kind == "broker" else self.managers_leader()
            if leader in able:
                return leader
        return self.random.choice(able) if able else None

    def leader(self) -> Name | None:
        """Of a partition, as the managers know it; None: they do not know, or do not answer."""
        asked = {"topic": self.topic}
        try:
            found = self.cluster.session.read("topic", asked, timeout_ms=500).result()
        except MyQueueError:
            return None
        node = int(found["partitions"][self.random.randrange(self.partitions)]["leader"])
        return ("broker", node) if node else None

    def managers_leader(self) -> Name | None:
        try:
            asked = self.cluster.session.read("managers", linearizable=True, timeout_ms=500)
            return "manager", int(asked.result()["leader"])
        except MyQueueError:
            return None

    # -- when ------------------------------------------------------------------------------------

    def run(self, seconds: float, look: Callable[[], object]) -> None:
        """`look` is called between rounds, and raises if something is not as it should be."""
        end = time.monotonic() + seconds
        moods = [mood for _, mood in MOODS]
        while (left := end - time.monotonic()) > 0:
            (mood,) = self.random.choices(moods, [weight for weight, _ in MOODS])
            if mood == QUIET:
                time.sleep(min(left, self.random.uniform(0.5, 2.5)))
            elif mood == DAMAGE:
                self._damage()
            else:
                self._round(mood)
            self.check()
            look()
        self.heal()

    def _round(self, mood: str) -> None:
        """Faults begin and end on a line of time that is drawn beforehand."""
        count = self.random.randint(1, 2) if mood == GENTLE else self.random.randint(2, 4)
        begin = time.monotonic()
        starts = sorted(self.random.uniform(0, ROUND_S / 2) for _ in range(count))
        ends: list[tuple[float, Active]] = []
        while starts or ends:
            at = min([*starts[:1], *(when for when, _ in ends)])
            time.sleep(max(0.0, begin + at - time.monotonic()))
            if starts and starts[0] == at:
                starts.pop(0)
                active = self._begin(mood)
                if active is not None:
                    ends.append((at + self.random.uniform(*active.fault.seconds), active))
            else:
                due = min(ends, key=lambda one: one[0])
                ends.remove(due)
                self._end(due[1])
            self.check()
        time.sleep(self.random.uniform(0.2, 2.0))

    def _damage(self) -> None:
        """One at a time, and only of one that is not needed: the others are whole before, and it is
        whole afterwards, before anything else happens to data.
        """
        if not self.is_whole(30.0):
            return
        active = self._begin(DAMAGE)
        if active is not None:
            time.sleep(self.random.uniform(*active.fault.seconds))
            self._end(active)
            self.must_be_whole()

    def _begin(self, mood: str) -> Active | None:
        moods = (GENTLE, ROUGH) if mood == ROUGH else (mood,)
        kinds = [one for one in self.kinds if one.mood in moods]
        if not kinds:
            return None
        (kind,) = self.random.choices(kinds, [one.weight for one in kinds])
        fault = kind.make(self)
        if fault is None or (mood == GENTLE and not self._leaves_majority(fault)):
            return None
        self._numbers += 1
        active = Active(self._numbers, kind.name, fault)
        names = [f"{kind}-{number}" for kind, number in fault.victims]
        self.active.append(active)
        self.done[kind.name] += 1
        leaves = kind.mood != ROUGH and all(self._leaves_majority(one.fault) for one in self.active)
        self.history.note("fault", self._numbers, kind.name, names, leaves)
        fault.begin()
        return active

    def _leaves_majority(self, fault: Fault) -> bool:
        """Of four brokers with three replicas each one may be hurt, of three managers one."""
        hurt = self.hurt() | set(fault.victims)
        return fault.keeps_majority and all(
            sum(name[0] == kind for name in hurt) <= 1 for kind in ("broker", "manager")
        )

    def _end(self, active: Active) -> None:
        active.fault.end()
        self.active.remove(active)
        self.history.note("healed", active.number)

    # -- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        """No daemon ended that was not made to."""
        for name in self.doomed & self.cluster.processes.keys():
            code = self.cluster.processes[name].poll()
            if code is not None:
                assert code == DISK_FAILED, f"{name} ended with {code}:\n{self.tail(name)}"
                del self.cluster.processes[name]
        self.cluster.check_alive()

    def tail(self, name: Name) -> str:
        return self.cluster.log(name)[-3000:]

    def heal(self) -> None:
        for active in list(self.active):
            self._end(active)

    def is_whole(self, seconds: float) -> bool:
        """All daemons run, every partition has its leader and all its replicas."""
        self._note_removal()
        try:
            self.cluster.wait_healthy(seconds)
        except AssertionError:
            self.check()
            return False
        return True

    def _note_removal(self) -> None:
        """An order whose answer was lost may have been done."""
        if self.leaving is None:
            return
        try:
            asked = self.cluster.session.read("brokers", linearizable=True, timeout_ms=5000)
            known = {row["node"] for row in asked.result()["brokers"]}
        except MyQueueError:
            return
        if self.leaving[1] not in known:
            self.gone(self.leaving)
        self.leaving = None

    def gone(self, name: Name) -> None:
        """A broker that was removed, with its disk."""
        if name in self.cluster.processes:
            self.cluster.kill(name)
        self.cluster.wipe(name)
        self.cluster.names.remove(name)
        self.added = self.leaving = None

    def must_be_whole(self) -> float:
        """How long it took."""
        begin = time.monotonic()
        assert self.is_whole(CONVERGE_S), (
            f"not whole {CONVERGE_S:.0f} s after all faults were healed: {self.cluster.problems()}"
        )
        return time.monotonic() - begin


def nothing() -> None:
    """What a fault does that heals itself."""
