"""Segments that are reclaimed between planning and reading: readers of a running daemon's log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from support.plain_spread import PlainSpread
from support.queue_logs import Broker, Topic

from myqueue.analytics.log.catalog import make_catalog
from myqueue.analytics.log.discovery import SegmentGone, find_logs
from myqueue.analytics.log.plan import Task, Wanted, committed_ranges, entry_tasks
from myqueue.analytics.log.task_reader import chosen
from myqueue.analytics.spread import Judge
from myqueue.analytics.stats.stats import stats
from myqueue.analytics.verify import commit_point
from myqueue.analytics.verify.verify import Asked, verify
from myqueue.daemons.raft import types as t

TERM = 3


class Daemon:
    """A broker whose first segments hold a quiet topic and one that is deleted."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self.broker, self.topic = Broker(folder / "broker-1", 1), Topic("a", 100)
        self.topic.noop()
        for _ in range(6):
            self.topic.data(5)
        broker, busy = self.broker, Topic("busy", 999)
        broker.create(self.topic, [1])
        broker.append(self.topic, self.topic.entries)
        broker.commit_hint(self.topic, 7)
        broker.apply(self.topic, self.topic.entries)
        self.first = broker.log.journal.end[0]
        broker.create(busy, [1])
        while broker.log.journal.end[0] < self.first + 3:
            had = len(busy.entries)
            busy.data(8, size=1000)
            broker.append(busy, busy.entries[had:])
        broker.commit_hint(busy, busy.entries[-1][t.INDEX])
        broker.log.journal.remove_group(busy.group)
        self.settle()

    def settle(self) -> None:
        """Until all is on disk and a mark says so, as a daemon does when it has nothing to do."""
        journal, deadline = self.broker.log.journal, monotonic() + 20
        for step in (journal.submit, journal.settle):
            step()
            while journal.queued_bytes or journal.persisted_at < journal.end:
                assert monotonic() < deadline, "a journal that does not write"
                self.broker.log.poll()
                sleep(0.0002)

    def reclaim(self, *, settle: bool = True) -> None:
        """Until the first segment is gone, and what was live in it stands elsewhere."""
        for at in range(40):
            self.broker.reclaim(at * 20_000)
            if min(self.broker.log.journal.segments) > self.first:
                return self.settle() if settle else None
        raise AssertionError("nothing was reclaimed")

    def tasks(self, split_bytes: int = 1 << 20) -> list[Task]:
        catalog = make_catalog(find_logs([self.path]))
        ranges = committed_ranges(catalog, Wanted(topics=("a",)))
        return entry_tasks(catalog, ranges, Wanted(), split_bytes, may_miss=False)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    one = Daemon(tmp_path / "cluster")
    yield one
    one.broker.close()


class Late(PlainSpread):
    """Its executors begin when something else is done."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before, self.calls = before, 0

    def judged(
        self, orders: list[Any], function: Callable[[Any], Iterator[Any]], judges: Sequence[Judge]
    ) -> Iterator[Any]:
        self.calls += 1
        if self.calls == 1:
            self._before()
        yield from super().judged(orders, function, judges)


def test_entries_are_read_where_they_were_moved_to(daemon: Daemon) -> None:
    before = stats([daemon.path], PlainSpread(), topics=("a",))
    facts = stats([daemon.path], Late(daemon.reclaim), topics=("a",))
    assert facts["messages"] == before["messages"] == 30
    assert facts["sizes"] == before["sizes"] and facts["elections"] == before["elections"]
    assert facts["not_counted"] == []


def test_what_was_moved_is_seen_before_a_mark_proves_it(tmp_path: Path) -> None:
    """Its first copy is gone, and the next write may be long in coming: it is not nothing."""
    daemon = Daemon(tmp_path / "cluster")
    daemon.reclaim(settle=False)
    facts = stats([daemon.path], PlainSpread(), topics=("a",))
    assert facts["messages"] == 30 and facts["not_counted"] == []
    daemon.broker.close()


def test_what_is_planned_while_a_segment_goes_is_planned_again(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = commit_point.find_logs, list[int]()

    def find(paths: list[str]) -> Any:
        logs = real(paths)
        calls.append(1)
        if len(calls) == 1:
            daemon.reclaim()
        return logs

    monkeypatch.setattr(commit_point, "find_logs", find)
    facts = stats([daemon.path], PlainSpread(), topics=("a",))
    assert facts["messages"] == 30 and len(calls) == 2


def test_verify_reads_all_again(daemon: Daemon, tmp_path: Path) -> None:
    """It holds records against each other, so all of them have to be of one time."""
    spread = Late(daemon.reclaim)
    report = verify(Asked([daemon.path], with_stores=False), spread, tmp_path)
    assert report.findings == [] and report.ok
    assert spread.calls == 2


def test_a_part_of_a_segment_that_is_gone_is_told(daemon: Daemon) -> None:
    """Which entries stood in which part of it is known to nobody any more."""
    tasks = daemon.tasks(split_bytes=100)
    assert len(tasks) > 2
    daemon.reclaim()
    with pytest.raises(SegmentGone, match="was removed while the log was read") as raised:
        list(chosen(tasks[1]))
    assert raised.value.hint.startswith("Run it again")


def test_what_retention_removed_meanwhile_is_not_missed(daemon: Daemon) -> None:
    tasks, before = daemon.tasks(), daemon.topic.entries[3]
    end = before[t.OFFSET] + before[t.COUNT]
    daemon.broker.log.journal.start(100, 5, TERM, end, before[t.CHAIN])
    daemon.settle()
    daemon.reclaim()
    assert [record.index for task in tasks for record, _ in chosen(task)] == [5, 6, 7]


def test_a_topic_that_was_deleted_meanwhile_is_told(daemon: Daemon) -> None:
    tasks = daemon.tasks()
    daemon.broker.log.journal.remove_group(100)
    daemon.settle()
    daemon.reclaim()
    with pytest.raises(SegmentGone, match="was deleted"):
        list(chosen(tasks[0]))
