"""Serves followers that lag: reads entries that left the leader's memory, and makes snapshots.

The leader reads them from its own disk. If an entry there can't be read, a follower that has it may
lead instead; if there is none, the leader tries again after a while, and `STATUS` says why the
group stands still. A leader never invents or skips an entry.

All new replicas together get at most `fill_bytes_per_s` from this daemon, in small portions:
otherwise messages of producers would queue after theirs, here and on the disks of the new replicas.
A voter that lags is served without a limit, since its vote is missing. If the partitions led here
grow faster than the limit allows, the limit is twice their growth: a slower copy would never end.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from myqueue import errors
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.node import RaftNode

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

AGAIN_MS: Final = 1000
FILL_BYTES: Final = 256 << 10  # in one portion; a sync of it takes some milliseconds
FILL_BEHIND_MS: Final = 100  # what a late tick may make up for
GROWTH_MS: Final = 1000  # over which the growth of the led partitions is measured
FILL_AHEAD_MS: Final = 1000  # serving voters delays fills by this at most


class CatchUpServer:
    """Serves lagging followers. Called by the engine, in the loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._retries: deque[tuple[int, t.Fetch]] = deque()  # when to try again
        self._queued_fills: deque[t.Fetch] = deque()  # of new replicas, in order
        self._next_fill_at = 0.0  # when the next one may be served
        self._last_fill_at = -FILL_AHEAD_MS  # when the last one was
        self._growth_bytes_per_s = 0.0
        self._measured_at, self._measured_bytes = engine.now, 0

    def fetch(self, order: t.Fetch | t.NeedSnapshot) -> None:
        """Serve a follower that lags behind the memory or the start of the log, or queue it."""
        engine = self._engine
        replica = self._led_replica(order.group)
        if replica is None:
            return
        raft = replica.raft
        if isinstance(order, t.NeedSnapshot):
            raft.snapshot_made(order.follower, replica.snapshot(), engine.now, engine.host.out)
            return
        is_fill = engine.fill_bytes_per_s and order.follower in raft.config.learners
        if is_fill and (self._queued_fills or engine.now < self._next_fill_at):
            self._queued_fills.append(order)
            return
        self._serve(replica, order, is_fill=bool(is_fill))

    def _led_replica(self, group: int) -> Replica | None:
        """Return the replica if it still leads; only a leader serves followers.

        The next leader's snapshot may have come in the turn of the order: then the log does not
        reach the applied index, and has no term for it.
        """
        replica = self._engine.replicas.get(group)
        if replica is None or not replica.is_leader or self._engine.host.touch(group) is None:
            return None
        return replica

    def _serve(self, replica: Replica, order: t.Fetch, *, is_fill: bool) -> None:
        engine, raft = self._engine, replica.raft
        if order.first < raft.log.first_index:
            # Retention removed the entry since; the core asks again from the new start.
            raft.fetched(order.follower, [], engine.now, engine.host.out)
            return
        bytes_max = FILL_BYTES if is_fill else t.RaftSettings().append_bytes_max
        try:
            entries = replica.read(order.first, order.last, bytes_max)
        except errors.MyQueueError as error:
            self._handle_unreadable(replica, order, error)
        else:
            raft.fetched(order.follower, entries, engine.now, engine.host.out)
            self._delay_next_fill(sum(len(entry[t.PAYLOAD]) for entry in entries), is_fill=is_fill)
            replica.catch_up_problem = ""

    def _delay_next_fill(self, size: int, *, is_fill: bool) -> None:
        """Delay the next new replica by as long as `size` bytes should take at the pace.

        Serving a voter delays it as well, but by `FILL_AHEAD_MS` at most.
        """
        pace, now = self._engine.fill_bytes_per_s, self._engine.now
        if pace:
            wait_ms = size * 1000 / max(pace, 2 * self._growth_bytes_per_s)
            due = max(self._next_fill_at, now - FILL_BEHIND_MS) + wait_ms
            if is_fill:
                self._next_fill_at, self._last_fill_at = due, now
            else:
                self._next_fill_at = min(
                    due, max(self._next_fill_at, self._last_fill_at + FILL_AHEAD_MS)
                )

    def _handle_unreadable(
        self, replica: Replica, order: t.Fetch, error: errors.MyQueueError
    ) -> None:
        """Transfer leadership to a follower that has these entries; else try again later."""
        engine = self._engine
        engine.counts["peer_fetches_failed_total"] += 1
        replica.catch_up_problem = f"can't serve followers: {error}"
        self._retries.append((engine.now + AGAIN_MS, order))
        followers = replica.raft.leading.followers.values()
        if any(one.match_index >= order.last for one in followers):
            with suppress(errors.NotReady):
                engine.transfer(replica, replica.best_successor(engine.now))

    def _measure_growth(self, now: int) -> None:
        total, passed_ms = self._engine.counts["produced_bytes_total"], now - self._measured_at
        self._growth_bytes_per_s = (total - self._measured_bytes) * 1000 / passed_ms
        self._measured_at, self._measured_bytes = now, total

    def tick(self, now: int) -> None:
        if now >= self._measured_at + GROWTH_MS:
            self._measure_growth(now)
        while self._retries and self._retries[0][0] <= now:
            _, order = self._retries.popleft()
            if replica := self._engine.replicas.get(order.group):
                replica.catch_up_problem = ""  # another failure sets it again
            host = self._engine.host
            host.call(order.group, RaftNode.fetched, order.follower, [], now, host.out)
        while self._queued_fills and self._next_fill_at <= now:
            fill = self._queued_fills.popleft()
            replica = self._led_replica(fill.group)
            if replica is not None:
                try:
                    self._serve(replica, fill, is_fill=True)
                except t.InvariantBroken as error:
                    self._engine.host.mark_broken(fill.group, error)
