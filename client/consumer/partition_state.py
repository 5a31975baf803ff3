"""The state of one partition that a consumer reads: offsets, fetched batches, group epochs. Pure.

A consumer is correct as long as three offsets keep this order:

    committed  ≤  position  ≤  next_offset
                  │            └ to fetch next: the offset after everything that is buffered
                  └ the offset after the last message that the application got

Between position and next_offset lie the *opened* batch, as an iterator over its messages, and the
*buffered* batches, still packed. The position is not counted message by message: it is `opened_end`
minus the messages left in the iterator, and a list iterator knows how many are left. So handing out
a message is one step of C code, whether the application iterates or polls. No message is handed out
twice: there is only one iterator, and a seek exhausts it, so a loop that still holds it ends.

Comes in: batches, answers and what the application wants. Goes out: messages, and the position to
commit. `fetch_plan` and `subscription` decide when; nothing here waits, locks or sends.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice, pairwise
from operator import length_hint
from typing import Any, Final, NamedTuple

from myqueue.consumer.message import Message, TopicPartition, messages_of
from myqueue.errors import BatchInvalid, BatchUnreadable, CorruptData, Internal, MyQueueError
from myqueue.wire import batch

BACKOFF_MS_MIN, BACKOFF_MS_MAX = 50, 1000
# Fetches of one batch that comes damaged each time, before the application gets the error.
DAMAGED_MAX: Final = 3


class StartRule(NamedTuple):
    """How to find a position that is not known yet, from the answer to OFFSETS.

    `kind` is one of:
    - "earliest" or "latest": the start or the end of the partition;
    - "committed": the committed position, else the start;
    - "resumed": the committed position, else the end, which is then committed for the group;
    - "skipped": the end, which is then committed for the group;
    - "time": the first message of `time_ms` (since 1970) or later, else the end.
    """

    kind: str
    time_ms: int | None = None

    # `start`, `end`: of the partition; `position`: committed; `at_time`: first offset of `time_ms`.
    def choose(self, start: int, end: int, position: int | None, at_time: int | None) -> int:
        if self.kind == "earliest":
            return start
        if self.kind == "committed":
            return start if position is None else position
        if self.kind == "resumed" and position is not None:
            return position
        return end if at_time is None or self.kind == "latest" else at_time


class BufferedBatch(NamedTuple):
    """A batch that was received and is still packed."""

    offset: int  # of its first message
    count: int  # type: ignore[assignment]  # tuple.count is not used
    frame: batch.Buffer


class SkippedBatches:
    """Unreadable batches of all partitions: whether to skip them, and how many were skipped."""

    def __init__(self, wanted: bool = False) -> None:
        self.is_wanted = wanted
        self.counts: Counter[TopicPartition] = Counter()  # skipped messages
        self.log_lines: list[str] = []  # one for each skipped batch, not yet logged


class PartitionState:
    """State of one partition that is read. `check_invariants` lists what always holds."""

    def __init__(
        self,
        name: TopicPartition,
        group: int,
        committer: str,
        start_rule: StartRule,
        skips: SkippedBatches | None = None,
    ) -> None:
        self.name = name
        # The raft group: a topic that is deleted and created again has others. So requests name
        # it, never the topic alone.
        self.group = group
        self.committer = committer  # the name that positions are committed under; "": none
        self.leader = ""  # address of the broker to ask; "": not known
        self.start_rule: StartRule | None = start_rule  # None: the position is known
        self.opened_batch: Iterator[Message] = iter([])
        self.opened_end = 0
        self.buffered_batches: deque[BufferedBatch] = deque()
        self.buffered_bytes = 0
        self.next_offset = 0
        self.start, self.end = 0, 0  # of the partition, by the newest answer
        self.committed: int | None = None
        # The position when the application last asked for messages: what came before is handled.
        self.handled_position: int | None = None
        self.request: object = None  # the unanswered request; answers to any other are stale
        self.is_paused = self.is_removed = self.is_queued = False
        self.is_recreated = False  # its topic was deleted and created again while we read
        # on_assign was called with it; and returned, so a seek in the callback has been done.
        self.is_announced = self.is_admitted = True
        self._sought_offset = self._furthest = 0

        # For a member of a consumer group: the epochs under which the partition is assigned.
        self.member = self.epoch = 0
        self.is_fenced = True  # the broker knows these epochs: required before anything is read
        self.is_leaving = False  # the managers want it back
        self.is_saved = False  # auto_commit committed it, or tried to, before it is given back
        self.group_start: int | None = None  # the group's first position, not committed yet

        self.error: MyQueueError | None = None
        self.skips = skips or SkippedBatches()
        # Its raft group while it is requested alone, as another partition may cause its errors; 0
        self.isolated_as = 0
        self.failure_count = self.damaged_count = 0
        self.retry_at = 0

    @property
    def opened_count(self) -> int:
        """Number of messages of the opened batch that were not handed out."""
        return length_hint(self.opened_batch)

    @property
    def position(self) -> int | None:
        """Offset of the next message to hand out; None while it is looked up."""
        return None if self.start_rule else self.opened_end - self.opened_count

    @property
    def commit_address(self) -> str:
        """Address of the broker to commit to; "" while nothing may be committed.

        Commit nothing before the partition is fenced: the first commit under a new epoch may move
        the group's position back, as a reset does.
        """
        return self.leader if self.is_fenced or self.group_start is not None else ""

    @property
    def furthest(self) -> int:
        """The offset after every message that the application ever got, whatever it sought."""
        return max(self._furthest, self.position or 0)

    @property
    def is_unsaved(self) -> bool:
        """The application got messages that are not committed."""
        return (self.position or 0) > max(self._sought_offset, self.committed or 0)

    @property
    def has_messages(self) -> bool:
        return bool(self.buffered_batches) or self.opened_count > 0

    @property
    def is_withheld(self) -> bool:
        """No message of this partition may be handed out now."""
        return self.is_paused or self.is_removed or self.is_leaving or not self.is_admitted

    @property
    def has_output(self) -> bool:
        return self.has_messages or self.error is not None

    # -- moving -----------------------------------------------------------------------------------

    def drop_fetched(self) -> None:
        """Drop what was fetched, and forget the unanswered request: its answer is stale then."""
        deque(self.opened_batch, maxlen=0)
        self.buffered_batches.clear()
        self.buffered_bytes = 0
        self.request = self.error = None

    def stop_output(self) -> None:
        """Hand out nothing more, and keep the position where the application is."""
        position = self.position
        self.drop_fetched()
        if position is not None:
            self.opened_end = self.next_offset = position

    def move_to(self, offset: int) -> None:
        """Go on from this offset."""
        self._leave_position()
        self.start_rule = None
        self.opened_end = self.next_offset = self._sought_offset = offset

    def look_up(self, start_rule: StartRule) -> None:
        """Go on from an offset that an OFFSETS request finds by this rule."""
        self._leave_position()
        self.start_rule, self.retry_at = start_rule, 0

    def _leave_position(self) -> None:
        self._furthest = self.furthest
        self.drop_fetched()
        if self.group_start is not None:  # the application wants to begin elsewhere
            self.group_start, self.is_fenced = None, True

    def commit_group_start(self) -> None:
        """Have the next fence commit our position, as the group has none so far."""
        self.group_start, self.is_fenced = self.position, False

    def detach_iterator(self) -> None:
        """Keep the rest of the opened batch, but end the loop that iterates over it."""
        self.opened_batch = iter(list(self.opened_batch))

    # -- coming in --------------------------------------------------------------------------------

    def receive(self, offset: int, frame: batch.Buffer) -> int:
        """Buffer a batch; return its bytes, 0 for one that holds nothing new.

        Raises Internal if there is a gap before it: offsets are dense, so messages would be lost.
        """
        count = batch.header(frame).count
        if offset + count <= self.next_offset:
            return 0  # nothing in it is new
        if offset > self.next_offset:
            raise Internal(
                f"{self.name}: asked for offset {self.next_offset}, and {offset} came",
                component=self.leader,
            )
        self.buffered_batches.append(BufferedBatch(offset, count, frame))
        self.buffered_bytes += len(frame)
        self.next_offset = offset + count
        return len(frame)

    def note_success(self) -> None:
        self.failure_count = self.retry_at = self.isolated_as = 0

    def note_failure(self, now: int) -> None:
        """Wait before the next request, longer after each failure: 50 ms up to 1 s."""
        self.retry_at = now + min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(self.failure_count, 8))
        self.failure_count += 1

    # -- going out --------------------------------------------------------------------------------

    def open_next(self, now: int) -> int:
        """Open the first buffered batch; return the bytes that leave the buffer.

        A batch that was damaged on its way is dropped with all later ones and fetched again, up to
        DAMAGED_MAX times. A batch with a right checksum that can't be unpacked is unreadable on
        every replica: it is skipped, or is an error until the application seeks.
        """
        position = self.opened_end
        first = self.buffered_batches.popleft()
        size = len(first.frame)
        self.buffered_bytes -= size
        try:
            header, columns = batch.open_batch(first.frame)
            messages = messages_of(*self.name, first.offset, header.time_ms, columns)
        except (BatchInvalid, TypeError) as error:
            is_whole = batch.is_whole(first.frame)
            if is_whole and self.skips.is_wanted:
                self._skip(first, position, error)
                return size
            size += self.buffered_bytes
            self.move_to(position)
            if is_whole:
                self.error = self._unreadable(first, error)
            else:
                self._note_damage(first, error, now)
            return size
        self.damaged_count = 0
        self.opened_end = first.offset + first.count
        # The first batch may begin before the position: drop what was handed out before.
        self.opened_batch = iter(messages)
        if position > first.offset:
            deque(islice(self.opened_batch, position - first.offset), maxlen=0)
        return size

    def _skip(self, where: BufferedBatch, position: int, error: Exception) -> None:
        """Skip this batch. Its messages before the position were skipped and counted earlier."""
        self.damaged_count = 0
        self.opened_end = where.offset + where.count
        self.skips.counts[self.name] += self.opened_end - max(position, where.offset)
        self.skips.log_lines.append(f"passed over: {self._unreadable(where, error)}")

    def _unreadable(self, where: BufferedBatch, error: Exception) -> BatchUnreadable:
        return BatchUnreadable.at(
            *self.name,
            where.offset,
            where.count,
            error,
            component=self.leader,
            hint=f"To go on after it: seek({self.name.topic!r}, {self.name.partition}, "
            f'{where.offset + where.count}), or make the consumer with on_damaged="skip".',
        )

    def _note_damage(self, where: BufferedBatch, error: Exception, now: int) -> None:
        self.damaged_count += 1
        if self.damaged_count < DAMAGED_MAX:
            self.note_failure(now)
            return
        self.damaged_count = 0
        self.error = CorruptData(
            f"{self.name}: the batch at offset {where.offset} came damaged {DAMAGED_MAX} times: "
            f"{error}",
            component=self.leader,
            hint=f"To go on after its {where.count} messages: seek({self.name.topic!r}, "
            f"{self.name.partition}, {where.offset + where.count}).",
        )

    def check_invariants(self) -> None:
        """Raise Internal if offsets and buffers contradict each other; for tests."""
        rows: list[Any] = list(self.buffered_batches)
        wrong = [
            self.buffered_bytes != sum(len(row.frame) for row in rows) and "buffered_bytes",
            bool(rows) and rows[-1].offset + rows[-1].count != self.next_offset and "next_offset",
            not rows and self.start_rule is None and self.opened_end != self.next_offset and "end",
            bool(rows) and rows[0].offset > self.opened_end and "gap after the opened batch",
            any(a.offset + a.count < b.offset for a, b in pairwise(rows)) and "gap between batches",
            self.start_rule is not None and self.has_messages and "messages of an unknown position",
        ]
        if any(wrong):
            raise Internal(f"{self.name}: {[text for text in wrong if text]}")
