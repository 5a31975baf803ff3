"""A topic as a producer knows it: a lane for each partition, and which one a message goes to."""

from __future__ import annotations

from collections.abc import Sequence

from myqueue.accumulator import Accumulator, Lane
from myqueue.errors import InvalidRequest
from myqueue.intake import MESSAGE_BYTES_MAX, plain
from myqueue.partitioner import Spread, partition_of
from myqueue.routing import Topic


class Place:
    """One topic, as this producer knows it."""

    __slots__ = ("is_gone", "lanes", "limit", "spread", "sticky", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        limit = topic.settings.get("message_bytes_max")
        self.limit = min(limit, MESSAGE_BYTES_MAX) if type(limit) is int else MESSAGE_BYTES_MAX
        self.spread = Spread(0)
        self.is_gone = False
        self.lanes: list[Lane] = []
        self.sticky: Lane  # where messages without a key go just now

    def grow(self, topic: Topic, accumulator: Accumulator, batch_bytes: int) -> None:
        self.topic = topic
        self.spread.grow(len(topic.partitions))
        for partition in topic.partitions[len(self.lanes) :]:
            size = min(batch_bytes, self.limit)
            lane = Lane(topic.name, partition.number, partition.group, size, self.spread)
            self.lanes.append(accumulator.add_lane(lane))
        self.sticky = self.lanes[self.spread.choose()]


def lane_of(place: Place, key: bytes | None, partition: int | None) -> Lane:
    if partition is None:
        return place.lanes[partition_of(key or b"", len(place.lanes))]
    if type(partition) is not int or not 0 <= partition < len(place.lanes):
        count = len(place.lanes)
        raise InvalidRequest(f"{place.topic.name} has partitions 0 to {count - 1}, not {partition}")
    return place.lanes[partition]


def by_lane(
    place: Place, values: list[bytes], keys: Sequence[bytes | str | None], partition: int | None
) -> list[tuple[Lane | None, list[bytes], list[bytes | None]]]:
    """The list, partition by partition; None for those without a key."""
    plain_keys = [key if key is None else plain(key, "key") for key in keys]
    if partition is not None:
        return [(lane_of(place, None, partition), values, plain_keys)]
    count = len(place.lanes)
    found: dict[int, tuple[list[bytes], list[bytes | None]]] = {}
    for value, key in zip(values, plain_keys, strict=True):
        some = found.setdefault(-1 if key is None else partition_of(key, count), ([], []))
        some[0].append(value)
        some[1].append(key)
    return [(place.lanes[at] if at >= 0 else None, *some) for at, some in found.items()]
