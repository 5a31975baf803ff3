"""Batches that carry a key of their own: stored once, whoever sends them how often.

A producer's sequences (`producers.py`) tell repeats of one client that lives. A request of somebody
who has no session, through whichever gateway (H4), is told by a key of 16 bytes instead: it stands
in the batch's header, in the fields of producer and sequence, and the epoch says so (PROTOCOL.md,
section 4). A partition remembers where such a batch went: the last `KEYS_MAX` of them, each for
`KEY_AGE_MS` at least.

How old a key is, no wall clock decides: a key that is forgotten too early lets its batch be stored
twice, and any clock may be set forward. The log itself counts: a KEY_STEP entry says that its
leader waited for `KEY_STEP_MS` since the step before, by its steady clock
(`daemons/broker/key_ageing.py`). A key is forgotten when `KEY_AGE_STEPS` steps came after the first
one that follows it: each of them stands for a whole `KEY_STEP_MS` in which the key was there. Steps
that come late only keep keys for longer.

A log begins without steps if an older version wrote it. Until its first step the older rule holds,
so that its entries mean what they meant: keys that are `KEY_AGE_MS` behind the newest stamp go.

Part of the replicated state: made from applied entries alone. Pure; no clock, no hashing order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from myqueue.daemons.partition.producers import NEW
from myqueue.wire import protocol

KEYS_MAX: Final = 50_000
KEY_AGE_STEPS: Final = 15
KEY_STEP_MS: Final = 60 * 1000
KEY_AGE_MS: Final = KEY_AGE_STEPS * KEY_STEP_MS
KEY_REUSED: Final = -4  # a verdict beside those of `producers`

BatchKey = int  # of 128 bits
_PRODUCER_SHIFT: Final = 64


def batch_key(producer: int, sequence: int) -> BatchKey:
    """From the two fields of the header."""
    return producer << _PRODUCER_SHIFT | sequence


class KeyedBatches:
    """Where the batches of the last keys went: key -> (first offset, messages, stamp).

    `steps`: the end of the partition at each of the last `KEY_AGE_STEPS` + 1 steps, oldest first.
    """

    __slots__ = ("_by_key", "_changed", "_forgotten", "_has_new_steps", "steps")

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._has_new_steps = False  # since the last `take_changes`
        self._by_key: OrderedDict[BatchKey, tuple[int, int, int]] = OrderedDict()  # oldest first
        self._changed: dict[BatchKey, None] = {}  # since the last `take_changes`
        self._forgotten: dict[BatchKey, None] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def judge(self, key: BatchKey, count: int) -> int:
        """NEW, KEY_REUSED, or the offset that this batch already has, if it is the same one."""
        known = self._by_key.get(key)
        if known is None:
            return NEW
        offset, messages, _ = known
        return offset if messages == count else KEY_REUSED

    def record(self, key: BatchKey, count: int, offset: int, time_ms: int) -> None:
        """An applied batch; the leader judged it before it was proposed."""
        if key in self._by_key:
            return  # no leader proposes it; if one did, all replicas keep the first
        self._by_key[key] = offset, count, time_ms
        self._changed[key] = None
        self._forgotten.pop(key, None)
        while len(self._by_key) > KEYS_MAX:
            self._forget_oldest()
        if not self.steps:
            while next(iter(self._by_key.values()))[2] < time_ms - KEY_AGE_MS:
                self._forget_oldest()

    def step(self, end: int) -> None:
        """`KEY_STEP_MS` are over since the step before; the partition ends at this offset."""
        self.steps.append(end)
        self._has_new_steps = True
        if len(self.steps) <= KEY_AGE_STEPS:
            return
        del self.steps[: -KEY_AGE_STEPS - 1]
        while self._by_key and next(iter(self._by_key.values()))[0] < self.steps[0]:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest, _ = self._by_key.popitem(last=False)
        self._changed.pop(oldest, None)
        self._forgotten[oldest] = None

    # -- saving --------------------------------------------------------------------------------

    def take_changes(self) -> tuple[dict[BatchKey, bytes], list[BatchKey]]:
        """Keys that are new since the last call, and those that were forgotten."""
        known = self._by_key
        rows = {key: protocol.pack(known[key]) for key in self._changed}
        gone = list(self._forgotten)
        self._changed, self._forgotten = {}, {}
        return rows, gone

    def take_steps(self) -> list[int] | None:
        """If they changed since the last call; empty: there are none any more."""
        has_stepped, self._has_new_steps = self._has_new_steps, False
        return self.steps if has_stepped else None

    def packed(self) -> list[list[Any]]:
        """All of them, oldest first."""
        return [[key_row_name(key), *where] for key, where in self._by_key.items()]

    def become(
        self, packed: Iterable[list[Any]], steps: Iterable[int] = (), *, changed: bool
    ) -> None:
        """These and no others. `changed`: hand all of it over to the store, and what it replaces"""
        before = self._by_key
        had_steps, self.steps = bool(self.steps), list(steps)
        self._has_new_steps = changed and (had_steps or bool(self.steps))
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


def key_row_name(key: BatchKey) -> bytes:
    return key.to_bytes(16, "big")
