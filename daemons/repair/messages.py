"""The messages by which replicas request lost entries from each other.

They travel in the packets of the core, which never sees them (`replication/packets`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from myqueue.daemons.raft import types as t

ENTRIES_PER_REQUEST_MAX: Final = 256


class EntriesRequest(NamedTuple):
    """A replica requests committed entries that it can't read any more from another one.

    The term is not checked: a committed entry is the same in all terms.
    """

    group: int
    source: int  # replica
    target: int  # replica
    term: int
    indexes: list[int]


class EntryReply(NamedTuple):
    """One requested entry."""

    group: int
    source: int
    target: int
    term: int
    entry: t.Entry
