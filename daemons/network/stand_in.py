"""Two threads for one loop: while one runs it, the other stands in if a write of it stalls.

A small write to a fast disk takes less time than waking a thread that does it and waking the loop
again, so the loop does it itself (`LoopThreads.write`), as the last act of a turn. A disk that is
fast now may stall in the next moment. Then heartbeats, votes and reads would wait for it.

So running the loop is a role. A thread whose write has not returned after `TAKE_OVER_S` loses the
role to the other thread, which runs the next turn with the same state: a turn had just ended, and
the stuck thread touches nothing but the file. When its write returns, it reports it like the
journal's thread would, and stands by. Later writes of the log wait for it there (`Writer`), so
their order holds; the loop hands them to the journal's thread as long as one is under way.

The thread that stands by looks at the other one every `LOOK_EVERY_S` while there are such writes,
and sleeps after a second without one.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock, Thread, get_ident
from time import monotonic
from typing import Final

TAKE_OVER_S: Final = 0.05
LOOK_EVERY_S: Final = 0.025
WATCH_S: Final = 1.0
END_WITHIN_S: Final = 5.0


class LoopThreads:
    """Runs `turns` in one of two threads: the caller of `run`, and one of its own.

    `turns` returns True when the loop ended, and False after a `write` that returned False.
    """

    def __init__(self, turns: Callable[[], bool]) -> None:
        self._turns = turns
        self._role = Lock()  # guards the holder and the end of a write
        self._holder = 0  # the thread that runs the loop
        self._write_began_s: float | None = None  # of the holder's write
        self._writes = 0
        self._is_asleep = False  # the other thread; it wants to be woken by the next write
        self._wake = Event()
        self._has_ended = False
        self._error: BaseException | None = None
        self.taken_over = 0  # times

    def run(self) -> None:
        """Return when the loop ended; raise its error, from whichever thread."""
        self._holder = get_ident()
        other = Thread(target=self._serve, name="loop-stand-in", daemon=True)
        other.start()
        self._serve()
        other.join(END_WITHIN_S)  # it may be stuck in a write
        if self._error is not None:
            raise self._error

    def write(self, job: Callable[[], None]) -> bool:
        """Run `job`, which waits for the disk. False: the other thread has the role now.

        After False the caller must not touch the loop's state.
        """
        self._writes += 1
        if self._is_asleep:
            self._wake.set()
        self._write_began_s = monotonic()
        job()
        with self._role:
            if self._holder != get_ident():
                return False
            self._write_began_s = None
        return True

    def _serve(self) -> None:
        while not self._has_ended:
            if self._holder != get_ident():
                self._stand_by()
                continue
            try:
                has_ended = self._turns()
            except BaseException as error:
                self._error, has_ended = error, True
            if has_ended:
                self._has_ended = True
                self._wake.set()

    def _stand_by(self) -> None:
        """Return when this thread has the role, or the loop has ended."""
        me, seen, idle_since_s = get_ident(), -1, 0.0
        while not self._has_ended and not self._takes_over(me):
            now_s = monotonic()
            if seen != self._writes:
                seen, idle_since_s = self._writes, now_s
            elif self._write_began_s is None and now_s - idle_since_s > WATCH_S:
                self._is_asleep = True  # `write` counts before it looks at this
                if seen == self._writes and not self._has_ended:
                    self._wake.wait()
                self._is_asleep = False
                self._wake.clear()
                continue
            self._wake.wait(LOOK_EVERY_S)

    def _takes_over(self, me: int) -> bool:
        with self._role:
            began_s = self._write_began_s
            if self._holder != me and (began_s is None or monotonic() - began_s < TAKE_OVER_S):
                return False
            if self._holder != me:
                self._holder, self._write_began_s = me, None
                self.taken_over += 1
            return True
