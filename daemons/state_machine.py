"""The interface of a raft group's state machine, between consensus and the meaning of entries.

A partition and the managers' metadata are both state machines: committed entries go in, results and
changed rows come out. A machine computes the same on every replica: it reads no clock and no random
numbers, and the time in an entry is the leader's timestamp.

`apply` gets consecutive committed entries, in order, each once; its results go to the requests that
wait for them. The machine collects the rows that entries changed. `take_changes` passes them to the
store, in one transaction with the applied index that they belong to. After a restart `load` gets
all rows back, and applying goes on after that index. `snapshot` and `restore` do the same for a
replica that gets the state from its leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from myqueue.daemons.raft.types import Entry

# Rows for the store: keys with new values, and deleted keys. Keys have at most 500 bytes.
RowChanges = tuple[dict[bytes, bytes], list[bytes]]


class StateMachine(Protocol):
    """The state of one raft group. `applied_index` is the index of the last entry applied.

    The state no longer needs entries before `start_index`: the log may begin there. `bytes_gone` is
    about how many bytes these entries ever had. Both are 0 if the machine can't tell.
    """

    applied_index: int
    bytes_gone: int

    @property
    def start_index(self) -> int: ...

    def apply(self, entries: list[Entry]) -> list[Any]:
        """Apply entries and return one result each, in order. A refusal is a result, no exception.

        Entries of the types NOOP and CONFIG are among them; their result is None.
        """

    def take_changes(self) -> RowChanges:
        """Return the rows that changed since the last call, and forget them."""

    def load(self, applied_index: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the state by the rows that the store saved at `applied_index`."""

    def snapshot(self) -> bytes:
        """Pack the whole state, with `applied_index`."""

    def restore(self, snapshot: bytes) -> None:
        """Replace the state by this snapshot.

        `take_changes` then returns all of it, and the keys of the old state that it does not have.
        """
