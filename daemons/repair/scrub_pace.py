"""The pace of the scrubber: it reads one segment after the other, so that damage is found early.

A flipped bit in a segment that is never read would stay unknown until its copies are damaged as
well. So all segments are read again and again, at `scrub_bytes_per_s`, in a background thread
(`wal/space/background`), and every checksum is verified. A small log is read at most every
`ROUND_MS`. Findings go to `coordinator`. Each record costs some bytes more than its length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from myqueue.wal.groups import Row
from myqueue.wal.space.background import Job
from myqueue.wal.tools.scrub import Scrub

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine

ROUND_MS: Final = 10_000  # at least, from one round's begin to the next
AGAIN_MS: Final = 1000  # after an error of the machine
NEW_SEGMENTS: Final = 1000  # that may begin while a job runs, at most
WAIT_S: Final = 0.05  # for the writer to finish a record
Found = Callable[[int, int, str, str], None]  # (segment, position, found by, description)
Missing = Callable[[Row], None]  # an entry whose segment is not there


class ScrubPace:
    """Runs the scrubber. Called by `RepairCoordinator`, in the loop's thread."""

    def __init__(self, engine: Engine, found: Found, missing: Missing) -> None:
        self._engine, self._found, self._missing = engine, found, missing
        self.round_ms = ROUND_MS
        self._names: Job[tuple[list[Row], bytes]] | None = (
            None  # looks for rows whose segment is not there
        )
        self._are_names_known = False
        self._scrub: Scrub | None = None
        self._job: Job[None] | None = None
        self._next_step = self._next_round = 0
        self._last_number = 0  # of this round
        self._round_began = 0
        self._rounds = 0
        self._round_ms = 0  # how long the last one took
        self._round_at_ms = 0  # when it ended, wall clock

    def tick(self, now: int) -> None:
        pace = self._engine.scrub_bytes_per_s
        if not pace or (self._job is not None and not self._job.done):
            return
        if not self._are_names_known:
            self._look_for_files()
            return
        if self._job is not None:
            self._took(self._job, now, pace)
        if now < self._next_step:
            return
        if self._scrub is None:
            self._begin(now)
        if self._scrub is not None:
            self._job = self._engine.log.background.start(self._scrub.portion)

    def _look_for_files(self) -> None:
        """Check once after a start that every entry's segment is there. Later a scrub misses the
        file.
        """
        job, start = self._names, b""
        if job is not None:
            if not job.done:
                return
            rows, start = job.result()
            for row in rows:
                self._missing(row)
            if not start:
                self._are_names_known, self._names = True, None
                return
        store, there = self._engine.log.store, self._there()

        def look() -> tuple[list[Row], bytes]:
            with store.view() as view:
                return view.rows_elsewhere(there, start)

        self._names = self._engine.log.background.start(look)

    def check_files_now(self) -> None:
        """Do that check at once and in full, before any replica votes.

        For a start that met a missing segment: readers remember only some of the entries they met.
        """
        store, there, start = self._engine.log.store, self._there(), b""
        while not self._are_names_known:
            with store.view() as view:
                rows, start = view.rows_elsewhere(there, start)
            for row in rows:
                self._missing(row)
            self._are_names_known = not start

    def _there(self) -> set[int]:
        journal = self._engine.log.journal
        return {*journal.segments, *range(journal.end[0], journal.end[0] + NEW_SEGMENTS)}

    def _begin(self, now: int) -> None:
        """Begin with the next segment; after the last one the round is over."""
        journal, damaged = self._engine.log.journal, self._engine.repair.damaged_segments
        newest, persisted = journal.persisted_at  # later segments may not even have files yet
        if not newest:
            return  # nothing of this start is persisted yet
        if not self._last_number:
            self._round_began = now
        left = [n for n in journal.segments if self._last_number < n <= newest and n not in damaged]
        if not left:
            self._rounds += 1
            self._round_ms = now - self._round_began
            self._round_at_ms = self._engine.wall_ms()
            self._next_step = max(now + 1, self._round_began + self.round_ms)
            self._last_number = 0
            return
        number = self._last_number = min(left)
        one = journal.segments[number]
        place = (one.name, one.number, one.uid, one.capacity)
        synced = persisted if number == newest else 0
        if number == newest and not synced:  # nothing in it is persisted yet
            return
        self._scrub = Scrub(self._engine.log.files, place, synced, self._wait)

    def _wait(self) -> None:
        """Wait for the writer. Runs in the background thread."""
        self._engine.log.background.pause(WAIT_S)

    def _took(self, job: Job[None], now: int, pace: int) -> None:
        scrub, self._job = self._scrub, None
        if scrub is None:
            return
        try:
            job.result()
        except OSError:  # an error of the machine, not of the file: read this segment again later
            self._scrub, self._last_number = None, scrub.number - 1
            self._next_step = now + AGAIN_MS
            return
        self._engine.counts["scrubbed_bytes_total"] += scrub.read_bytes
        self._next_step = now + scrub.cost_bytes * 1000 // pace
        if scrub.is_done:
            self._scrub = None
            for finding in scrub.findings[:1]:  # repair examines the whole segment
                self._found(scrub.number, finding.position, "scrub", finding.what)

    def status(self) -> dict[str, Any]:
        return {
            "bytes_per_s": self._engine.scrub_bytes_per_s,
            "rounds": self._rounds,
            "round_took_ms": self._round_ms,
            "round_ended_ms": self._round_at_ms,
            "segment": self._last_number,
        }
