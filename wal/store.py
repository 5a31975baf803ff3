"""The store: LMDB tables that make the log usable. All of it can be rebuilt from the log.

| table | key | value |
|---|---|---|
| index | group, index | where the entry stands, and what its header says |
| offsets | group, offset of an entry's last message | its index |
| groups | group | log start, hard state, snapshot: `Group.save` |
| state | group, user's key | applied state of the group's state machine |
| applied | group | applied index; always written together with the state it belongs to (W13) |
| meta | name | watermark (segment, position), version, boot id |

A commit takes ops in log order (what `Persisted` events and recovery hand out) and moves the
watermark: everything before it is in the store. Commits sync the data but not LMDB's meta page
(`metasync=False`): after a crash or power loss the store is whole, at worst one commit older, and
recovery replays the rest (L1). Every value carries a CRC that covers its key (L10), since LMDB
itself has no checksums.

Writing belongs to one thread (L7), reading to any: `with store.view() as view`. Views are short
(L4).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from threading import Condition, Lock
from typing import Any
from zlib import crc32

import lmdb

from myqueue.errors import StoreBroken
from myqueue.wal import format as f
from myqueue.wal.groups import Group, Groups, Op, Row, RowTuple
from myqueue.wal.storefile import boot_id, check_file

VERSION = 1
MAP_BYTES = 64 << 30  # virtual; the file grows with its content
GROW_FACTOR = 2
TABLES = ("index", "offsets", "groups", "state", "applied", "meta")
_KEY = Struct(">QQ")
_GROUP_KEY = Struct(">Q")
_ROW = Struct("<IIIIQQQQ")
_WATERMARK = Struct("<QQ")
_ROW_SEALED = Struct("<IIIIQQQQI")
_pack_key, _pack_row = _KEY.pack, _ROW.pack
_unpack_key, _unpack_row = _KEY.unpack, _ROW_SEALED.unpack
_LAST = 2**64 - 1

# What a commit writes of one group's state machine: (applied index, puts, deleted keys).
StateChange = tuple[int, dict[bytes, bytes], list[bytes]]


def _sealed(key: bytes, value: bytes) -> bytes:
    return value + crc32(value, crc32(key)).to_bytes(4, "little")


def _opened(key: bytes, raw: bytes) -> bytes:
    value = raw[:-4]
    if crc32(value, crc32(key)).to_bytes(4, "little") != raw[-4:]:
        raise StoreBroken("a value in the store fails its checksum")
    return value


def _row(key: bytes, raw: bytes) -> Row:
    if len(raw) != _ROW_SEALED.size:
        raise StoreBroken("a row of the store's index is not of its size")
    segment, position, length, count, offset, term, time_ms, chain, crc = _unpack_row(raw)
    if crc != crc32(raw[:-4], crc32(key)):
        raise StoreBroken("a row of the store's index fails its checksum")
    group, index = _unpack_key(key)
    return Row(group, index, segment, position, length, count, offset, term, time_ms, chain)


class View:
    """A consistent look at the store, as of its last commit. Use as a context manager."""

    __slots__ = ("_index", "_offsets", "_store", "_txn")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._index, self._offsets = store._tables["index"], store._tables["offsets"]

    def __enter__(self) -> View:
        self._store._gate.enter()
        self._txn = self._store._env.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._txn.abort()
        self._store._gate.leave()

    def row(self, group: int, index: int) -> Row | None:
        if index < 0:
            return None
        key = _pack_key(group, index)
        raw = self._txn.get(key, db=self._index)
        return None if raw is None else _row(key, raw)

    def row_at_offset(self, group: int, offset: int) -> Row | None:
        """The entry that holds this message offset."""
        cursor = self._txn.cursor(self._offsets)
        if offset < 0 or not cursor.set_range(_pack_key(group, offset)):
            return None
        key, index = cursor.item()
        if key[:8] != _GROUP_KEY.pack(group):
            return None
        row = self.row(group, int.from_bytes(index, "big"))
        if row is None or key != _pack_key(group, row.offset + row.count - 1):
            raise StoreBroken(f"the store's offsets and index disagree about group {group:x}")
        return row if offset >= row.offset else None

    def rows(self, group: int, first_index: int, last_index: int, max_bytes: int) -> list[Row]:
        """Rows of consecutive entries: at least one if there is one, then up to the limits."""
        cursor = self._txn.cursor(self._index)
        out: list[Row] = []
        size = 0
        if not cursor.set_range(_pack_key(group, first_index)):
            return out
        for key, raw in cursor:
            row = _row(key, raw)
            size += row.length
            if row.group != group or row.index > last_index or (out and size > max_bytes):
                break
            out.append(row)
        return out

    def state(self, group: int, key: bytes) -> bytes | None:
        full = _GROUP_KEY.pack(group) + key
        raw = self._txn.get(full, db=self._store._tables["state"])
        return None if raw is None else _opened(full, raw)

    def states(self, group: int, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        start = _GROUP_KEY.pack(group) + prefix
        cursor = self._txn.cursor(self._store._tables["state"])
        if cursor.set_range(start):
            for key, raw in cursor:
                if not key.startswith(start):
                    return
                yield key[8:], _opened(key, raw)

    def applied_index(self, group: int) -> int:
        key = _GROUP_KEY.pack(group)
        raw = self._txn.get(key, db=self._store._tables["applied"])
        return 0 if raw is None else int.from_bytes(_opened(key, raw), "little")

    def meta(self, name: bytes) -> bytes | None:
        raw = self._txn.get(name, db=self._store._tables["meta"])
        return None if raw is None else _opened(name, raw)

    def dump(self, tables: tuple[str, ...] = TABLES[:-1]) -> Iterator[tuple[str, bytes, bytes]]:
        """Every key and value, checked, in order; two stores with equal dumps are equal."""
        for table in tables:
            for key, raw in self._txn.cursor(self._store._tables[table]):
                yield table, key, raw if table in ("offsets", "groups") else _opened(key, raw)

    def groups(self) -> Groups:
        """The groups as of the watermark; each tail is its last row in the index."""
        groups = Groups()
        index = self._txn.cursor(self._index)
        for _key, raw in self._txn.cursor(self._store._tables["groups"]):
            group = groups.by_uid[int.from_bytes(_key, "big")] = Group.load(raw)
            last = _pack_key(group.uid, _LAST)
            found = index.set_range(last) and (index.key() == last or index.prev())
            if (found or index.last()) and _KEY.unpack(index.key())[0] == group.uid:
                row = _row(index.key(), index.value())
                group.append(row.index, row.term, row.offset + row.count, row.chain)
        return groups


class _Gate:
    """Lets views in, except while the map is being resized; two short locks a view, no more."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._empty = Condition(self._lock)
        self._inside = 0
        self._awaited = False

    def enter(self) -> None:
        with self._lock:
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._awaited:
                self._empty.notify()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody is inside, and nobody gets in, until the block ends."""
        with self._empty:
            self._awaited = True
            self._empty.wait_for(lambda: not self._inside)
            self._awaited = False
            yield


class Store:
    """The tables of one daemon, under `directory`."""

    def __init__(self, directory: str, map_bytes: int = MAP_BYTES, sync: bool = True) -> None:
        check_file(directory)
        try:
            self._env = lmdb.open(
                directory, map_size=map_bytes, max_dbs=len(TABLES), metasync=False, sync=sync,
                readahead=False, max_readers=126, mode=0o600,
            )  # fmt: skip
            self._env.reader_check()
            self._tables = {name: self._env.open_db(name.encode()) for name in TABLES}
        except lmdb.Error as error:
            raise StoreBroken(f"{directory}: {error}") from error
        self._gate = _Gate()
        self._check_after_boot()

    def _check_after_boot(self) -> None:
        """A machine that was restarted may have lost power: read every value once (L11)."""
        with self.view() as view:
            version, boot = view.meta(b"version"), view.meta(b"boot")
        if version not in (None, VERSION.to_bytes(4, "little")):
            raise StoreBroken("the store was written by another version")
        if boot is not None and boot != boot_id():
            self.check()
        if boot != boot_id():
            with self._env.begin(write=True, db=self._tables["meta"]) as txn:
                txn.put(b"boot", _sealed(b"boot", boot_id()))
                txn.put(b"version", _sealed(b"version", VERSION.to_bytes(4, "little")))

    def check(self) -> int:
        """Read every value; raise StoreBroken at the first that is not right. Returns their
        number.
        """
        count = 0
        try:
            with self.view() as view:
                for _ in view.dump(TABLES):
                    count += 1
                view.groups()
        except lmdb.Error as error:
            raise StoreBroken(str(error)) from error
        return count

    def view(self) -> View:
        return View(self)

    @property
    def watermark(self) -> tuple[int, int]:
        """Segment and position up to which the log is in the store; (0, 0) if nothing is."""
        with self.view() as view:
            raw = view.meta(b"watermark")
        return (0, 0) if raw is None else _WATERMARK.unpack(raw)

    def commit(
        self,
        ops: list[Op],
        segment: int,
        position: int,
        states: dict[int, StateChange] | None = None,
    ) -> None:
        """All or nothing: ops in order, state changes with their applied index, the watermark."""
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    _Commit(txn, self._tables).run(ops, states or {})
                    mark = _sealed(b"watermark", _WATERMARK.pack(segment, position))
                    txn.put(b"watermark", mark, db=self._tables["meta"])
                return
            except lmdb.MapFullError:
                self._grow()

    def _grow(self) -> None:
        with self._gate.alone():
            self._env.set_mapsize(self._env.info()["map_size"] * GROW_FACTOR)

    def sync(self) -> None:
        """Make the last commit durable, meta page and all; reclaim counts only that (L2, W12)."""
        self._env.sync(True)

    def used_bytes(self) -> int:
        return (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]

    def close(self) -> None:
        self._env.sync(True)
        self._env.close()


class _Commit:
    """One write transaction."""

    def __init__(self, txn: lmdb.Transaction, tables: dict[str, Any]) -> None:
        self._txn, self._tables = txn, tables
        self._index: list[tuple[bytes, bytes]] = []
        self._offsets: list[tuple[bytes, bytes]] = []
        self._groups: dict[int, Group | None] = {}

    def run(self, ops: list[Op], states: dict[int, StateChange]) -> None:
        for op in ops:
            if isinstance(op, list):
                self._rows(op)
            else:
                self._record(*op)
        self._put_rows()
        for uid, group in self._groups.items():
            if group is not None:
                self._txn.put(_GROUP_KEY.pack(uid), group.save(), db=self._tables["groups"])
        for uid, (applied_index, puts, deletes) in states.items():
            self._state(uid, applied_index, puts, deletes)

    def _rows(self, rows: list[RowTuple]) -> None:
        index, offsets = self._index, self._offsets
        for group, at, segment, position, length, count, offset, term, time_ms, chain in rows:
            key = _pack_key(group, at)
            value = _pack_row(segment, position, length, count, offset, term, time_ms, chain)
            index.append((key, value + crc32(value, crc32(key)).to_bytes(4, "little")))
            if count:
                offsets.append((_pack_key(group, offset + count - 1), key[8:]))

    def _put_rows(self) -> None:
        for name, items in (("index", self._index), ("offsets", self._offsets)):
            if items:
                items.sort()
                self._txn.cursor(self._tables[name]).putmulti(items)
                items.clear()

    def _record(self, record: f.Record, segment: int, payload: bytes) -> None:
        uid = record.group
        if record.kind in (f.TRUNCATE, f.START, f.GROUP_REMOVED):
            self._put_rows()
        if record.kind == f.TRUNCATE:
            self._delete("index", uid, record.index, _LAST)
            self._delete("offsets", uid, record.offset, _LAST)
        elif record.kind == f.START:
            reset = record.flags & f.RESET
            self._delete("index", uid, 0, _LAST if reset else record.index - 1)
            self._delete("offsets", uid, 0, _LAST if reset else record.offset - 1)
        elif record.kind == f.GROUP_REMOVED:
            self._remove(uid)
            return
        group = self._groups.get(uid)
        if group is None:
            raw = self._txn.get(_GROUP_KEY.pack(uid), db=self._tables["groups"])
            group = self._groups[uid] = Group(uid) if raw is None else Group.load(bytes(raw))
        group.apply(record, segment, payload)

    def _remove(self, uid: int) -> None:
        self._groups[uid] = None
        self._delete("index", uid, 0, _LAST)
        self._delete("offsets", uid, 0, _LAST)
        prefix = _GROUP_KEY.pack(uid)
        self._txn.delete(prefix, db=self._tables["groups"])
        self._txn.delete(prefix, db=self._tables["applied"])
        cursor = self._txn.cursor(self._tables["state"])
        found = cursor.set_range(prefix)
        while found and bytes(cursor.key()).startswith(prefix):
            found = cursor.delete()

    def _delete(self, table: str, uid: int, first: int, last: int) -> None:
        """Rows of a group with first <= index (or offset) <= last."""
        cursor = self._txn.cursor(self._tables[table])
        end = _pack_key(uid, max(last, 0))
        found = last >= first and cursor.set_range(_pack_key(uid, first))
        while found and bytes(cursor.key()) <= end:
            found = cursor.delete()

    def _state(
        self, uid: int, applied: int, puts: dict[bytes, bytes], deletes: list[bytes]
    ) -> None:
        prefix, table = _GROUP_KEY.pack(uid), self._tables["state"]
        for key in deletes:
            self._txn.delete(prefix + key, db=table)
        for key, value in puts.items():
            full = prefix + key
            self._txn.put(full, _sealed(full, value), db=table)
        value = _sealed(prefix, applied.to_bytes(8, "little"))
        self._txn.put(prefix, value, db=self._tables["applied"])


def delete_store(directory: str) -> None:
    """The store holds nothing that the log does not; removing it costs a rebuild."""
    for name in ("data.mdb", "lock.mdb"):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            os.unlink(path)
