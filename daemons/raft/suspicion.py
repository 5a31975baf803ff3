"""For how long another node may be silent until it counts as dead.

A dead leader has to be replaced soon; a slow one that makes progress has to stay, since an election
costs a starved machine more than it has. Three things tell them apart:

- *A process that did not run heard nobody*, and that says nothing about others. So the time by
  which its own turns came late does not count as silence. Each turn reads what came, so after
  `LAPSES_MAX` late turns without a packet of a node, being late is no excuse any more.
- *A node that spoke with long gaps a moment ago* is slow. The longest gap of the last
  `WINDOW_MS` to twice that stretches the silence that it is granted, up to `STRETCH_MAX` times the
  election timeout. A gap of half a timeout does so already, so patience comes before it is needed;
  gaps of heartbeats that come as they should change nothing.
- *A process that is killed closes its connections at once*, so whatever it was granted ends then.

Only elections begin sooner or later by this. What is committed, and what a read returns, never
depends on it: there are no leases (R11).
"""

from __future__ import annotations

from typing import Final

STRETCH_MAX: Final = 8  # election timeouts: 4 s
GAP_WEIGHT: Final = 4  # ms of patience for each ms of a gap beyond half an election timeout
WINDOW_MS: Final = 10_000
LAPSES_MAX: Final = 8
LATE_SHARE: Final = 5  # a turn is late by more than this part of an election timeout: 100 ms


class _Node:
    """The packets of another node: when they came, and with which gaps."""

    __slots__ = ("before", "gap", "heard_at", "lapses", "limit_ms", "lost_ms", "window_end")

    def __init__(self, now: int, limit_ms: int) -> None:
        self.heard_at, self.limit_ms = now, limit_ms
        self.lapses = self.lost_ms = 0  # late turns of ours since then, and their time
        self.gap = self.before = 0  # the longest of this window, and of the one before
        self.window_end = now + WINDOW_MS


class Suspicion:
    """Until when each other node counts as alive. Time is passed in; nothing here waits."""

    def __init__(self, election_timeout_ms: int) -> None:
        self._timeout_ms = election_timeout_ms
        self._nodes: dict[int, _Node] = {}
        self.alive_until: dict[int, int] = {}  # shared with every RaftNode

    def is_alive(self, node: int, now: int) -> bool:
        return now < self.alive_until.get(node, now)

    def hear(self, node: int, now: int) -> None:
        """Note a packet of this node."""
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = _Node(now, self._timeout_ms)
        else:
            gap = now - known.heard_at - known.lost_ms
            if gap > known.gap or now >= known.window_end:
                self._stretch(known, gap, now)
            known.heard_at = now
            known.lapses = known.lost_ms = 0
        self.alive_until[node] = now + known.limit_ms

    def _stretch(self, known: _Node, gap: int, now: int) -> None:
        timeout, longest = self._timeout_ms, STRETCH_MAX * self._timeout_ms
        if now >= known.window_end:
            known.before = known.gap if now < known.window_end + WINDOW_MS else 0
            known.gap, known.window_end = 0, now + WINDOW_MS
        if gap <= longest:  # else it was away, not slow
            known.gap = max(known.gap, gap)
        excess = max(known.gap, known.before) - timeout // 2
        known.limit_ms = min(timeout + GAP_WEIGHT * max(excess, 0), longest)

    def note_late(self, late_ms: int) -> bool:
        """Note by how much a turn of ours came late; return whether that is forgiven to others."""
        if late_ms * LATE_SHARE <= self._timeout_ms:
            return False
        for number, until in self.alive_until.items():
            known = self._nodes[number]
            if known.lapses < LAPSES_MAX:
                known.lapses += 1
                known.lost_ms += late_ms
                self.alive_until[number] = until + late_ms
        return True

    def end(self, node: int) -> None:
        """The node's process ended, or its connection broke: it is silent from now on.

        Its patience ends as well: a packet that was under way counts for one timeout only.
        """
        self._nodes.pop(node, None)
        self.alive_until.pop(node, None)
