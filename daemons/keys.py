"""Batches that carry a key of their own: stored once, whoever sends them how often.

A producer's sequences (`sessions.py`) tell repeats of one client that lives. A request of somebody
who has no session, through whichever gateway (H4), is told by a key of 16 bytes instead: it stands
in the batch's header, in the fields of producer and sequence, and the epoch says so (PROTOCOL.md,
section 4). A partition remembers where such a batch went: the last `KEYS_MAX` of them, none longer
than `KEY_AGE_MS` behind the newest, by the stamps in the log.

Part of the replicated state: made from applied entries alone. Pure; no clock, no hashing order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from myqueue import protocol
from myqueue.daemons.sessions import NEW

KEYS_MAX: Final = 50_000
KEY_AGE_MS: Final = 15 * 60 * 1000
KEY_REUSED: Final = -4  # a verdict beside those of `sessions`

Key = int  # of 128 bits
_SHIFT: Final = 64


def key_of(producer: int, sequence: int) -> Key:
    """From the two fields of the header."""
    return producer << _SHIFT | sequence


class Keys:
    """Where the batches of the last keys went: key -> (first offset, messages, stamp)."""

    __slots__ = ("_by_key", "_changed", "_forgotten")

    def __init__(self) -> None:
        self._by_key: OrderedDict[Key, tuple[int, int, int]] = OrderedDict()  # oldest first
        self._changed: dict[Key, None] = {}  # since the last `take_changes`
        self._forgotten: dict[Key, None] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def judge(self, key: Key, count: int) -> int:
        """NEW, KEY_REUSED, or the offset that this batch already has."""
        known = self._by_key.get(key)
        if known is None:
            return NEW
        offset, messages, _ = known
        return offset if messages == count else KEY_REUSED

    def record(self, key: Key, count: int, offset: int, time_ms: int) -> None:
        """An applied batch; the leader judged it before it was proposed."""
        if key in self._by_key:
            return  # no leader proposes it; if one did, all replicas keep the first
        self._by_key[key] = offset, count, time_ms
        self._changed[key] = None
        self._forgotten.pop(key, None)
        oldest = next(iter(self._by_key))
        while len(self._by_key) > KEYS_MAX or self._by_key[oldest][2] < time_ms - KEY_AGE_MS:
            del self._by_key[oldest]
            self._changed.pop(oldest, None)
            self._forgotten[oldest] = None
            oldest = next(iter(self._by_key))

    # -- saving --------------------------------------------------------------------------------

    def take_changes(self) -> tuple[dict[Key, bytes], list[Key]]:
        """Keys that are new since the last call, and those that were forgotten."""
        known = self._by_key
        rows = {key: protocol.pack(known[key]) for key in self._changed}
        gone = list(self._forgotten)
        self._changed, self._forgotten = {}, {}
        return rows, gone

    def packed(self) -> list[list[Any]]:
        """All of them, oldest first."""
        return [[row_name(key), *where] for key, where in self._by_key.items()]

    def become(self, packed: Iterable[list[Any]], *, changed: bool) -> None:
        """These and no others. `changed`: hand all of it over to the store, and what it replaces"""
        before = self._by_key
        # Rows of the store come by key; the order of keys is that of their offsets.
        rows = sorted(packed, key=lambda row: row[1])
        self._by_key = OrderedDict(
            (int.from_bytes(name, "big"), (offset, count, stamp))
            for name, offset, count, stamp in rows
        )
        if changed:
            self._forgotten.update(dict.fromkeys(before))
            self._changed = dict.fromkeys(self._by_key)
            for key in self._changed:
                self._forgotten.pop(key, None)
        else:
            self._changed, self._forgotten = {}, {}


def row_name(key: Key) -> bytes:
    return key.to_bytes(16, "big")
