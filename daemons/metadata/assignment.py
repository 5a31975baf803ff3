"""Who of a consumer group should read which partition: even, sticky, the same everywhere. Pure.

In: which topics each member wants, the partitions that there are, and what was decided before.
Out: a member for each partition, 0 where nobody wants it; and whether that is all, or another
decision has to go on, as a long one would keep the managers from all else. What is promised:

- *Even*: members that want the same topics differ by at most one partition. If they want different
  topics, no chain of moves brings two of them nearer that differ by two or more.
- *Sticky*: with equal wishes as few partitions move as evenness allows; otherwise nothing moves
  that does not make it more even.
- *Deterministic*: ties go to the lowest member, partitions are looked at in the order given (R27).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Final

MOVES_PER_DECISION_MAX: Final = 2000  # of one decision among different wishes
EXAMINED_PER_DECISION_MAX: Final = (
    200_000  # looks at members in search of them; some ten milliseconds
)

Subscriptions = Mapping[int, frozenset[int]]  # member -> topics
Assignment = dict[int, int]  # partition -> member


def assign_partitions(
    wishes: Subscriptions, partitions: Sequence[tuple[int, int]], before: Mapping[int, int]
) -> tuple[Assignment, bool]:
    """`partitions`: (partition, topic). `before`: who had it by the last decision; may be gone."""
    spread, is_even = _AssignmentBuilder(wishes), True
    homeless = []
    for partition, topic in partitions:
        member = before.get(partition, 0)
        if topic in wishes.get(member, ()):
            spread.give(member, partition, topic)
        else:
            homeless.append((partition, topic))
    if len(set(wishes.values())) == 1:
        homeless = spread.release_above_quota(homeless, len(partitions))
        spread.assign_to_least_loaded(homeless)
    else:
        spread.assign_to_least_loaded(homeless)
        is_even = spread.even_out()
    return {partition: spread.assignment.get(partition, 0) for partition, _ in partitions}, is_even


class _AssignmentBuilder:
    """Who has what while it is being decided. Newest last: what came last moves first."""

    def __init__(self, wishes: Subscriptions) -> None:
        self.counts = dict.fromkeys(sorted(wishes), 0)
        self.assignment: Assignment = {}
        self._steps = 0  # looks at members so far
        self._assigned: dict[int, dict[int, list[int]]] = {member: {} for member in self.counts}
        self._members_by_topic: dict[int, list[int]] = {}  # topic -> members
        for member in self.counts:
            for topic in sorted(wishes[member]):
                self._members_by_topic.setdefault(topic, []).append(member)

    def give(self, member: int, partition: int, topic: int) -> None:
        self._assigned[member].setdefault(topic, []).append(partition)
        self.counts[member] += 1
        self.assignment[partition] = member

    def take(self, member: int, topic: int) -> int:
        partition = self._assigned[member][topic].pop()
        if not self._assigned[member][topic]:
            del self._assigned[member][topic]
        self.counts[member] -= 1
        return partition

    def release_above_quota(
        self, homeless: list[tuple[int, int]], total: int
    ) -> list[tuple[int, int]]:
        """Whoever has more than an equal share gives the rest away; all that needs a home then.

        Who has most keeps one more where it does not divide: so the fewest move.
        """
        if not any(self._members_by_topic.values()):
            return homeless
        quota, more = divmod(total, len(self.counts))
        freed = []
        for member in sorted(self.counts, key=lambda one: (-self.counts[one], one)):
            most = quota + (more > 0)
            more -= 1
            while self.counts[member] > most:
                topic = max(
                    self._assigned[member], key=lambda one: (len(self._assigned[member][one]), one)
                )
                freed.append((self.take(member, topic), topic))
        return homeless + freed

    def assign_to_least_loaded(self, homeless: Iterable[tuple[int, int]]) -> None:
        """Each to the member that has least of those that want it."""
        heaps: dict[int, list[tuple[int, int]]] = {}
        for partition, topic in homeless:
            heap = heaps.get(topic)
            if heap is None:
                heap = [(self.counts[one], one) for one in self._members_by_topic.get(topic, ())]
                heapify(heap)
                heaps[topic] = heap
            if not heap:
                continue
            while heap[0][0] != self.counts[heap[0][1]]:  # it got one of another topic since
                heapreplace(heap, (self.counts[heap[0][1]], heap[0][1]))
            member = heap[0][1]
            self.give(member, partition, topic)
            heapreplace(heap, (self.counts[member], member))

    def even_out(self) -> bool:
        """Moves along chains of members, from one that has more to one that has less. False if
        there may be more of them.
        """
        for _ in range(MOVES_PER_DECISION_MAX):
            if self._steps > EXAMINED_PER_DECISION_MAX:
                return False
            chain = self._find_chain()
            if not chain:
                return True
            for giver, topic, taker in chain:
                self.give(taker, self.take(giver, topic), topic)
        return False

    def _find_chain(self) -> list[tuple[int, int, int]]:
        """The first that brings two members nearer to each other; [] if there is none."""
        counts = self.counts
        self._steps += len(counts)
        least = min(counts.values(), default=0)
        even: set[int] = set()  # who has more reaches them, and nobody that has less than they
        for giver in sorted(counts, key=lambda one: (-counts[one], one)):
            if counts[giver] - least < 2:
                return []
            if giver in even:
                continue
            steps = self._reachable(giver)
            taker = min(steps, key=lambda one: counts[one], default=giver)  # the nearest of those
            if counts[giver] - counts[taker] < 2:
                even.update(steps)
                continue
            chain = []
            while taker != giver:
                before, topic = steps[taker]
                chain.append((before, topic, taker))
                taker = before
            return chain
        return []

    def _reachable(self, giver: int) -> dict[int, tuple[int, int]]:
        """Member -> (from whom, by a partition of which topic), the nearest first."""
        steps: dict[int, tuple[int, int]] = {}
        topics: set[int] = set()
        queue = [giver]
        for member in queue:  # grows while it is walked
            for topic in sorted(self._assigned[member].keys() - topics):
                topics.add(topic)
                self._steps += len(self._members_by_topic[topic])
                for taker in self._members_by_topic[topic]:
                    if taker != giver and taker not in steps:
                        steps[taker] = (member, topic)
                        queue.append(taker)
        return steps
