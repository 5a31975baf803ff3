"""A partition as a broker shows it to consumers, and a bench that reads such partitions.

For tests of the pure half of a consumer; nothing here knows of sockets.
"""

from itertools import islice
from typing import Any

from myqueue.consumer.fetch_plan import OffsetsRequest
from myqueue.consumer.message import Message, TopicPartition
from myqueue.consumer.subscription import PartitionRoute, Subscription
from myqueue.errors import OffsetOutOfRange
from myqueue.wire import batch


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
        """Remove messages before this offset, as retention does."""
        self.start = start
        self.batches = [row for row in self.batches if self._end_of(row) > start]

    def _end_of(self, row: tuple[int, bytes]) -> int:
        return row[0] + batch.header(row[1]).count

    def fetch(self, offset: int, max_bytes: int = 1 << 30) -> tuple[list[Any], list[bytes]]:
        """Return a part of FETCHED, and its frames."""
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
        """Return a part of POSITIONS."""
        position = self.positions.get(who) if who else None
        times = ((batch.header(frame).time_ms, base) for base, frame in self.batches)
        at_time = next((base for at, base in times if time_ms is not None and at >= time_ms), None)
        return [self.group, 0, self.start, self.end, position, at_time, 0]

    def commit(self, who: str, offset: int) -> list[Any]:
        """Return a part of COMMITTED."""
        self.positions[who] = max(offset, self.positions.get(who, 0))
        return [self.group, 0, self.positions[who], None]


A, B = "tcp://a", "tcp://b"


class Bench:
    """A subscription to topic "t" whose partitions are PartitionLogs at addresses."""

    def __init__(self, leaders: list[str], *, who: str = "", **options: Any) -> None:
        self.now = 0
        self.logs = {100 + number: PartitionLog(100 + number) for number in range(len(leaders))}
        self.sub = Subscription({"t": who}, **options)
        self.route(leaders)

    def route(self, leaders: list[str]) -> None:
        groups = zip(sorted(self.logs), leaders, strict=False)
        self.sub.set_routes(
            "t", self.now, [PartitionRoute(g - 100, g, leader) for g, leader in groups]
        )

    def requests(self) -> list[Any]:
        return self.sub.fetch_plan.requests(self.now)

    def answer(self, request: Any) -> None:
        if isinstance(request, OffsetsRequest):
            who, time_ms, groups = request.fields
            rows = [self.logs[group].offsets(who, time_ms) for group in groups]
            self.sub.fetch_plan.on_offsets(request, rows, self.now)
        else:
            answers = [self.logs[group].fetch(offset) for group, offset in request.fields[3]]
            rows = [row for row, _ in answers]
            frames = [frame for _, own in answers for frame in own]
            self.sub.fetch_plan.on_fetched(request, rows, frames, self.now)

    def turn(self) -> None:
        for request in self.requests():
            self.answer(request)
        for reading in self.sub.partitions.values():
            reading.check_invariants()

    def take(self, count: int = 1 << 30) -> list[Message]:
        """Take messages as `poll` does: run after run, up to `count`."""
        out: list[Message] = []
        while len(out) < count and (run := self.sub.next_run(self.now)) is not None:
            out += islice(run, count - len(out))
        return out

    def read(self, turns: int = 5) -> list[Message]:
        out = []
        for _ in range(turns):
            self.turn()
            out += self.take()
        return out

    def position(self, number: int = 0) -> int | None:
        return self.sub.partition(TopicPartition("t", number)).position


def offsets(messages: list[Message], number: int = 0) -> list[int]:
    assert all(int(message.value) == message.offset for message in messages)
    return [message.offset for message in messages if message.partition == number]
