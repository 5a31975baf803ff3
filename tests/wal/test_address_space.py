"""A limited address space: a store begins with a smaller map, and says what to do if none fits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from myqueue.errors import DirectoryUnusable
from myqueue.wal.store import map_limit
from myqueue.wal.store.store import Store

GB = 1 << 30
OPEN = """
import resource, sys
from myqueue.errors import DirectoryUnusable
from myqueue.wal.store.store import Store
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = now + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    store = Store(sys.argv[1])
except DirectoryUnusable as error:
    print(error, "|", error.hint)
else:
    store.commit([], 1, 600)
    print(store._env.info()["map_size"], store.watermark)
    store.close()
"""


def opened(folder: Path, room_bytes: int) -> str:
    command = [sys.executable, "-P", "-c", OPEN, str(folder), str(room_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_a_store_begins_with_as_large_a_map_as_there_is_room_for(tmp_path: Path) -> None:
    assert opened(tmp_path, 8 * GB) == f"{4 * GB} (1, 600)\n"
    assert opened(tmp_path, 9 * GB // 2) == f"{2 * GB} (1, 600)\n"


def test_where_none_fits_the_limit_is_named(tmp_path: Path) -> None:
    """And nobody is told to change the owner of a folder."""
    said = opened(tmp_path, 40 << 20)
    assert "no address space" in said and "MiB are allowed" in said
    assert "ulimit -v" in said and "chown" not in said


def test_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_limit, "free_address_bytes", lambda: None)
    assert map_limit.fitting_map_bytes(64 * GB, 5 * GB) == 64 * GB
    assert map_limit.may_grow(64 * GB, 128 * GB)
    monkeypatch.setattr(map_limit, "free_address_bytes", lambda: 8 * GB)
    assert map_limit.fitting_map_bytes(64 * GB, 0) == 4 * GB
    assert (
        map_limit.fitting_map_bytes(64 * GB, 5 * GB) == 8 * GB
    )  # more than half, for a large file
    assert map_limit.fitting_map_bytes(64 * GB, 9 * GB) == 0
    assert map_limit.fitting_map_bytes(1 << 16, 0) == 1 << 16
    assert map_limit.may_grow(8 * GB, 16 * GB) and not map_limit.may_grow(16 * GB, 32 * GB)


def test_a_map_that_can_not_grow_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB would give it up first; what is in the store can still be read."""
    store = Store(str(tmp_path), map_bytes=256 << 10)
    store.commit([], 1, 600)
    monkeypatch.setattr(map_limit, "free_address_bytes", lambda: 0)
    puts = {b"%d" % number: b"x" * 4000 for number in range(100)}
    with pytest.raises(DirectoryUnusable, match="no address space"):
        store.commit([], 2, 700, {7: (1, puts, [])})
    assert store.watermark == (1, 600)
    monkeypatch.undo()
    store.commit([], 2, 700, {7: (1, puts, [])})
    assert store.watermark == (2, 700)
    store.close()
