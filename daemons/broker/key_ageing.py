"""The leader's KEY_STEP entries, by which a partition knows how old its keys are.

A key of a batch is kept for at least a quarter of an hour (`daemons/partition/keyed_batches.py`).
Time comes into the log as steps: each says that `KEY_STEP_MS` passed at its leader since that
leader saw the step before applied, or since it began to lead. Only the monotonic clock is used,
which nobody can set, and no step stands for more than `KEY_STEP_MS`. So a wrong clock never makes a
partition forget a key too early; changes of leader, and hours without a leader, only make it forget
later.

A partition steps as long as it has keys: once a minute, until a quarter of an hour after its last
key. The first step of a log comes at once, before any other keys of its turn: from then on the
stamps of entries, which are the wall clocks of leaders, do not matter for keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from myqueue import errors
from myqueue.daemons.partition.keyed_batches import KEY_STEP_MS
from myqueue.daemons.partition.machine import key_step_command
from myqueue.daemons.raft.types import COMMAND, Proposal

if TYPE_CHECKING:
    from myqueue.daemons.broker.group_queues import GroupQueues
    from myqueue.daemons.broker.proposals import ProposalQueue
    from myqueue.daemons.replication.engine import Engine

CHECK_INTERVAL_MS: Final = 1000
STEPS_PER_CHECK_MAX: Final = 100  # in one check; the others come with the next


class _StepTimer:
    """Timer of one partition and term: since when its next step counts, and the proposed step."""

    __slots__ = ("proposed", "since", "term")

    def __init__(self, term: int, now: int) -> None:
        self.term, self.since, self.proposed = term, now, 0


class KeyAgeing:
    """Propose the steps of the groups that are led here."""

    def __init__(self, engine: Engine, queues: GroupQueues) -> None:
        self._engine, self._queues = engine, queues
        self._timers: dict[int, _StepTimer] = {}
        self._due: dict[int, None] = {}
        self._next_check_at = 0

    def make_first_step_due(self, queue: ProposalQueue) -> None:
        """Make the group's first step due, if it had none: it has keys, or will with this turn."""
        if not queue.machine.keys.steps:
            self._due[queue.replica.uid] = None

    def tick(self, now: int) -> None:
        if now < self._next_check_at:
            return
        self._next_check_at = now + CHECK_INTERVAL_MS
        for group in self._timers.keys() - self._queues.led.keys():
            del self._timers[group]
        for group, queue in self._queues.led.items():
            if not len(queue.machine.keys):
                self._timers.pop(group, None)
            elif self._check_timer(group, queue, now):
                self._due[group] = None
                if len(self._due) >= STEPS_PER_CHECK_MAX:
                    break

    def _check_timer(self, group: int, queue: ProposalQueue, now: int) -> bool:
        """Start the timer again if its step was applied; True if the next step is due."""
        timer, keys = self._timer_of(group, queue, now), queue.machine.keys
        if timer.proposed:
            if queue.machine.applied_index < timer.proposed:
                return False
            timer.since, timer.proposed = now, 0
        return not keys.steps or now - timer.since >= KEY_STEP_MS

    def _timer_of(self, group: int, queue: ProposalQueue, now: int) -> _StepTimer:
        timer = self._timers.get(group)
        if timer is None or timer.term != queue.term:
            timer = self._timers[group] = _StepTimer(queue.term, now)
        return timer

    def before_turn_ends(self, now: int) -> None:
        """Propose due steps, before the batches of this turn."""
        if not self._due:
            return
        due, self._due = self._due, {}
        for group in due:
            queue = self._queues.led.get(group)
            if queue is not None:
                self._propose(group, queue, now)

    def _propose(self, group: int, queue: ProposalQueue, now: int) -> None:
        timer = self._timer_of(group, queue, now)
        if timer.proposed:
            return
        item = Proposal(0, queue.stamp(self._engine.wall_ms()), COMMAND, key_step_command())
        try:
            timer.proposed = self._engine.propose(queue.replica, [item])
        except errors.MyQueueError:
            return  # not the leader now, or no room: tried again
        self._engine.counts["key_steps_total"] += 1
