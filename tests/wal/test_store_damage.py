"""Damage of the store is never an answer: values, rows that are missing, a disk that is full."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from sim.ops import GROUP, record, ten

from myqueue.errors import DiskFull, StoreBroken
from myqueue.wal import format as f
from myqueue.wal.store import store as store_module
from myqueue.wal.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(str(tmp_path))
    yield store
    store.close()


@pytest.mark.parametrize("table", ["index", "state", "applied", "meta", "groups", "offsets"])
def test_a_changed_value_is_never_an_answer(store: Store, table: str) -> None:
    """L10: every bit of one value, one after another; also a value that is cut or at another key.

    `offsets` has no checksum of its own: what it names must fit, or it is found out.
    """
    store.commit(
        [record(f.GROUP_CREATED, payload=b"x"), ten()], 1, 900, {GROUP: (3, {b"k": b"v"}, [])}
    )
    tables = store._tables

    def read_all() -> None:
        with store.view() as view:
            view.row(GROUP, 1), view.row_at_offset(GROUP, 2), view.applied_index(GROUP)
            view.state(GROUP, b"k"), view.meta(b"watermark"), view.groups()

    with store._env.begin(db=tables[table]) as txn:
        items = list(txn.cursor())
    key, right = items[0] if table != "meta" else next(one for one in items if b"mark" in one[0])
    damaged = [
        bytes(b ^ (bit if at == i else 0) for i, b in enumerate(right))
        for at in range(len(right))
        for bit in (1, 128)
    ]
    damaged += [right[:-1], right + b"\0", b"", bytes(len(right))]
    if table != "meta" and len(items) > 1:
        damaged.append(items[1][1])
    for value in damaged:
        with store._env.begin(write=True, db=tables[table]) as txn:
            txn.put(key, value)
        with pytest.raises(StoreBroken):
            read_all()
        with pytest.raises(StoreBroken):
            store.check()
    with store._env.begin(write=True, db=tables[table]) as txn:
        txn.put(key, right)
    read_all()


def test_the_check_misses_no_row(store: Store) -> None:
    """L11: a page of an older time has right checksums; its rows are missed all the same."""
    store.commit([ten()], 1, 900)
    for table, key in (("offsets", (GROUP, 2)), ("index", (GROUP, 3))):
        raw_key = key[0].to_bytes(8, "big") + key[1].to_bytes(8, "big")
        with store._env.begin(write=True, db=store._tables[table]) as txn:
            value = txn.pop(raw_key)
        assert value is not None
        with pytest.raises(StoreBroken):
            store.check()
        with store._env.begin(write=True, db=store._tables[table]) as txn:
            txn.put(raw_key, value)
        store.check()


def test_a_full_disk_is_not_damage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """W15: LMDB calls it an IO error; nothing of the commit is there, and it can be repeated."""

    def no_room(*_: Any) -> None:
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(store_module._Commit, "_put_rows", no_room)
        with pytest.raises(StoreBroken):
            store.commit([ten()], 1, 900)
        patch.setattr(store_module, "ROOM_BYTES", 2**63)
        with pytest.raises(DiskFull):
            store.commit([ten()], 1, 900)
    with store.view() as view:
        assert store.watermark == (0, 0) and not list(view.dump())
    store.commit([ten()], 1, 900)
    with store.view() as view:
        assert len(view.rows(GROUP, 1, 10, 1000)) == 10
