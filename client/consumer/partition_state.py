"""One partition that is being read: where we are, what has come, and what was handed out.

Three offsets follow each other, and the whole correctness of a consumer is in their order:

    committed  ≤  position  ≤  next_offset
                  │            └ what to fetch next: behind everything that is buffered
                  └ behind the last message that the application got

Between position and next_offset lie the *opened* batch, as an iterator over its messages, and the
*buffered* ones, closed as they came. The position is not counted along with each message: it is
`opened_end` minus what is left in the iterator, which a list iterator knows. So handing out a
message is one step of C code, whether the application iterates or polls, and a message can't be
handed out twice: there is one iterator, and who wants to take messages back (seek, pause)
exhausts it, so that a loop that holds it ends.
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
# Fetches of one damaged batch before the application gets the error.
DAMAGED_MAX: Final = 3


class StartRule(NamedTuple):
    """How a position that is not known yet is found; the answer of OFFSETS decides."""

    # "earliest", "latest", "committed" (else earliest), "resumed" (committed, else latest),
    # "skipped" (latest, for the whole group), "time" (else latest)
    kind: str
    time_ms: int | None = None

    def choose(self, start: int, end: int, position: int | None, at_time: int | None) -> int:
        if self.kind == "earliest":
            return start
        if self.kind == "committed":
            return start if position is None else position
        if self.kind == "resumed" and position is not None:
            return position
        return end if at_time is None or self.kind == "latest" else at_time


class BufferedBatch(NamedTuple):
    """A batch that came and was not opened."""

    offset: int  # of its first message
    count: int  # type: ignore[assignment]  # tuple.count is not used
    frame: batch.Buffer


class SkippedBatches:
    """Batches that nobody can unpack, of all partitions: passed over if `wanted`, else told."""

    def __init__(self, wanted: bool = False) -> None:
        self.is_wanted = wanted
        self.counts: Counter[TopicPartition] = Counter()  # that were passed over
        self.log_lines: list[str] = []  # for the log: one line for each batch


class PartitionState:
    """State of one partition; pure. `check_invariants` says what always holds."""

    def __init__(
        self,
        name: TopicPartition,
        group: int,
        who: str,
        find: StartRule,
        skips: SkippedBatches | None = None,
    ) -> None:
        self.name = name
        self.group = group  # number of this incarnation; the name alone is never the key (C10)
        self.committer = who  # under whose name positions are committed; "" is nobody
        self.leader = ""  # address that is asked; "": not known
        self.start_rule: StartRule | None = find  # None: the position is known
        self.opened_batch: Iterator[Message] = iter([])
        self.opened_end = 0
        self.buffered_batches: deque[BufferedBatch] = deque()
        self.buffered_bytes = 0
        self.next_offset = 0
        self.start, self.end = 0, 0  # of the partition, as last heard
        self.committed: int | None = None
        self.handled_position: int | None = (
            None  # position when the last messages were asked for (C9)
        )
        self.request: object = None  # the fetch or look-up under way; any other answer is stale
        self.is_paused = self.is_removed = self.is_queued = False
        self.is_recreated = False  # of a topic that took the place of one that was read before
        # The application hears that it is ours; and has heard it, and may have sought.
        self.is_announced = self.is_admitted = True
        self._sought_offset = self._furthest = 0
        # In a group that shares partitions: under which epochs it is ours, and whether its broker
        # knows (it has to before anything is read); it is to be given back; and was committed.
        self.member = self.epoch = 0
        self.is_fenced, self.is_leaving, self.is_saved = True, False, False
        self.group_start: int | None = (
            None  # the group's first position, which is not committed so far
        )
        self.error: MyQueueError | None = None
        self.skips = skips or SkippedBatches()
        self.isolated_as = (
            0  # its group, while it is asked for alone because others may suffer from it
        )
        self.failure_count = self.damaged_count = 0
        self.retry_at = 0

    @property
    def opened_count(self) -> int:
        """Messages of the opened batch that were not handed out."""
        return length_hint(self.opened_batch)

    @property
    def position(self) -> int | None:
        return None if self.start_rule else self.opened_end - self.opened_count

    @property
    def commit_address(self) -> str:
        """Whom a position is committed to; "": nobody now. Not before it is fenced: what comes
        first under a new epoch may set the group back, as a reset does (C7).
        """
        return self.leader if self.is_fenced or self.group_start is not None else ""

    @property
    def furthest(self) -> int:
        """Behind all that the application got of it, whatever it sought since."""
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
        """Nothing of it may be handed out."""
        return self.is_paused or self.is_removed or self.is_leaving or not self.is_admitted

    @property
    def has_output(self) -> bool:
        return self.has_messages or self.error is not None

    # -- moving -----------------------------------------------------------------------------------

    def drop_fetched(self) -> None:
        """Drops what was fetched; an answer that is still under way will not be recognised."""
        deque(self.opened_batch, maxlen=0)
        self.buffered_batches.clear()
        self.buffered_bytes = 0
        self.request = self.error = None

    def stop_output(self) -> None:
        """Hands out nothing more. What was not handed out does not count as if it had been."""
        position = self.position
        self.drop_fetched()
        if position is not None:
            self.opened_end = self.next_offset = position

    def move_to(self, offset: int) -> None:
        """Goes on from this offset."""
        self._leave_position()
        self.start_rule = None
        self.opened_end = self.next_offset = self._sought_offset = offset

    def look_up(self, find: StartRule) -> None:
        """Goes on from an offset that has to be looked up."""
        self._leave_position()
        self.start_rule, self.retry_at = find, 0

    def _leave_position(self) -> None:
        self._furthest = self.furthest
        self.drop_fetched()
        if self.group_start is not None:  # the application wants to begin elsewhere
            self.group_start, self.is_fenced = None, True

    def commit_group_start(self) -> None:
        """Nobody of the group was here before: where we are is its position from now on."""
        self.group_start, self.is_fenced = self.position, False

    def detach_iterator(self) -> None:
        """What is left of the opened batch is kept, but taken from who iterates over it."""
        self.opened_batch = iter(list(self.opened_batch))

    # -- coming in --------------------------------------------------------------------------------

    def receive(self, offset: int, frame: batch.Buffer) -> int:
        """Buffers a batch; says how many bytes it takes."""
        count = batch.header(frame).count
        if offset + count <= self.next_offset:
            return 0  # nothing in it is new
        if offset > self.next_offset:
            # Offsets are dense (C5): this would be a lost message, so it is never passed over.
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
        """Something went wrong that may go right later: wait, longer each time."""
        self.retry_at = now + min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(self.failure_count, 8))
        self.failure_count += 1

    # -- going out --------------------------------------------------------------------------------

    def open_next(self, now: int) -> int:
        """Opens the first buffered batch; bytes that leave the buffer.

        One that was damaged on its way is dropped with all behind it, to be fetched again;
        DAMAGED_MAX times. One that came whole and can't be unpacked never can be: it is passed
        over, or told until the application seeks.
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
        # The first batch may begin before the position; what was handed out is not again.
        self.opened_batch = iter(messages)
        if position > first.offset:
            deque(islice(self.opened_batch, position - first.offset), maxlen=0)
        return size

    def _skip(self, where: BufferedBatch, position: int, error: Exception) -> None:
        """The first ones may have been passed over before: only the others count."""
        self.damaged_count = 0
        self.opened_end = where.offset + where.count
        self.skips.counts[self.name] += self.opened_end - max(position, where.offset)
        self.skips.log_lines.append(f"passed over: {self._unreadable(where, error)}")

    def _unreadable(self, where: BufferedBatch, error: Exception) -> BatchUnreadable:
        return BatchUnreadable.at(
            *self.name, where.offset, where.count, error, component=self.leader,
            hint=f"To go on behind it: seek({self.name.topic!r}, {self.name.partition}, "
            f'{where.offset + where.count}), or make the consumer with on_damaged="skip".',
        )  # fmt: skip

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
            hint=f"To go on behind its {where.count} messages: seek({self.name.topic!r}, "
            f"{self.name.partition}, {where.offset + where.count}).",
        )

    def check_invariants(self) -> None:
        """Called by tests after each event."""
        rows: list[Any] = list(self.buffered_batches)
        wrong = [
            self.buffered_bytes != sum(len(row.frame) for row in rows) and "buffered_bytes",
            bool(rows) and rows[-1].offset + rows[-1].count != self.next_offset and "next_offset",
            not rows and self.start_rule is None and self.opened_end != self.next_offset and "end",
            bool(rows) and rows[0].offset > self.opened_end and "gap behind the opened batch",
            any(a.offset + a.count < b.offset for a, b in pairwise(rows)) and "gap between batches",
            self.start_rule is not None and self.has_messages and "messages of an unknown position",
        ]
        if any(wrong):
            raise Internal(f"{self.name}: {[text for text in wrong if text]}")
