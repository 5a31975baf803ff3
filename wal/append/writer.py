"""The writer: all batches that wait become one gathered write and one sync.

Batches come in from the loop, laid out and encoded. Events go out: persisted, low or enough space,
stopped. The writer decides only how much it writes at once. It runs as a thread (`WriterThread`) or
is stepped by hand (`Writer.step`), as the simulator does. A small batch for which nothing else
waits may also be written by the thread that made it (`Writer.write_alone`).

A failed write or sync stops the writer for good: after EIO it is unknown which pages reached the
disk, and a later sync that succeeds proves nothing about them. ENOSPC is different: nothing was
promised, so the batches wait, and the same bytes are written to the same place when there is room.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import NamedTuple

from myqueue.checksum import crc32
from myqueue.wal import format as f
from myqueue.wal.append.preallocate import Spares
from myqueue.wal.files import IOV_MAX, Buffer, Files
from myqueue.wal.groups import Op

FLUSH_BYTES_MAX = 8 << 20
JOIN_BELOW_BYTES = 1 << 10  # buffers smaller than this on average are cheaper copied than gathered
SPACE_RETRY_S = 0.1
SMALL_BYTES = 64 << 10  # flushes up to this size say how long a sync takes
QUICKEST_OF = 8  # small flushes
_TRANSIENT = (errno.EMFILE, errno.ENFILE)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Batch:
    """Consecutive records of one segment after their MARK; `buffers[0]` is the mark's place."""

    __slots__ = (
        "buffers",
        "clean",
        "end",
        "abandoned_at",
        "number",
        "ops",
        "position",
        "records",
        "seed",
        "segment",
        "segment_name",
        "tails",
        "time_ms",
        "trailer",
    )

    def __init__(
        self, number: int, segment: int, segment_name: str, seed: int, position: int
    ) -> None:
        self.number, self.segment, self.segment_name = number, segment, segment_name
        self.seed, self.position = seed, position
        self.end = position + f.RECORD_HEADER_BYTES
        self.buffers: list[Buffer] = [b""]
        self.records, self.time_ms = 0, 0
        self.clean = False
        # For the first mark of a segment: where the log abandoned the one before it (FORMAT.md).
        self.abandoned_at = 0
        self.trailer: tuple[int, bytes] | None = None  # position and bytes, in a sealing batch
        self.tails: dict[int, tuple[int, int]] = {}  # group -> (term, index) of its last entry
        self.ops: list[Op] = []  # for the store: lists of rows, or (record, segment, payload)


_TRY_AGAIN = Batch(0, 0, "", 0, 0)  # wakes the writer's thread up for what it has


class Persisted(NamedTuple):
    """All batches up to number `batch` are on disk.

    `tails` has the last (term, index) of each group in them, `ops` what the store has to learn;
    the log is on disk up to `position` in `segment`.
    """

    batch: int
    tails: dict[int, tuple[int, int]]
    ops: list[Op]
    segment: int
    position: int
    bytes: int
    took_s: float


class SpaceLow(NamedTuple):
    """With `low`, the disk is short of space and new records are refused; else it has room."""

    low: bool


class Stopped(NamedTuple):
    """The disk failed; the journal writes nothing more."""

    error: Exception


Event = Persisted | SpaceLow | Stopped


class Signal:
    """A flag that a poll loop can wait on; set by any thread, cleared by the loop.

    A system call releases the interpreter's lock, and taking it again costs more than the call. So
    the event descriptor is written only when the flag changes.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_set = False

    def fileno(self) -> int:
        """The event descriptor, readable while the flag is set."""
        return self._fd

    def set(self) -> None:
        """Set the flag; safe in any thread."""
        if not self._is_set:
            self._is_set = True
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Clear the flag. Call it before taking the events: a later event sets the flag again."""
        if self._is_set:
            try:
                os.eventfd_read(self._fd)
            except BlockingIOError:
                return  # set, but not yet written to the descriptor: the loop will wake once more
            self._is_set = False

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


class Writer:
    """Writes batches in order and reports each flush through `emit`."""

    def __init__(
        self, files: Files, spares: Spares, emit: Callable[[Event], None], flush_number: int
    ) -> None:
        self._files, self._spares, self._emit = files, spares, emit
        self.flush_number = flush_number
        self.queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._pending: deque[Batch] = deque()  # taken from the queue, not yet on disk
        self.flush_began_s: float | None = None  # monotonic; a watchdog of slow disks reads it
        self.stopped = self.closing = False
        self.out_of_room = False  # pending batches wait for space on the disk
        self._has_begun = False  # a part of this flush is in the file
        self._small_flushes_s: deque[float] = deque(maxlen=QUICKEST_OF)
        self._disk = Lock()  # held while one thread writes

    def step(self) -> bool:
        """Write and sync one flush; False if nothing waits or it could not be written."""
        with self._disk:
            pending = self._pending
            while not self.queue.empty():
                self.accept(self.queue.get())
            if not pending or self.stopped:
                return False
            batches = _one_flush(pending)
            report = self._try_flush(batches)
            if report is None:
                return False
            for _ in batches:
                pending.popleft()
            self._emit(report)
            self.out_of_room = False  # after the report, so that the watchdog sees the disk working
            return True

    def write_alone(self, batch: Batch) -> Persisted | None:
        """Write and sync a batch in the caller's thread, before all that waits.

        Nothing may be on its way to the disk at the call; later batches may be queued meanwhile.
        None: it was not written; the thread will try it, or the writer has stopped.
        """
        with self._disk:
            report = None if self.stopped else self._try_flush([batch])
            if report is None and not self.stopped:
                self._pending.appendleft(batch)
                self.queue.put(_TRY_AGAIN)
            return report

    def _try_flush(self, batches: list[Batch]) -> Persisted | None:
        """Write and sync these batches; None: no room, no free descriptor, or a failed disk."""
        self.flush_began_s = began = monotonic()
        try:
            self._flush(batches)
        except OSError as error:
            if error.errno in _TRANSIENT and not self._has_begun:
                return None  # no file could be opened, and nothing was written
            if error.errno in _NO_ROOM:
                self.out_of_room = True
                self._spares.set_low(True)
            else:
                self.fail(error)
            return None
        finally:
            self.flush_began_s = None
        report = _persisted(batches, monotonic() - began)
        if report.bytes <= SMALL_BYTES:
            self._small_flushes_s.append(report.took_s)
        return report

    @property
    def small_flush_s(self) -> float:
        """The time of a small flush on this disk; 0.0: not known yet.

        The third quickest of the last ones: the others measure how long a busy machine lets a
        thread wait for a core, and say nothing about the disk.
        """
        flushes = sorted(self._small_flushes_s)
        return flushes[min(2, len(flushes) - 1)] if flushes else 0.0

    @property
    def waiting(self) -> bool:
        """True while batches were taken from the queue and are not on disk."""
        return bool(self._pending)

    def accept(self, batch: Batch | None) -> None:
        """Take a batch from the queue; None means that the journal is closing."""
        if batch is None:
            self.closing = True
        elif batch is not _TRY_AGAIN:
            self._pending.append(batch)

    def fail(self, error: Exception) -> None:
        """Stop writing for good and report it, once."""
        if not self.stopped:
            self.stopped = True
            self._emit(Stopped(error))

    def _flush(self, batches: list[Batch]) -> None:
        first, last = batches[0], batches[-1]
        self._has_begun = False
        self._spares.ready(first.segment)
        self.flush_number += 1
        buffers: list[Buffer] = []
        for batch in batches:
            _fill_mark(batch, self.flush_number, first.position)
            if batch.end - batch.position < JOIN_BELOW_BYTES * len(batch.buffers):
                buffers.append(b"".join(batch.buffers))
            else:
                buffers.extend(batch.buffers)
        if len(buffers) > IOV_MAX:
            buffers = [b"".join(buffers)]  # one call with one sync, rather than several and a sync
        self._files.write(first.segment_name, first.position, buffers, True)
        self._has_begun = True
        if last.trailer is not None:
            position, trailer = last.trailer
            self._files.write(last.segment_name, position, [trailer], True)


def _one_flush(pending: deque[Batch]) -> list[Batch]:
    """Return the longest run of waiting batches that one gathered write may hold.

    An empty batch exists for its mark, which proves what stands before it: it is a flush alone.
    """
    batches: list[Batch] = []
    total = 0
    for batch in pending:
        total += batch.end - batch.position
        is_elsewhere = batch.segment != batches[0].segment if batches else False
        if batches and (is_elsewhere or not batch.records or total > FLUSH_BYTES_MAX):
            break
        batches.append(batch)
    return batches


def _fill_mark(batch: Batch, flush_number: int, write_began: int) -> None:
    """Encode a batch's mark. Only now it is known which flush the batch is part of."""
    body = f.pack_body(
        f.RECORD_MAGIC,
        f.MARK,
        f.CLEAN if batch.clean else 0,
        0,
        batch.position,
        batch.records,
        0,
        flush_number,
        write_began,
        batch.end - batch.position - f.RECORD_HEADER_BYTES,
        batch.time_ms,
        batch.abandoned_at,
    )
    header_crc = crc32(body, batch.seed)
    batch.buffers[0] = f.pack_crcs(header_crc, crc32(b"", header_crc)) + body


def _persisted(batches: list[Batch], took_s: float) -> Persisted:
    last = batches[-1]
    size = last.end - batches[0].position
    if len(batches) == 1:
        tails, ops = last.tails, last.ops
    else:
        tails, ops = dict[int, tuple[int, int]](), list[Op]()
        for batch in batches:
            tails.update(batch.tails)
            ops += batch.ops
    return Persisted(last.number, tails, ops, last.segment, last.end, size, took_s)


class WriterThread:
    """Runs a `Writer` until it is stopped; batches that were submitted before are written first."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._thread = Thread(target=self._run, name="wal-writer", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the thread; False if the writer is still busy with the disk after `timeout_s`."""
        self._writer.queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception as error:  # if this thread ended silently, the log would stall for ever
            self._writer.fail(error)
            raise

    def _write_all(self) -> None:
        writer, queue = self._writer, self._writer.queue
        while not writer.stopped and not writer.closing:
            try:
                writer.accept(queue.get(timeout=SPACE_RETRY_S if writer.waiting else None))
            except Empty:  # the disk had no room; try again
                pass
            while writer.step():
                pass
