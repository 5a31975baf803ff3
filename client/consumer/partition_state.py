"""The state of one partition that a consumer reads: offsets, phases, errors. Pure.

A consumer is correct as long as these offsets keep their order; the last two are the buffer's:

    committed  ≤  position  ≤  next_offset

Two phases say what comes next. `Fetching` is what a consumer has to do with the broker before it
may fetch. `Ownership` is how far a partition has come between the managers, who assign it and want
it back, and the application, which has callbacks for that. `NEXT` has all allowed transitions.

Comes in: batches, answers and what the application wants. Goes out: what to request, messages, and
the position to commit. `fetch_plan` and `subscription` decide when; nothing here waits or sends.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto
from typing import Final, NamedTuple, TypeVar

from myqueue.consumer.batch_buffer import BatchBuffer, PackedBatch
from myqueue.consumer.message import TopicPartition, messages_of
from myqueue.errors import BatchInvalid, BatchUnreadable, CorruptData, Internal, MyQueueError
from myqueue.wire import batch

BACKOFF_MS_MIN, BACKOFF_MS_MAX = 50, 1000
# Fetches of one batch that comes damaged each time, before the application gets the error.
DAMAGED_MAX: Final = 3


class Fetching(Enum):
    """What to request from the broker now."""

    # Make our epochs known, so that the broker refuses commits of the previous owner. Nothing is
    # committed before: the first commit under a new epoch may move the position back.
    FENCE = auto()
    LOOK_UP = auto()  # find the position by the start rule
    # Commit the position as the group's first one. Else the next owner would begin at a later end.
    COMMIT_START = auto()
    FETCH = auto()


class Ownership(Enum):
    """Whose the partition is. Without a consumer group it is ADMITTED from the beginning."""

    ADDED = auto()  # the application does not know of it
    ANNOUNCED = auto()  # on_assign is called with it, and may seek
    ADMITTED = auto()  # on_assign has returned: its messages are handed out
    LEAVING = auto()  # the managers want it back: it is silent until the application releases it
    WITHDRAWN = auto()  # wanted back before it was announced: no callback is ever called with it
    REMOVED = auto()  # no longer read: released, lost, or its topic was deleted


NEXT: Final[dict[Enum, set[Enum]]] = {
    Fetching.FENCE: {Fetching.LOOK_UP, Fetching.FETCH},  # FETCH after a seek
    Fetching.LOOK_UP: {Fetching.COMMIT_START, Fetching.FETCH},
    Fetching.COMMIT_START: {Fetching.FETCH, Fetching.LOOK_UP},  # LOOK_UP by a seek
    Fetching.FETCH: {Fetching.LOOK_UP},  # by a seek, or out of range
    Ownership.ADDED: {Ownership.ANNOUNCED, Ownership.WITHDRAWN, Ownership.REMOVED},
    Ownership.ANNOUNCED: {Ownership.ADMITTED, Ownership.REMOVED},
    Ownership.ADMITTED: {Ownership.LEAVING, Ownership.REMOVED},
    Ownership.LEAVING: {Ownership.REMOVED},
    Ownership.WITHDRAWN: {Ownership.REMOVED},
    Ownership.REMOVED: set(),
}
# Members of an enumeration are slow to look up, and these are for each batch.
FETCH, COMMIT_START, ADMITTED = Fetching.FETCH, Fetching.COMMIT_START, Ownership.ADMITTED
WANTED_BACK: Final = (Ownership.LEAVING, Ownership.WITHDRAWN)
Phase = TypeVar("Phase", Fetching, Ownership)


def entered(phase: Phase, before: Phase) -> Phase:
    """Return the phase; Internal if it may not follow the one before."""
    if phase is not before and phase not in NEXT[before]:
        raise Internal(f"a partition can't go from {before} to {phase}")
    return phase


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

    def begins_group(self, position: int | None) -> bool:
        """Is the offset that `choose` returns the first position of the group?"""
        return self.kind == "skipped" or (self.kind == "resumed" and position is None)


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
        *,
        member: int = 0,
        epoch: int = 0,
    ) -> None:
        self.name = name
        # The raft group: a topic that is deleted and created again has others. So requests name
        # it, never the topic alone.
        self.group = group
        self.committer = committer  # the name that positions are committed under; "": none
        self.leader = ""  # address of the broker to ask; "": not known
        # The epochs under which a group's member reads and commits; 0 without a group.
        self.member, self.epoch = member, epoch

        self.fetching = Fetching.FENCE if member else Fetching.LOOK_UP
        self.ownership = Ownership.ADDED if member else Ownership.ADMITTED
        self.is_paused = False
        self.is_saved = False  # while LEAVING: auto_commit committed it, or tried to

        self.buffer = BatchBuffer()
        self.skips = skips or SkippedBatches()
        self.error: MyQueueError | None = None  # its turn is after the messages of the buffer

        self.start_rule: StartRule | None = start_rule  # None: the position is known
        self.committed: int | None = None
        # The position when the application last asked for messages: what came before is handled.
        self.handled_position: int | None = None
        self._sought_offset = self._furthest = 0

        self.request: object = None  # the unanswered request; answers to any other are stale
        self.retry_at = 0
        self.failure_count = self.damaged_count = 0
        # Its raft group while it is requested alone, as another partition may cause its errors; 0
        self.isolated_as = 0

    @property
    def position(self) -> int | None:
        """Offset of the next message to hand out; None while it is looked up."""
        return None if self.start_rule else self.buffer.position

    @property
    def commit_address(self) -> str:
        """Address of the broker to commit to; "" while nothing may be committed."""
        return "" if self.fetching is Fetching.FENCE else self.leader

    @property
    def furthest(self) -> int:
        """The offset after every message that the application ever got, whatever it sought."""
        return max(self._furthest, self.position or 0)

    @property
    def is_unsaved(self) -> bool:
        """The application got messages that are not committed."""
        return (self.position or 0) > max(self._sought_offset, self.committed or 0)

    @property
    def is_known_to_application(self) -> bool:
        """on_assign was called with this partition."""
        return self.ownership in (Ownership.ANNOUNCED, Ownership.ADMITTED, Ownership.LEAVING)

    @property
    def is_wanted_back(self) -> bool:
        return self.ownership in WANTED_BACK

    @property
    def is_withheld(self) -> bool:
        """No message of this partition may be handed out now."""
        return self.is_paused or self.ownership is not ADMITTED

    @property
    def has_output(self) -> bool:
        return self.buffer.has_messages or self.error is not None

    @property
    def may_fetch(self) -> bool:
        """More messages are wanted, and none are requested; whether there is room is left open."""
        return not (self.is_paused or self.is_wanted_back or self.error or self.request)

    def due_request(self, now: int) -> Fetching | None:
        """Return what to request now, if there is room for messages; None: nothing."""
        if self.request is not None or self.retry_at > now:
            return None
        if self.fetching is FETCH and not self.may_fetch:
            return None
        if self.fetching is COMMIT_START and self.ownership not in (ADMITTED, Ownership.LEAVING):
            return None  # on_assign may still seek, which decides where the group begins
        return self.fetching

    # -- between managers and application ---------------------------------------------------------

    def announce(self) -> None:
        self.ownership = entered(Ownership.ANNOUNCED, self.ownership)

    def admit(self) -> None:
        self.ownership = entered(Ownership.ADMITTED, self.ownership)

    def want_back(self) -> None:
        """Hand out nothing more, as the managers want the partition back; a loop over it ends.

        While on_assign runs this has no effect: call it again when the partition is admitted.
        """
        if self.ownership is Ownership.ADDED:
            self.ownership = entered(Ownership.WITHDRAWN, self.ownership)
        elif self.ownership is Ownership.ADMITTED:
            self.ownership = entered(Ownership.LEAVING, self.ownership)
            self.buffer.detach_iterator()

    def remove(self) -> None:
        self.ownership = entered(Ownership.REMOVED, self.ownership)
        self.drop_fetched()

    # -- moving -----------------------------------------------------------------------------------

    def drop_fetched(self) -> None:
        """Drop what was fetched, and forget the unanswered request: its answer is stale then."""
        self.buffer.drop()
        self.request = self.error = None

    def move_to(self, offset: int) -> None:
        """Go on from this offset."""
        self._set_position(offset)
        self._request_next(Fetching.FETCH)

    def look_up(self, start_rule: StartRule) -> None:
        """Go on from an offset that an OFFSETS request finds by this rule."""
        self._leave_position()
        self.start_rule = start_rule
        self._request_next(Fetching.LOOK_UP)

    def _request_next(self, phase: Fetching) -> None:
        """After a seek; a partition that is not fenced is fenced first."""
        if self.fetching is not Fetching.FENCE:
            self.fetching = entered(phase, self.fetching)

    def _set_position(self, offset: int) -> None:
        self._leave_position()
        self.start_rule, self._sought_offset = None, offset
        self.buffer.move_to(offset)

    def _leave_position(self) -> None:
        self._furthest = self.furthest
        self.drop_fetched()
        self.retry_at = 0

    # -- answers ----------------------------------------------------------------------------------

    def note_fenced(self, committed: int) -> None:
        """Take over that the broker knows our epochs, or the group's start, committed now."""
        if self.fetching is Fetching.COMMIT_START:
            self.committed = committed
        phase = Fetching.LOOK_UP if self.start_rule else Fetching.FETCH
        self.fetching = entered(phase, self.fetching)
        self.note_success()

    def note_offsets(
        self, start: int, end: int, committed: int | None, at_time: int | None
    ) -> None:
        """Take over an answer to OFFSETS: the position is known."""
        rule = self.start_rule
        if rule is None:
            raise Internal(f"{self.name}: offsets for a position that is known")
        self.committed = committed
        self._set_position(rule.choose(start, end, committed, at_time))
        self.handled_position = self.position
        phase = Fetching.COMMIT_START if rule.begins_group(committed) else Fetching.FETCH
        self.fetching = entered(phase, self.fetching)
        self.note_success()

    def note_success(self) -> None:
        self.failure_count = self.retry_at = self.isolated_as = 0

    def note_failure(self, now: int) -> None:
        """Wait before the next request, longer after each failure: 50 ms up to 1 s."""
        self.retry_at = now + min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(self.failure_count, 8))
        self.failure_count += 1

    # -- going out --------------------------------------------------------------------------------

    def open_next(self, now: int) -> bool:
        """Open the first packed batch; False: it has no message from the position on.

        A batch that was damaged on its way is dropped with all later ones and fetched again, up to
        DAMAGED_MAX times. A batch with a right checksum that can't be unpacked is unreadable on
        every replica: it is skipped, or is an error until the application seeks.
        """
        popped = self.buffer.pop_packed()
        try:
            header, columns = batch.open_batch(popped.frame)
            run = messages_of(*self.name, popped.offset, header.time_ms, columns)
        except (BatchInvalid, TypeError) as error:
            if not batch.is_whole(popped.frame):
                self.drop_fetched()
                self._note_damage(popped, error, now)
            elif self.skips.is_wanted:
                self.damaged_count = 0
                self.skips.counts[self.name] += self.buffer.skip(popped)
                self.skips.log_lines.append(f"passed over: {self._unreadable(popped, error)}")
            else:
                self.drop_fetched()
                self.error = self._unreadable(popped, error)
            return False
        self.damaged_count = 0
        self.buffer.open(popped, run)
        return self.buffer.opened_count > 0

    def _unreadable(self, popped: PackedBatch, error: Exception) -> BatchUnreadable:
        return BatchUnreadable.at(
            *self.name,
            popped.offset,
            popped.count,
            error,
            component=self.leader,
            hint=f"To go on after it: {self._seek_after(popped)}, or make the consumer with "
            'on_damaged="skip".',
        )

    def _note_damage(self, popped: PackedBatch, error: Exception, now: int) -> None:
        self.damaged_count += 1
        if self.damaged_count < DAMAGED_MAX:
            self.note_failure(now)
            return
        self.damaged_count = 0
        self.error = CorruptData(
            f"{self.name}: the batch at offset {popped.offset} came damaged {DAMAGED_MAX} times: "
            f"{error}",
            component=self.leader,
            hint=f"To go on after its {popped.count} messages: {self._seek_after(popped)}.",
        )

    def _seek_after(self, popped: PackedBatch) -> str:
        return f"seek({self.name.topic!r}, {self.name.partition}, {popped.end})"

    def check_invariants(self) -> None:
        """Raise Internal if offsets, phases and buffers contradict each other; for tests."""
        wrong = self.buffer.contradictions()
        if self.start_rule is not None and self.buffer.has_messages:
            wrong.append("messages of an unknown position")
        if self.fetching is not Fetching.FENCE:
            is_known = self.fetching is not Fetching.LOOK_UP
            if is_known != (self.start_rule is None):
                wrong.append("phase and start rule")
        elif self.buffer.has_messages:
            wrong.append("messages before the fence")
        if wrong:
            raise Internal(f"{self.name}: {wrong}")
