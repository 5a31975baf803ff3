"""The index: look-ups see what is persisted, wherever the store is with its commits.

Stepped by hand, so that every moment of a commit is one that a test can stand in; what belongs to
the thread is tested with the thread.
"""

from random import Random
from threading import Event
from time import monotonic
from typing import Any

import pytest

from myqueue.errors import DiskFull, StateInvalid, StoreBroken
from myqueue.wal import format as f
from myqueue.wal.groups import Relocated
from myqueue.wal.store import index as index_module
from myqueue.wal.store.index import Index
from myqueue.wal.store.store import Store

GROUP = 7
LAST = 2**64 - 1


def rows(first: int, last: int, term: int = 1, segment: int = 1) -> list[Any]:
    """Entries with two messages each: entry i holds offsets 2i and 2i+1."""
    return [(GROUP, i, segment, 512 + i, 10, 2, 2 * i, term, 1, 0) for i in range(first, last + 1)]


def record(kind: int, **fields: int) -> Any:
    header = f.encode_record(0, kind, 512, group=GROUP, **fields)
    return (f.record_at(header, 0, 512, 0), 1, b"")


def truncate(index: int) -> Any:
    return record(f.TRUNCATE, index=index, offset=2 * index, term=1)


def reset(index: int) -> Any:
    return record(f.START, index=index, offset=2 * index, term=1, flags=f.RESET)


def seen(index: Index) -> dict[int, int]:
    """Index -> term, the same by every way of looking."""
    found = {}
    for at in range(40):
        row = index.row(GROUP, at)
        by_offset = [index.row_at_offset(GROUP, 2 * at), index.row_at_offset(GROUP, 2 * at + 1)]
        assert by_offset == [row, row]
        if row is not None:
            found[at] = row.term
    run = index.rows(GROUP, 0, LAST, 1 << 20)
    assert {row.index: row.term for row in run} == found
    return found


def expect(terms: list[int], first: int = 1) -> dict[int, int]:
    return dict(enumerate(terms, first))


def test_look_ups_before_during_and_after_a_commit(index: Index) -> None:
    index.add([rows(1, 5)], 1, 600)
    assert seen(index) == expect([1] * 5)
    index.add([rows(6, 9)], 1, 700)
    assert seen(index) == expect([1] * 9)
    assert index.step()
    assert seen(index) == expect([1] * 9), "in the store, not forgotten yet"
    index.add([rows(10, 12)], 1, 800)
    index.poll()
    assert seen(index) == expect([1] * 12), "some in the store, some waiting"
    assert list(index._recent) == [GROUP] and len(index._recent[GROUP]) == 3
    assert index.step() and not index.step()
    index.poll()
    assert seen(index) == expect([1] * 12) and not index._recent
    assert index.committed == (1, 800)


def test_runs_over_the_border_keep_their_limits(index: Index) -> None:
    index.add([rows(1, 5)], 1, 600)
    index.step()
    index.poll()
    index.add([rows(6, 9)], 1, 700)
    for first, last, size, wanted in (
        (4, 7, 1000, [4, 5, 6, 7]),
        (4, 7, 30, [4, 5, 6]),
        (4, 7, 20, [4, 5]),
        (4, 7, 0, [4]),
        (6, 99, 1000, [6, 7, 8, 9]),
        (6, 9, 0, [6]),
        (10, 12, 100, []),
        (5, 4, 100, []),
    ):
        assert [row.index for row in index.rows(GROUP, first, last, size)] == wanted


@pytest.mark.parametrize("polls", [False, True])
def test_truncated_and_written_again_while_a_commit_is_under_way(index: Index, polls: bool) -> None:
    """The older commit brings back into the store what was truncated since; nobody sees that."""
    index.add([rows(1, 9)], 1, 600)
    older = [index._work.get()]  # the store's thread has taken it
    index.add([truncate(4)], 1, 700)
    assert seen(index) == expect([1] * 3)
    index._commit(older)
    if polls:
        index.poll()
    assert seen(index) == expect([1] * 3)
    index.add([rows(4, 6, term=2)], 1, 800)
    assert seen(index) == expect([1] * 3 + [2] * 3)
    newer = [index._work.get()]
    index._commit(newer)
    if polls:
        index.poll()
    assert seen(index) == expect([1] * 3 + [2] * 3)
    assert index.step()
    index.poll()
    assert seen(index) == expect([1] * 3 + [2] * 3)
    assert not index._recent and not index._cuts


@pytest.mark.parametrize("first", [3, 20])
def test_a_reset_hides_the_store_at_once(index: Index, first: int) -> None:
    index.add([rows(1, 9)], 1, 600)
    index.step()
    index.poll()
    index.add([reset(first)], 1, 700)
    assert seen(index) == {}
    index.add([rows(first, first + 2, term=3)], 1, 800)
    assert seen(index) == expect([3] * 3, first)
    index.step()
    assert seen(index) == expect([3] * 3, first)
    index.poll()
    assert seen(index) == expect([3] * 3, first)


def test_a_removed_group_is_gone_at_once(index: Index) -> None:
    index.add([rows(1, 5)], 1, 600)
    index.step()
    index.add([record(f.GROUP_REMOVED)], 1, 700)
    assert seen(index) == {}
    index.step()
    index.poll()
    assert seen(index) == {} and not index._cuts


def test_a_moved_start_takes_effect_with_the_commit(index: Index) -> None:
    index.add([rows(1, 9)], 1, 600)
    index.add([record(f.START, index=5, offset=10, term=1)], 1, 700)
    assert set(seen(index)) >= set(range(5, 10))
    index.step()
    index.poll()
    assert seen(index) == expect([1] * 5, 5)


def test_relocated_rows(index: Index) -> None:
    """The old place answers until the store knows the new one; they are no new end of the log."""
    index.add([rows(1, 5)], 1, 600)
    index.add([Relocated(rows(2, 3, segment=8))], 8, 600)
    found = [index.row(GROUP, at) for at in (2, 3, 4, 5, 6)]
    assert [row and row.segment for row in found] == [1, 1, 1, 1, None]
    index.step()
    index.poll()
    found = [index.row(GROUP, at) for at in (2, 3, 4, 5, 6)]
    assert [row and row.segment for row in found] == [8, 8, 1, 1, None]


def test_random_histories(store: Store) -> None:
    """Any order of adding, committing in any portions, and polling: look-ups show the log."""
    index, rng, log, position = Index(store, False, lambda: None), Random(3), {}, 600
    for step in range(1500):
        position += 100
        end = max(log, default=0)
        action = rng.choice("aaaatrcccpp")
        if action == "a" and end < 30:
            new = rows(end + 1, min(35, end + rng.randint(1, 4)), term=step)
            log |= {row[1]: step for row in new}
            index.add([new], 1, position)
        elif action == "t" and log:
            at = rng.randint(min(log), end)
            log = {i: term for i, term in log.items() if i < at}
            index.add([truncate(at)], 1, position)
            if at == 1 or not log:
                index.add([reset(at)], 1, position)
        elif action == "r" and rng.random() < 0.3:
            at = rng.randint(1, 20)
            index.add([reset(at), rows(at, at, term=step)], 1, position)
            log = {at: step}
        elif action == "c" and not index._work.empty():
            index._commit([index._work.get() for _ in range(rng.randint(1, index._work.qsize()))])
        elif action == "p":
            index.poll()
        if log and min(log) <= max(log):
            assert seen(index) == log, step
    store.check()


# -- what is durable -------------------------------------------------------------------------


def test_durable_only_after_a_sync(store: Store, index: Index) -> None:
    """L2: a commit moves `committed`; only the sync of the store moves `durable`."""
    syncs = []
    store.sync = lambda: syncs.append(store.watermark)  # type: ignore[method-assign]
    index.add([rows(1, 5)], 1, 600)
    index.step()
    index.poll()
    assert (index.committed, index.durable) == ((1, 600), (0, 0)) and not syncs
    index.add([rows(6, 6)], 1, 700)
    index.add([], 1, 700, sync=True)
    index.step()
    assert syncs == [(1, 700)], "first committed, then synced"
    assert index.durable == (0, 0)
    index.poll()
    assert index.durable == (1, 700)


def test_the_watermark_never_goes_back(store: Store, index: Index) -> None:
    index.add([rows(1, 5)], 2, 600)
    index.add([], 1, 4000, sync=True)
    index.step()
    index.step()
    assert store.watermark == (2, 600)


def test_state_changes_of_one_commit_are_merged(store: Store, index: Index) -> None:
    """W13: the applied index is the last one's, and so is each key's value."""
    index.add([], 1, 600, {GROUP: (5, {b"a": b"1", b"b": b"1"}, [])})
    index.apply({GROUP: (6, {b"c": b"2"}, [b"a"])})
    index.apply({GROUP: (7, {b"a": b"3"}, [b"b", b"c"])})
    index.step()
    with store.view() as view:
        assert list(view.states(GROUP)) == [(b"a", b"3")]
        assert view.applied_index(GROUP) == 7


@pytest.mark.parametrize("saves", [False, True])
def test_w13_state_of_a_removed_replica_is_not_its_successor_s(
    store: Store, index: Index, saves: bool
) -> None:
    """The store is behind: it learns of all in one commit."""
    index.apply({GROUP: (500, {b"a": b"old", b"b": b"old"}, [])})
    index.add([record(f.GROUP_REMOVED)], 1, 700)
    index.add([record(f.GROUP_CREATED)], 1, 800)
    if saves:
        index.apply({GROUP: (3, {b"b": b"new"}, [])})
    assert index.step() and not index.step()
    with store.view() as view:
        assert dict(view.states(GROUP)) == ({b"b": b"new"} if saves else {})
        assert view.applied_index(GROUP) == (3 if saves else 0)


@pytest.mark.parametrize(
    "states",
    [
        {GROUP: (1, {b"k" * 504: b""}, [])},
        {GROUP: (1, {}, [b"k" * 504])},
        {GROUP: (1, {"k": b""}, [])},
        {GROUP: (1, {b"k": "v"}, [])},
        {GROUP: (-1, {}, [])},
        {GROUP: (2**64, {}, [])},
        {-1: (1, {}, [])},
        {2**64: (1, {}, [])},
        {GROUP: (1.5, {}, [])},
    ],
)
def test_state_that_the_store_cannot_hold_is_refused(
    store: Store, index: Index, states: Any
) -> None:
    """To the caller, not in the store's thread, where it would look like a broken store."""
    with pytest.raises(StateInvalid):
        index.apply(states)
    with pytest.raises(StateInvalid):
        index.add([rows(1, 5)], 1, 600, states)
    assert not index.step() and not seen(index), "nothing of it was taken"
    index.apply({GROUP: (2**64 - 1, {b"k" * 503: b"v"}, [b"d" * 503])})
    assert index.step()
    with store.view() as view:
        assert view.state(GROUP, b"k" * 503) == b"v"


# -- the thread ------------------------------------------------------------------------------


def wait_for(what: Any) -> None:
    end = monotonic() + 10
    while not what():
        assert monotonic() < end
        Event().wait(0.005)


def test_the_thread_commits_and_wakes_the_loop(store: Store) -> None:
    woken = Event()
    index = Index(store, True, woken.set)
    for at in range(1, 50):
        index.add([rows(at, at)], 1, 600 + at)
        assert index.row(GROUP, at) is not None
    index.add([], 1, 700, sync=True)
    assert woken.wait(10)
    wait_for(lambda: index.poll() or index.durable == (1, 700))
    assert not index._recent
    index.add([rows(50, 50)], 1, 800)
    assert index.close(), "what was added last is committed as well"
    assert store.watermark == (1, 800)


def test_an_error_of_the_thread_reaches_poll(store: Store, monkeypatch: Any) -> None:
    woken = Event()
    index = Index(store, True, woken.set)

    def broken(*_: Any) -> None:
        raise StoreBroken("torn page")

    monkeypatch.setattr(store, "commit", broken)
    index.add([rows(1, 5)], 1, 600)
    assert woken.wait(10)
    with pytest.raises(StoreBroken, match="torn page"):
        index.poll()
    assert index.row(GROUP, 3) is not None, "what is in memory still answers"
    began = monotonic()
    index.close()
    assert monotonic() - began < 1


def test_a_full_disk_is_waited_for(store: Store, monkeypatch: Any) -> None:
    """W15: look-ups go on from memory; with room again the commit goes on by itself."""
    monkeypatch.setattr(index_module, "SPACE_RETRY_S", 0.01)
    index, room, tries, commit = Index(store, True, lambda: None), Event(), [], store.commit

    def limited(*args: Any) -> None:
        tries.append(1)
        if not room.is_set():
            raise DiskFull("no room")
        commit(*args)

    monkeypatch.setattr(store, "commit", limited)
    index.add([rows(1, 5)], 1, 600)
    wait_for(lambda: len(tries) > 3)
    index.poll()
    assert index.row(GROUP, 5) is not None and store.watermark == (0, 0)
    room.set()
    wait_for(lambda: index.poll() or index.committed == (1, 600))
    room.clear()
    index.add([rows(6, 6)], 1, 700)
    began = monotonic()
    index.close()
    assert monotonic() - began < 2, "a close does not wait for room"


def test_close_does_not_hang_on_a_stuck_store(store: Store, monkeypatch: Any) -> None:
    index, go = Index(store, True, lambda: None), Event()
    monkeypatch.setattr(store, "commit", lambda *_: go.wait(20))
    index.add([rows(1, 5)], 1, 600)
    assert not index.close(timeout_s=0.1)
    go.set()
    assert index._thread is not None
    index._thread.join(10)
