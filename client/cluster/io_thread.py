"""The I/O thread of a session: each turn receives, runs timers and jobs, then sleeps in the poll.

One thread owns every socket and does all work that is not pure, one job after another. So
connections, routes and retries need no locks. Other threads submit callables (`run`) and get
futures. A wake-up costs a system call, so `run` wakes the thread only if it sleeps or is about to:
a thousand sends while it works wake it never.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from myqueue.cluster.connection import Sockets
from myqueue.wire.clock import now_ms

log = logging.getLogger("myqueue.client")

SLEEP_MS_MAX: Final = 1_000
Job = Callable[[], object]


class Timer:
    """Runs its job once, unless a thread cancels it before."""

    __slots__ = ("at", "number", "job")

    def __init__(self, at: int, number: int, job: Job) -> None:
        self.at, self.number = at, number
        self.job: Job | None = job

    def cancel(self) -> None:
        self.job = None

    def __lt__(self, other: Timer) -> bool:
        return (self.at, self.number) < (other.at, other.number)


class IoThread:
    """The thread and its jobs. `turn` runs once a turn and returns when it must run again."""

    def __init__(self, sockets: Sockets, turn: Callable[[], int | None], name: str) -> None:
        self._sockets, self._turn = sockets, turn
        self._jobs: deque[Job] = deque()
        self._timers: list[Timer] = []
        self._numbers = 0
        self._awake, self._ended = True, False
        self._stopping: Job | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, job: Job) -> None:
        """Run a job in this thread, soon; from any thread."""
        self._jobs.append(job)
        if self._ended:
            self._empty()  # the job ends its future with Closed
        elif not self._awake:  # after it says that it sleeps, it looks at the jobs once more
            self._awake = True
            self._sockets.wake()

    def after(self, delay_ms: int, job: Job) -> Timer:
        """Run a job in this thread after a delay; from any thread."""
        timer = Timer(now_ms() + max(0, delay_ms), 0, job)
        if self.is_here():
            self._add(timer)
        else:
            self.run(lambda: self._add(timer))
        return timer

    def is_here(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def stop(self, last: Job, timeout_s: float) -> bool:
        """End the thread with a last job. False if it has not ended in that time."""
        if self._thread.is_alive():
            self.end(last)
            if not self.is_here():
                self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def end(self, last: Job) -> None:
        """End the thread with a last job, without waiting."""
        self._stopping = last
        self.run(lambda: None)

    def _add(self, timer: Timer) -> None:
        self._numbers += 1
        timer.number = self._numbers
        heapq.heappush(self._timers, timer)

    def _run(self) -> None:
        try:
            while self._stopping is None:
                self._sockets.poll(self._nap())
                self._awake = True
                self._work()
        finally:
            if self._stopping is not None:
                self._safely(self._stopping)
            self._ended = True
            self._empty()

    def _empty(self) -> None:
        while self._jobs:
            try:
                job = self._jobs.popleft()
            except IndexError:
                return  # another thread took the last one
            self._safely(job)

    def _nap(self) -> int:
        """Compute how long the poll may sleep. Runs last before the poll."""
        due = self._safely(self._turn)
        while self._timers and self._timers[0].job is None:
            heapq.heappop(self._timers)
        if self._timers and (not isinstance(due, int) or self._timers[0].at < due):
            due = self._timers[0].at
        nap = min(due - now_ms(), SLEEP_MS_MAX) if isinstance(due, int) else SLEEP_MS_MAX
        self._awake = False
        if self._jobs or self._stopping is not None:
            self._awake = True
            return 0
        return max(0, nap)

    def _work(self) -> None:
        now = now_ms()
        while self._timers and self._timers[0].at <= now:
            job = heapq.heappop(self._timers).job
            if job is not None:
                self._safely(job)
        for _ in range(len(self._jobs)):  # jobs that these add wait for the next turn
            self._safely(self._jobs.popleft())

    def _safely(self, job: Job) -> object:
        try:
            return job()
        except Exception:
            log.exception("a callback in the I/O thread failed")
            return None
