"""What a leader has to fetch for a follower: entries that left memory, a snapshot of the state.

A follower that lags far, or that is new, is served from this replica's own disk. What can't be read
there is never made up (W16): a follower that has these entries may lead instead; if there is none,
it is tried again after a while, and `STATUS` says why the group stands still.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from myqueue import errors
from myqueue.daemons.raft import types as t

if TYPE_CHECKING:
    from myqueue.daemons.engine import Engine
    from myqueue.daemons.replica import Replica

AGAIN_MS: Final = 1000


class Serving:
    """Called by the engine, in the loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._unread: deque[tuple[int, t.Fetch]] = deque()  # when to try again

    def fetch(self, order: t.Fetch | t.NeedSnapshot) -> None:
        """A follower lags behind memory, or behind the log's start."""
        engine = self._engine
        replica, node = engine.replicas.get(order.group), engine.host.touch(order.group)
        if replica is None or node is None:
            return
        if isinstance(order, t.NeedSnapshot):
            node.snapshot_made(order.follower, replica.snapshot(), engine.now, engine.host.out)
            return
        try:
            entries = replica.read(order.first, order.last, t.Settings().append_bytes_max)
        except errors.MyQueueError as error:
            self._unreadable(replica, order, error)
        else:
            node.fetched(order.follower, entries, engine.now, engine.host.out)

    def _unreadable(self, replica: Replica, order: t.Fetch, error: errors.MyQueueError) -> None:
        """Let another one lead that has these entries; else try again, but not at once (W16)."""
        engine = self._engine
        engine.counts["peer_fetches_failed_total"] += 1
        engine.refused[order.group] = f"can't serve followers: {error}"
        self._unread.append((engine.now + AGAIN_MS, order))
        followers = replica.node.leading.followers.values()
        if any(one.match_index >= order.last for one in followers):
            with suppress(errors.NotReady):
                engine.transfer(replica, replica.best_follower())

    def tick(self, now: int) -> None:
        while self._unread and self._unread[0][0] <= now:
            _, order = self._unread.popleft()
            node = self._engine.host.touch(order.group)
            if node is not None:
                node.fetched(order.follower, [], now, self._engine.host.out)
