"""What a group's state machine is to the daemon around it: the seam between consensus and meaning.

A partition and the managers' metadata are both machines: committed entries go in, results and
changed rows come out. Machines compute; they read no clock and no random, and they keep no
reference to anything that changes by itself (R27): the time in an entry is the leader's stamp.

Data flow: `apply` is called with consecutive committed entries, in order, each once; its results go
to whoever proposed them, if they still wait. What the entries changed collects inside the machine;
from time to time `take_changes` hands these rows over to the store, with the applied index that
they belong to (W13). After a restart `load` gets all rows back, and applying goes on behind them.
`snapshot` and `restore` do the same for a replica that gets the state from its leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from myqueue.daemons.raft.types import Entry

# Rows for the store: keys with new values, and deleted keys. Keys have at most 500 bytes.
RowChanges = tuple[dict[bytes, bytes], list[bytes]]


class StateMachine(Protocol):
    """See the module's docstring. `applied_index` is the index of the last entry applied.

    Entries before `start_index` are needed by nobody, the state aside; its log may begin there.
    `bytes_gone` is how much of them there ever was, about. Both are 0 if the machine can't say.
    """

    applied_index: int
    bytes_gone: int

    @property
    def start_index(self) -> int: ...

    def apply(self, entries: list[Entry]) -> list[Any]:
        """One result for each entry, in order; a refusal is a result as well, not an exception.

        Entries of the types NOOP and CONFIG are among them; their result is None.
        """

    def take_changes(self) -> RowChanges:
        """The rows that changed since the last call."""

    def load(self, applied_index: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Become what the store saved, whatever was before."""

    def snapshot(self) -> bytes:
        """The whole state at `applied_index`, the index included."""

    def restore(self, snapshot: bytes) -> None:
        """Become that state, whatever was before.

        `take_changes` then hands over all of it, and names the keys of before that are no more.
        """
