"""A partition as a broker shows it to consumers: batches by offset, answers of FETCH and OFFSETS.

For tests of the pure half of a consumer; it knows nothing of sockets.
"""

from typing import Any

from myqueue import batch
from myqueue.errors import OffsetOutOfRange


class PartitionLog:
    """Batches of values; the value of a message is its offset in decimal digits."""

    def __init__(self, group: int, start: int = 0) -> None:
        self.group = group
        self.start = self.end = start
        self.batches: list[tuple[int, bytes]] = []
        self.positions: dict[str, int] = {}

    def append(self, count: int, *, time_ms: int = 1_000) -> bytes:
        values = [str(offset).encode() for offset in range(self.end, self.end + count)]
        made = batch.make([values, None, None, None], time_ms, sequence=self.end)
        self.batches.append((self.end, made))
        self.end += count
        return made

    def cut(self, start: int) -> None:
        """Retention removed what is before this offset."""
        self.start = start
        self.batches = [row for row in self.batches if self._end_of(row) > start]

    def _end_of(self, row: tuple[int, bytes]) -> int:
        return row[0] + batch.header(row[1]).count

    def fetch(self, offset: int, max_bytes: int = 1 << 30) -> tuple[list[Any], list[bytes]]:
        """A part of FETCHED, and its frames."""
        if not self.start <= offset <= self.end:
            return [self.group, OffsetOutOfRange.code, self.start, self.end, [], None], []
        rows, size = [], 0
        for row in self.batches:
            if self._end_of(row) > offset:
                if rows and size + len(row[1]) > max_bytes:
                    break
                rows.append(row)
                size += len(row[1])
        heads = [[base, 1_000] for base, _ in rows]
        return [self.group, 0, self.start, self.end, heads, None], [frame for _, frame in rows]

    def offsets(self, who: str | None, time_ms: int | None) -> list[Any]:
        """A part of POSITIONS."""
        position = self.positions.get(who) if who else None
        times = ((batch.header(frame).time_ms, base) for base, frame in self.batches)
        at_time = next((base for at, base in times if time_ms is not None and at >= time_ms), None)
        return [self.group, 0, self.start, self.end, position, at_time, 0]

    def commit(self, who: str, offset: int) -> list[Any]:
        """A part of COMMITTED."""
        self.positions[who] = max(offset, self.positions.get(who, 0))
        return [self.group, 0, self.positions[who], None]
