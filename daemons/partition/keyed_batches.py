"""Batches with a key of their own: each is stored once, however often it is sent.

A producer's sequences (`producers.py`) recognise repeats within one session. A request without a
session, through any gateway, carries a key of 16 bytes instead. The key stands in the batch's
header, in the fields of producer and sequence, and the epoch marks it (PROTOCOL.md, section 4). A
partition remembers where the last `KEYS_MAX` of such batches went, each for at least `KEY_AGE_MS`.

No wall clock decides how old a key is: a key that is forgotten too early lets its batch be stored
twice, and any clock may be set forward. Entries of the log count time instead. A KEY_STEP entry
says that its leader waited for `KEY_STEP_MS` since the step before, by its monotonic clock
(`daemons/broker/key_ageing.py`). A key is forgotten when `KEY_AGE_STEPS` steps came after the first
step that follows it. Each of them stands for a whole `KEY_STEP_MS` in which the key was remembered.
Late steps only keep keys for longer.

A log that an older version wrote begins without steps. Until its first step the older rule holds,
so that its entries keep their meaning: keys older than the newest stamp by `KEY_AGE_MS` go.

Part of the replicated state: made from applied entries alone. Pure: no clock, no order by hashes.
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
KEY_REUSED: Final = -4  # a verdict, in addition to those of `producers`

BatchKey = int  # of 128 bits
_PRODUCER_SHIFT: Final = 64


def batch_key(producer: int, sequence: int) -> BatchKey:
    """Make the key of a batch from the two fields of its header."""
    return producer << _PRODUCER_SHIFT | sequence


class KeyedBatches:
    """Remember where the batches of the last keys went: key -> (first offset, messages, stamp).

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
        """Return NEW, KEY_REUSED, or the offset of this batch if it is stored already."""
        known = self._by_key.get(key)
        if known is None:
            return NEW
        offset, messages, _ = known
        return offset if messages == count else KEY_REUSED

    def record(self, key: BatchKey, count: int, offset: int, time_ms: int) -> None:
        """Record an applied batch. The leader judged it before it proposed it."""
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
        """Count one step: `KEY_STEP_MS` passed since the last; the partition ends at `end`."""
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
        """Return rows of keys that are new since the last call, and forgotten keys."""
        known = self._by_key
        rows = {key: protocol.pack(known[key]) for key in self._changed}
        gone = list(self._forgotten)
        self._changed, self._forgotten = {}, {}
        return rows, gone

    def take_steps(self) -> list[int] | None:
        """Return the steps if they changed since the last call; empty: there are none now."""
        has_stepped, self._has_new_steps = self._has_new_steps, False
        return self.steps if has_stepped else None

    def packed(self) -> list[list[Any]]:
        """Return all keys, oldest first."""
        return [[key_row_name(key), *where] for key, where in self._by_key.items()]

    def become(
        self, packed: Iterable[list[Any]], steps: Iterable[int] = (), *, changed: bool
    ) -> None:
        """Replace everything by `packed`. `changed`: the store gets all of it, and the
        deletions.
        """
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
