"""One follower, as its leader sees it.

| state | the leader |
|---|---|
| PROBE | sends one message at a time until it knows where the logs agree |
| REPLICATE | sends ahead of the answers, within limits of messages and bytes (R28) |
| SNAPSHOT | waits for a snapshot to be made and installed |

While `fetching`, old entries come from the leader's own disk; nothing else changes by that.

Invariants: match <= next - 1; match never goes back (R4, R23); what is in flight is between them.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from myqueue.daemons.raft.types import NEVER, RaftSettings, require


class State(IntEnum):
    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class Progress:
    __slots__ = (
        "_bytes",
        "_inflight",
        "_round_began",
        "_round_index",
        "_settings",
        "_was_fast",
        "fetching",
        "is_unhealthy",
        "match_index",
        "next_index",
        "retry_at",
        "sent_commit",
        "state",
        "waits",
    )

    def __init__(self, next_index: int, settings: RaftSettings) -> None:
        self.match_index, self.next_index = 0, next_index
        self._round_index, self._round_began, self._was_fast = 0, -NEVER, False
        self.state = State.PROBE
        self.is_unhealthy = False  # by its last answer
        self.waits = False  # for a newer term than this one, while it is recovering (R2)
        self.fetching = False
        self.retry_at = NEVER  # when to give up waiting for an answer
        self.sent_commit = 0
        self._settings = settings
        self._inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each message
        self._bytes = 0

    def may_send(self) -> bool:
        if self.fetching:
            return False
        if self.state == State.REPLICATE:
            return (
                self._bytes < self._settings.inflight_bytes_max
                and len(self._inflight) < self._settings.inflight_messages_max
            )
        return self.state == State.PROBE and self.retry_at == NEVER

    def sent(self, last_index: int, size: int, now: int) -> None:
        """A message with entries up to `last_index` (or none) is on its way."""
        if self.state == State.REPLICATE:
            self._inflight.append((last_index, size))
            self._bytes += size
            self.next_index = last_index + 1
        if self.retry_at == NEVER:
            self.retry_at = now + self._settings.retry_ms

    def matched(self, index: int, now: int) -> bool:
        """The follower has everything up to `index`; True if that is news.

        Only news puts off the time to send again: an answer to a read, say, comes also if what is
        in flight was lost, and reads may come for ever.
        """
        news = index > self.match_index
        if news:
            self.match_index = index
            self.retry_at = now + self._settings.retry_ms
        self.next_index = max(self.next_index, self.match_index + 1)
        while self._inflight and self._inflight[0][0] <= index:
            self._bytes -= self._inflight.popleft()[1]
        if self.state != State.REPLICATE:
            self._become(State.REPLICATE)
            self.next_index = self.match_index + 1
        if not self._inflight:
            self.retry_at = NEVER
        return news

    def lost(self) -> None:
        """Forget its acknowledgements: it may have lost entries, and no longer counts (R2)."""
        self.match_index = 0
        self._round_index, self._round_began, self._was_fast = 0, -NEVER, False

    def end_round(self, last_index: int, now: int) -> None:
        """A lagging member catches up in rounds, each up to the log's end at its begin (4.2.1).

        `match_index` has grown; `last_index` is what the leader has now.
        """
        if self.match_index >= self._round_index:
            self._was_fast = self._is_fast(now)
            self._round_index, self._round_began = last_index, now

    def is_close(self, now: int) -> bool:
        """It lacks no more than what was written during about an election timeout, however fast
        that comes: so much is made up for by the time anybody could miss it.
        """
        return self._was_fast and self._is_fast(now)

    def _is_fast(self, now: int) -> bool:
        return now - self._round_began <= self._settings.election_timeout_ms_min

    def rejected(self, probe: int) -> None:
        """Try at `probe` next; never at or below what is known to match (R23)."""
        self._become(State.PROBE)
        self.next_index = max(probe, self.match_index + 1)

    def start_over(self) -> None:
        """An answer did not come: what was in flight may be lost."""
        self._become(State.PROBE)
        self.next_index = self.match_index + 1 if self.match_index else self.next_index

    def wait(self, state: State) -> None:
        self._become(state)

    def _become(self, state: State) -> None:
        self.state = state
        self._inflight.clear()
        self._bytes = 0
        self.retry_at = NEVER

    def check(self) -> None:
        require(self.match_index < self.next_index, "next <= match")
