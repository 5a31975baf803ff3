"""Damaged files of the store: it is broken or its answers are right, and no daemon dies of it.

LMDB trusts its pages and ends the process on some of them. So a store that is not known to be whole
is read by another process first, and here every damaged one is opened by another process as well.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from myqueue.errors import StoreBroken
from myqueue.wal import format as f
from myqueue.wal.store import guard
from myqueue.wal.store.guard import STATE_FILE, check_file
from myqueue.wal.store.store import Store
from myqueue.wal.store.view import TABLES

PAGE = 4096
GROUPS, ENTRIES = range(1, 6), range(1, 300)

READ = """
import sys
from myqueue.errors import StoreBroken
from myqueue.wal.store.store import Store
try:
    store = Store(sys.argv[1])
    with store.view() as view:
        for group in range(1, 6):
            assert view.applied_index(group) == 5
            assert view.state(group, b"k9") == b"v" * 9
            for i in range(1, 300):
                row = view.row(group, i)
                assert row == (group, i, 1, 600 + i, 28, 2, 2 * i, 1, 5, 7), row
                assert view.row_at_offset(group, 2 * i + 1) == row
            assert len(view.rows(group, 1, 299, 1 << 20)) == 299
except StoreBroken:
    sys.exit(3)
"""


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return made(tmp_path / "whole", [])


def made(directory: Path, commits: list[Any]) -> Path:
    """A store of about a hundred pages, closed; its state file says nothing about it."""
    directory.mkdir()
    store = Store(str(directory), sync=False)
    for group in GROUPS:
        rows: Any = [(group, i, 1, 600 + i, 28, 2, 2 * i, 1, 5, 7) for i in ENTRIES]
        state = {b"k%d" % k: b"v" * k for k in range(100)}
        store.commit([rows], 1, group * 600, {group: (5, state, [])})
        commits.append(dump(store))
    store.close()
    os.unlink(directory / STATE_FILE)
    return directory


def dump(store: Store) -> list[Any]:
    """Everything, the watermark as well, but not what an open writes."""
    with store.view() as view:
        return [one for one in view.dump(TABLES) if one[1] != b"version"]


def copy_of(whole: Path, name: str = "copy") -> Path:
    copy = whole.with_name(name)
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(whole, copy))


def damage(rng: Random, data: bytearray) -> str:
    """Something that a disk may do to one page, meta pages included."""
    pages = len(data) // PAGE
    at = rng.randrange(pages) * PAGE
    kind = rng.choice(("bits", "header", "zeros", "garbage", "sector", "other page", "cut"))
    if kind in ("bits", "header"):
        for _ in range(rng.choice((1, 1, 3, 40))):
            place = at + rng.randrange(64 if kind == "header" else PAGE)
            data[place] ^= 1 << rng.randrange(8)
    elif kind == "sector":
        sector = at + rng.randrange(8) * 512
        data[sector : sector + 512] = rng.choice((bytes(512), rng.randbytes(512)))
    elif kind == "other page":
        other = rng.randrange(pages) * PAGE
        data[at : at + PAGE] = data[other : other + PAGE]
    elif kind == "cut":
        del data[at + rng.choice((0, 0, 512, 1000)) :]
    else:
        data[at : at + PAGE] = bytes(PAGE) if kind == "zeros" else rng.randbytes(PAGE)
    return kind


@pytest.mark.slow
def test_damaged_pages(whole: Path, states: int | None) -> None:
    """L10, L11: never a wrong answer, never a signal, whatever page is damaged."""
    rng, broken, right = Random(1), 0, 0
    count = min(states or 60, 2000)
    for number in range(count):
        copy = copy_of(whole)
        data = bytearray((copy / "data.mdb").read_bytes())
        kind = damage(rng, data)
        (copy / "data.mdb").write_bytes(data)
        command = [sys.executable, "-P", "-c", READ, str(copy)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in (0, 3), (number, kind, done.returncode, done.stderr[-500:])
        broken += done.returncode == 3
        right += done.returncode == 0
    assert broken > count / 4 and right, "pages that are not in use may be damaged"


@pytest.mark.slow
def test_a_page_in_the_place_of_another(tmp_path: Path) -> None:
    """L11: a lost or misdirected write leaves a page whose checksums are all right. Either the
    check finds it, or what can be read is the store after one of its commits, with the watermark
    of that commit: the root alone was lost, and recovery goes on from there.
    """
    commits: list[Any] = [[]]
    whole = made(tmp_path / "whole", commits)
    rng, found = Random(2), 0
    data = (whole / "data.mdb").read_bytes()
    pages = [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
    leaves = [at for at, page in enumerate(pages) if at > 1 and page[10] & 2]
    for number in range(150):
        one, other = rng.sample(leaves, 2)
        copy = copy_of(whole, f"swapped-{number}")
        with open(copy / "data.mdb", "r+b") as file:
            file.seek(one * PAGE)
            file.write(pages[other])
        store = Store(str(copy), sync=False, checked=True)
        try:
            store.check()
            assert dump(store) in commits
        except StoreBroken:
            found += 1
        store._env.close()
        shutil.rmtree(copy)
    assert found > 50


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 4200, 8192, 12_000, 16_384])
def test_a_file_that_is_too_short(whole: Path, size: int) -> None:
    """LMDB would end the process with SIGBUS."""
    os.truncate(whole / "data.mdb", size)
    with pytest.raises(StoreBroken):
        check_file(str(whole))


def zero_a_page(directory: Path) -> None:
    """Every page but the meta pages: LMDB aborts the process that reads this."""
    size = os.path.getsize(directory / "data.mdb")
    with open(directory / "data.mdb", "r+b") as file:
        file.seek(2 * PAGE)
        file.write(bytes(size - 2 * PAGE))


def test_after_another_boot_all_is_read_first(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L11: the machine may have lost power, so another process reads every value."""
    Store(str(whole)).close()
    checks = []
    check = guard.check_in_child
    monkeypatch.setattr(guard, "check_in_child", lambda d: (checks.append(d), check(d)))
    Store(str(whole)).close()
    assert not checks
    monkeypatch.setattr(guard, "boot_id", lambda: b"another")
    Store(str(whole)).close()
    assert len(checks) == 1
    Store(str(whole)).close()
    assert len(checks) == 1, "once for each boot"
    monkeypatch.setattr(guard, "boot_id", lambda: b"third")
    zero_a_page(whole)
    with pytest.raises(StoreBroken):
        Store(str(whole))


def test_a_store_that_kills_its_process_is_found_out(whole: Path) -> None:
    """A daemon that dies of its store does so twice in a row at most."""
    Store(str(whole)).close()
    zero_a_page(whole)
    command = [sys.executable, "-P", "-c", READ, str(whole)]
    codes = [
        subprocess.run(command, capture_output=True, timeout=60, check=False).returncode
        for _ in range(4)
    ]
    assert 3 in codes[:3] and codes[3] == 3, codes


def test_a_check_that_does_not_end_is_a_broken_store(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "CHECK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(guard, "CHECK_BYTES_PER_S", 1 << 60)
    with pytest.raises(StoreBroken, match="end"):
        Store(str(whole))


@pytest.mark.parametrize("text", [b"", b"x", b"a b c", b"\xff" * 200])
def test_a_damaged_state_file_only_costs_a_check(whole: Path, text: bytes) -> None:
    (whole / STATE_FILE).write_bytes(text)
    store = Store(str(whole))
    assert store.check() > len(GROUPS) * len(ENTRIES)
    store.close()


def test_what_lmdb_leaves_is_never_taken_for_a_file_that_was_cut(tmp_path: Path) -> None:
    """Pages at the end that one commit took and freed are not written: one commit in some hundred
    leaves such, if logs are cut in it.
    """
    (tmp_path / "store").mkdir()
    store, random = Store(str(tmp_path / "store"), sync=False), Random(0)
    last = dict.fromkeys(range(1, 40), 0)
    for number in range(1, 200):
        ops: list[Any] = []
        for _ in range(random.randrange(1, 4)):
            group, count = random.choice(list(last)), random.choice((1, 20, 100, 300))
            more = range(last[group] + 1, last[group] + 1 + count)
            ops.append([(group, i, 1, 600 + i, 28, 2, 2 * i, 1, 5, 7) for i in more])
            last[group] += count
            if random.random() < 0.5:
                cut = random.randrange(max(1, last[group] - 400), last[group] + 1)
                ops.append((truncate(group, cut), 1, b""))
                last[group] = cut - 1
        store.commit(ops, 1, number)
        check_file(str(tmp_path / "store"))
    store.close()


def truncate(group: int, index: int) -> f.Record:
    return f.Record(0, 0, f.TRUNCATE, 0, 0, 0, 0, group, index, 1, 2 * index, 0, 0)
