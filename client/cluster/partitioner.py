"""Choose the partition of a message whose sender did not.

With a key: CRC-32 of the key (zlib's, the polynomial of gzip), modulo the number of partitions.
Equal keys share a partition, and so an order, as long as the topic does not grow. This is part of
the contract: it is the same in all versions and easy to compute in any other language.

Without a key: the partition that got the fewest messages so far, the lowest number among equals.
For single messages that is round-robin. Messages that gather in batches stay together in runs (one
full batch costs less than eight small ones), and the next run goes to the partition with the fewest
messages: fair over time for any lengths of runs. A partition that is added later starts with the
smallest count, so it is not flooded to catch up. A partition that cannot take messages now (it has
no leader) is avoided as long as there are others, and later starts again in the same way.

    >>> spread = Spread(3)
    >>> [spread.next(count) for count in (1, 5, 1, 1)]
    [0, 1, 2, 0]
"""

from __future__ import annotations

from zlib import crc32

_64_BITS = (1 << 64) - 1


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key."""
    return crc32(key) % partitions


def jump_hash(name: bytes, partitions: int) -> int:
    """The partition of a name of 8 bytes or more; one more partition moves as few as possible.

    The jump consistent hash of Lamping and Veach: it jumps to later partitions with the probability
    of each, and stops before the first that does not exist.

    >>> [jump_hash(b"customer 4", count) for count in (1, 2, 3, 8)]
    [0, 0, 0, 0]
    """
    seed, chosen, jump = int.from_bytes(name[:8], "big"), -1, 0
    while jump < partitions:
        chosen = jump
        seed = (seed * 2862933555777941757 + 1) & _64_BITS
        jump = int((chosen + 1) * ((1 << 31) / ((seed >> 33) + 1)))
    return chosen


class Spread:
    """Spreads messages without a key over the partitions of one topic. Not thread-safe."""

    __slots__ = ("avoided", "given")

    def __init__(self, partitions: int) -> None:
        self.given = [0] * partitions
        self.avoided: set[int] = set()

    def grow(self, partitions: int) -> None:
        behind = min(self.given, default=0)
        self.given += [behind] * (partitions - len(self.given))

    def choose(self) -> int:
        """Choose the partition of the next run; report its messages with `count`."""
        if 0 < len(self.avoided) < len(self.given):
            open_ = (at for at in range(len(self.given)) if at not in self.avoided)
            return min(open_, key=self.given.__getitem__)
        return self.given.index(min(self.given))

    def avoid(self, partition: int) -> None:
        self.avoided.add(partition)

    def welcome(self, partition: int) -> None:
        """Choose a partition again that was avoided, without catching up."""
        if partition in self.avoided:
            self.avoided.discard(partition)
            others = (n for at, n in enumerate(self.given) if at not in self.avoided | {partition})
            self.given[partition] = max(self.given[partition], min(others, default=0))

    def count(self, partition: int, messages: int) -> None:
        self.given[partition] += messages

    def next(self, messages: int = 1) -> int:
        partition = self.choose()
        self.given[partition] += messages
        return partition
