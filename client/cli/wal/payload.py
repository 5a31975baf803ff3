"""Decode the payload of a record for people: batches, commands, and descriptions of Raft groups.

The log stores any payload; here the codecs of its writers are tried one after another. Each returns
None if the bytes are not of its kind, and never fails: logs are inspected when something is wrong,
so a payload may be anything. A payload that no codec knows is shown as text, else in hex.

    {"batch": {…}} | {"command": {…}} | {"group": {…}} | {"text": …} | {"hex": …}, and "cut"

One limit holds for all parts of a payload together. So only the last part shown can be cut short,
and "cut" says that there is more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import Any, Final, NamedTuple, TypeVar

from myqueue.daemons.partition import machine
from myqueue.daemons.raft.types import COMMAND, DATA
from myqueue.errors import BatchInvalid
from myqueue.wal import format as f
from myqueue.wire import batch, protocol

# A few bytes can claim any size. No batch that a broker accepts is larger uncompressed.
INFLATED_BYTES_MAX: Final = protocol.FRAME_BYTES_MAX
PACKED_BYTES_MAX: Final = 4 << 20  # more than the largest command takes
Value = dict[str, Any]
Bytes = TypeVar("Bytes", str, bytes)
Item = TypeVar("Item")


class Room:
    """The size that may still be shown of a payload, and whether a part did not fit."""

    def __init__(self, most: int) -> None:
        self.left, self.cut = most, False

    def spend(self, size: int) -> None:
        self.left = max(0, self.left - size)

    def part(self, whole: Bytes) -> Bytes:
        """Return as much of the beginning as fits."""
        shown = whole[: self.left]
        self.cut |= len(shown) < len(whole)
        self.spend(len(shown))
        return shown

    def fitting(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items until no room is left; an empty item takes 1, so that this always ends."""
        for item in items:
            if not self.left:
                self.cut = True
                return
            before = self.left
            yield item
            if self.left == before:
                self.spend(1)

    def content(self, raw: bytes) -> Value:
        """Show a user's bytes: as text if they are readable, else in hex."""
        text = _readable(raw)
        return {"hex": self.part(raw).hex()} if text is None else {"text": self.part(text)}

    def plain(self, value: Any, depth: int = protocol.DEPTH_MAX) -> Any:
        """Return a value for JSON, bytes in hex; ValueError if no daemon packs such a value."""
        kind = type(value)
        if kind is str:
            return self.part(value)
        if kind is bytes:
            return self.part(value).hex()
        if value is None or kind is bool or kind is int:
            return value
        if kind is float:
            return value if isfinite(value) else str(value)
        if depth and kind is list:
            return [self.plain(item, depth - 1) for item in self.fitting(value)]
        if depth and kind is dict and all(type(name) is str for name in value):
            fields = self.fitting(value.items())
            return {self.part(name): self.plain(item, depth - 1) for name, item in fields}
        raise ValueError(f"a {kind.__name__} in a command, or too deep in it")


def _readable(raw: bytes) -> str | None:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", "").replace("\t", "").isprintable() else None


# -- batches of messages --------------------------------------------------------------------------

_CODECS: Final = {number: name for name, number in batch.CODECS.items()}


def _as_batch(record: f.Record, payload: bytes, most: int) -> Value | None:
    """Decode a batch; if its body cannot be opened, show its header and its bytes."""
    if record.kind != f.ENTRY or record.entry_type != DATA:
        return None
    try:
        head = batch.header(payload)
    except BatchInvalid:
        return None
    keyed = head.epoch == batch.KEYED_EPOCH
    key = head.producer.to_bytes(8, "big") + head.sequence.to_bytes(8, "big")
    facts: Value = {
        "producer": None if keyed else head.producer,
        "epoch": None if keyed else head.epoch,
        "sequence": None if keyed else head.sequence,
        "key": key.hex() if keyed else None,
        "count": head.count,
        "time_ms": head.time_ms,
        "codec": _CODECS[head.codec],
        "stored_bytes": head.stored_bytes,
        "body_bytes": head.body_bytes,
        "messages": None,
        "problem": None,
    }
    room = Room(most)
    try:
        if head.codec != batch.PLAIN and head.body_bytes > INFLATED_BYTES_MAX:
            raise BatchInvalid(f"it says that it has {head.body_bytes:,} bytes, too many to open")
        _, columns = batch.open_batch(payload)
        facts["messages"] = list(_messages(record.offset, head, columns, room))
    except BatchInvalid as error:
        return {"batch": {**facts, "problem": str(error)}, **_as_hex(payload, most)}
    return {"batch": facts, "cut": room.cut}


def _messages(
    offset: int, head: batch.Header, columns: batch.Columns, room: Room
) -> Iterator[Value]:
    for at in room.fitting(range(head.count)):
        key = columns.keys[at] if columns.keys else None
        headers = columns.headers[at] if columns.headers else None
        yield {
            "offset": offset + at,
            "time_ms": head.time_ms + (columns.times[at] if columns.times else 0),
            "key": None if key is None else room.content(key),
            "value": room.content(columns.values[at]),
            "headers": headers
            and {room.part(name): room.content(raw) for name, raw in room.fitting(headers.items())},
        }


# -- commands -------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """The format of a partition's operation that is a list of rows."""

    name: str
    fields: tuple[str, ...]
    fit: protocol.Check


_NUMBER, _TEXT = protocol.is_int, protocol.is_text
_ROWS: Final = {
    machine.COMMIT: _Rows(
        "COMMIT",
        ("consumer", "offset", "member_epoch", "assignment_epoch"),
        protocol.list_of(protocol.row(_TEXT, _NUMBER, _NUMBER, _NUMBER)),
    ),
    machine.TAKE: _Rows(
        "TAKE",
        ("consumer", "key", "most", "nothing_too"),
        protocol.list_of(protocol.row(_TEXT, protocol.is_key, _NUMBER, protocol.is_bool)),
    ),
    machine.FORGET: _Rows(
        "FORGET",
        ("consumer", "member_epoch", "assignment_epoch"),
        protocol.list_of(protocol.row(_TEXT, _NUMBER, _NUMBER)),
    ),
}
_PLAIN: Final = {  # operations without rows
    machine.START: ("START", ("offset", "index", "bytes_gone")),
    machine.KEY_STEP: ("KEY_STEP", ()),
}


def _as_command(record: f.Record, payload: bytes, most: int) -> Value | None:
    """Decode a command: a partition's begins with a number, the managers' with a key."""
    if record.kind != f.ENTRY or record.entry_type != COMMAND or len(payload) > PACKED_BYTES_MAX:
        return None
    room = Room(most)
    try:
        command = protocol.unpack_found(payload)
        if type(command) is not list or not command:
            return None
        first, *rest = command
        decode = _of_managers if type(first) is bytes else _of_partition
        decoded_command = decode(first, rest, room)
    except ValueError:
        return None
    return None if decoded_command is None else {"command": decoded_command, "cut": room.cut}


def _of_partition(operation: Any, fields: list[Any], room: Room) -> Value | None:
    if type(operation) is not int:
        return None
    if operation in _PLAIN:
        name, its_fields = _PLAIN[operation]
        if len(fields) != len(its_fields) or not all(map(_NUMBER, fields)):
            return None
        return {"operation": name, **dict(zip(its_fields, fields, strict=True))}
    row_format = _ROWS.get(operation)
    if row_format is None or len(fields) != 1 or type(fields[0]) is not list:
        return None
    rows = fields[0]
    if operation == machine.TAKE:  # older logs lack the last field
        rows = [[*row, False] if type(row) is list and len(row) == 3 else row for row in rows]
    if not row_format.fit(rows):
        return None
    return {
        "operation": row_format.name,
        "count": len(rows),
        "rows": [_row(row_format, row, room) for row in room.fitting(rows)],
    }


def _row(row_format: _Rows, row: list[Any], room: Room) -> Value:
    """Show a row whole, even if only its beginning fits: half a row is of no use."""
    room.spend(len(protocol.pack(row)))
    fields = dict(zip(row_format.fields, row, strict=True))
    if row_format.name == "TAKE":
        fields["key"] = fields["key"].hex()
    if fields.get("offset") == protocol.NO_OFFSET:  # the row only announces its epochs
        fields["offset"] = None
    return fields


def _of_managers(key: bytes, rest: list[Any], room: Room) -> Value | None:
    """Decode a command of the managers; an empty key: a manager proposed it itself."""
    if len(rest) != 2 or type(rest[0]) is not str or type(rest[1]) is not dict:
        return None
    operation, arguments = rest
    return {
        "operation": room.part(operation),
        "key": room.part(key).hex() or None,
        "arguments": room.plain(arguments),
    }


# -- descriptions of Raft groups ------------------------------------------------------------------


def _as_group(record: f.Record, payload: bytes, most: int) -> Value | None:
    """Decode a replica's creation: its first members and its partition (none for managers)."""
    if record.kind != f.GROUP_CREATED or len(payload) > PACKED_BYTES_MAX:
        return None
    room = Room(most)
    facts: Value = {"topic": None, "partition": None, "topic_uid": None}
    try:
        replica, voters, learners, about = _list_of_4(protocol.unpack_found(payload))
        if about != b"managers":
            topic, number, topic_uid, settings = _list_of_4(protocol.unpack_found(about))
            facts = {
                "topic": room.plain(topic),
                "partition": room.plain(number),
                "topic_uid": f"{topic_uid:016x}",
                "settings": room.plain(settings),
            }
        members = {"voters": room.plain(voters), "learners": room.plain(learners)}
        facts = {"replica": room.plain(replica), **members, **facts}
    except (ValueError, TypeError):
        return None
    return {"group": facts, "cut": room.cut}


def _list_of_4(value: Any) -> list[Any]:
    if type(value) is not list or len(value) != 4:
        raise ValueError("not what a daemon notes of a group")
    return value


# -- all together ---------------------------------------------------------------------------------


def _as_text(record: f.Record, payload: bytes, most: int) -> Value | None:
    text = _readable(payload)
    return None if text is None else {"text": text[:most], "cut": len(text) > most}


def _as_hex(payload: bytes, most: int) -> Value:
    return {"hex": payload[:most].hex(), "cut": len(payload) > most}


Decoder = Callable[[f.Record, bytes, int], Value | None]
DECODERS: Final[tuple[Decoder, ...]] = (_as_batch, _as_command, _as_group, _as_text)


def decoded(record: f.Record, payload: bytes, most: int) -> Value:
    """Return the result of the first decoder that knows the payload, else hex."""
    for decoder in DECODERS:
        value = decoder(record, payload, most)
        if value is not None:
            return value
    return _as_hex(payload, most)
