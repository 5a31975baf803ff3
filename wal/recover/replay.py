"""Applied state from the log alone: what a daemon does after its store was lost.

The index is rebuilt by recovery. The applied state of a group is rebuilt here: restore its newest
snapshot, then apply the entries behind it up to the last commit that the log knows of. What is
committed beyond that hint the group's peers will say; applying goes on from there.

The state machine is given by the daemon; all it does is compute changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from myqueue.wal.append.groups import Group
from myqueue.wal.log import Log
from myqueue.wal.read.reader import Entry
from myqueue.wal.store.store import StateChange

PORTION_BYTES = 4 << 20


class Machine(Protocol):
    """What a group's state machine does with its log; deterministic (R27), no IO."""

    def restore(self, group: Group, parts: list[bytes]) -> StateChange:
        """The whole state that a snapshot holds, as changes to an empty one."""

    def apply(self, group: Group, entries: list[Entry]) -> StateChange:
        """The changes that these consecutive entries make."""


def replay(log: Log, machine: Machine) -> Iterator[int]:
    """Bring every group's applied state up to its commit hint; yields the groups done, one by one.

    The changes are on their way to the store when this returns; `log.index.committed` tells when
    they are in it.
    """
    for uid, group in sorted(log.journal.groups.by_uid.items()):
        with log.store.view() as view:
            applied = view.applied_index(uid)
        if applied < group.snapshot_index:
            change = machine.restore(group, log.reader.snapshot(group))
            applied = _add(log, uid, change)
        while applied < min(group.commit_index, group.last_index):
            entries = log.reader.entries(
                uid, max(applied + 1, group.first_index), group.commit_index, PORTION_BYTES
            )
            applied = _add(log, uid, machine.apply(group, entries))
        yield uid


def _add(log: Log, uid: int, change: StateChange) -> int:
    log.index.apply({uid: change})
    return change[0]
