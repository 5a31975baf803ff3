"""The threads that make the answers which the reading thread can't make without waiting."""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from threading import Lock
from typing import Final

from myqueue.errors import InvalidSetting
from myqueue.gateway.http.answer import MakeAnswer
from myqueue.gateway.http.answer_sender import AnswerSender
from myqueue.gateway.http.connection import Connection

HEAVY_AT_ONCE: Final = 2

Work = tuple[Connection, MakeAnswer, bool]  # the bool is True for a heavy body


class WorkerPool:
    """Threads that make answers and send them. Any thread may add work.

    Work for a *heavy* body needs one of `HEAVY_AT_ONCE` slots until it is answered, because the
    decoded JSON is several times as large as the body.
    """

    def __init__(self, threads: int, sender: AnswerSender) -> None:
        self._threads, self._sender = threads, sender
        self._work: SimpleQueue[Work | None] = SimpleQueue()  # None ends a thread
        self._heavy_lock = Lock()  # protects the next two fields
        self._heavy_work: deque[Work] = deque()  # the work that waits for a slot
        self._free_heavy_slots = HEAVY_AT_ONCE

    def start(self) -> None:
        """Start the threads. Raises InvalidSetting if the system does not allow so many."""
        for number in range(self._threads):
            try:
                threading.Thread(target=self._run, name=f"http-{number}", daemon=True).start()
            except RuntimeError:
                raise InvalidSetting(
                    f"threads = {self._threads}: only {number} could be started",
                    hint="Raise the limit of addresses (ulimit -v) or processes (ulimit -u), or"
                    " use fewer with --threads.",
                ) from None

    def stop(self) -> None:
        """End each thread after its work under way, without waiting for it."""
        for _ in range(self._threads):
            self._work.put(None)

    def add(self, connection: Connection, make_answer: MakeAnswer) -> None:
        """Have an answer made and sent by the next free thread."""
        self._work.put((connection, make_answer, False))

    def add_heavy(self, connection: Connection, make_answer: MakeAnswer) -> None:
        """Have an answer made and sent as soon as a slot for heavy bodies and a thread are free."""
        with self._heavy_lock:
            self._heavy_work.append((connection, make_answer, True))
            self._begin_heavy()

    def _end_heavy(self) -> None:
        with self._heavy_lock:
            self._free_heavy_slots += 1
            self._begin_heavy()

    def _begin_heavy(self) -> None:
        if self._heavy_work and self._free_heavy_slots:
            self._free_heavy_slots -= 1
            self._work.put(self._heavy_work.popleft())

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            connection, make_answer, is_heavy = work
            del work  # or this thread would hold the body until its next request comes
            try:
                answer = make_answer()
            except Exception:
                self._sender.abandon(connection)
            else:
                self._sender.send(connection, answer)
                del answer
            del connection, make_answer
            if is_heavy:
                self._end_heavy()
