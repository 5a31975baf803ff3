"""Retention: a partition's leader decides which of its oldest messages go; its replicas follow.

A topic's `retention_bytes` and `retention_ms` say how much of each partition is kept. The leader
checks once a second, walks over the oldest rows of the index as far as they have to go, and
proposes the new start as a START entry: offset, index of its entry, bytes before it. Every replica
applies that entry at the same place, so starts agree, and only rise (`partition/machine`). The
space is free when the log has followed (`replication/log_prefix`) and its segments are removed
(`replication/reclaim_pace`).

    settings, bytes kept, time ─▶ `retention_goal` ─▶ rows of the index ─▶ `walk_rows` ─▶ START

Whole batches go, the oldest first, and never so many that less than `retention_bytes` would be
kept. They do not go one by one: a start is moved for an eighth of what is kept, or half a segment.

Old settings must not delete what new ones keep. A broker that was started a moment ago knows the
settings of the time when its groups were made, and one that reaches no manager may follow those of
yesterday. So nothing is deleted unless a majority of managers answered within the last seconds
(`ManagerAnswers.has_current_orders`). A wrong clock must not delete either: time is the leader's
wall clock, but never ahead of the managers' (`ManagerAnswers.agreed_wall_ms`), and stamps ahead of
it only keep messages. A leader whose clock is slow gives its messages stamps that are too old, as
in any such queue.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from myqueue import errors
from myqueue.daemons.partition.machine import PartitionMachine, start_command
from myqueue.daemons.raft.types import COMMAND, Proposal
from myqueue.wal.groups import Row

if TYPE_CHECKING:
    from myqueue.daemons.broker.group_queues import GroupQueues
    from myqueue.daemons.broker.manager_answers import ManagerAnswers
    from myqueue.daemons.broker.proposals import ProposalQueue
    from myqueue.daemons.replication.engine import Engine

CHECK_INTERVAL_MS: Final = 1000
ROWS_PER_TICK_MAX: Final = 1000  # examined in one tick, in all groups together
ENTRIES_PER_START_MAX: Final = 20_000  # removed by one START
STEP_DIVISOR: Final = 8  # a start is moved for an eighth of what is kept …
AGE_STEP_MS_MAX: Final = 60_000  # … or a minute; and half a segment


class RetentionGoal(NamedTuple):
    """What has to go: so many bytes, and all batches that are older."""

    bytes: int
    before_ms: int


class NewStart(NamedTuple):
    """A start: the entry, its offset, and the bytes of batches between the old start and it."""

    index: int  # type: ignore[assignment]  # tuple.index is not used
    offset: int
    bytes: int


def retention_goal(
    settings: dict[str, Any], kept: int, oldest_ms: int, now_ms: int, segment_bytes: int
) -> RetentionGoal | None:
    """Return what has to go of a partition that keeps so many bytes; None: nothing, for now."""
    limit, age_ms = settings.get("retention_bytes", 0), settings.get("retention_ms", 0)
    excess, before_ms = 0, 0
    if limit and kept - limit >= max(1, min(limit // STEP_DIVISOR, segment_bytes // 2)):
        excess = kept - limit
    if age_ms and oldest_ms < now_ms - age_ms - min(age_ms // STEP_DIVISOR, AGE_STEP_MS_MAX):
        before_ms = now_ms - age_ms
    return RetentionGoal(excess, before_ms) if excess or before_ms else None


def walk_rows(cut: NewStart, rows: list[Row], goal: RetentionGoal) -> tuple[NewStart, bool]:
    """Move on over these rows; True: the first one that stays was found."""
    index, offset, gone = cut
    for row in rows:
        if not row.count:
            continue  # a command goes with the messages around it
        if gone + row.length > goal.bytes and row.time_ms >= goal.before_ms:
            return NewStart(index, offset, gone), True
        index, offset, gone = row.index + 1, row.offset + row.count, gone + row.length
    return NewStart(index, offset, gone), False


class _IndexWalk:
    """One partition on the way to its new start."""

    __slots__ = ("begin", "cut", "goal", "next_index", "settings", "term")

    def __init__(self, queue: ProposalQueue, goal: RetentionGoal, settings: dict[str, Any]) -> None:
        self.term, self.goal, self.settings = queue.term, goal, dict(settings)
        self.begin = self.next_index = queue.machine.start_index
        self.cut = NewStart(queue.machine.start_index, queue.machine.start, 0)


class Retention:
    """Propose new starts of the groups that are led here."""

    def __init__(
        self, engine: Engine, queues: GroupQueues, answers: ManagerAnswers, segment_bytes: int
    ) -> None:
        self._engine, self._queues, self._answers = engine, queues, answers
        self._segment_bytes = segment_bytes
        self._next_check_at = 0
        self._groups_to_check: deque[int] = deque()
        self._walks: dict[int, _IndexWalk] = {}
        self._oldest_stamps: dict[int, tuple[int, int]] = {}  # group -> (start, stamp there)
        self._proposed: dict[int, tuple[int, int]] = {}  # group -> (term, index of the START)

    def tick(self, now: int) -> None:
        if not self._groups_to_check and now >= self._next_check_at:
            self._next_check_at = now + CHECK_INTERVAL_MS
            self._groups_to_check.extend(filter(self._is_limited, self._queues.led))
            for by_group in (self._walks, self._oldest_stamps, self._proposed):
                for group in by_group.keys() - self._queues.led.keys():
                    del by_group[group]
        if not self._groups_to_check or not self._answers.has_current_orders(now):
            self._groups_to_check.clear()
            self._walks.clear()  # the settings may have changed
            return
        rows_left = ROWS_PER_TICK_MAX
        while self._groups_to_check and rows_left > 0:
            group = self._groups_to_check.popleft()
            queue = self._queues.led.get(group)
            if queue is not None and not self._check_pending_start(group, queue):
                rows_left -= 1 + self._walk_on(group, queue, rows_left)

    def _is_limited(self, group: int) -> bool:
        settings = self._queues.settings(group)
        return bool(settings.get("retention_bytes") or settings.get("retention_ms"))

    def _check_pending_start(self, group: int, queue: ProposalQueue) -> bool:
        """True while a START of this term is not applied yet: only one at a time is proposed."""
        term, index = self._proposed.get(group, (0, 0))
        if term == queue.term and queue.machine.applied_index < index:
            return True
        self._proposed.pop(group, None)
        return False

    def _walk_on(self, group: int, queue: ProposalQueue, rows_max: int) -> int:
        """Go on with this partition; return how many rows were examined."""
        machine, walk = queue.machine, self._walks.get(group)
        settings = self._queues.settings(group)
        if walk is not None and (walk.term, walk.settings) != (queue.term, settings):
            walk = None
        if walk is None or walk.begin != machine.start_index:
            goal = self._goal(group, machine)
            if goal is None:
                self._walks.pop(group, None)
                return 0
            walk = self._walks[group] = _IndexWalk(queue, goal, settings)
        last = min(machine.applied_index, walk.next_index + rows_max - 1)
        rows = self._engine.log.index.rows(group, walk.next_index, last, 1 << 62)
        if not rows or rows[0].index != walk.next_index:
            del self._walks[group]  # not on disk yet, or damaged: tried again
            return 1
        walk.cut, is_over = walk_rows(walk.cut, rows, walk.goal)
        walk.next_index = rows[-1].index + 1
        is_enough = walk.next_index - walk.begin >= ENTRIES_PER_START_MAX
        if is_over or is_enough or walk.next_index > machine.applied_index:
            del self._walks[group]
            if walk.cut.offset > machine.start:
                self._propose(group, queue, walk.cut)
        else:
            self._groups_to_check.append(group)  # with the next tick
        return len(rows)

    def _goal(self, group: int, machine: PartitionMachine) -> RetentionGoal | None:
        if machine.start == machine.end:
            return None
        settings, oldest_ms = self._queues.settings(group), 0
        if settings.get("retention_ms"):
            start, oldest_ms = self._oldest_stamps.get(group, (-1, 0))
            if start != machine.start:
                row = self._engine.log.index.row_at_offset(group, machine.start)
                if row is None:
                    return None
                oldest_ms = row.time_ms
                self._oldest_stamps[group] = machine.start, oldest_ms
        now_ms = self._answers.agreed_wall_ms(self._engine.now)
        return retention_goal(settings, machine.bytes_kept, oldest_ms, now_ms, self._segment_bytes)

    def _propose(self, group: int, queue: ProposalQueue, cut: NewStart) -> None:
        command = start_command(cut.offset, cut.index, cut.bytes)
        item = Proposal(0, queue.stamp(self._engine.wall_ms()), COMMAND, command)
        try:
            index = self._engine.propose(queue.replica, [item], urgent=True)
        except errors.MyQueueError:
            return  # not the leader now, or transferring: tried again
        self._proposed[group] = queue.term, index
        self._engine.counts["retention_starts_total"] += 1
