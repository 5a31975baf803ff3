"""Assign the partitions of a consumer group to its members: even, sticky, deterministic. Pure.

Input: the topics each member wants, the existing partitions, and the previous assignment. Output: a
member for each partition (0 if no member wants it), and whether the assignment is finished. A long
one is cut short and goes on in another decision, since it would keep the managers from all other
work. The promises:

- *Even*: members that want the same topics differ by at most one partition. If they want different
  topics, no chain of moves brings two of them nearer that differ by two or more.
- *Sticky*: with equal subscriptions as few partitions move as evenness allows; otherwise nothing
  moves that does not make the assignment more even.
- *Deterministic*: ties go to the lowest member, and partitions are examined in the order given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Final

MOVES_PER_DECISION_MAX: Final = 2000  # of one decision among different wishes
EXAMINED_PER_DECISION_MAX: Final = (
    200_000  # members examined in search of moves; some ten milliseconds
)

Subscriptions = Mapping[int, frozenset[int]]  # member -> topics
Assignment = dict[int, int]  # partition -> member


def assign_partitions(
    wishes: Subscriptions, partitions: Sequence[tuple[int, int]], before: Mapping[int, int]
) -> tuple[Assignment, bool]:
    """Assign `partitions`, pairs of (partition, topic). `before` is the previous assignment; its
    members may have left.
    """
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
    """An assignment in the making. Lists are newest last: the newest partition moves first."""

    def __init__(self, wishes: Subscriptions) -> None:
        self.counts = dict.fromkeys(sorted(wishes), 0)
        self.assignment: Assignment = {}
        self._steps = 0  # members examined so far
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
        """Take away what members have above an equal share; return all unassigned partitions.

        Members with most partitions keep one more where the total does not divide: so the fewest
        move.
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
        """Move partitions along chains of members. Return False if more moves may be needed."""
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
        """Return the first chain that brings two members nearer to each other; [] if there
        is none.
        """
        counts = self.counts
        self._steps += len(counts)
        least = min(counts.values(), default=0)
        even: set[int] = set()  # members with more reach these, and no member with less
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
        """Map each reachable member to (previous member, topic of the moved partition), nearest
        first.
        """
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
