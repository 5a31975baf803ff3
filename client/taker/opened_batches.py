"""`OpenedBatches`: the messages of taken batches, of which the newest stay unpacked.

Comes in: a batch as it came over the wire, and the offsets that were taken from it. Goes out: these
messages, or the error that tells a batch damaged on its way from one that no copy can mend.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from myqueue.cluster.routing import Partition
from myqueue.consumer.message import Message, messages_of
from myqueue.errors import BatchInvalid, BatchUnreadable, CorruptData
from myqueue.wire import batch

OPENED_MAX: Final = 64  # opened batches that are kept: the next message is often in one
OPENED_BYTES_MAX: Final = 64 << 20  # memory that they may take
ITEM_BYTES: Final = 64  # memory of an object in a column, without its content


class _OpenedBatch:
    """An unpacked batch; its messages are made when they are taken."""

    __slots__ = ("bytes", "columns", "time_ms")

    def __init__(self, head: batch.Header, columns: batch.Columns) -> None:
        self.time_ms, self.columns = head.time_ms, columns
        kinds = sum(column is not None for column in columns)
        self.bytes = head.body_bytes + head.count * kinds * ITEM_BYTES


class OpenedBatches:
    """Opens batches; the next message is often in one that was opened just now."""

    def __init__(self) -> None:
        self._opened: OrderedDict[tuple[int, int], _OpenedBatch] = OrderedDict()

    def messages(
        self, partition: Partition, offset: int, frame: batch.Buffer, first: int, end: int
    ) -> list[Message]:
        """Return messages first … end - 1, as far as this batch has them."""
        place = (partition.group, offset)
        opened = self._opened.get(place)
        if opened is None:
            try:
                opened = _OpenedBatch(*batch.open_batch(frame))
            except BatchInvalid as error:
                raise _damage(partition, offset, frame, error) from None
            if len(opened.columns.values) > 1:
                self._keep(place, opened)
        begin = max(0, first - offset)
        columns = batch.part_of(opened.columns, begin, max(0, end - offset))
        run = messages_of(
            partition.topic, partition.number, offset + begin, opened.time_ms, columns
        )
        return list(run.messages)

    def _keep(self, place: tuple[int, int], opened: _OpenedBatch) -> None:
        """Keep an opened batch, and drop the oldest ones by number and memory.

        A batch can take many times its packed size. The newest one always stays.
        """
        kept = self._opened
        kept[place] = opened
        memory = sum(one.bytes for one in kept.values())
        while len(kept) > 1 and (len(kept) > OPENED_MAX or memory > OPENED_BYTES_MAX):
            memory -= kept.popitem(last=False)[1].bytes


def _damage(
    partition: Partition, offset: int, frame: batch.Buffer, why: BatchInvalid
) -> CorruptData:
    """Make the error: CorruptData if the batch was damaged on its way, so a repeat may help and it
    is never skipped; else BatchUnreadable.
    """
    if not batch.is_whole(frame):
        return CorruptData(f"{partition.topic}/{partition.number} at {offset}: {why}")
    count = batch.header(frame).count
    return BatchUnreadable.at(
        partition.topic,
        partition.number,
        offset,
        count,
        why,
        hint='To go on after it: take with on_damaged="skip", or commit offset '
        f"{offset + count} for this consumer.",
    )
