"""Retention: what goes, what stays, and who may say so."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from support.batches import make_batch
from support.broker_seam import GROUP, World
from support.orders import answer, orders

from myqueue import errors
from myqueue.daemons.broker import retention
from myqueue.daemons.broker.retention import NewStart, RetentionGoal, retention_goal, walk_rows
from myqueue.daemons.raft import types as t
from myqueue.wal.groups import Row
from myqueue.wire import protocol

SEGMENT = 64 << 20


def row(index: int, offset: int, count: int, length: int, time_ms: int) -> Row:
    return Row(1, index, 1, 0, length, count, offset, 1, time_ms, 0)


# -- the decision -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kept", "oldest_ms", "goal"),
    [
        ({}, 10**12, 0, None),
        ({"retention_bytes": 0, "retention_ms": 0}, 10**12, 0, None),
        ({"retention_bytes": 800}, 800, 0, None),
        ({"retention_bytes": 800}, 899, 0, None),  # not worth a step
        ({"retention_bytes": 800}, 900, 0, RetentionGoal(100, 0)),
        ({"retention_bytes": 1}, 2, 0, RetentionGoal(1, 0)),
        ({"retention_bytes": 1 << 30}, (1 << 30) + SEGMENT // 2 - 1, 0, None),
        ({"retention_bytes": 1 << 30}, (1 << 30) + SEGMENT // 2, 0, RetentionGoal(SEGMENT // 2, 0)),
        ({"retention_ms": 1000}, 1, 8_875, None),
        ({"retention_ms": 1000}, 1, 8_874, RetentionGoal(0, 9_000)),
        ({"retention_ms": 1000, "retention_bytes": 5}, 9, 0, RetentionGoal(4, 9_000)),
    ],
)
def test_when_something_has_to_go(
    settings: dict[str, Any], kept: int, oldest_ms: int, goal: RetentionGoal | None
) -> None:
    assert retention_goal(settings, kept, oldest_ms, 10_000, SEGMENT) == goal


def test_whole_batches_the_oldest_first_and_never_below_the_limit() -> None:
    rows = [
        row(5, 100, 2, 40, 1),
        row(6, 102, 0, 9, 2),
        row(7, 102, 3, 40, 3),
        row(8, 105, 1, 9, 4),
    ]
    begin = NewStart(5, 100, 0)
    assert walk_rows(begin, rows, RetentionGoal(39, 0)) == (begin, True)
    assert walk_rows(begin, rows, RetentionGoal(40, 0)) == (NewStart(6, 102, 40), True)
    assert walk_rows(begin, rows, RetentionGoal(79, 0)) == (NewStart(6, 102, 40), True)
    assert walk_rows(begin, rows, RetentionGoal(80, 0)) == (NewStart(8, 105, 80), True), (
        "the command goes with it"
    )
    assert walk_rows(begin, rows, RetentionGoal(0, 3)) == (NewStart(6, 102, 40), True), (
        "just as old stays"
    )
    assert walk_rows(begin, rows, RetentionGoal(0, 4)) == (NewStart(8, 105, 80), True)
    assert walk_rows(begin, rows, RetentionGoal(0, 5)) == (NewStart(9, 106, 89), False), "all of it"
    assert walk_rows(begin, [], RetentionGoal(1, 1)) == (begin, False)


def test_in_portions_as_in_one() -> None:
    """However the rows come, the cut is the same, and its bytes are those of the batches."""
    for seed in range(200):
        random = Random(seed)
        rows, offset, time_ms = [], 0, 0
        for index in range(1, 40):
            count = random.choice((0, 1, 1, 7))
            time_ms += random.randrange(3)
            rows.append(row(index, offset, count, random.randrange(1, 50), time_ms))
            offset += count
        goal = RetentionGoal(random.choice((0, random.randrange(900))), random.randrange(40))
        whole = walk_rows(NewStart(1, 0, 0), rows, goal)
        cut, over, at = NewStart(1, 0, 0), False, 0
        while not over and at < len(rows):
            size = random.randrange(1, 9)
            cut, over = walk_rows(cut, rows[at : at + size], goal)
            at += size
        assert (cut, over) == whole
        assert cut.bytes == sum(one.length for one in rows if one.count and one.index < cut.index)
        stays = [one for one in rows if one.count and one.index >= cut.index]
        assert not stays or stays[0].offset == cut.offset


# -- the leader ---------------------------------------------------------------------------------


class Leader:
    """A broker that leads a partition with an index made from its log."""

    def __init__(self, **settings: int) -> None:
        self.world = world = World()
        world.broker.queues.set_settings(GROUP, settings)
        world.engine.log.index = SimpleNamespace(rows=self._rows, row_at_offset=self._at)
        self.current = True
        answers = world.broker.manager_answers
        answers.has_current_orders = lambda _now: self.current  # type: ignore[method-assign]

    def rows(self) -> list[Row]:
        log = self.world.replica.log
        entries = log.in_memory(log.memory_first, log.last_index) or []
        return [
            row(e[t.INDEX], e[t.OFFSET], e[t.COUNT], len(e[t.PAYLOAD]), e[t.TIME]) for e in entries
        ]

    def _rows(self, _group: int, first: int, last: int, _bytes: int) -> list[Row]:
        return [one for one in self.rows() if first <= one.index <= last]

    def _at(self, _group: int, offset: int) -> Row:
        return next(o for o in self.rows() if o.offset <= offset < o.offset + o.count)

    def look(self) -> None:
        """A second passes, in ticks."""
        for _ in range(20):
            self.world.engine.now += 50
            self.world.engine.wall += 50
            self.world.broker.tick(self.world.engine.now)
            self.world.engine.end_turn()

    @property
    def machine(self) -> Any:
        return self.world.replica.machine


def test_the_leader_moves_the_start_and_counts_what_went() -> None:
    size = len(make_batch(1))
    leader = Leader(retention_bytes=5 * size)
    leader.world.produce(*(make_batch(1) for _ in range(30)))
    leader.look()
    machine = leader.machine
    assert (machine.start, machine.end) == (25, 30)
    assert machine.bytes_kept == 5 * size
    first = leader._at(GROUP, 25)
    assert machine.start_index == first.index
    leader.look()
    assert machine.start == 25
    leader.world.broker.queues.set_settings(GROUP, {"retention_ms": 1000})
    leader.look()
    leader.look()
    assert machine.start == machine.end == 30 and not machine.bytes_kept, "by age all may go"


def test_a_long_way_is_walked_in_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """R28: however much has to go, one tick looks at a bounded number of rows."""
    monkeypatch.setattr(retention, "ROWS_PER_TICK_MAX", 7)
    monkeypatch.setattr(retention, "ENTRIES_PER_START_MAX", 20)
    size = len(make_batch(1))
    leader = Leader(retention_bytes=size)
    leader.world.produce(*(make_batch(1) for _ in range(60)))
    asked: list[int] = []
    rows = leader.world.engine.log.index.rows

    def counted(group: int, first: int, last: int, most: int) -> list[Row]:
        found: list[Row] = rows(group, first, last, most)
        asked.append(len(found))
        return found

    leader.world.engine.log.index.rows = counted
    for _ in range(10):
        leader.look()
    assert max(asked) <= 7 and leader.machine.start == 59
    commands = [items for _, items in leader.world.engine.proposals if items[0][2] == t.COMMAND]
    assert len(commands) >= 3, "none of them lets more go than its limit"


def test_one_start_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are counted from where the last one led, so that one has to be applied first."""
    size = len(make_batch(1))
    leader = Leader(retention_bytes=size)
    leader.world.produce(*(make_batch(1) for _ in range(9)))
    leader.world.engine.apply_at_once = False
    for _ in range(3):
        leader.look()
    starts = [items for _, items in leader.world.engine.proposals if items[0][2] == t.COMMAND]
    assert len(starts) == 1
    leader.world.engine.apply_at_once = True
    leader.look()
    assert leader.machine.bytes_kept == size and leader.machine.start == 8


def test_on_a_full_disk_a_start_goes_where_commits_do_not() -> None:
    """W15: the last room is for votes, and for what gives room back."""
    leader = Leader(retention_bytes=1)
    world = leader.world
    world.produce(*(make_batch(1) for _ in range(9)))
    world.engine.is_full = True
    world.ask(protocol.COMMIT, "group/g", [[GROUP, 3, 0, 0]])
    ((answer, _),) = world.turn()
    assert answer[3][0][1] == errors.DiskFull.code
    leader.look()
    assert leader.machine.start == 8


def test_nothing_goes_by_settings_that_may_be_of_yesterday() -> None:
    """C6: after a start a broker knows the settings of when its groups were made; what they would
    delete may have been promised to stay.
    """
    leader = Leader(retention_bytes=1)
    leader.world.produce(*(make_batch(1) for _ in range(9)))
    leader.current = False
    leader.look()
    leader.look()
    assert leader.machine.start == 0
    leader.current = True
    leader.look()
    assert leader.machine.start == 8


@pytest.mark.parametrize("away", [False, True])
def test_a_long_way_is_not_walked_to_its_end_by_settings_of_before(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """C6: they were replaced in the middle of it, perhaps while no manager answered for minutes."""
    monkeypatch.setattr(retention, "ROWS_PER_TICK_MAX", 7)
    leader = Leader(retention_bytes=1)
    world = leader.world
    world.produce(*(make_batch(1) for _ in range(60)))
    while not leader.world.broker.retention._walks:
        world.engine.now += 50
        world.broker.tick(world.engine.now)
    if away:
        leader.current = False
        leader.look()
        assert not world.broker.retention._walks
        leader.current = True
    world.broker.queues.set_settings(GROUP, {"retention_bytes": 1 << 40})
    leader.look()
    leader.look()
    assert leader.machine.start == 0


def test_who_is_current() -> None:
    """A majority of managers that know of this process's life answered lately."""
    world = World()
    reports = world.broker.manager_answers

    def says(node: int, life: int = world.engine.incarnation) -> None:
        answer(world, orders(version=1, life=life), node, beat=1)

    now = world.engine.now
    assert not reports.has_current_orders(now)
    says(1)
    assert not reports.has_current_orders(now), "one of two is no majority"
    says(2, life=4)
    assert not reports.has_current_orders(now), "of an earlier life: it may lag behind"
    says(2)
    assert reports.has_current_orders(now) and not reports.has_current_orders(now + 6000)


def test_a_clock_that_is_ahead_deletes_nothing() -> None:
    """Of this machine, or of one manager; most say what time it is."""
    leader = Leader(retention_ms=3_600_000)
    world = leader.world
    world.produce(*(make_batch(1) for _ in range(9)))
    begin, day = world.engine.wall, 86_400_000

    def told(*ahead_ms: int) -> None:
        for node, ahead in enumerate(ahead_ms, 1):
            answer(world, orders(wall_ms=begin + ahead), node)

    told(0, 0)
    world.engine.wall += day
    leader.look()
    assert leader.machine.start == 0
    told(day, 0)
    leader.look()
    assert leader.machine.start == 0
    told(day, day)
    leader.look()
    assert leader.machine.start == 9


def test_without_a_word_of_managers_about_time_the_own_clock_holds() -> None:
    """They are of an older version."""
    leader = Leader(retention_ms=3_600_000)
    leader.world.produce(*(make_batch(1) for _ in range(9)))
    leader.world.engine.wall += 86_400_000
    leader.look()
    assert leader.machine.start == 9


def test_a_follower_decides_nothing() -> None:
    leader = Leader(retention_bytes=1)
    leader.world.produce(*(make_batch(1) for _ in range(9)))
    leader.world.engine.depose(leader.world.replica, leader=2)
    leader.look()
    assert leader.machine.start == 0
