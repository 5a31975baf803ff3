"""Batches that were read from disk before they are asked for, for consumers that catch up.

A consumer asks for the next batches when it has received the last ones. Without this the disk would
be read and checked only then, while the network waits, and the network would be used only after
that, while the reader waits. So when a consumer that asks quickly has its reply, the batches after
it are read at the end of the turn, while that reply is on its way.

Only for batches on disk: those in memory cost nothing to find. A consumer that asks slowly gets
nothing read ahead, because it might be dropped before it is asked for. Committed entries never
change, so what was read stays right; whether an offset may be read at all is decided when it is
asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from myqueue.daemons.raft.types import COUNT, OFFSET, PAYLOAD, Entry
from myqueue.errors import MyQueueError

QUICK_MS: Final = 100  # from a reply to the next request of a consumer that catches up
KEPT_MS: Final = 1000
BYTES_MAX: Final = 32 << 20  # of all batches that wait here
EXPECTED_MAX: Final = 1024

Place = tuple[int, int]  # raft group, offset
# (group, offset, bytes at most) -> entries from that offset on; none if they are in memory
Read = Callable[[int, int, int], list[Entry]]


class ReadAhead:
    """Decides what to read ahead, and keeps it until it is asked for or too old."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._expected: dict[Place, int] = {}  # where consumers go on, and since when
        self._planned: dict[Place, int] = {}  # to be read when this turn ends; bytes at most
        self._kept: dict[Place, tuple[int, list[Entry]]] = {}  # since when, and entries
        self.kept_bytes = 0

    def take(self, group: int, offset: int, bytes_max: int, entries_max: int) -> list[Entry]:
        """Return entries that were read ahead for this place; [] if there are none that fit.

        Entries after those that fit wait on, for the next request.
        """
        if (group, offset) not in self._kept:
            return []
        since, entries = self._kept[group, offset]
        ends = accumulate(len(entry[PAYLOAD]) for entry in entries)
        fits = min(bisect_right(list(ends), bytes_max), entries_max)
        if fits:
            self._drop((group, offset))
            if entries[fits:]:
                self._keep((group, entries[fits][OFFSET]), since, entries[fits:])
        return entries[:fits]

    def note_reply(self, group: int, offset: int, last: Entry, bytes_max: int, now: int) -> None:
        """Note a reply to a request at `offset` that more batches follow; `last` is its last one.

        If the request came quickly after the reply before, read the next batches ahead.
        """
        asked_since = self._expected.pop((group, offset), None)
        following = group, last[OFFSET] + last[COUNT]
        if len(self._expected) < EXPECTED_MAX:
            self._expected[following] = now
        if asked_since is not None and now - asked_since <= QUICK_MS:
            self._planned[following] = bytes_max

    def end_turn(self, now: int) -> None:
        """Read what was planned in this turn."""
        planned, self._planned = self._planned, {}
        for place, bytes_max in planned.items():
            if place in self._kept or self.kept_bytes + bytes_max > BYTES_MAX:
                continue
            try:
                entries = self._read(*place, bytes_max)
            except (MyQueueError, OSError):
                continue  # whoever asks for it gets the error
            if entries:
                self._keep(place, now, entries)

    def tick(self, now: int) -> None:
        """Forget consumers that did not go on."""
        self._expected = {
            place: since for place, since in self._expected.items() if now - since <= QUICK_MS
        }
        for place in [place for place, kept in self._kept.items() if now - kept[0] > KEPT_MS]:
            self._drop(place)

    def removed(self, group: int) -> None:
        """Forget a group that is not here any more."""
        self._planned = {place: size for place, size in self._planned.items() if place[0] != group}
        for place in [place for place in self._kept if place[0] == group]:
            self._drop(place)

    def _keep(self, place: Place, since: int, entries: list[Entry]) -> None:
        if place not in self._kept:
            self._kept[place] = since, entries
            self.kept_bytes += _size(entries)

    def _drop(self, place: Place) -> None:
        _, entries = self._kept.pop(place)
        self.kept_bytes -= _size(entries)


def _size(entries: list[Entry]) -> int:
    return sum(len(entry[PAYLOAD]) for entry in entries)
