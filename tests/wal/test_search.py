"""Where terms begin: the same answers as a scan of every row, from few look-ups."""

from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pytest

from myqueue.errors import GroupUnknown
from myqueue.wal import format as f
from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.log import Log
from myqueue.wal.read.term_search import term_runs
from myqueue.wal.store.index import Index
from myqueue.wal.store.store import Store

GROUP, LAST = 7, 2**64 - 1


def row(at: int, term: int, time_ms: int, group: int = GROUP) -> Any:
    return (group, at, 1, 512 + at, 10, 1, at, term, time_ms, 0)


def record(kind: int, **fields: int) -> Any:
    header = f.encode_record(0, kind, 512, group=GROUP, **fields)
    return (f.record_at(header, 0, 512, 0), 1, b"")


def runs_of(rows: list[Any]) -> list[tuple[int, int]]:
    return [(next(run)[1], term) for term, run in groupby(rows, lambda one: one[7])]


def compare(index: Index, log: list[Any], first: int) -> None:
    assert [one[1] for one in log] == [one.index for one in index.rows(GROUP, first, LAST, 1 << 30)]
    assert term_runs(index, GROUP, first) == runs_of(log)


class History:
    """Makes a group's log step by step, and knows what it has to be."""

    def __init__(self, index: Index, rng: Random) -> None:
        self.index, self.rng = index, rng
        self.log: list[Any] = []
        self.end, self.first, self.term, self.time, self.position = 0, 1, 1, 100, 600

    def add(self, op: Any) -> None:
        self.position += 100
        self.index.add([op], 1, self.position)

    def append(self) -> None:
        new = []
        for _ in range(self.rng.randint(1, 12)):
            self.end, self.time = self.end + 1, self.time + self.rng.randrange(3)
            self.term += self.rng.random() < 0.15
            new.append(row(self.end, self.term, self.time))
        self.log += new
        self.add(new)

    def truncate(self) -> None:
        if self.log:
            at = self.rng.choice(self.log)[1]
            self.add(record(f.TRUNCATE, index=at, offset=at, term=1))
            self.log, self.end = [one for one in self.log if one[1] < at], at - 1
            self.term += 1

    def start(self) -> None:
        if self.log:
            self.first = self.rng.choice(self.log)[1]
            self.add(record(f.START, index=self.first, offset=self.first, term=1))
            self.log = [one for one in self.log if one[1] >= self.first]

    def reset(self) -> None:
        self.first = self.end + self.rng.randint(1, 9)
        self.log, self.end = [], self.first - 1
        self.add(record(f.START, index=self.first, offset=self.first, term=1, flags=f.RESET))

    def commit(self) -> None:
        waiting = self.index._work.qsize()
        if waiting:
            taken = [self.index._work.get() for _ in range(self.rng.randint(1, waiting))]
            self.index._commit(taken)


@pytest.mark.parametrize("seed", range(4))
def test_random_logs(store: Store, index: Index, seed: int) -> None:
    """Wherever the store is with its commits; with other groups on both sides."""
    index.add([[row(at, 9, 9, group) for at in (1, 2)] for group in (GROUP - 1, GROUP + 1)], 1, 600)
    history = History(index, Random(seed))
    steps = (history.append, history.truncate, history.start, history.reset, history.commit)
    for _ in range(250):
        history.rng.choices((*steps, index.poll), (60, 12, 6, 3, 30, 20))[0]()
        compare(index, history.log, history.first)


def test_a_hole_is_passed(index: Index) -> None:
    log = [row(at, 1 + at // 10, at) for at in range(1, 60) if not 15 <= at <= 34]
    index.add([log[:14]], 1, 600)
    index.step()
    index.poll()
    index.add([log[14:]], 1, 700)
    index.step()
    index.poll()
    compare(index, log, 1)


def test_few_look_ups(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add([[row(at, at // 10_000 + 1, at) for at in range(1, 30_001)]], 1, 600)
    index.step()
    index.poll()
    calls, whole = [], index.next_row
    monkeypatch.setattr(index, "next_row", lambda *args: calls.append(1) or whole(*args))
    assert term_runs(index, GROUP, 1) == [(1, 1), (10_000, 2), (20_000, 3), (30_000, 4)]
    assert len(calls) <= 4 * 16


def test_a_whole_log(tmp_path: Path) -> None:
    """At a start, and from the log's own first entry on."""
    config = JournalConfig(segment_bytes=16 << 10, soft_limit_bytes=0, reserve_bytes=0)

    def open_log() -> Log:
        return Log(str(tmp_path), ("cluster", "daemon", "broker"), config, lambda: 1, Random(1))

    log = open_log()
    log.journal.create_group(GROUP, b"")
    entries = [(at, 1 + at // 40, at, 1, 10 * at, 0, 0, b"x" * 100) for at in range(1, 201)]
    log.journal.append(GROUP, entries)
    log.journal.start(GROUP, 30, 1, 30)
    assert log.close()
    log = open_log()
    assert log.term_runs(GROUP) == [(30, 1), (40, 2), (80, 3), (120, 4), (160, 5), (200, 6)]
    with pytest.raises(GroupUnknown):
        log.term_runs(8)
    log.journal.create_group(8, b"")
    assert log.term_runs(8) == []
    assert log.close()
