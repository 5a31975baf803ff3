"""Producers' sequences: is a batch new, a repeat, out of order, or of an older session?

A producer numbers its messages per partition and epoch, from 0. A partition remembers for each
producer where its last batches went, so that a batch that is sent again gets its first offset
instead of being stored twice. This memory is part of the replicated state: it is made from applied
entries alone, and is equal on all replicas at equal index.

Positions of batches are kept as *runs* (first sequence, first offset, count): a batch that
continues both the sequence and the offset of the run before lengthens that run. A producer that is
alone in its partition is one run, however much it sends. `RUNS_MAX` runs are kept, so at least its
last 64 batches are remembered.

At most `PRODUCERS_MAX` producers are remembered; the least recently written one, by index, is
forgotten first. A forgotten producer has to begin again at sequence 0, with a new epoch.

Pure: no clock, no order by hashes. Verdicts are numbers instead of objects, and runs are lists
instead of classes, because `record` runs for every batch on every replica.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final

from myqueue.wire import protocol

PRODUCERS_MAX: Final = 10_000
RUNS_MAX: Final = 64

# Verdicts; a repeat's is its first offset, 0 or more.
NEW: Final = -1
OUT_OF_SEQUENCE: Final = -2
FENCED: Final = -3

# Producer, epoch and sequence in the header of a batch (PROTOCOL.md, section 4). The other fields
# are not read: the leader checked the whole header before it proposed the batch.
IDENTITY: Final = Struct("<8xQI4xQ")

FIRST_SEQUENCE, FIRST_OFFSET, COUNT = 0, 1, 2
Run = list[int]


class Session:
    """The state of one producer: epoch, runs (oldest first, never empty), index of its
    last entry.
    """

    __slots__ = ("epoch", "index", "runs")

    def __init__(self, epoch: int, index: int, runs: list[Run]) -> None:
        self.epoch, self.index, self.runs = epoch, index, runs

    @property
    def next_sequence(self) -> int:
        last = self.runs[-1]
        return last[FIRST_SEQUENCE] + last[COUNT]

    def add(self, sequence: int, offset: int, count: int) -> None:
        last = self.runs[-1]
        length = last[COUNT]
        if sequence == last[FIRST_SEQUENCE] + length and offset == last[FIRST_OFFSET] + length:
            last[COUNT] = length + count
            return
        self.runs.append([sequence, offset, count])
        if len(self.runs) > RUNS_MAX:
            del self.runs[0]

    def judge(self, epoch: int, sequence: int, count: int) -> int:
        """Judge a batch of this producer, as `Sessions.judge` does."""
        if epoch != self.epoch:
            if epoch < self.epoch:
                return FENCED
            return NEW if sequence == 0 else OUT_OF_SEQUENCE
        if sequence == self.next_sequence:
            return NEW
        for first_sequence, first_offset, length in reversed(self.runs):
            if first_sequence <= sequence:
                if sequence + count <= first_sequence + length:
                    return first_offset + sequence - first_sequence
                break  # only a part of it is stored: it is not a repeat
        return OUT_OF_SEQUENCE

    def packed(self) -> list[Any]:
        return [self.epoch, self.index, self.runs]


class Sessions:
    """All producers of one partition. `judge` changes nothing; `record` changes the state."""

    __slots__ = ("_by_producer", "_changed", "_forgotten", "_newest")

    def __init__(self) -> None:
        self._by_producer: OrderedDict[int, Session] = OrderedDict()  # least recently written first
        self._changed: dict[int, None] = {}  # since the last `take_changes`
        self._forgotten: dict[int, None] = {}
        self._newest = 0  # the last one that was recorded: it is in its place, and marked

    def __len__(self) -> int:
        return len(self._by_producer)

    def get(self, producer: int) -> Session | None:
        return self._by_producer.get(producer)

    def judge(self, producer: int, epoch: int, sequence: int, count: int) -> int:
        """Return NEW, OUT_OF_SEQUENCE, FENCED, or the offset that this batch already has."""
        session = self._by_producer.get(producer)
        if session is None:
            return NEW if sequence == 0 else OUT_OF_SEQUENCE
        return session.judge(epoch, sequence, count)

    def record(
        self, producer: int, epoch: int, sequence: int, count: int, offset: int, index: int
    ) -> None:
        """Record an applied batch of a producer (not 0). The leader judged it before
        proposing it.
        """
        session = self._by_producer.get(producer)
        if session is None:
            session = self._begin(producer, epoch, [sequence, offset, count])
        elif epoch == session.epoch:
            session.add(sequence, offset, count)
        elif epoch > session.epoch:
            session.epoch, session.runs = epoch, [[sequence, offset, count]]
        else:
            return  # no leader proposes it; if one did, all replicas ignore it alike
        session.index = index
        if producer != self._newest:
            self._by_producer.move_to_end(producer)
            self._changed[producer] = None
            self._newest = producer

    def _begin(self, producer: int, epoch: int, run: Run) -> Session:
        if len(self._by_producer) >= PRODUCERS_MAX:
            oldest, _ = self._by_producer.popitem(last=False)
            self._changed.pop(oldest, None)
            self._forgotten[oldest] = None
        session = self._by_producer[producer] = Session(epoch, 0, [run])
        self._forgotten.pop(producer, None)
        return session

    # -- saving --------------------------------------------------------------------------------

    def take_changes(self) -> tuple[dict[int, bytes], list[int]]:
        """Return rows of producers written since the last call, and forgotten producers."""
        by_producer = self._by_producer
        rows = {one: protocol.pack(by_producer[one].packed()) for one in self._changed}
        gone = list(self._forgotten)
        self._changed, self._forgotten, self._newest = {}, {}, 0
        return rows, gone

    def packed(self) -> Iterator[list[Any]]:
        """Yield all producers, least recently written first."""
        for producer, session in self._by_producer.items():
            yield [producer, *session.packed()]

    def become(self, packed: list[list[Any]], *, changed: bool) -> None:
        """Replace everything by `packed`. `changed`: the store gets all of it, and the
        deletions.
        """
        before = self._by_producer
        # Rows of the store come by producer; each entry has one producer, so indexes differ.
        packed.sort(key=lambda row: row[2])
        self._by_producer = OrderedDict(
            (producer, Session(epoch, index, runs)) for producer, epoch, index, runs in packed
        )
        self._newest = 0
        if changed:
            self._forgotten.update(dict.fromkeys(before))
            self._changed = dict.fromkeys(self._by_producer)
            for producer in self._changed:
                self._forgotten.pop(producer, None)
        else:
            self._changed, self._forgotten = {}, {}
