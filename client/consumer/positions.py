"""The positions of a consumer: move them, wait until they are known, compare them with the log.

`Consumer` has one `Positions` and calls it in the application's thread. It uses the subscription
under the fetcher's lock, and waits in short slices, so that Ctrl-C is never late. Each wait ends
with TimedOut at its `deadline`, in seconds of the monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from myqueue.cluster.offset_queries import read_offsets
from myqueue.cluster.session import Session
from myqueue.consumer.fetcher import Fetcher
from myqueue.consumer.handover import left_ms
from myqueue.consumer.message import TopicPartition
from myqueue.consumer.partition_state import Ownership, PartitionState, StartRule
from myqueue.consumer.subscription import Subscription
from myqueue.errors import Closed, TimedOut

# Some partitions, one, all of a topic (its name), or (None) all that are read.
Partitions = Iterable[TopicPartition] | TopicPartition | str | None
Selected = Iterable[TopicPartition] | str | None  # the same when its form was checked
SLICE_S: Final = 0.1  # the longest wait in one step


class Positions:
    """The positions of one consumer."""

    def __init__(self, session: Session, fetcher: Fetcher, subscription: Subscription) -> None:
        self._session, self._fetcher, self._subscription = session, fetcher, subscription
        self._changed = fetcher.changed

    def select(self, names: Selected) -> list[PartitionState]:
        with self._changed:
            return self._subscription.select(names)

    def seek(self, names: Selected, where: int | StartRule) -> list[PartitionState]:
        """Go on from an offset, or from one that the brokers find by a rule."""
        with self._changed:
            partitions = self._subscription.select(names)
            for partition in partitions:
                self._subscription.seek(partition.name, where)
        self._fetcher.nudge()
        return partitions

    def pause(self, names: Selected) -> None:
        with self._changed:
            for partition in self._subscription.select(names):
                self._subscription.pause(partition.name)

    def resume(self, names: Selected) -> None:
        with self._changed:
            for partition in self._subscription.select(names):
                self._subscription.resume(partition.name)
        self._fetcher.nudge()

    def known(self, partitions: list[PartitionState], deadline: float) -> dict[TopicPartition, int]:
        """Wait until these positions are known; leave out partitions that are removed."""
        with self._changed:
            while True:
                present = [
                    state for state in partitions if state.ownership is not Ownership.REMOVED
                ]
                known = {
                    state.name: state.position for state in present if state.position is not None
                }
                if len(known) == len(present):
                    return known
                error = next((state.error for state in partitions if state.error is not None), None)
                if error is not None:
                    raise error
                if self._subscription.is_closed:
                    raise Closed("the consumer was closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = ", ".join(str(s.name) for s in present if s.position is None)
                    raise TimedOut(f"positions are not known yet, no leader answered: {missing}")
                self._changed.wait(min(left, SLICE_S))

    def lag(self, names: Selected, deadline: float) -> dict[TopicPartition, int]:
        """Ask the brokers how many messages are after each position."""
        partitions = self.select(names)
        positions = self.known(partitions, deadline)
        groups = {state.group: state.name for state in partitions if state.name in positions}
        offsets = read_offsets(self._session, list(groups), timeout_ms=left_ms(deadline))
        return {
            name: max(0, offsets[group].end - max(offsets[group].start, positions[name]))
            for group, name in groups.items()
        }

    def committed(self, names: Selected, deadline: float) -> dict[TopicPartition, int | None]:
        """Ask the brokers for committed positions, in one request for each name."""
        partitions, out = self.select(names), dict[TopicPartition, int | None]()
        for committer in sorted({state.committer for state in partitions}):
            groups = {
                state.group: state.name for state in partitions if state.committer == committer
            }
            offsets = read_offsets(
                self._session, groups, who=committer or None, timeout_ms=left_ms(deadline)
            )
            out.update({groups[group]: row.position for group, row in offsets.items()})
        return out
