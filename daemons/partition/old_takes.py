"""Older takes of all consumers of a partition, which may still be repeated.

A client that lost the answer to a take asks again with the same key. It must get the same messages,
since no other client gets them. Each consumer keeps its last few keys in its own row
(`positions.py`), so a quiet consumer keeps them forever. Where many clients share one consumer, as
requests over HTTP do, hundreds of other takes may come before the repeat. So a key that leaves its
consumer's row is remembered here: the last `OLDER_TAKES_MAX` of a partition, of all consumers.

Part of the replicated state: made from applied entries alone. Pure: no clock, no order by hashes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from myqueue.wire import protocol

OLDER_TAKES_MAX: Final = 4_096  # some seconds of what one partition can do, and two megabytes

TakeId = tuple[bytes, str]  # key, consumer
_KEY_BYTES: Final = 16


class OlderTakes:
    """Map (key, consumer) to (first, next, number). Numbers rise, so the order can be restored."""

    __slots__ = ("_by_take", "_changed", "_forgotten")

    def __init__(self) -> None:
        self._by_take: OrderedDict[TakeId, tuple[int, int, int]] = OrderedDict()  # oldest first
        self._changed: dict[TakeId, None] = {}  # since the last `take_changes`
        self._forgotten: dict[TakeId, None] = {}

    def __len__(self) -> int:
        return len(self._by_take)

    def find(self, consumer: str, key: bytes) -> tuple[int, int] | None:
        known = self._by_take.get((key, consumer))
        return None if known is None else known[:2]

    def add(self, consumer: str, key: bytes, first: int, next_offset: int) -> None:
        known, take = self._by_take, (key, consumer)
        number = known[next(reversed(known))][2] + 1 if known else 0
        known[take] = first, next_offset, number
        self._changed[take] = None
        self._forgotten.pop(take, None)
        if len(known) > OLDER_TAKES_MAX:
            oldest, _ = known.popitem(last=False)
            self._changed.pop(oldest, None)
            self._forgotten[oldest] = None

    def forget(self, consumer: str) -> None:
        """Forget all takes of this consumer."""
        for take in [one for one in self._by_take if one[1] == consumer]:
            del self._by_take[take]
            self._changed.pop(take, None)
            self._forgotten[take] = None

    # -- saving --------------------------------------------------------------------------------

    def take_changes(self) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return rows that are new since the last call, and names of forgotten rows."""
        known = self._by_take
        rows = {take_row_name(take): protocol.pack(known[take]) for take in self._changed}
        gone = [take_row_name(take) for take in self._forgotten]
        self._changed, self._forgotten = {}, {}
        return rows, gone

    def packed(self) -> list[list[Any]]:
        """Return all takes, oldest first."""
        return [[take_row_name(take), *where] for take, where in self._by_take.items()]

    def become(self, packed: Iterable[list[Any]], *, changed: bool) -> None:
        """Replace everything by `packed`. `changed`: the store gets all of it, and the
        deletions.
        """
        before = self._by_take
        rows = sorted(packed, key=lambda row: row[3])
        self._by_take = OrderedDict(
            (take_id_of(name), (first, next_offset, number))
            for name, first, next_offset, number in rows
        )
        if changed:
            self._forgotten.update(dict.fromkeys(before))
            self._changed = dict.fromkeys(self._by_take)
            for take in self._changed:
                self._forgotten.pop(take, None)
        else:
            self._changed, self._forgotten = {}, {}


def take_row_name(take: TakeId) -> bytes:
    key, consumer = take
    return key + consumer.encode()


def take_id_of(name: bytes) -> TakeId:
    return name[:_KEY_BYTES], name[_KEY_BYTES:].decode()
