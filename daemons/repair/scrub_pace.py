"""The pace of the scrubber: one segment after the other is read, so that damage is found early.

A bit that turned in a segment which nobody reads would stay unknown until its copies are damaged
as well. So all segments are read again and again, at `scrub_bytes_per_s`, in a thread of its own
(`wal/space/background`), and every checksum is verified; a small log is read at most every
`ROUND_MS`. What is found is for `coordinator`. The price is told in bytes, records included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from myqueue.wal.append.groups import Row
from myqueue.wal.space.background import Job
from myqueue.wal.tools.scrub import Scrub

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine

ROUND_MS: Final = 10_000  # at least between the beginnings of two rounds
AGAIN_MS: Final = 1000  # after the machine was short of something
NEW_SEGMENTS: Final = 1000  # at most begun while a job runs
WAIT_S: Final = 0.05  # for a writer that is in the middle of a record
Found = Callable[[int, int, str, str], None]  # (segment, position, by whom, what)
Missing = Callable[[Row], None]  # an entry whose segment is not there


class ScrubPace:
    """See the module's docstring."""

    def __init__(self, engine: Engine, found: Found, missing: Missing) -> None:
        self._engine, self._found, self._missing = engine, found, missing
        self.round_ms = ROUND_MS
        self._names: Job[tuple[list[Row], bytes]] | None = None  # what the store's rows name
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
        """Once after a start: is the segment of each entry there? Later a scrub misses its file."""
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
        """The same at once: for a start that met one which is not there, before anybody votes.
        Readers remember only some of the entries that they met. All of the index is read, once.
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
        """The next segment; at the end of the log the round is over."""
        journal, damaged = self._engine.log.journal, self._engine.repair.damaged_segments
        newest, persisted = journal.persisted_at  # behind it, not even the files may be there
        if not newest:
            return  # the start's own mark is on its way
        if not self._last_number:
            self._round_began = now
        left = [n for n in journal.segments
                if self._last_number < n <= newest and n not in damaged]  # fmt: skip
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
        if number == newest and not synced:  # nothing is known to be in it yet
            return
        self._scrub = Scrub(self._engine.log.files, place, synced, self._wait)

    def _wait(self) -> None:
        """In the other thread."""
        self._engine.log.background.pause(WAIT_S)

    def _took(self, job: Job[None], now: int, pace: int) -> None:
        scrub, self._job = self._scrub, None
        if scrub is None:
            return
        try:
            job.result()
        except OSError:  # of the machine, not of the file: the same segment again, later
            self._scrub, self._last_number = None, scrub.number - 1
            self._next_step = now + AGAIN_MS
            return
        self._engine.counts["scrubbed_bytes_total"] += scrub.read_bytes
        self._next_step = now + scrub.cost_bytes * 1000 // pace
        if scrub.is_done:
            self._scrub = None
            for finding in scrub.findings[:1]:  # the segment is looked at as a whole then
                self._found(scrub.number, finding.position, "scrub", finding.what)

    def status(self) -> dict[str, Any]:
        return {
            "bytes_per_s": self._engine.scrub_bytes_per_s, "rounds": self._rounds,
            "round_took_ms": self._round_ms, "round_ended_ms": self._round_at_ms,
            "segment": self._last_number,
        }  # fmt: skip
