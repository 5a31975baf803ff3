"""The loop's side of the log: appends of many groups become one ordered sequence of bytes.

Data flow. In a turn the loop calls `append`, `hard_state` and the like as often as it needs to, and
`submit` once at the end. Records are encoded here, at positions decided here, while the writer
syncs earlier ones. Afterwards `poll` returns `Persisted` events; `fileno` is a descriptor to wait
on. Only a `Persisted` event means that a record is on disk.

No call waits for the disk but one, `write_held`: a small batch is held back if nothing else is on
its way to a fast disk, and the loop writes it as the last act of its turn. It would only wait
otherwise, and two threads would have to be woken. What holds if the disk is slow just then:
`daemons/network/stand_in.py`.

The journal decides the layout: which segment, which position, when to rotate. The writer and the
spares do the IO. A refused append (gap, too large, busy, disk full, stopped) changes nothing.

Invariants: records of a segment are contiguous; a group's entries are appended in the order of
their indices; `queued_bytes` counts bytes that were appended and not yet reported as persisted.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from threading import get_ident

from myqueue.errors import (
    AppendGap,
    DiskFull,
    EntryInvalid,
    GroupExists,
    GroupUnknown,
    JournalBusy,
    JournalStopped,
    RecordTooLarge,
    WrongProcess,
    WrongThread,
)
from myqueue.wal import format as f
from myqueue.wal.append import writer as w
from myqueue.wal.append.entry_checks import Entry, check_entries, check_parts, clamped_clock
from myqueue.wal.append.layout import Layout
from myqueue.wal.append.preallocate import Spares, SparesThread
from myqueue.wal.append.reserve import Reserve
from myqueue.wal.append.segments import Segments
from myqueue.wal.check.segments import Segment
from myqueue.wal.config import JournalConfig
from myqueue.wal.files import Files
from myqueue.wal.fork_guard import refuse_after_fork, wrong_process
from myqueue.wal.groups import Group, Groups
from myqueue.wal.recover.recovery import Recovered, Sink, recover

RESERVED_SHARE = 4  # of a full disk's last segment, one part in so many is for votes
SUBMIT_BYTES = 4 << 20  # a batch of this size does not wait for the end of the turn
HELD_BYTES_MAX = 32 << 10  # a larger batch is worth a thread
HELD_FLUSH_S_MAX = 0.0005  # on a slower disk the loop has other work meanwhile


class Journal:
    """The writing side of one daemon's log. One thread may use it: the loop's."""

    def __init__(
        self,
        files: Files,
        owner: bytes,
        config: JournalConfig,
        clock_ms: Callable[[], int],
        random: Random,
        recovered: Recovered,
        threads: bool,
        reserve: Reserve | None = None,
    ) -> None:
        self._config = config
        self._clock_ms = clock_ms = clamped_clock(clock_ms)
        self.recovered = recovered
        self.groups: Groups = recovered.groups
        self.queued_bytes = 0
        self.error: Exception | None = None
        self.space_low = self._closed = False
        self._thread = 0  # identifier of the one thread that may use the journal
        self.persisted_at = (0, 0)  # segment and position up to which all is on disk
        self.rewound_at: dict[int, tuple[int, int]] = {}  # newest TRUNCATE or reset of each group
        self._events: deque[w.Event] = deque()
        self._signal = w.Signal()
        self._record_max = min(config.record_bytes_max, config.segment_bytes // 4)
        self.spares = Spares(
            files,
            owner,
            config.segment_bytes,
            clock_ms,
            config.soft_limit_bytes,
            lambda low: self._emit(w.SpaceLow(low)),
            reserve,
        )
        self.writer = w.Writer(files, self.spares, self._emit, recovered.flush_number)
        self._segments = Segments(files, recovered, self.spares, config.segment_bytes, random)
        self._settled = False  # nothing was written since the last mark that proves all before it
        self.may_hold = False  # the loop calls `write_held`, and has a stand-in
        self._held: w.Batch | None = None
        self._writer_thread: w.WriterThread | None = None
        self._spares_thread: SparesThread | None = None
        try:
            self._layout = self._segments.resume(recovered)
            self._segments.plan()
            self.spares.check_space()  # before the first append is taken
            if threads:
                refuse_after_fork(self)
                self._writer_thread = w.WriterThread(self.writer)
                self._spares_thread = SparesThread(self.spares, self.writer.fail)
            self.settle()
        except BaseException:
            if self._writer_thread:
                self._writer_thread.stop(config.close_timeout_s)
            self._signal.close()
            raise

    @classmethod
    def open(
        cls,
        files: Files,
        owner: bytes,
        config: JournalConfig,
        clock_ms: Callable[[], int],
        random: Random,
        *,
        groups: Groups | None = None,
        watermark: tuple[int, int] = (0, 0),
        sink: Sink = lambda ops, segment, position: None,
        threads: bool = True,
        reserve: Reserve | None = None,
    ) -> Journal:
        """Recover the log, give `sink` what follows the watermark, and append after the end."""
        recovered = recover(files, groups or Groups(), watermark, sink, owner=owner)
        return cls(files, owner, config, clock_ms, random, recovered, threads, reserve)

    # -- appending -----------------------------------------------------------------------------

    def create_group(self, uid: int, description: bytes, *, again: bool = False) -> int:
        """Append GROUP_CREATED; with `again`, repeat the record of an existing group."""
        if uid in self.groups.by_uid and not again:
            raise GroupExists(f"group {uid:x} exists")
        if not 0 < uid < 2**64:
            raise GroupUnknown(f"a group's uid is between 1 and 2^64 - 1, not {uid}")
        self._admit(urgent=True)
        return self._record(f.GROUP_CREATED, uid, description, flags=f.RELOCATED if again else 0)

    def remove_group(self, uid: int) -> int:
        """Append GROUP_REMOVED: the group, its entries and its applied state are no longer kept."""
        self.group(uid)
        self._admit(urgent=True)
        return self._record(f.GROUP_REMOVED, uid)

    def append(
        self, uid: int, entries: Sequence[Entry], *, urgent: bool = False, relocated: bool = False
    ) -> int:
        """Append entries that continue the group's log; return the number of their last batch.

        `urgent` entries are accepted on a full disk and a full queue. `relocated` ones are copies
        of entries that the log already has; they do not move its end.
        """
        group = self.group(uid)
        self._admit(urgent or relocated)
        check_entries(group, entries, relocated, self._record_max)
        layout = self._layout
        done, total = 0, len(entries)
        flags = f.RELOCATED if relocated else 0
        try:
            while True:
                done = layout.encode(uid, entries, done, flags)
                if done == total:
                    break
                layout = self._rotate()
        except BaseException as error:
            self._interrupted(error, done > 0)
            raise
        last = entries[-1]
        if not relocated or last[0] > group.last_index:
            group.append(last[0], last[1], last[2] + last[3], last[6])
        return self._batch_number()

    def _interrupted(self, error: BaseException, partly: bool) -> None:
        """Handle an append that ended by an exception.

        `Layout.encode` has undone what it encoded, so a wrong field is only the caller's error. If
        a part went into an earlier segment, or the program was interrupted, the journal's state may
        be inconsistent: it stops writing.
        """
        if isinstance(error, struct.error | TypeError) and not partly:
            raise EntryInvalid(f"an entry cannot be encoded: {error}") from error
        self.error = RuntimeError(f"an append was interrupted: {error!r}")

    def hard_state(
        self, uid: int, term: int, vote: int, incomplete: bool = False, lacking: bool = False
    ) -> int:
        """Append term and vote in one record, so that a crash cannot separate them.

        `incomplete`: acknowledged entries may be missing. `lacking`: entries whose index and term
        are known cannot be read.
        """
        self.group(uid)
        self._admit(urgent=True)
        flags = f.INCOMPLETE * incomplete | f.LACKING * lacking
        return self._record(f.HARD_STATE, uid, index=vote, term=term, flags=flags)

    def commit_hint(self, uid: int, index: int) -> int:
        """Append COMMIT: the group is known to be committed up to `index`."""
        self.group(uid)
        self._admit(urgent=True)
        return self._record(f.COMMIT, uid, index=index)

    def truncate(self, uid: int, index: int, term: int, offset: int, chain: int = 0) -> int:
        """Remove the entries from `index` on; the other arguments describe the entry before it."""
        group = self.group(uid)
        if not group.first_index <= index <= group.last_index:
            raise AppendGap(f"group {uid:x} has no entry {index} to truncate at")
        self._admit(urgent=True)
        return self._record(f.TRUNCATE, uid, index=index, term=term, offset=offset, chain=chain)

    def start(
        self, uid: int, index: int, term: int, offset: int, chain: int = 0, *, reset: bool = False
    ) -> int:
        """Move the log's start to `index`; with `reset` the log is emptied and goes on there."""
        group = self.group(uid)
        if not reset and not group.first_index <= index <= group.last_index + 1:
            raise AppendGap(f"group {uid:x} cannot start at {index}: it ends at {group.last_index}")
        self._admit(urgent=True)
        flags = f.RESET if reset else 0
        return self._record(
            f.START, uid, index=index, term=term, offset=offset, chain=chain, flags=flags
        )

    def snapshot(self, uid: int, index: int, term: int, parts: Iterable[bytes]) -> int:
        """Append the applied state of a group at `index`, in parts within the record limit."""
        self.group(uid)
        self._admit(urgent=True)
        pieces = check_parts(parts, self._record_max)
        number = 0
        for count, piece in enumerate(pieces):
            flags = f.LAST if count == len(pieces) - 1 else 0
            number = self._record(
                f.SNAPSHOT, uid, piece, index=index, term=term, count=count, flags=flags
            )
        return number

    def _record(self, kind: int, uid: int, payload: bytes = b"", **fields: int) -> int:
        """Append any record but an ENTRY. These are rare, so clarity comes before speed."""
        payload = bytes(payload)
        if len(payload) > self._record_max:
            raise RecordTooLarge(
                f"a record of {len(payload)} bytes; the limit is {self._record_max}"
            )
        layout = self._layout
        if not layout.fits(uid, len(payload)):
            layout = self._rotate()
            layout.fits(uid, len(payload))
        batch = layout.batch or layout.begin()
        header = f.encode_record(
            layout.seed, kind, layout.tail, payload, group=uid, time_ms=self._clock_ms(), **fields
        )
        record = f.record_at(header, 0, layout.tail, layout.seed)
        if record is None:
            raise ValueError(f"a record of kind {kind} does not survive its own encoding")
        batch.buffers += (header, payload)
        batch.records += 1
        batch.ops.append((record, layout.number, payload))
        layout.rows.note(record)
        layout.tail = record.end
        if f.footer_bits(kind, record.flags) & 1 << f.TRUNCATE:
            self.rewound_at[uid] = (layout.number, record.position)
        elif kind == f.GROUP_REMOVED:
            self.rewound_at.pop(uid, None)
        if kind == f.TRUNCATE:
            batch.tails[uid] = (record.term, record.index - 1)
        self.groups.apply(record, layout.number, payload)
        return self._batch_number()

    def group(self, uid: int) -> Group:
        """Return the state of a group; GroupUnknown if the log has none of this uid."""
        group = self.groups.by_uid.get(uid)
        if group is None:
            raise GroupUnknown(f"group {uid:x} does not exist in this journal")
        return group

    def _admit(self, urgent: bool) -> None:
        """Raise a typed error rather than accept a record that might wait for a long time."""
        if self.error is not None:
            self._refuse_child()
            raise JournalStopped(f"the log stopped: {self.error}")
        if self._closed:
            raise JournalStopped("the journal is closed")
        if get_ident() != self._thread:
            if self._thread:
                raise WrongThread("this journal is used by another thread")
            self._thread = get_ident()
        if urgent:
            return
        if self.spares.low:
            raise DiskFull("the data disk is below its soft limit of free space")
        if self.queued_bytes > self._config.queue_bytes_max:
            raise JournalBusy(f"{self.queued_bytes} bytes wait for the disk")

    def _batch_number(self) -> int:
        """Return the number of the batch with the last record; submit the batch if it is large."""
        batch = self._layout.batch or self._layout.begin()
        if self._layout.tail - batch.position > SUBMIT_BYTES:
            self.submit()
        return batch.number

    # -- submitting to the writer --------------------------------------------------------------

    def submit(self) -> None:
        """Give the writer what was appended, or hold it for `write_held`; at the end of a turn."""
        self._refuse_child()
        batch = self._layout.take_batch()
        if batch is None or self.error is not None:
            return
        if (
            self.may_hold
            and not self.queued_bytes
            and batch.end - batch.position <= HELD_BYTES_MAX
            and self.writer.small_flush_s < HELD_FLUSH_S_MAX
        ):
            self._account(batch)
            self._held = batch
        else:
            self._enqueue(batch)

    @property
    def has_held(self) -> bool:
        """True if the loop has to call `write_held` at the end of its turn."""
        return self._held is not None

    def write_held(self) -> None:
        """Write and sync the held batch in this thread; `poll` reports it afterwards.

        Another thread may use the journal while this waits for the disk: it touches nothing but
        the writer.
        """
        batch, self._held = self._held, None
        if batch is not None:
            report = self.writer.write_alone(batch)
            if report is not None:
                self._events.append(report)

    def settle(self) -> None:
        """Write a mark that proves the last records to be synced. For a loop that is idle."""
        if self._settled or self.queued_bytes or self._layout.batch or self.error is not None:
            return
        self._empty_batch(clean=False)

    def _empty_batch(self, clean: bool) -> None:
        layout = self._layout
        if layout.tail + f.RECORD_HEADER_BYTES > layout.limit:
            layout = self._rotate()
        batch = layout.begin()
        layout.batch = None
        batch.clean = clean
        self._enqueue(batch)
        self._settled = True

    def _account(self, batch: w.Batch) -> None:
        batch.time_ms = self._clock_ms()
        self.queued_bytes += batch.end - batch.position
        self._settled = False
        is_due = batch.end > self._config.spare_at_share * self._layout.capacity
        if is_due and self._spares_thread is not None and not self.spares.has_next:
            self._spares_thread.kick()

    def _enqueue(self, batch: w.Batch) -> None:
        if self._held is not None:
            self.writer.queue.put(self._held)
            self._held = None
        self._account(batch)
        self.writer.queue.put(batch)

    def fileno(self) -> int:
        """A descriptor that is readable while events wait to be polled."""
        return self._signal.fileno()

    def poll(self) -> list[w.Event]:
        """Return the events since the last call, without waiting. `Stopped` is always the last."""
        self._refuse_child()
        self._signal.clear()
        events = []
        while self._events:
            event = self._events.popleft()
            if self.error is not None:
                continue  # after a failure no flush counts as persisted, not even one in flight
            if isinstance(event, w.Persisted):
                self.queued_bytes -= event.bytes
                self.persisted_at = (event.segment, event.position)
            elif isinstance(event, w.SpaceLow):
                self.space_low = event.low
            elif isinstance(event, w.Stopped):
                self.error = event.error
            events.append(event)
        return events

    def forked(self) -> None:
        """Refuse everything in a forked child, which has no writer."""
        self.error = wrong_process()

    def _refuse_child(self) -> None:
        if isinstance(self.error, WrongProcess):
            raise wrong_process()

    def wake(self) -> None:
        """Make `fileno` readable: another part of the log has something for the loop."""
        self._signal.set()

    def change_thread(self) -> None:
        """Let the next thread that appends be the one that may use the journal."""
        self._thread = 0

    def _emit(self, event: w.Event) -> None:
        self._events.append(event)
        self._signal.set()

    @property
    def end(self) -> tuple[int, int]:
        """Segment and position after the last record that was appended."""
        return self._layout.number, self._layout.tail

    # -- segments ------------------------------------------------------------------------------

    def leave_segment(self) -> None:
        """Seal the open segment before it is full, so that nothing follows the damage in it."""
        self._rotate()

    def _rotate(self) -> Layout:
        """Seal the open segment and continue in the next one, without waiting for the disk."""
        old = self._layout
        self.submit()
        self._enqueue(old.sealing_batch())
        self._layout = self._segments.advance(old.next_batch)
        return self._layout

    @property
    def has_reserve(self) -> bool:
        """Whether commands may be written, not only votes and records that free space.

        The last room of a full disk, a quarter of a segment, is for these.
        """
        spares, (number, position) = self.spares, self.end
        size = self.segments[number].capacity
        if not spares.low or spares.has_next or spares.free_bytes >= size:
            return True
        return not self.writer.out_of_room and size - position >= size // RESERVED_SHARE

    @property
    def segments(self) -> dict[int, Segment]:
        """The segments by number, the open one included."""
        return self._segments.by_number

    def segment_name(self, number: int) -> tuple[str, int] | None:
        """Name and uid of a segment, for readers; None if it was reclaimed."""
        segment = self.segments.get(number)
        return None if segment is None else (segment.name, segment.uid)

    def forget_segment(self, number: int) -> None:
        """Stop listing a segment that is about to be removed, so that no reader opens it."""
        del self.segments[number]

    def close(self) -> bool:
        """Write what waits and a clean mark, then stop; False if the disk took too long.

        True means that the writer has ended, not that it wrote everything: see `writer.waiting`.
        """
        self._refuse_child()
        self._closed = True
        if self.error is None:
            self.submit()
            self._empty_batch(clean=True)
        if self._spares_thread:
            self._spares_thread.stop()
        if self._writer_thread:
            return self._writer_thread.stop(self._config.close_timeout_s)
        while self.writer.step():
            continue
        return not self.writer.waiting

    def close_signal(self) -> None:
        """Close the descriptor of `fileno`; called after the last poll."""
        self._signal.close()
