"""Reading a segment from start to end.

A `Scan` yields verified records until it meets something else, and says what that is. It reads in
windows, so memory does not depend on the size of the segment, and it never writes. `recovery`
decides what the end means; `verify` and `dump` only report it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from myqueue.errors import FormatUnknown
from myqueue.wal import format as f

WINDOW_BYTES = 4 << 20
Read = Callable[[int, int], bytes]  # (position, length) -> bytes, fewer at the end of the file

END, NO_RECORD, BAD_PAYLOAD, CUT_SHORT = "end", "no valid record", "payload checksum", "file ends"


class Scan:
    """One pass over one segment. `position` and `problem` say where and why `records()` ended.

    `batch_end` is the position where the batch of the last MARK ends. A segment that ends before it
    lost a part of that batch.
    """

    def __init__(self, read: Read, uid: int, capacity: int, position: int | None = None) -> None:
        self._read = read
        self.seed = f.segment_seed(uid)
        self.limit = capacity - f.RECORD_HEADER_BYTES  # the trailer's place is not a record's
        self.position = f.SEGMENT_HEADER_BYTES if position is None else position
        self.problem = END
        self.bad: f.Record | None = None  # the record whose payload is bad or cut short
        self.batch_end = self.position
        self.proven = 0  # what the marks read so far prove to be synced
        self.flush_number = 0
        self.footer: f.Record | None = None

    def records(self) -> Iterator[tuple[f.Record, memoryview]]:
        """Yield records with their payloads; may be called again after `position` was moved."""
        window, base = memoryview(b""), self.position
        while True:
            at = self.position - base
            if self.position + f.RECORD_HEADER_BYTES > self.limit:
                self.problem = END
                return
            if at + f.RECORD_HEADER_BYTES > len(window):
                window, base, at = self._window(f.RECORD_HEADER_BYTES), self.position, 0
            record = f.record_at(window, at, self.position, self.seed)
            if record is None:
                self.problem = self._judge(window[at : at + f.RECORD_HEADER_BYTES])
                return
            payload_end = at + f.RECORD_HEADER_BYTES + record.length
            if payload_end > len(window):
                if record.end > self.limit:
                    self.problem, self.bad = BAD_PAYLOAD, record
                    return
                window, base, at = self._window(record.end - self.position), self.position, 0
                payload_end = f.RECORD_HEADER_BYTES + record.length
            payload = window[at + f.RECORD_HEADER_BYTES : payload_end]
            if not f.payload_is_right(record, payload):
                self.problem = BAD_PAYLOAD if len(payload) == record.length else CUT_SHORT
                self.bad = record
                return
            if record.kind == f.MARK:
                self.batch_end = record.end + record.offset
                self.proven = max(self.proven, record.term)
                self.flush_number = max(self.flush_number, record.index)
            elif record.kind == f.FOOTER:
                self.footer = record
            self.position = record.end
            yield record, payload

    def _window(self, least: int) -> memoryview:
        return memoryview(self._read(self.position, max(least, WINDOW_BYTES)))

    def _judge(self, header: memoryview) -> str:
        if len(header) < f.RECORD_HEADER_BYTES:
            return CUT_SHORT
        return END if not any(header) else NO_RECORD

    def last_nonzero(self) -> int:
        """Position after the last byte, from here to the trailer's place, that is not zero."""
        at, last = self.position, self.position
        while at < self.limit:
            window = self._read(at, min(WINDOW_BYTES, self.limit - at))
            if not window:
                break
            kept = len(window.rstrip(b"\0"))
            if kept:
                last = at + kept
            at += len(window)
        return last

    def find(self, sign: bytes) -> Iterator[f.Record]:
        """Yield valid records that begin with `sign` (magic, or with kind) after `position`."""
        base = self.position + 1
        while base + f.RECORD_HEADER_BYTES <= self.limit:
            window = self._read(base, min(WINDOW_BYTES, self.limit - base))
            if len(window) < f.RECORD_HEADER_BYTES:
                return
            at = window.find(sign, 8)
            while at >= 0:
                record = f.record_at(window, at - 8, base + at - 8, self.seed)
                if record is not None:
                    yield record
                at = window.find(sign, at + 1)
            base += len(window) - f.RECORD_HEADER_BYTES + 1

    def proven_by_later_marks(self) -> int:
        """Return the position up to which marks after `position` prove the segment to be synced."""
        return max((mark.term for mark in self.find(f.MARK_SIGN)), default=0)


def trailer_of(read: Read, uid: int, capacity: int) -> f.Record | None:
    """Return the TRAILER that seals a segment, or None while it is open."""
    position = capacity - f.RECORD_HEADER_BYTES
    if position < f.SEGMENT_HEADER_BYTES:  # a file that was cut short
        return None
    raw = read(position, f.RECORD_HEADER_BYTES)
    record = f.record_at(raw, 0, position, f.segment_seed(uid))
    if record is None or record.kind != f.TRAILER or not f.payload_is_right(record, b""):
        return None
    return record


def previous_abandoned_at(read: Read, uid: int) -> int:
    """Return where the log abandoned the previous segment, by the first mark of this one, or 0."""
    position = f.SEGMENT_HEADER_BYTES
    raw = read(position, f.RECORD_HEADER_BYTES)
    try:
        record = f.record_at(raw, 0, position, f.segment_seed(uid))
    except FormatUnknown:
        return 0
    return record.chain if record is not None and record.kind == f.MARK else 0


def footer_of(read: Read, uid: int, trailer: f.Record) -> list[f.FooterRow] | None:
    """Return the rows of a sealed segment's footer, None if the footer is damaged."""
    seed = f.segment_seed(uid)
    record = f.record_at(read(trailer.offset, f.RECORD_HEADER_BYTES), 0, trailer.offset, seed)
    if record is None or record.kind != f.FOOTER:
        return None
    payload = read(record.position + f.RECORD_HEADER_BYTES, record.length)
    return f.decode_footer(payload) if f.payload_is_right(record, payload) else None
