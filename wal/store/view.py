"""Reading the store as of one commit; every value is checked before it is returned.

LMDB trusts what it reads. A damaged page shows as an error of LMDB, as a value that fails its
checksum, or as rows that contradict each other. All of these become `StoreBroken`: the store has to
be rebuilt from the log. `guard` looks, before LMDB opens the file, for damage that would end the
process.

A view must be short: while it is open, LMDB reuses no page that it may see.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Set
from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

from myqueue.errors import StoreBroken
from myqueue.wal.groups import Group, Groups, Row

if TYPE_CHECKING:
    from myqueue.wal.store.store import Store

TABLES = ("index", "offsets", "groups", "state", "applied", "meta")
KEY = Struct(">QQ")
GROUP_KEY = Struct(">Q")
ROW = Struct("<IIIIQQQQ")
_ROW_SEALED = Struct("<IIIIQQQQI")
_pack_key, _unpack_key, _unpack_row = KEY.pack, KEY.unpack, _ROW_SEALED.unpack
LAST = 2**64 - 1
_new = tuple.__new__  # makes a named tuple without calling its constructor


def sealed(key: bytes, value: bytes) -> bytes:
    """Return the value with a CRC over key and value after it."""
    return value + crc32(value, crc32(key)).to_bytes(4, "little")


def opened(key: bytes, raw: bytes) -> bytes:
    """Return the value without its CRC; StoreBroken if that is wrong."""
    value = raw[:-4]
    if crc32(value, crc32(key)).to_bytes(4, "little") != raw[-4:]:
        raise StoreBroken("a value in the store fails its checksum")
    return value


def _row(key: bytes, raw: bytes) -> Row:
    if len(raw) != _ROW_SEALED.size:
        raise StoreBroken("a row of the store's index is not of its size")
    fields = _unpack_row(raw)
    if fields[8] != crc32(raw[:-4], crc32(key)):
        raise StoreBroken("a row of the store's index fails its checksum")
    return _new(Row, _unpack_key(key) + fields[:8])


class View:
    """The tables as of the store's last commit. Use as a context manager."""

    __slots__ = ("_index", "_offsets", "_store", "_txn")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._index, self._offsets = store._tables["index"], store._tables["offsets"]

    def __enter__(self) -> View:
        self._store._gate.enter()
        try:
            self._txn = self._store._env.begin()
        except BaseException as error:
            self._store._gate.leave()
            self._judge(error)
            raise
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        self._txn.abort()
        self._store._gate.leave()
        if error is not None:
            self._judge(error)

    def _judge(self, error: BaseException | None) -> None:
        """Turn errors of LMDB and of decoding into StoreBroken, and mark the store as broken."""
        if isinstance(error, (*self._store.errors, struct.error)):
            self._store.is_broken = True
            raise StoreBroken(f"the store is damaged: {error}") from error
        if isinstance(error, StoreBroken):
            self._store.is_broken = True

    def row(self, group: int, index: int) -> Row | None:
        """Return the row of an entry, None if there is none."""
        if not 0 <= index <= LAST:
            return None
        key = _pack_key(group, index)
        raw = self._txn.get(key, db=self._index)
        return None if raw is None else _row(key, raw)

    def row_at_offset(self, group: int, offset: int) -> Row | None:
        """Return the row of the entry that holds this message offset."""
        if not 0 <= offset <= LAST:
            return None
        wanted = _pack_key(group, offset)
        cursor = self._txn.cursor(self._offsets)
        if not cursor.set_range(wanted):
            return None
        key, index = cursor.item()
        prefix = key[:8]
        if prefix != wanted[:8]:
            return None
        entry = prefix + index
        raw = self._txn.get(entry, db=self._index)
        row = None if raw is None else _row(entry, raw)
        if row is None or key != _pack_key(group, row.offset + row.count - 1):
            raise StoreBroken(f"the store's offsets and index disagree about group {group:x}")
        return row if offset >= row.offset else None

    def rows(self, group: int, first_index: int, last_index: int, max_bytes: int) -> list[Row]:
        """Return rows of consecutive entries: at least one if any, then up to the limits."""
        cursor = self._txn.cursor(self._index)
        out: list[Row] = []
        size = 0
        if first_index > LAST or not cursor.set_range(_pack_key(group, max(0, first_index))):
            return out
        for key, raw in cursor:
            row = _row(key, raw)
            size += row.length
            if row.group != group or row.index > last_index or (out and size > max_bytes):
                break
            out.append(row)
        return out

    def rows_in_segment(
        self, number: int, start: bytes = b"", keys_max: int = 50_000
    ) -> tuple[list[Row], bytes]:
        """Return the rows that point to this segment, among `keys_max` keys from `start` on.

        Also returns the key to continue at, b"" at the end. This reads all of the index, which is
        acceptable because damage is rare.
        """
        return self._rows({number}, True, start, keys_max)

    def rows_elsewhere(
        self, numbers: Set[int], start: bytes = b"", keys_max: int = 10_000
    ) -> tuple[list[Row], bytes]:
        """Return the rows that point to none of these segments; otherwise like the above."""
        return self._rows(numbers, False, start, keys_max)

    def _rows(
        self, numbers: Set[int], inside: bool, start: bytes, keys_max: int
    ) -> tuple[list[Row], bytes]:
        signs, out = {number.to_bytes(4, "little") for number in numbers}, list[Row]()
        cursor = self._txn.cursor(self._index)
        if not (cursor.set_range(start) if start else cursor.first()):
            return out, b""
        for at, (key, raw) in enumerate(cursor):
            if at == keys_max:
                return out, bytes(key)
            if (raw[:4] in signs) is inside:
                out.append(_row(key, raw))
        return out, b""

    def last_row(self, group: int, last_index: int = LAST) -> Row | None:
        """Return the row of the group's last entry up to this index."""
        if last_index < 0:
            return None
        cursor = self._txn.cursor(self._index)
        last = _pack_key(group, last_index)
        is_at_row = cursor.set_range(last) and (cursor.key() == last or cursor.prev())
        if (is_at_row or cursor.last()) and cursor.key()[:8] == last[:8]:
            row = _row(cursor.key(), cursor.value())
            return row if row.index <= last_index else None
        return None

    def state(self, group: int, key: bytes) -> bytes | None:
        """Return one value of a group's applied state."""
        full = GROUP_KEY.pack(group) + key
        raw = self._txn.get(full, db=self._store._tables["state"])
        return None if raw is None else opened(full, raw)

    def states(self, group: int, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of a group's applied state, in order of their keys."""
        start = GROUP_KEY.pack(group) + prefix
        cursor = self._txn.cursor(self._store._tables["state"])
        if cursor.set_range(start):
            for key, raw in cursor:
                if not key.startswith(start):
                    return
                yield key[8:], opened(key, raw)

    def applied_index(self, group: int) -> int:
        """Return the index up to which the group's state is applied, 0 if none is."""
        key = GROUP_KEY.pack(group)
        raw = self._txn.get(key, db=self._store._tables["applied"])
        return 0 if raw is None else int.from_bytes(opened(key, raw), "little")

    def meta(self, name: bytes) -> bytes | None:
        """Return a value of the store itself: its watermark or its version."""
        raw = self._txn.get(name, db=self._store._tables["meta"])
        return None if raw is None else opened(name, raw)

    def dump(self, tables: tuple[str, ...] = TABLES[:-1]) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield (table, key, value), checked, in order; two stores with equal dumps are equal."""
        for table in tables:
            for key, raw in self._txn.cursor(self._store._tables[table]):
                yield table, key, raw if table in ("offsets", "groups") else opened(key, raw)

    def check(self) -> int:
        """Read every value; return their number. StoreBroken at the first damage.

        A checksum does not reveal an old page, or a page that stands in place of another. So the
        order of keys, the number of rows and the two tables about entries are checked as well.
        """
        values = 0
        for table in TABLES:
            rows, before = 0, b""
            for _, key, _ in self.dump((table,)):
                if key <= before and rows:
                    raise StoreBroken(f"the keys of the store's table {table} are out of order")
                rows, before = rows + 1, key
            if rows != self._txn.stat(self._store._tables[table])["entries"]:
                raise StoreBroken(f"rows of the store's table {table} are missing")
            values += rows
        self._check_offsets()
        self.groups()
        return values

    def _check_offsets(self) -> None:
        """Check that `offsets` has a row for every entry with messages, and no other row."""
        offsets = iter(self._txn.cursor(self._offsets))
        for key, raw in self._txn.cursor(self._index):
            row = _row(key, raw)
            if not row.count:
                continue
            wanted = (_pack_key(row.group, row.offset + row.count - 1), key[8:])
            if next(offsets, None) != wanted:
                raise StoreBroken(f"the store's offsets and index disagree: group {row.group:x}")
        if next(offsets, None) is not None:
            raise StoreBroken("the store has offsets of entries that are not in its index")

    def groups(self) -> Groups:
        """Return the groups as of the watermark; the tail of each is its last row in the index."""
        groups = Groups()
        for key, raw in self._txn.cursor(self._store._tables["groups"]):
            group = groups.by_uid[int.from_bytes(key, "big")] = Group.load(raw)
            if GROUP_KEY.pack(group.uid) != key:
                raise StoreBroken(f"the row of group {group.uid:x} stands at another key")
            row = self.last_row(group.uid)
            if row is not None:
                group.append(row.index, row.term, row.offset + row.count, row.chain)
        return groups
