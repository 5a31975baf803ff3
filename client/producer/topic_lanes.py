"""A topic as a producer knows it: a lane for each partition, and which one a message goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from myqueue.cluster.partitioner import Spread, partition_of
from myqueue.cluster.routing import Topic
from myqueue.errors import InvalidRequest
from myqueue.producer.accumulator import Accumulator
from myqueue.producer.conversion import MESSAGE_BYTES_MAX
from myqueue.producer.lane import Lane

L = TypeVar("L", Lane, None)


class TopicLanes:
    """The lanes of one topic.

    Any thread reads them without a lock, because `lanes` is a tuple that is replaced, never
    changed. It always has a lane for each partition of `topic`: a message must never see a part of
    it, since the number of lanes decides where a key belongs. `grow` and `lane_for_unkeyed` need
    the producer's lock.
    """

    __slots__ = ("is_gone", "lanes", "limit", "spread", "sticky", "topic")

    def __init__(self, topic: Topic, accumulator: Accumulator, batch_bytes: int) -> None:
        self.topic = topic
        limit = topic.settings.get("message_bytes_max")
        self.limit = min(limit, MESSAGE_BYTES_MAX) if type(limit) is int else MESSAGE_BYTES_MAX
        self.spread = Spread(0)
        self.is_gone = False
        self.lanes: tuple[Lane, ...] = ()
        self.sticky: Lane  # where messages without a key go now
        self.grow(topic, accumulator, batch_bytes)

    def grow(self, topic: Topic, accumulator: Accumulator, batch_bytes: int) -> None:
        size = min(batch_bytes, self.limit)
        added = tuple(
            accumulator.add_lane(
                Lane(topic.name, part.number, part.group, size, self.spread, accumulator.backoff_ms)
            )
            for part in topic.partitions[len(self.lanes) :]
        )
        self.spread.grow(len(topic.partitions))
        # The topic first: a thread that sees a lane then finds its partition.
        self.topic = topic
        self.lanes += added
        self.sticky = self.lanes[self.spread.choose()]

    def lane_for_unkeyed(self, size: int, accumulator: Accumulator) -> Lane:
        """Choose where a message goes that has neither key nor partition.

        It joins the last such message as long as that one's batch is open and has room, and its
        partition is not avoided.
        """
        lane = self.sticky
        batch = lane.open
        if batch is not None and not batch.has_room(size):
            accumulator.seal(lane)
            batch = None
        if batch is None or lane.partition in self.spread.avoided:
            lane = self.sticky = self.lanes[self.spread.choose()]
        return lane

    def lane_of(self, key: bytes | None, partition: int | None) -> Lane:
        """Choose where a message goes that has a key or names its partition."""
        lanes = self.lanes
        if partition is None:
            return lanes[partition_of(key or b"", len(lanes))]
        if type(partition) is not int or not 0 <= partition < len(lanes):
            raise InvalidRequest(
                f"{self.topic.name} has partitions 0 to {len(lanes) - 1}, not {partition}"
            )
        return lanes[partition]

    def by_lane(
        self, keys: Sequence[bytes | None], partition: int | None, unkeyed: L
    ) -> dict[Lane | L, list[int]]:
        """Split a list: the indexes of each lane's messages; those without key go to `unkeyed`."""
        if partition is not None:
            return {self.lane_of(None, partition): list(range(len(keys)))}
        lanes = self.lanes
        count = len(lanes)
        indexes: dict[Lane | L, list[int]] = {}
        for index, key in enumerate(keys):
            lane = unkeyed if key is None else lanes[partition_of(key, count)]
            indexes.setdefault(lane, []).append(index)
        return indexes
