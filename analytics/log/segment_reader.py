"""Read a segment record by record. Pure except for the `read` function that comes in.

A `Walk` yields verified records until the next bytes are not one, and says what they are. It may
begin at any position: it finds the first record from there on by its checksum, which covers the
position and the segment's uid, so no other bytes can be taken for a record. Therefore several tasks
can read one big segment: the task of the range [begin, end) has the records whose headers begin in
it.

A walk reads in windows, so memory does not depend on the size of a segment or of a range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from myqueue.errors import FormatUnknown
from myqueue.wal import format as f

WINDOW_BYTES = 4 << 20
_ZEROS = bytes(WINDOW_BYTES)
HEADER = f.RECORD_HEADER_BYTES
Read = Callable[[int, int], bytes]  # (position, length) -> bytes, fewer at the end of the file

END, NO_RECORD, BAD_PAYLOAD, CUT_SHORT = "end", "no valid record", "payload checksum", "file ends"


class Walk:
    """One pass over a segment. `position` and `problem` say where and why `records` ended."""

    def __init__(self, read: Read, uid: int, capacity: int, position: int = 0) -> None:
        self._read = read
        self.seed = f.segment_seed(uid)
        self.limit = capacity - HEADER  # the trailer's place is not a record's
        self.position = max(position, f.SEGMENT_HEADER_BYTES)
        self.problem = END
        self.bad: f.Record | None = None  # with BAD_PAYLOAD: whose payload it is

    def records(self, until: int, payloads: bool = True) -> Iterator[tuple[f.Record, memoryview]]:
        """Yield records that begin before `until`. Without `payloads`, payloads are unchecked."""
        record_at, is_right = f.record_at, f.payload_is_right
        seed, limit, position = self.seed, self.limit, self.position
        window, base = memoryview(b""), position
        until = min(until, limit - HEADER + 1)
        self.problem, self.bad = END, None
        while position < until:
            at = position - base
            if at + HEADER > len(window):
                window, base, at = self._window(position, HEADER), position, 0
            record = record_at(window, at, position, seed)
            if record is None:
                self.problem = _judged(window[at : at + HEADER])
                return
            end = at + HEADER + record.length
            if end > len(window):
                if record.end > limit:
                    self.problem, self.bad = BAD_PAYLOAD, record
                    return
                window, base, at = self._window(position, HEADER + record.length), position, 0
                end = HEADER + record.length
            payload = window[at + HEADER : end]
            if payloads and not is_right(record, payload):
                self.problem = BAD_PAYLOAD if len(payload) == record.length else CUT_SHORT
                self.bad = record
                return
            position = self.position = record.end
            yield record, payload

    def _window(self, position: int, least: int) -> memoryview:
        return memoryview(self._read(position, max(least, WINDOW_BYTES)))

    def stands_record(self, position: int) -> bool:
        """Whether a valid header begins here."""
        if position + HEADER > self.limit:
            return False
        return f.record_at(self._read(position, HEADER), 0, position, self.seed) is not None

    def find(self, sign: bytes, position: int) -> Iterator[f.Record]:
        """Valid headers with this magic (and kind) that begin at `position` or later."""
        base = position
        while base + HEADER <= self.limit:
            window = self._read(base, min(WINDOW_BYTES, self.limit - base))
            if len(window) < HEADER:
                return
            at = window.find(sign, 8)
            while at >= 0:
                record = f.record_at(window, at - 8, base + at - 8, self.seed)
                if record is not None:
                    yield record
                at = window.find(sign, at + 1)
            base += len(window) - HEADER + 1

    def seek(self, position: int) -> None:
        """Go to the first record from here on, or to the end if there is none."""
        if position <= f.SEGMENT_HEADER_BYTES:
            self.position = f.SEGMENT_HEADER_BYTES
            return
        record = next(self.find(f.RECORD_SIGN, position), None)
        self.position = self.limit if record is None else record.position

    def last_nonzero(self) -> int:
        """The position after the last byte that is not zero, from here to the trailer's place."""
        at, last = self.position, self.position
        while at < self.limit:
            window = self._read(at, min(WINDOW_BYTES, self.limit - at))
            if not window:
                break
            if window != _ZEROS[: len(window)]:  # one comparison of memory: most of it is zeros
                last = at + len(window.rstrip(b"\0"))
            at += len(window)
        return last


def _judged(header: memoryview) -> str:
    if len(header) < HEADER:
        return CUT_SHORT
    return END if not any(header) else NO_RECORD


class Seal(NamedTuple):
    """The trailer and footer of a sealed segment; `rows` is None if the footer is damaged."""

    footer_at: int
    rows: list[f.FooterRow] | None


def seal_of(read: Read, uid: int, capacity: int) -> Seal | None:
    """Read trailer and footer; None while the segment is open."""
    position, seed = capacity - HEADER, f.segment_seed(uid)
    if position < f.SEGMENT_HEADER_BYTES:  # a file that was cut short
        return None
    trailer = _record(read, position, seed, f.TRAILER)
    if trailer is None or not f.payload_is_right(trailer, b""):
        return None
    footer = _record(read, trailer.offset, seed, f.FOOTER)
    if footer is None:
        return Seal(trailer.offset, None)
    payload = read(footer.position + HEADER, footer.length)
    if not f.payload_is_right(footer, payload):
        return Seal(trailer.offset, None)
    return Seal(trailer.offset, f.decode_footer(payload))


def left_by(read: Read, uid: int) -> int:
    """Where writing left the segment before without a footer, by the first mark; else 0."""
    mark = _record(read, f.SEGMENT_HEADER_BYTES, f.segment_seed(uid), f.MARK)
    return 0 if mark is None else mark.chain


def is_used(read: Read, uid: int) -> bool:
    """Whether any byte is written at the first record's place."""
    return any(read(f.SEGMENT_HEADER_BYTES, HEADER))


def _record(read: Read, position: int, seed: int, kind: int) -> f.Record | None:
    try:
        record = f.record_at(read(position, HEADER), 0, position, seed)
    except FormatUnknown:
        return None
    return record if record is not None and record.kind == kind else None
