"""The store: LMDB tables that make the log usable. All of it can be rebuilt from the log.

| table | key | value |
|---|---|---|
| index | group, index | where the entry stands, and what its header says |
| offsets | group, offset of an entry's last message | its index |
| groups | group | log start, hard state, snapshot: `Group.save` |
| state | group, state machine's key | applied state of the group's state machine |
| applied | group | applied index, written in one transaction with the state it belongs to |
| meta | name | watermark (segment, position), version |

A commit takes ops in log order (those of `Persisted` events and of recovery) and moves the
watermark: everything before it is in the store. Commits sync the data but not LMDB's meta page
(`metasync=False`): after a crash or power loss the store is intact, at worst one commit older, and
recovery replays the rest. Every value carries a CRC that covers its key, since LMDB itself has no
checksums.

Only one thread may write. Any thread may read, with `with store.view() as view`. Views must be
short: LMDB reuses no page that an open view may see.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from threading import Condition, Lock
from typing import Any
from zlib import crc32

import lmdb

from myqueue.errors import DirectoryUnusable, DiskFull, StoreBroken
from myqueue.wal import format as f
from myqueue.wal.fork_guard import refuse_after_fork, wrong_process
from myqueue.wal.groups import Group, Op, RowTuple
from myqueue.wal.store import map_limit
from myqueue.wal.store.guard import STATE_FILE, check_before_opening, note_broken, note_closed
from myqueue.wal.store.view import GROUP_KEY, KEY, LAST, ROW, TABLES, View, sealed

# Since version 2 a group's row says where its commit hint stands. A program that knows only version
# 1 would misread such a row; it refuses version 2 and rebuilds the store from the log.
VERSION = 2
VERSIONS_READ = (1, VERSION)
MAP_BYTES = 64 << 30  # virtual; the file grows with its content
GROW_FACTOR = 2
# Errors of the system's limits. They say nothing about the file, so the store is not dropped.
NO_MEMORY = "Cannot allocate memory"
NOT_DAMAGE = ("Permission denied", "Too many open files")
GROW_WAIT_S = 0.05
ROOM_BYTES = 16 << 20  # LMDB reports a full disk as an IO error; with less free space it was one
STATE_KEY_BYTES_MAX = 511 - 8  # LMDB's limit; the group's uid comes first
_WATERMARK = Struct("<QQ")
_pack_key, _pack_row = KEY.pack, ROW.pack

# A change of one group's applied state: (applied index, puts, deleted keys).
StateChange = tuple[int, dict[bytes, bytes], list[bytes]]


class _Gate:
    """Admits views, except while the map is being resized. Costs two short locks for each view."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._empty = Condition(self._lock)
        self._inside = 0
        self._resized = Condition(self._lock)
        self._awaited = False

    def enter(self) -> None:
        """Count a view in. While a resize waits, a new view waits for a moment first.

        Without the wait, views might overlap for ever. It is short, because the view's thread may
        have another view open, for which the resize waits.
        """
        with self._lock:
            if self._awaited:
                self._resized.wait(GROW_WAIT_S)
            self._inside += 1

    def leave(self) -> None:
        """Count a view out."""
        with self._lock:
            self._inside -= 1
            if self._awaited:
                self._empty.notify()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no view is open, and admit none until the block ends."""
        with self._empty:
            self._awaited = True
            self._empty.wait_for(lambda: not self._inside)
            self._awaited = False
            try:
                yield
            finally:
                self._resized.notify_all()


class _ParentsEnvironment:
    """Stands for the environment in a forked child. It keeps the real one, which must not close."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def __getattr__(self, name: str) -> Any:
        raise wrong_process()


class Store:
    """The LMDB tables of one daemon, in `directory`."""

    errors = (lmdb.Error,)  # a view reports these as damage

    def __init__(
        self,
        directory: str,
        map_bytes: int = MAP_BYTES,
        sync: bool = True,
        checked: bool = False,
        read_only: bool = False,
    ) -> None:
        """Open the tables; StoreBroken if they are damaged.

        `checked` skips the checks of `guard`. `read_only` is for tools that hold the daemon's lock:
        nothing is written, not even LMDB's own lock file.
        """
        self._directory, self._read_only = directory, read_only
        self.is_broken = False  # a value could not be read: the next start checks all of them
        if not checked and not read_only:
            check_before_opening(directory)
        self._gate = _Gate()
        self._env: Any
        file = os.path.join(directory, "data.mdb")
        is_new = not os.path.exists(file)
        size = map_limit.fitting_map_bytes(map_bytes, 0 if is_new else os.path.getsize(file))
        if not size:
            raise _no_addresses(directory)
        try:
            self._env = lmdb.open(
                directory,
                map_size=size,
                max_dbs=len(TABLES),
                metasync=False,
                sync=sync,
                readahead=False,
                max_readers=126,
                mode=0o600,
                readonly=read_only,
                lock=not read_only,
                create=not read_only,
            )
        except lmdb.Error as error:
            if NO_MEMORY in str(error):
                raise _no_addresses(directory) from error
            if any(word in str(error) for word in NOT_DAMAGE):
                raise DirectoryUnusable(f"{directory}: {error}") from error
            raise _opening(directory, error, is_new) from error
        try:
            self._open_tables()
        except BaseException as error:
            self._env.close()
            if isinstance(error, lmdb.Error):
                raise _opening(directory, error, is_new) from error
            raise
        refuse_after_fork(self)

    def forked(self) -> None:
        """Refuse all use in a forked child. The gate is new: a parent's thread may hold the old."""
        self._env, self._gate = _ParentsEnvironment(self._env), _Gate()

    def _open_tables(self) -> None:
        create = not self._read_only
        if create:
            self._env.reader_check()
        self._tables = {name: self._env.open_db(name.encode(), create=create) for name in TABLES}
        with self.view() as view:
            version = view.meta(b"version")
        readable = [number.to_bytes(4, "little") for number in VERSIONS_READ]
        if version is None and create:
            with self._env.begin(write=True) as txn:
                self._put_version(txn)
        elif version not in readable:
            raise StoreBroken("the store was written by another version")
        self._is_older = version is not None and version != readable[-1]

    def _put_version(self, txn: lmdb.Transaction) -> None:
        version = sealed(b"version", VERSION.to_bytes(4, "little"))
        txn.put(b"version", version, db=self._tables["meta"])

    def check(self) -> int:
        """Read every value; return their number. StoreBroken at the first damaged one."""
        with self.view() as view:
            return view.check()

    def view(self) -> View:
        """Return a view of the last commit, to be used as a context manager."""
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
        """Write ops, state changes with their applied index, and the watermark: all or nothing.

        DiskFull or StoreBroken if that fails; then the tables are as before.
        """
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    if self._is_older:  # from now on there are rows that older programs can't read
                        self._put_version(txn)
                    _Commit(txn, self._tables).run(ops, states or {})
                    mark = sealed(b"watermark", _WATERMARK.pack(segment, position))
                    txn.put(b"watermark", mark, db=self._tables["meta"])
                self._pad()
                self._is_older = False
                return
            except lmdb.MapFullError:
                self._grow()
            except (lmdb.Error, struct.error) as error:
                raise self._judged(error) from error

    def _pad(self) -> None:
        """Extend the file to the size that its meta page names.

        LMDB does not write pages that it took and freed in one commit. If they are the last ones,
        the file is shorter than the meta page says, and `guard` would take it for cut.
        """
        path, named_bytes = os.path.join(self._directory, "data.mdb"), self.used_bytes()
        if os.path.getsize(path) < named_bytes:
            os.truncate(path, named_bytes)

    def _grow(self) -> None:
        with self._gate.alone():
            now = self._env.info()["map_size"]
            if not map_limit.may_grow(now, now * GROW_FACTOR):
                raise _no_addresses(self._directory)
            self._env.set_mapsize(now * GROW_FACTOR)

    def _judged(self, error: Exception) -> DiskFull | StoreBroken:
        """Return the error for a failed commit, which changed nothing: a full disk is no damage."""
        if _has_no_room(self._directory):
            return DiskFull(f"{self._directory}: {error}")
        self.is_broken = True
        return StoreBroken(f"{self._directory}: {error}")

    def sync(self) -> None:
        """Make the last commit durable, with its meta page.

        Reclaim counts only synced commits: otherwise a power loss could bring back an older store
        that still needs a deleted segment.
        """
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            raise self._judged(error) from error

    def used_bytes(self) -> int:
        """Return the bytes of the file up to the last page in use."""
        return int((self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"])

    def close(self) -> None:
        """Sync and close; note whether the next start has to check every value."""
        if self._read_only:
            self._env.close()
            return
        try:
            self.sync()
        finally:
            self._env.close()
        if self.is_broken:
            note_broken(self._directory)
        else:
            note_closed(self._directory)


def _no_addresses(directory: str) -> DirectoryUnusable:
    return DirectoryUnusable(
        f"{directory}: no address space for the store; {map_limit.limit_text()} are allowed",
        hint="Raise the limit (ulimit -v unlimited; LimitAS=infinity for systemd): a store is"
        " mapped, which takes addresses, not memory.",
    )


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
                self._txn.put(GROUP_KEY.pack(uid), group.save(), db=self._tables["groups"])
        for uid, (applied_index, puts, deletes) in states.items():
            if self._groups.get(uid, True) is not None:  # a group that was removed has no state
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
            self._delete("index", uid, record.index, LAST)
            self._delete("offsets", uid, record.offset, LAST)
        elif record.kind == f.START:
            reset = record.flags & f.RESET
            self._delete("index", uid, 0, LAST if reset else record.index - 1)
            self._delete("offsets", uid, 0, LAST if reset else record.offset - 1)
        elif record.kind == f.GROUP_REMOVED:
            self._remove(uid)
            return
        group = self._groups.get(uid)
        if group is None:
            raw = self._txn.get(GROUP_KEY.pack(uid), db=self._tables["groups"])
            group = self._groups[uid] = Group(uid) if raw is None else Group.load(bytes(raw))
        group.apply(record, segment, payload)

    def _remove(self, uid: int) -> None:
        self._groups[uid] = None
        self._delete("index", uid, 0, LAST)
        self._delete("offsets", uid, 0, LAST)
        prefix = GROUP_KEY.pack(uid)
        self._txn.delete(prefix, db=self._tables["groups"])
        self._txn.delete(prefix, db=self._tables["applied"])
        cursor = self._txn.cursor(self._tables["state"])
        is_at_row = cursor.set_range(prefix)
        while is_at_row and bytes(cursor.key()).startswith(prefix):
            is_at_row = cursor.delete()

    def _delete(self, table: str, uid: int, first: int, last: int) -> None:
        """Delete the rows of a group with first <= index (or offset) <= last."""
        cursor = self._txn.cursor(self._tables[table])
        end = _pack_key(uid, max(last, 0))
        is_at_row = last >= first and cursor.set_range(_pack_key(uid, first))
        while is_at_row and bytes(cursor.key()) <= end:
            is_at_row = cursor.delete()

    def _state(
        self, uid: int, applied: int, puts: dict[bytes, bytes], deletes: list[bytes]
    ) -> None:
        prefix, table = GROUP_KEY.pack(uid), self._tables["state"]
        for key in deletes:
            self._txn.delete(prefix + key, db=table)
        for key, value in puts.items():
            full = prefix + key
            self._txn.put(full, sealed(full, value), db=table)
        value = sealed(prefix, applied.to_bytes(8, "little"))
        self._txn.put(prefix, value, db=self._tables["applied"])


def delete_store(directory: str) -> None:
    """Delete a store's files. The log has all that a store holds, so this only costs a rebuild."""
    for name in ("data.mdb", "lock.mdb", STATE_FILE):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            os.unlink(path)


def check_store(directory: str, read_only: str = "") -> None:
    """Read every value. `guard` runs this in a child process and looks at its exit code."""
    Store(directory, checked=True, read_only=bool(read_only)).check()


def _opening(directory: str, error: lmdb.Error, is_new: bool) -> DiskFull | StoreBroken:
    """Return the error for a store that LMDB could not open.

    An existing store is broken even if the disk is full: deleting it frees its own space. A new one
    cannot be broken; on a full disk its first write was cut short.
    """
    is_full = isinstance(error, lmdb.DiskError) or (is_new and _has_no_room(directory))
    return (DiskFull if is_full else StoreBroken)(f"{directory}: {error}")


def _has_no_room(directory: str) -> bool:
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize < ROOM_BYTES
