"""The entries that the loop gives to the journal, and the checks before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from myqueue.errors import AppendGap, EntryBackwards, EntryInvalid, RecordTooLarge
from myqueue.wal.files import Buffer
from myqueue.wal.groups import Group

# (index, term, offset, count, time_ms, entry type 0..15, chain, payload)
Entry = tuple[int, int, int, int, int, int, int, Buffer]

OFFSET_END = 2**64
TIME_MAX = 2**64 - 1


def check_entries(group: Group, entries: Sequence[Entry], relocated: bool, bytes_max: int) -> None:
    """Raise an error unless each entry follows the one before, fits a record and can be read back.

    AppendGap: an index is not the next one. EntryBackwards: a term or offset falls.
    RecordTooLarge: a payload exceeds `bytes_max`. EntryInvalid: a field has a wrong type or value.
    """
    if not entries:
        raise AppendGap(f"an append to group {group.uid:x} without an entry")
    if relocated:
        expected, last_term, next_offset = entries[0][0], 0, 0
    else:
        expected, last_term, next_offset = group.last_index + 1, group.last_term, group.next_offset
    try:
        for index, term, offset, count, _, _, _, payload in entries:
            if index != expected:
                raise AppendGap(
                    f"group {group.uid:x}: entry {index} does not follow entry {expected - 1}"
                )
            if term < last_term or offset < next_offset:
                raise _backwards(group.uid, index, (last_term, term), (next_offset, offset))
            if type(payload) is not bytes:
                require_plain(payload)
            if len(payload) > bytes_max:
                raise RecordTooLarge(f"a record of {len(payload)} bytes; the limit is {bytes_max}")
            last_term, next_offset = term, offset + count
            expected += 1
    except (TypeError, ValueError) as error:
        raise EntryInvalid(f"an entry is not as it has to be: {error}") from error
    if next_offset >= OFFSET_END:  # offsets never fall, so checking the last one is enough
        raise EntryInvalid(f"the group's next offset would be {next_offset}, above 2^64 - 1")


def check_parts(parts: Iterable[bytes], bytes_max: int) -> list[bytes]:
    """Return the parts of a snapshot as a list; RecordTooLarge if one does not fit a record."""
    pieces = list(parts)
    if not pieces or max(map(len, pieces)) > bytes_max:
        raise RecordTooLarge(f"a snapshot has parts of 0 to {bytes_max} bytes, one at least")
    return pieces


def _backwards(
    uid: int, index: int, terms: tuple[int, int], offsets: tuple[int, int]
) -> EntryBackwards:
    name, (before, now) = ("term", terms) if terms[1] < terms[0] else ("offset", offsets)
    return EntryBackwards(f"group {uid:x}: entry {index} has {name} {now}, after {before}")


def require_plain(payload: Buffer) -> None:
    """Raise EntryInvalid unless the payload is a view of single bytes that stay unchanged.

    Its `len` must be its size in bytes. Network frames come as views; they are kept, not copied,
    and must not be written to. A bytearray is refused because it could be.
    """
    if isinstance(payload, memoryview) and payload.nbytes == len(payload) and payload.contiguous:
        return
    kind = type(payload).__name__
    raise EntryInvalid(f"a payload is bytes or a view of single bytes, not {kind}")


def clamped_clock(clock_ms: Callable[[], int]) -> Callable[[], int]:
    """Return the clock limited to whole milliseconds that a record can hold.

    A clock that was set to before 1970, or that counts in fractions, must not stop the log.
    """

    def clock() -> int:
        try:
            return min(max(0, int(clock_ms())), TIME_MAX)
        except (ValueError, OverflowError):  # not a number at all
            return 0

    return clock
