"""What the loop hands to the journal, and what is refused before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence

from myqueue.errors import AppendGap, EntryInvalid, RecordTooLarge
from myqueue.wal.files import Buffer
from myqueue.wal.groups import Group

# (index, term, offset, count, time_ms, entry type 0..15, chain, payload)
Entry = tuple[int, int, int, int, int, int, int, Buffer]

OFFSET_END = 2**64


def check_entries(group: Group, entries: Sequence[Entry], relocated: bool, bytes_max: int) -> None:
    """Each entry follows the one before, is not too large, and can be read back."""
    if not entries:
        raise AppendGap(f"an append to group {group.uid:x} without an entry")
    expected = entries[0][0] if relocated else group.last_index + 1
    for entry in entries:
        if entry[0] != expected:
            raise AppendGap(
                f"group {group.uid:x}: entry {entry[0]} does not follow entry {expected - 1}"
            )
        payload = entry[7]
        if type(payload) is not bytes:
            require_plain(payload)
        if len(payload) > bytes_max:
            raise RecordTooLarge(f"a record of {len(payload)} bytes; the limit is {bytes_max}")
        if entry[2] + entry[3] >= OFFSET_END:
            raise EntryInvalid(f"offset {entry[2]} + {entry[3]} messages is above 2^64 - 1")
        expected += 1


def require_plain(payload: Buffer) -> None:
    """A payload is a run of single bytes that nobody changes: `len` must be its size in bytes.

    Frames of the network come as views; they are kept, not copied, and must not be written to. A
    bytearray is refused, as it invites just that.
    """
    if isinstance(payload, memoryview) and payload.nbytes == len(payload) and payload.contiguous:
        return
    kind = type(payload).__name__
    raise EntryInvalid(f"a payload is bytes or a view of single bytes, not {kind}")
