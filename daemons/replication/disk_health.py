"""Is the disk well enough to lead, and to take more? Looked at in every tick.

A disk that does not answer can't lead, however well the network does: its leaders make way (W17,
R29), and nobody stands until it answers again. A disk that is *full* is another matter (W15). It
answers, only with no; nothing is lost by waiting, and where all disks fill up together, nobody
would be left to lead. So a full disk is no stall: its leaders stay, refuse messages with DISK_FULL,
and go on with reads and votes. Whether another broker with room should lead instead is the
managers' to say, who know them all (`manager/balancer/controller`).

A folder that somebody removes under its daemon still takes writes, and nothing of them is there at
the next start. So that is a disk that failed: the daemon ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from myqueue import errors

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine
    from myqueue.wal.append.journal import Journal

STALL_MS: Final = 1500  # a disk that reports nothing for so long
CHECK_MS: Final = 500  # between looks whether the folder is there
LOOK_MS: Final = 5000  # at the disk's free space, for reports
QUEUE_BYTES_MAX: Final = 48 << 20  # waiting for the disk; beyond it proposals are refused
STORE_WORKS_MAX: Final = 2000  # turns that the store is behind; beyond it proposals are refused
RESERVED_SHARE: Final = 4  # of the room that is left, a quarter of a segment is for votes


class DiskHealth:
    """See the module's docstring."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._busy_since = 0  # when the disk began to work without a report; 0: it is idle
        self._stalled = self._full = False
        self._next_look = self._next_check = 0

    def note_activity(self, *, is_report: bool) -> None:
        """The journal reported, or was given something."""
        engine = self._engine
        if not engine.log.journal.queued_bytes:
            self._busy_since = 0
        elif is_report or not self._busy_since:
            self._busy_since = engine.now

    def tick(self) -> None:
        engine = self._engine
        if engine.now >= self._next_check:
            self._next_check = engine.now + CHECK_MS
            if not engine.log.is_there():
                engine.failure = errors.DirectoryUnusable("the data folder was removed")
        if engine.now >= self._next_look:
            self._next_look = engine.now + LOOK_MS
            engine.counts["disk_free_bytes"] = engine.log.files.free_bytes()
        full = engine.log.journal.writer.out_of_room
        if full and self._busy_since:
            self._busy_since = engine.now  # what it has to do begins when there is room
        if full != self._full:
            self._full = full
            engine.counts["disk_full_total"] += full
        stalled = bool(self._busy_since) and engine.now - self._busy_since > STALL_MS
        if stalled == self._stalled:
            return
        self._stalled = stalled
        engine.counts["disk_stalls_total"] += stalled
        for uid, replica in engine.replicas.items():
            replica.node.may_lead = not stalled
            if stalled and replica.is_leader:
                engine.host.touch(uid)
                replica.node.step_down(engine.now, engine.host.out)

    def check_room_for_messages(self) -> None:
        """Whether messages may be taken; votes, commits and reads go on in any case (W15)."""
        log = self._engine.log
        if log.journal.space_low:
            raise errors.DiskFull("the data disk is below its soft limit of free space")
        if log.journal.queued_bytes > QUEUE_BYTES_MAX:
            raise errors.Busy(f"{log.journal.queued_bytes} bytes wait for the disk")
        if log.index.works_waiting > STORE_WORKS_MAX:
            raise errors.Busy("the store is behind the log")

    def check_room_for_commands(self) -> None:
        """Whether commands of clients may be taken."""
        if not has_reserve(self._engine.log.journal):
            raise errors.DiskFull("the data disk is full")


def has_reserve(journal: Journal) -> bool:
    """Whether more than votes may be written: commands go on below the soft limit, but the last
    room of a full disk is for votes, and for what gives room back.
    """
    spares, (number, position) = journal.spares, journal.end
    size = journal.segments[number].capacity
    if not spares.low or spares.has_next or spares.free_bytes >= size:
        return True
    return not journal.writer.out_of_room and size - position >= size // RESERVED_SHARE
