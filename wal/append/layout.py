"""Where the next record goes: the open segment, its tail, and the rows of its footer.

Appends come in, encoded records go out in a batch; nothing here does IO. A segment always keeps
room for its own end: a mark, the footer with a row for each group that has a record in it, and the
trailer. `limit` is the position that records may reach.
"""

from __future__ import annotations

from collections.abc import Sequence

from myqueue.checksum import crc32
from myqueue.wal import format as f
from myqueue.wal.append.entry_checks import Entry
from myqueue.wal.append.writer import Batch
from myqueue.wal.footer_rows import SegmentRows
from myqueue.wal.groups import Relocated, RowTuple

_HEADER = f.RECORD_HEADER_BYTES


class Layout:
    """The open segment and the open batch in it. `tail` is the position of the next record."""

    __slots__ = (
        "batch",
        "capacity",
        "abandoned_at",
        "limit",
        "name",
        "next_batch",
        "number",
        "rows",
        "seed",
        "tail",
        "uid",
    )

    def __init__(
        self, number: int, uid: int, capacity: int, tail: int, rows: SegmentRows, next_batch: int
    ) -> None:
        self.number, self.uid, self.capacity = number, uid, capacity
        self.name, self.seed = f.segment_name(number, uid), f.segment_seed(uid)
        self.tail, self.rows, self.next_batch = tail, rows, next_batch
        self.limit = capacity - rows.footer_bytes()
        # For the first mark of this segment: where the log abandoned the one before it.
        self.abandoned_at = 0
        self.batch: Batch | None = None

    def begin(self) -> Batch:
        """Open a batch at the tail and reserve the place of its mark."""
        batch = Batch(self.next_batch, self.number, self.name, self.seed, self.tail)
        self.next_batch += 1
        batch.abandoned_at, self.abandoned_at = self.abandoned_at, 0
        self.tail = batch.end
        self.batch = batch
        return batch

    def take_batch(self) -> Batch | None:
        """Close and return the open batch; None if there is none. An empty one frees its place."""
        batch, self.batch = self.batch, None
        if batch is None:
            return None
        if not batch.records:
            self.tail, self.abandoned_at = batch.position, batch.abandoned_at
            return None
        batch.end = self.tail
        return batch

    def fits(self, group: int, payload_bytes: int) -> bool:
        """Whether one more record may go here. If so, a new group's footer row is reserved."""
        end = self.tail + _HEADER + payload_bytes + (_HEADER if self.batch is None else 0)
        has_row = group in self.rows.by_group
        if end > self.limit - (0 if has_row else f.FOOTER_ROW_BYTES):
            return False
        if not has_row:
            self.rows.row_of(group)
            self.limit -= f.FOOTER_ROW_BYTES
        return True

    def encode(self, uid: int, entries: Sequence[Entry], done: int, flags: int) -> int:
        """Encode entries from number `done` on into the batch, as many as fit; return how far.

        The journal's hot loop: header fields are packed here rather than by `format`.
        """
        if not self.fits(uid, len(entries[done][7])):
            return done
        pack_body, pack_crcs, crc = f.pack_body, f.pack_crcs, crc32
        batch = self.batch or self.begin()
        buffers, rows = batch.buffers, _rows_of(batch, bool(flags))
        position, limit, seed, number = self.tail, self.limit, self.seed, self.number
        first, began = done, position
        buffers_before, rows_before = len(buffers), len(rows)
        time_min, time_max = 2**64, 0
        try:
            for at in range(done, len(entries)):
                index, term, offset, count, time_ms, entry_type, chain, payload = entries[at]
                length = len(payload)
                end = position + 72 + length
                if end > limit:
                    break
                body = pack_body(
                    0x514D,
                    1,
                    entry_type << 4 | flags,
                    length,
                    position,
                    count,
                    uid,
                    index,
                    term,
                    offset,
                    time_ms,
                    chain,
                )
                header_crc = crc(body, seed)
                buffers += (pack_crcs(header_crc, crc(payload, header_crc)) + body, payload)
                rows.append(
                    (uid, index, number, position, length, count, offset, term, time_ms, chain)
                )
                if time_ms < time_min:
                    time_min = time_ms
                if time_ms > time_max:
                    time_max = time_ms
                position = end
                done += 1
        except BaseException:  # undo all of it, or the next record would be at a wrong position
            del buffers[buffers_before:], rows[rows_before:]
            raise
        head, last = entries[first], entries[done - 1]
        self.rows.entries(
            uid,
            head[0],
            last[0],
            head[2],
            last[2] + last[3],
            last[1],
            time_min,
            time_max,
            done - first,
            position - began,
        )
        self.tail = position
        batch.records += done - first
        if not flags:
            batch.tails[uid] = (last[1], last[0])
        return done

    def sealing_batch(self) -> Batch:
        """Return the last batch of the segment: the footer, and the trailer that seals it."""
        rows = self.rows.footer()
        payload = f.encode_footer(rows)
        batch = self.begin()
        header = f.encode_record(self.seed, f.FOOTER, self.tail, payload, count=len(rows))
        batch.buffers += (header, payload)
        batch.records = 1
        position = self.capacity - _HEADER
        trailer = f.encode_record(self.seed, f.TRAILER, position, offset=self.tail)
        batch.trailer = (position, trailer)
        self.tail += len(header) + len(payload)
        self.batch = None
        batch.end = self.tail
        return batch


def _rows_of(batch: Batch, relocated: bool) -> list[RowTuple]:
    """Return the list of rows that the batch's next entries go to."""
    last = batch.ops[-1] if batch.ops else None
    if isinstance(last, list) and isinstance(last, Relocated) == relocated:
        return last
    rows: list[RowTuple] = Relocated() if relocated else []
    batch.ops.append(rows)
    return rows
