"""The footer of one segment, counted record by record.

The journal counts while it writes, recovery and the tools count while they read, so a footer can be
compared with what stands in its segment.
"""

from __future__ import annotations

from myqueue.wal import format as f


class SegmentRows:
    """Footer rows of one segment, kept while it is written (or read by recovery)."""

    __slots__ = ("by_group",)

    def __init__(self) -> None:
        # group -> [first index, last index, first offset, next offset, last term, first time,
        #           last time, entries, bytes, kinds]
        self.by_group: dict[int, list[int]] = {}

    def note(self, record: f.Record) -> None:
        """Count any record of a group."""
        if record.kind == f.ENTRY:
            self.entries(
                record.group,
                record.index,
                record.index,
                record.offset,
                record.offset + record.count,
                record.term,
                record.time_ms,
                record.time_ms,
                1,
                f.RECORD_HEADER_BYTES + record.length,
            )
        else:
            self.row_of(record.group)[9] |= f.footer_bits(record.kind, record.flags)

    def row_of(self, group: int) -> list[int]:
        """Return the row of a group; a new one if it has none."""
        row = self.by_group.get(group)
        if row is None:
            row = self.by_group[group] = [0] * 10
        return row

    def entries(
        self,
        group: int,
        first_index: int,
        last_index: int,
        first_offset: int,
        next_offset: int,
        last_term: int,
        first_time: int,
        last_time: int,
        entries: int,
        size: int,
    ) -> None:
        """Count a run of entries; relocated entries may be older than the entries before them."""
        row = self.row_of(group)
        if not row[7]:
            row[0], row[2], row[5] = first_index, first_offset, first_time
        elif first_index < row[0]:
            row[0], row[2] = first_index, first_offset
        if last_index >= row[1]:
            row[1], row[3], row[4] = last_index, next_offset, last_term
        if first_time < row[5]:
            row[5] = first_time
        if last_time > row[6]:
            row[6] = last_time
        row[7] += entries
        row[8] += size
        row[9] |= 1 << f.ENTRY

    def footer(self) -> list[f.FooterRow]:
        """Return the footer's rows, sorted by group."""
        return [f.FooterRow(group, *row) for group, row in sorted(self.by_group.items())]

    def footer_bytes(self) -> int:
        """Return the bytes that the end of the segment needs: mark, footer, trailer."""
        return 3 * f.RECORD_HEADER_BYTES + len(self.by_group) * f.FOOTER_ROW_BYTES
