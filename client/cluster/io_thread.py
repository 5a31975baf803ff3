"""The I/O thread of a session: receive all, run what was asked, look at the timers, sleep.

One thread owns every socket, and everything that is not pure happens in it, one thing after the
other: no locks between connections, routes, retries. Other threads hand in callables (`run`) and
get futures back. The wake-up costs a system call, so it is rung only if the thread sleeps or is
about to: a thousand sends while it works ring no bell.
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
    """Runs its job once, unless it was cancelled before; from any thread."""

    __slots__ = ("at", "number", "job")

    def __init__(self, at: int, number: int, job: Job) -> None:
        self.at, self.number = at, number
        self.job: Job | None = job

    def cancel(self) -> None:
        self.job = None

    def __lt__(self, other: Timer) -> bool:
        return (self.at, self.number) < (other.at, other.number)


class IoThread:
    """`turn` is called once per turn, and says when it wants to be called again."""

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
        self._jobs.append(job)
        if self._ended:
            self._empty()  # so that whoever waits for it learns that all is closed
        elif not self._awake:  # it looks at the jobs again after it has said that it sleeps
            self._awake = True
            self._sockets.wake()

    def after(self, delay_ms: int, job: Job) -> Timer:
        timer = Timer(now_ms() + max(0, delay_ms), 0, job)
        if self.is_here():
            self._add(timer)
        else:
            self.run(lambda: self._add(timer))
        return timer

    def is_here(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def stop(self, last: Job, timeout_s: float) -> bool:
        """Runs `last` as the last thing. False if the thread has not ended in that time."""
        if self._thread.is_alive():
            self.end(last)
            if not self.is_here():
                self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def end(self, last: Job) -> None:
        """The same, without waiting for it."""
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
        """How long nothing will be to do. The last thing before the poll."""
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
        for _ in range(len(self._jobs)):  # what they add waits for the next turn
            self._safely(self._jobs.popleft())

    def _safely(self, job: Job) -> object:
        try:
            return job()
        except Exception:
            log.exception("a callback in the I/O thread failed")
            return None
