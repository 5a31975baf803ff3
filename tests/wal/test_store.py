"""The store: what a commit does to the tables, all or nothing, and that damage is never an answer.

Real LMDB in real files. Ops are made by hand; the tests of whole logs have them made by a journal.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any
from zlib import crc32

import pytest
from sim.ops import GROUP, record, row, ten

from myqueue.errors import StoreBroken
from myqueue.wal import format as f
from myqueue.wal.groups import Relocated
from myqueue.wal.store import store as store_module
from myqueue.wal.store.store import Store
from myqueue.wal.store.view import GROUP_KEY, sealed

LAST = 2**64 - 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(str(tmp_path))
    yield store
    store.close()


def indices(store: Store, group: int = GROUP) -> list[int]:
    with store.view() as view:
        return [one.index for one in view.rows(group, 0, LAST, 1 << 30)]


def dump(store: Store) -> list[Any]:
    with store.view() as view:
        return list(view.dump())


# -- look-ups --------------------------------------------------------------------------------


def test_rows_by_index(store: Store) -> None:
    store.commit([ten()], 1, 900)
    with store.view() as view:
        for made in ten():
            assert view.row(GROUP, made[1]) == made
        for index in (-1, 0, 11, LAST):
            assert view.row(GROUP, index) is None
        assert view.row(GROUP - 1, 5) is None
        assert view.row(GROUP + 1, 5) is None


def test_rows_by_offset(store: Store) -> None:
    """Entry 2k+1 holds offsets 3k..3k+2; entries without messages are never found by offset."""
    store.commit([ten(), ten(GROUP + 1)], 1, 900)
    with store.view() as view:
        for offset in range(15):
            found = view.row_at_offset(GROUP, offset)
            assert found is not None
            assert found.index == offset // 3 * 2 + 1
        for offset in (-1, 15, 16, LAST):
            assert view.row_at_offset(GROUP, offset) is None
        assert view.row_at_offset(GROUP - 1, 0) is None
        assert view.row_at_offset(GROUP + 2, 0) is None


def test_a_hole_between_offsets_is_not_the_next_entry(store: Store) -> None:
    store.commit([[row(1, 0, 2), row(3, 10, 2)]], 1, 900)
    with store.view() as view:
        assert [view.row_at_offset(GROUP, at) is None for at in (1, 2, 9, 10, 12)] == [
            *(False, True, True, False, True)
        ]


def test_runs_have_limits(store: Store) -> None:
    store.commit([ten(), ten(GROUP + 1)], 1, 900)
    with store.view() as view:
        for first, last, size, wanted in (
            (1, 10, 1000, list(range(1, 11))),
            (3, 5, 1000, [3, 4, 5]),
            (3, LAST, 1000, list(range(3, 11))),
            (3, 10, 20, [3, 4]),
            (3, 10, 29, [3, 4]),
            (3, 10, 0, [3]),  # at least one
            (3, 2, 1000, []),
            (11, 20, 1000, []),
        ):
            assert [one.index for one in view.rows(GROUP, first, last, size)] == wanted


# -- what records do -------------------------------------------------------------------------


def test_truncate_takes_away_rows_and_offsets(store: Store) -> None:
    store.commit([ten(), record(f.TRUNCATE, index=4, offset=6, term=1)], 1, 900)
    assert indices(store) == [1, 2, 3]
    with store.view() as view:
        assert view.row_at_offset(GROUP, 6) is None
    store.commit([[row(4, 6, 1, term=2)]], 1, 950)
    with store.view() as view:
        found = view.row_at_offset(GROUP, 6)
        assert found is not None and (found.index, found.term) == (4, 2)
    store.check()


def test_rows_before_and_behind_a_truncate_in_one_commit(store: Store) -> None:
    again = [row(4, 6, 2, term=2), row(5, 8, 2, term=2)]
    truncate = record(f.TRUNCATE, index=4, offset=6, term=1)
    store.commit([ten(), truncate, again, record(f.TRUNCATE, index=5, offset=8, term=2)], 1, 900)
    assert indices(store) == [1, 2, 3, 4]
    with store.view() as view:
        assert view.row(GROUP, 4) == again[0]
    store.check()


def test_start_moves_the_beginning(store: Store) -> None:
    store.commit([ten(), ten(GROUP + 1), record(f.START, index=6, offset=9, term=1)], 1, 900)
    assert indices(store) == [6, 7, 8, 9, 10]
    assert indices(store, GROUP + 1) == list(range(1, 11))
    with store.view() as view:
        assert view.row_at_offset(GROUP, 8) is None
        group = view.groups().by_uid[GROUP]
    assert (group.first_index, group.start_offset, group.last_index) == (6, 9, 10)
    store.check()


@pytest.mark.parametrize("index", [3, 50])
def test_reset_empties_the_log(store: Store, index: int) -> None:
    reset = record(f.START, index=index, offset=77, term=4, flags=f.RESET, chain=5)
    store.commit([ten(), reset], 1, 900)
    assert indices(store) == []
    with store.view() as view:
        group = view.groups().by_uid[GROUP]
    assert (group.first_index, group.last_index, group.last_term) == (index, index - 1, 4)
    assert (group.next_offset, group.chain) == (77, 5)
    store.commit([[row(index, 77, 2, term=5)]], 1, 950)
    with store.view() as view:
        assert view.groups().by_uid[GROUP].next_offset == 79
    store.check()


def test_removal_takes_everything(store: Store) -> None:
    for group in (GROUP - 1, GROUP, GROUP + 1):
        created = record(f.GROUP_CREATED, group, b"what")
        state = {group: (10, {b"": b"0", b"a": b"1", b"\xff" * 9: b"2"}, [])}
        store.commit([created, ten(group)], 1, 900, state)
    before = dump(store)
    store.commit([record(f.GROUP_REMOVED)], 1, 950)
    key = GROUP.to_bytes(8, "big")
    assert dump(store) == [one for one in before if not one[1].startswith(key)]
    with store.view() as view:
        assert view.applied_index(GROUP) == 0
        assert list(view.states(GROUP)) == []
        assert sorted(view.groups().by_uid) == [GROUP - 1, GROUP + 1]
    store.check()


def test_a_removal_and_what_came_before_it_in_one_commit(store: Store) -> None:
    ops = [record(f.GROUP_CREATED, payload=b"x"), ten(), record(f.GROUP_REMOVED)]
    store.commit(ops, 1, 900)
    assert dump(store) == []


def test_relocated_rows_replace_the_old_place(store: Store) -> None:
    store.commit([ten()], 1, 900)
    store.commit([Relocated([row(2, 3, 0, segment=9, position=700)])], 9, 900)
    with store.view() as view:
        found = view.row(GROUP, 2)
    assert found is not None and (found.segment, found.position) == (9, 700)
    store.check()


@pytest.mark.parametrize("uid", [1, 2**63, LAST])
def test_groups_have_their_tail_from_the_index(store: Store, uid: int) -> None:
    for group in {1, 2**63, LAST}:
        store.commit([record(f.GROUP_CREATED, group, b"x")], 1, 900)
    store.commit([ten(uid), record(f.HARD_STATE, uid, term=9, index=2)], 1, 900)
    with store.view() as view:
        groups = view.groups().by_uid
    found = groups[uid]
    assert (found.last_index, found.last_term, found.next_offset, found.chain) == (10, 1, 15, 30)
    assert (found.term, found.vote, found.created) == (9, 2, b"x")
    assert {g.last_index for u, g in groups.items() if u != uid} == {0}


# -- state and watermark ---------------------------------------------------------------------


def test_state_of_groups(store: Store) -> None:
    store.commit([], 1, 600, {GROUP: (5, {b"a": b"1", b"ab": b"2", b"b": b"3"}, [])})
    store.commit([], 1, 700, {GROUP: (6, {b"b": b"4"}, [b"a", b"never"]), 8: (1, {b"a": b"x"}, [])})
    with store.view() as view:
        assert list(view.states(GROUP)) == [(b"ab", b"2"), (b"b", b"4")]
        assert list(view.states(GROUP, b"a")) == [(b"ab", b"2")]
        assert (view.state(GROUP, b"a"), view.state(GROUP, b"b")) == (None, b"4")
        assert (view.applied_index(GROUP), view.applied_index(8)) == (6, 1)


def test_a_commit_is_all_or_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """W13: whatever fails in the middle of a commit, state and applied index stay together, and the
    watermark stays with the rows.
    """
    store.commit([ten()], 1, 900, {GROUP: (10, {b"sum": b"10"}, [])})
    before = dump(store)
    for name in ("_rows", "_put_rows", "_record", "_state"):
        original = getattr(store_module._Commit, name)

        def fails(self: Any, *args: Any, original: Any = original) -> None:
            original(self, *args)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(store_module._Commit, name, fails)
            with pytest.raises(KeyboardInterrupt):
                ops = [[row(11)], record(f.HARD_STATE, term=3)]
                store.commit(ops, 2, 600, {GROUP: (11, {b"sum": b"11"}, [])})
        assert dump(store) == before
        assert store.watermark == (1, 900)
        with store.view() as view:
            assert (view.state(GROUP, b"sum"), view.applied_index(GROUP)) == (b"10", 10)


def test_the_watermark_survives(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert store.watermark == (0, 0)
    store.commit([], 3, 2**32 - 1)
    store.close()
    store = Store(str(tmp_path))
    assert store.watermark == (3, 2**32 - 1)
    store.close()


# -- views and the map -----------------------------------------------------------------------


def test_a_view_is_of_one_moment(store: Store) -> None:
    store.commit([ten()], 1, 900)
    with store.view() as view:
        store.commit([record(f.TRUNCATE, index=1)], 1, 950)
        assert len(view.rows(GROUP, 1, 10, 1000)) == 10
    assert indices(store) == []


def test_no_reader_is_left_behind(store: Store) -> None:
    """L4: far more views than there are places for readers, ended by return and by error."""
    for at in range(500):
        try:
            with store.view() as view:
                view.row(GROUP, at)
                assert at % 2
        except AssertionError:
            pass
    assert "0 0" not in store._env.readers()
    assert store._env.reader_check() == 0
    assert store._env.info()["num_readers"] <= 4


def test_the_map_grows_while_others_read(tmp_path: Path) -> None:
    """L3: no reader sees a wrong row or an error, and readers without a pause do not keep it from
    growing.
    """
    store = Store(str(tmp_path), map_bytes=64 << 10)
    store.commit([[row(1)]], 1, 600)
    stop, wrong, reads = Event(), [], [0]

    def read() -> None:
        while not stop.is_set():
            with store.view() as view:
                if view.row(GROUP, 1) != row(1):
                    wrong.append(view.row(GROUP, 1))
                reads[0] += 1
                stop.wait(0.001)  # so that one of the three is inside at any time

    def write() -> None:
        for portion in range(40):
            first = 2 + portion * 200
            store.commit([[row(index) for index in range(first, first + 200)]], 1, 700)

    threads = [Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    writer = Thread(target=write, daemon=True)
    writer.start()
    writer.join(30)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert not writer.is_alive(), "the readers never let it in"
    assert not wrong and reads[0] > 10
    assert store._env.info()["map_size"] > 64 << 10
    assert store.check() == 8003
    store.close()


def test_a_thread_inside_may_look_again_while_the_map_waits_to_grow(tmp_path: Path) -> None:
    store = Store(str(tmp_path), map_bytes=64 << 10)
    with store.view():
        rows = [row(index) for index in range(1, 3000)]
        writer = Thread(target=store.commit, args=([rows], 1, 700))
        writer.start()
        while not store._gate._awaited:
            assert writer.is_alive()
        with store.view() as view:
            assert view.row(GROUP, 1) is None
    writer.join(10)
    assert not writer.is_alive() and len(indices(store)) == 2999
    store.close()


def test_an_older_program_never_sees_a_row_that_it_misreads(tmp_path: Path) -> None:
    """Its rows end with the group's name, and it knows version 1 alone. A store of it is read as it
    is; the first commit of ours gives it our version, and from then on the older one rebuilds.
    """
    store = Store(str(tmp_path))
    store.commit([record(f.GROUP_CREATED, payload=b"what")], 1, 900)
    with store.view() as view:
        assert view.meta(b"version") == (2).to_bytes(4, "little")
        raw = view.groups().by_uid[GROUP].save()
    fixed = len(raw) - 4 - len(b"what") - 8 - 1
    body = raw[:fixed] + bytes((1,)) + b"what"
    with store._env.begin(write=True) as txn:  # as the older program leaves it
        key, row = GROUP_KEY.pack(GROUP), body + crc32(body).to_bytes(4, "little")
        txn.put(key, row, db=store._tables["groups"])
        one = sealed(b"version", (1).to_bytes(4, "little"))
        txn.put(b"version", one, db=store._tables["meta"])
    store.close()
    for read_only in (True, False):
        store = Store(str(tmp_path), read_only=read_only)
        with store.view() as view:
            assert view.groups().by_uid[GROUP].created == b"what"
            assert view.meta(b"version") == (1).to_bytes(4, "little")
            assert view.check() == 3
        assert store.watermark == (1, 900)
        if read_only:
            store.close()
    store.commit([record(f.COMMIT, index=5)], 1, 1000)
    with store.view() as view:
        group = view.groups().by_uid[GROUP]
        assert (group.created, group.commit_index, group.hint_at) == (b"what", 5, 1)
        assert view.meta(b"version") == (2).to_bytes(4, "little")
    store.close()


def test_a_store_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with store._env.begin(write=True) as txn:
        newer = sealed(b"version", (3).to_bytes(4, "little"))
        txn.put(b"version", newer, db=store._tables["meta"])
    store.close()
    with pytest.raises(StoreBroken, match="another version"):
        Store(str(tmp_path))


def test_equal_ops_make_equal_stores(tmp_path: Path) -> None:
    """In one commit or in many, with the same result byte by byte."""
    rng = Random(5)
    ops: list[Any] = [record(f.GROUP_CREATED, payload=b"x")]
    for index in range(1, 60):
        ops.append([row(index, index * 2, rng.randrange(3))])
        if rng.random() < 0.2:
            ops.append(record(f.HARD_STATE, term=index, index=rng.randrange(3)))
    stores = [Store(str(tmp_path / name)) for name in "ab" if not (tmp_path / name).mkdir()]
    stores[0].commit(ops, 1, 900)
    for op in ops:
        stores[1].commit([op], 1, 900)
    assert dump(stores[0]) == dump(stores[1])
    for store in stores:
        store.close()
