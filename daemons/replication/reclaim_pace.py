"""The pace of reclaim: when a pass over the segments begins, and how fast it goes on.

`wal/space/reclaim` decides which segments go; this file decides when. A pass begins soon after an
event that may have freed a segment: a log's start moved, a group was removed, a segment was sealed.
It makes one step a tick. Records that it appends again compete with messages for the disk, so they
are bounded in bytes per second. A background thread reads, renames and removes files; the loop
never waits for it.
"""

from __future__ import annotations

from typing import Final

from myqueue.daemons.metrics import DaemonMetrics
from myqueue.daemons.replication.log_prefix import LogPrefix
from myqueue.errors import MyQueueError
from myqueue.wal.log import Log

PASS_MS: Final = 1000  # between two passes
LATER_MS: Final = 10_000  # if only sparse segments are left to wait for
REWRITE_BYTES_PER_S: Final = 8 << 20
LOOK_MS: Final = 5000  # between updates of the disk's metrics


class ReclaimPace:
    """Runs reclaim. Called by the engine, in the loop's thread."""

    def __init__(self, log: Log, starts: LogPrefix, counts: DaemonMetrics) -> None:
        self._log, self._starts, self._counts = log, starts, counts
        self._noted = 1  # an earlier process may have left something
        self._seen = (0, 0, 0)
        self._runs = False
        self._next_step = self._next_pass = self._next_look = 0

    def note(self) -> None:
        """An event may have freed a segment."""
        self._noted += 1

    def tick(self, now: int) -> None:
        reclaimer = self._log.reclaimer
        if self._runs:
            if now >= self._next_step:
                self._step(now)
        elif now >= self._next_pass:
            state = (self._noted, self._starts.moved, self._log.journal.end[0])
            later = reclaimer.has_sparse and now >= self._next_pass + LATER_MS
            if state != self._seen or reclaimer.has_more or later:
                self._seen, self._runs = state, True
                reclaimer.begin(now)
        if now >= self._next_look:
            self._next_look = now + LOOK_MS
            self.count()

    def _step(self, now: int) -> None:
        reclaimer, counts = self._log.reclaimer, self._counts
        before = reclaimer.relocated_bytes
        try:
            self._runs = reclaimer.step()
        except (OSError, MyQueueError):  # finished steps stay valid; a later pass does the rest
            counts["reclaim_passes_failed_total"] += 1
            reclaimer.cancel()
            self._runs, self._seen = False, (0, 0, 0)
        wrote = reclaimer.relocated_bytes - before
        counts["rewritten_bytes_total"] += wrote
        self._next_step = now + wrote * 1000 // REWRITE_BYTES_PER_S
        if not self._runs:
            counts["reclaim_passes_total"] += 1
            self._next_pass = now + PASS_MS
            self.count()

    def count(self) -> None:
        log, counts = self._log, self._counts
        segments = log.journal.segments
        counts["reclaimed_bytes_total"] = log.reclaimer.removed_bytes
        counts["reclaimed_segments_total"] = log.reclaimer.removed_segments
        counts["wal_segments"] = len(segments)
        counts["wal_oldest_segment"] = min(segments, default=0)
        used = sum(segment.size for segment in segments.values())
        counts["disk_used_bytes"] = used + log.store.used_bytes()
