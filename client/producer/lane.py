"""The lane: the batches of one partition, in order."""

from __future__ import annotations

from collections import deque
from typing import Final

from myqueue.cluster.partitioner import Spread
from myqueue.cluster.repeats import Pauses, Rule
from myqueue.producer.batch import Batch
from myqueue.settings import ProducerSettings

PAUSE_MS_MAX: Final = 1_000
AVOID_MS: Final = 100  # longer than it takes to connect, shorter than an election


class Lane:
    """The batches of one partition; all that are not settled are in `flight`, `queue` or `open`."""

    __slots__ = (
        *("topic", "partition", "group", "batch_bytes", "spread"),
        *("open", "queue", "flight", "next_sequence", "gap"),
        *("retry_at", "pauses", "address", "blocked_since"),
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        group: int,
        batch_bytes: int,
        spread: Spread,
        backoff_ms: int = ProducerSettings.retry_backoff_ms,
    ) -> None:
        self.topic, self.partition, self.group = topic, partition, group
        self.batch_bytes, self.spread = batch_bytes, spread
        self.open: Batch | None = None
        self.queue: deque[Batch] = deque()  # sealed, no sequence
        self.flight: deque[Batch] = deque()  # has sequences
        self.next_sequence = 0
        self.gap = -1  # sequence of the first batch that was given up
        self.retry_at = 0  # ms of the session's clock; nothing is sent before
        # Between attempts, since something was stored.
        self.pauses = Pauses(Rule(backoff_ms, max(backoff_ms, PAUSE_MS_MAX)))
        self.address = ""  # of the broker that got its last batch
        self.blocked_since = -1  # since when nothing can be sent; -1: it can

    def note_blocked(self, now: int) -> None:
        """Note that nothing can be sent; after AVOID_MS keyless messages avoid this lane."""
        if self.blocked_since < 0:
            self.blocked_since = now
        elif now - self.blocked_since >= AVOID_MS:
            self.spread.avoid(self.partition)

    def note_sendable(self, address: str) -> None:
        """Note that the broker at this address gets the lane's next batches."""
        self.address, self.blocked_since = address, -1
        self.spread.welcome(self.partition)

    def note_nothing_to_send(self) -> None:
        """Forget the broker and that the lane was blocked: the next message tries it again."""
        self.note_sendable("")

    @property
    def has_unsettled(self) -> bool:
        return bool(self.flight or self.queue or self.open is not None)

    def unsettled(self) -> list[Batch]:
        return [*self.flight, *self.queue, *([self.open] if self.open is not None else [])]
