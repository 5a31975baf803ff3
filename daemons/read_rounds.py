"""Reads that only the leader may answer, after a round of heartbeats that began when they came.

A leader that was deposed may not know it yet. A majority that answers its heartbeats shows that it
still led when the request came, so its state is not older than that. The engine names each round by
a number, its *context*; this table alone gives numbers out, for all parts of a daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica


class _Waiting(NamedTuple):
    """A read, and what to call when its round ends, or never will."""

    group: int
    confirmed: Callable[[], None]
    lost: Callable[[], None] | None


class ReadRounds:
    """The reads that wait for their rounds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[int, _Waiting] = {}  # by context
        self._last_context = 0  # never used twice in the life of the process

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(
        self,
        replica: Replica,
        confirmed: Callable[[], None],
        lost: Callable[[], None] | None = None,
    ) -> None:
        """Begin a round; call `confirmed` when this replica turns out to lead, or else `lost`.

        Raises what `Engine.read` raises, and calls neither then.
        """
        self._last_context += 1
        self._engine.read(replica, self._last_context)
        self._waiting[self._last_context] = _Waiting(replica.uid, confirmed, lost)

    def read_ready(self, context: int) -> None:
        """The round is over: a majority still followed this leader after it began."""
        waiting = self._waiting.pop(context, None)
        if waiting is not None:
            waiting.confirmed()

    def leadership_lost(self, group: int) -> None:
        """Call `lost` for the reads of a group that is not led here any more."""
        contexts = [context for context, one in self._waiting.items() if one.group == group]
        for read in [self._waiting.pop(context) for context in contexts]:
            if read.lost is not None:
                read.lost()
