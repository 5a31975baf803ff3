"""File work outside of the loop's thread: jobs that one thread runs in their order.

A rename with its directory's sync, the removal of a file, the footers of a thousand segments: each
may take the disk longer than a heartbeat. The loop starts a job, asks in later turns whether it is
done, and takes its result or its exception. Without a thread a job runs at once; so tests step
through a pass.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Generic, TypeVar

from myqueue.wal.fork_guard import refuse_after_fork, wrong_process

T = TypeVar("T")


class Job(Generic[T]):
    """One piece of work; call `result` once it is `done`."""

    __slots__ = ("_error", "_value", "_work", "done")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self.done = False

    def run(self) -> None:
        """Do the work in this thread and keep its outcome."""
        try:
            self._value = self._work()
        except BaseException as error:  # `result` raises it in the caller's thread
            self._error = error
        self.done = True

    def result(self) -> T:
        """Return what the work returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # T may well be None


class BackgroundJobs:
    """A queue of jobs; with `threads` a thread runs them, otherwise `start` does."""

    def __init__(self, threads: bool = False) -> None:
        self._jobs: SimpleQueue[Job[object] | None] = SimpleQueue()
        self._closing = Event()
        self._thread: Thread | None = None
        self._is_child = False
        if threads:
            refuse_after_fork(self)
            self._thread = Thread(target=self._run, name="wal-background", daemon=True)
            self._thread.start()

    def start(self, work: Callable[[], T]) -> Job[T]:
        """Queue the work and return its job."""
        if self._is_child:
            raise wrong_process()
        job = Job(work)
        if self._thread is None:
            job.run()
        else:
            self._jobs.put(job)  # type: ignore[arg-type]
        return job

    def pause(self, seconds: float) -> bool:
        """Sleep within a job, so that others get disk and interpreter. False: end the job soon."""
        if self._thread is None:
            return True
        return not self._closing.wait(seconds)

    def forked(self) -> None:
        """Refuse new jobs in a forked child, which has no thread."""
        self._is_child = True

    def close(self, timeout_s: float = 5.0) -> bool:
        """Finish the queued jobs and end the thread; False if that takes longer."""
        if self._thread is None:
            return True
        self._closing.set()
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
