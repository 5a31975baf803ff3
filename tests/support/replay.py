"""The applied state of groups, made from the log alone; the daemons' engine does the same in turns.

Each group's newest snapshot is restored, then the entries after it are applied up to the newest
commit hint in the log. The state machine is the test's; it only computes changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from myqueue.wal.groups import Group
from myqueue.wal.log import Log
from myqueue.wal.read.reader import Entry
from myqueue.wal.store.store import StateChange

PORTION_BYTES = 4 << 20


class Machine(Protocol):
    """What a group's state machine does with its log; deterministic, without IO."""

    def restore(self, group: Group, parts: list[bytes]) -> StateChange:
        """The whole state that a snapshot holds, as changes to an empty one."""

    def apply(self, group: Group, entries: list[Entry]) -> StateChange:
        """The changes that these consecutive entries make."""


def replay(log: Log, machine: Machine) -> Iterator[int]:
    """Bring the applied state of every group up to its commit hint; yields each group when done.

    The store's thread commits the changes later; `log.index.committed` shows how far it is.
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
