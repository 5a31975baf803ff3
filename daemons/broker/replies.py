"""Parts of the replies that several handlers send: rows of a request, batches, refusals."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from myqueue import errors
from myqueue.daemons.raft.types import COUNT, DATA, INDEX, OFFSET, PAYLOAD, TYPE, Entry
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.interfaces import Client
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

RETRY_MS: Final = 50  # after which a client may try again what could not be served just now
_CONSUMER_PATTERN: Final = re.compile(r"(?:group/)?[A-Za-z0-9._-]{1,200}")


def check_consumer_name(consumer: str) -> None:
    if not _CONSUMER_PATTERN.fullmatch(consumer):
        raise errors.InvalidName(f"{consumer[:220]!r} names no consumer: an id, or group/NAME")


class PartsReply:
    """The reply to a request of several parts: a row for each, sent when the last is known."""

    __slots__ = ("_client", "_engine", "_kind", "_request", "_rows", "_rows_left")

    def __init__(self, engine: Engine, client: Client, kind: int, request: int, parts: int) -> None:
        self._engine, self._client, self._kind, self._request = engine, client, kind, request
        self._rows: list[list[Any]] = [[] for _ in range(parts)]
        self._rows_left = parts
        if not parts:
            self._send()

    def fill(self, place: int, row: list[Any]) -> None:
        self._rows[place] = row
        self._rows_left -= 1
        if not self._rows_left:
            self._send()

    def _send(self) -> None:
        frame = protocol.encode(self._kind, self._request, self._rows)
        self._engine.reply(self._client, [frame])


def read_batches(
    replica: Replica, offset: int, end: int, bytes_max: int, frames_max: int, at_least_one: bool
) -> list[Entry]:
    """Return entries with messages offset … end - 1; the first may begin before `offset`.

    If not even the first can be read: EntryMissing, CorruptData, or NotReady while it is repaired.
    """
    index = replica.index_at_offset(offset)
    if index is None:
        raise errors.EntryMissing(f"offset {offset} is not in the log")
    applied = replica.machine.applied_index
    out: list[Entry] = []
    entries_max = 0
    while index <= applied and len(out) < frames_max and (bytes_max > 0 or at_least_one):
        if offset >= end:
            break
        # An entry has a message at least; among commands, which have none, look further each time.
        entries_max = min(frames_max - len(out), max(2 * entries_max, end - offset))
        last = min(applied, index + entries_max - 1)
        try:
            entries = replica.read(index, last, max(bytes_max, 1))
        except errors.MyQueueError:
            if not out:
                raise
            break  # intact batches are served; the next request gets the error
        index = entries[-1][INDEX] + 1
        for entry in entries:
            if entry[TYPE] != DATA:
                continue
            size = len(entry[PAYLOAD])
            if entry[OFFSET] >= end or (size > bytes_max and not at_least_one):
                return out
            at_least_one = False
            bytes_max -= size
            out.append(entry)
            offset = entry[OFFSET] + entry[COUNT]
        if out and bytes_max < len(out[-1][PAYLOAD]):
            break  # the next one would hardly fit: it is not read for nothing
    return out
