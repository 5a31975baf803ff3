"""What a leader has to fetch for a follower: entries that left memory, a snapshot of the state.

A follower that lags far, or that is new, is served from this replica's own disk. What can't be read
there is never made up (W16): a follower that has these entries may lead instead; if there is none,
it is tried again after a while, and `STATUS` says why the group stands still.

New replicas get no more than `fill_bytes_per_s` from this daemon, all of them together, in turns
and in small portions: else what producers wait for would stand in line behind it, here and on the
disks of the new ones. A voter that lags behind is served as fast as it goes: it is missed. If what
is led here grows faster than that, the pace follows it, at twice its growth: a copy that is slower
than its original would never end.
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
FILL_BYTES: Final = 256 << 10  # at once; a sync of so much takes some milliseconds
FILL_BEHIND_MS: Final = 100  # what a late tick may make up for
GROWTH_MS: Final = 1000  # over which the growth of what is led here is measured
FILL_AHEAD_MS: Final = 1000  # what voters are served holds fills up for so long, not longer
UNREADABLE: Final = "can't serve followers"


class CatchUpServer:
    """Called by the engine, in the loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._retries: deque[tuple[int, t.Fetch]] = deque()  # when to try again
        self._queued_fills: deque[t.Fetch] = deque()  # of new replicas, until it is their turn
        self._next_fill_at = 0.0  # when the next one may be served
        self._last_fill_at = -FILL_AHEAD_MS  # when the last one was
        self._growth_bytes_per_s = 0.0
        self._measured_at, self._measured_bytes = engine.now, 0

    def fetch(self, order: t.Fetch | t.NeedSnapshot) -> None:
        """A follower lags behind memory, or behind the log's start."""
        engine = self._engine
        replica = self._led_replica(order.group)
        if replica is None:
            return
        node = replica.node
        if isinstance(order, t.NeedSnapshot):
            node.snapshot_made(order.follower, replica.snapshot(), engine.now, engine.host.out)
            return
        is_fill = engine.fill_bytes_per_s and order.follower in node.config.learners
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
        engine, node = self._engine, replica.node
        if order.first < node.log.first_index:
            # Retention went on meanwhile: the leader asks for what there is.
            node.fetched(order.follower, [], engine.now, engine.host.out)
            return
        bytes_max = FILL_BYTES if is_fill else t.RaftSettings().append_bytes_max
        try:
            entries = replica.read(order.first, order.last, bytes_max)
        except errors.MyQueueError as error:
            self._handle_unreadable(replica, order, error)
        else:
            node.fetched(order.follower, entries, engine.now, engine.host.out)
            self._delay_next_fill(sum(len(entry[t.PAYLOAD]) for entry in entries), is_fill=is_fill)
            self._clear_unreadable(order.group)

    def _clear_unreadable(self, group: int) -> None:
        """Or it is not known any more: whoever asks again is told."""
        if self._engine.refused.get(group, "").startswith(UNREADABLE):
            del self._engine.refused[group]

    def _delay_next_fill(self, size: int, *, is_fill: bool) -> None:
        """Whoever is served, the next new replica waits for as long as this much should take. For
        voters that are served all the time it waits for a moment, and then for the next one.
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
        """Let another one lead that has these entries; else try again, but not at once (W16)."""
        engine = self._engine
        engine.counts["peer_fetches_failed_total"] += 1
        engine.refused[order.group] = f"{UNREADABLE}: {error}"
        self._retries.append((engine.now + AGAIN_MS, order))
        followers = replica.node.leading.followers.values()
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
            self._clear_unreadable(order.group)
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
