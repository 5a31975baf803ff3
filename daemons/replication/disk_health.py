"""Decides in every tick whether this disk may lead and take more.

A disk that reports nothing is *stalled*: replicas here step down, and none campaigns until it
reports again, however good the network is.

A *full* disk is not stalled. It answers; nothing is lost by waiting; and where all disks fill up
together, no leader would remain. So leaders on a full disk stay, refuse messages with DISK_FULL,
and go on with reads and votes. The managers decide whether a broker with room should lead instead
(`manager/balancer/controller`).

A data folder that is removed under a running daemon still takes writes, which the next start would
not find. So the daemon ends, as for a failed disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from myqueue import errors
from myqueue.daemons.raft.suspicion import LAPSES_MAX

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine

STALL_MS: Final = 1500  # a disk that reports nothing for longer is stalled
CHECK_MS: Final = 500  # between checks that the folder is there
LOOK_MS: Final = 5000  # between updates of the free space metric
QUEUE_BYTES_MAX: Final = 48 << 20  # waiting for the disk; beyond it proposals are refused
STORE_WORKS_MAX: Final = 2000  # writes that wait for the store; beyond it proposals are refused


class DiskHealth:
    """Called by the engine, in the loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._busy_since = 0  # when it began to write, or reported last; 0: it is idle
        self._lapses = 0  # late turns since then
        self._stalled = self._full = False
        self._next_look = self._next_check = 0

    def note_activity(self, *, is_report: bool) -> None:
        """The journal reported (`is_report`), or got a batch."""
        engine = self._engine
        if not engine.log.journal.queued_bytes:
            self._busy_since = self._lapses = 0
        elif is_report or not self._busy_since:
            self._busy_since, self._lapses = engine.now, 0

    def note_late(self, late_ms: int) -> None:
        """Our own turn came late: in a process that did not run, the disk's thread did not either.

        As for other nodes, being late is an excuse for some turns only (`raft/suspicion`).
        """
        if self._busy_since and self._lapses < LAPSES_MAX:
            self._lapses += 1
            self._busy_since += late_ms

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
            self._busy_since = engine.now  # its time counts from when there is room
        if full != self._full:
            self._full = full
            engine.counts["disk_full_total"] += full
        stalled = bool(self._busy_since) and engine.now - self._busy_since > STALL_MS
        if stalled == self._stalled:
            return
        self._stalled = stalled
        engine.counts["disk_stalls_total"] += stalled
        for uid, replica in engine.replicas.items():
            replica.raft.may_lead = not stalled
            if stalled and replica.is_leader:
                engine.host.touch(uid)
                replica.raft.step_down(engine.now, engine.host.out)

    def check_room_for_messages(self) -> None:
        """Raise DiskFull or Busy if no messages may be taken. Votes, commits and reads go on."""
        log = self._engine.log
        if log.journal.space_low:
            raise errors.DiskFull("the data disk is below its soft limit of free space")
        if log.journal.queued_bytes > QUEUE_BYTES_MAX:
            raise errors.Busy(f"{log.journal.queued_bytes} bytes wait for the disk")
        if log.index.works_waiting > STORE_WORKS_MAX:
            raise errors.Busy("the store lags behind the log")

    def check_room_for_commands(self) -> None:
        """Raise DiskFull if no commands of clients may be taken."""
        if not self._engine.log.journal.has_reserve:
            raise errors.DiskFull("the data disk is full")
