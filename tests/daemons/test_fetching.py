"""FETCH: what is served, who waits, and who is woken (C5, C6, W16)."""

from __future__ import annotations

from typing import Any

import pytest
from support.batches import WALL_MS, make_batch
from support.broker_seam import GROUP, World

from myqueue import errors
from myqueue.daemons.broker import fetch
from myqueue.daemons.partition.machine import start_command
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.replication import read_ahead
from myqueue.wire import protocol

LOTS = 1 << 20


@pytest.fixture
def world() -> World:
    return World()


def test_batches_of_several_parts_in_order(world: World) -> None:
    other = world.add(GROUP + 1)
    world.engine.lead(other)
    batches = [make_batch(3), make_batch(2), make_batch(1)]
    world.produce(*batches[:2])
    world.produce(batches[2], group=GROUP + 1)
    world.ask(protocol.FETCH, 0, 1, LOTS, [[GROUP, 1], [GROUP + 1, 0]])
    ((envelope, frames),) = world.turn()
    assert envelope[3] == [
        [GROUP, 0, 0, 5, [[0, WALL_MS], [3, WALL_MS]], None],
        [GROUP + 1, 0, 0, 1, [[0, WALL_MS]], None],
    ]
    assert frames == batches


def test_commands_are_not_served(world: World) -> None:
    world.produce(make_batch(1))
    world.ask(protocol.COMMIT, "a", [[GROUP, 1, 0, 0]])
    world.turn()
    world.produce(make_batch(2))
    world.ask(protocol.FETCH, 0, 1, LOTS, [[GROUP, 0]])
    ((envelope, frames),) = world.turn()
    assert [offset for offset, _ in envelope[3][0][4]] == [0, 1] and len(frames) == 2


def test_only_what_is_applied_is_served(world: World) -> None:
    """C5"""
    world.produce(make_batch(1))
    world.engine.apply_at_once = False
    world.produce(make_batch(1))
    world.ask(protocol.FETCH, 0, 1, LOTS, [[GROUP, 0]])
    world.ask(protocol.FETCH, 0, 1, LOTS, [[GROUP, 1]])
    (one, frames), (two, none) = world.turn()
    assert one[3][0][3] == 1 and len(frames) == 1
    assert two[3] == [[GROUP, 0, 0, 1, [], None]] and none == []


def test_above_the_end_is_wrong_only_if_we_lead_for_certain(world: World) -> None:
    """C6, R10: a leader that was deposed without knowing must not call an offset wrong."""
    world.produce(make_batch(1))
    world.ask(protocol.FETCH, 0, 1, LOTS, [[GROUP, 2]])
    assert world.turn() == []
    (context,) = world.engine.reads
    world.broker.read_ready(context)
    assert world.turn()[0][0][3] == [[GROUP, errors.OffsetOutOfRange.code, 0, 1, [], None]]


def test_above_the_end_of_who_leads_no_more(world: World) -> None:
    world.produce(make_batch(1))
    world.ask(protocol.FETCH, 100, 1, LOTS, [[GROUP, 2]])
    (context,) = world.engine.reads
    world.engine.depose(world.replica, leader=2)
    world.broker.read_ready(context)
    world.ask(protocol.FETCH, 0, 1, LOTS, [[GROUP, 2]])
    assert [answer[0][3] for answer in world.turn()] == [[[GROUP, 0, 0, 1, [], None]]]


def test_followers_serve_as_well(world: World) -> None:
    world.produce(make_batch(1))
    world.engine.depose(world.replica, leader=2)
    world.ask(protocol.FETCH, 0, 1, LOTS, [[GROUP, 0]])
    assert len(world.turn()[0][1]) == 1


def test_at_least_one_batch_then_the_limit(world: World) -> None:
    size = len(make_batch(1))
    world.produce(*(make_batch(1) for _ in range(5)))
    for limit, count in ((1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (LOTS, 5)):
        world.ask(protocol.FETCH, 0, 1, limit, [[GROUP, 0]])
        assert len(world.turn()[0][1]) == count
    world.ask(protocol.FETCH, 0, 1, 2 * size, [[GROUP, 4], [GROUP, 0]])  # what is left is shared
    ((envelope, frames),) = world.turn()
    assert [len(row[4]) for row in envelope[3]] == [1, 1] and len(frames) == 2


def test_no_more_frames_than_a_message_may_have(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "REPLY_FRAMES_MAX", 3)
    world.produce(*(make_batch(1) for _ in range(5)))
    world.ask(protocol.FETCH, 9_000, LOTS, LOTS, [[GROUP, 1], [GROUP, 0]])
    ((envelope, frames),) = world.turn()
    assert [len(row[4]) for row in envelope[3]] == [3, 0] and len(frames) == 3


def test_errors_stand_in_their_part(world: World) -> None:
    """C6, W16"""
    other = world.add(GROUP + 1)
    world.engine.lead(other)
    world.produce(make_batch(1))
    world.produce(make_batch(1), group=GROUP + 1)
    other.broken = errors.CorruptData("segment 3")
    world.ask(protocol.FETCH, 9_000, 1, LOTS, [[GROUP, 1], [GROUP + 1, 0], [5, 0], [GROUP, 0]])
    ((envelope, frames),) = world.turn()
    assert [row[1] for row in envelope[3]] == [
        0,
        errors.CorruptData.code,
        errors.UnknownPartition.code,
        0,
    ]
    assert envelope[3][0][2:4] == [0, 1] and len(frames) == 1


def test_what_the_log_has_not_yet_is_not_out_of_range(world: World) -> None:
    """C6: its offset is right, and the replica has the state before it has the messages."""
    world.produce(make_batch(1))
    world.replica.broken = errors.EntryMissing("not yet")
    world.ask(protocol.FETCH, 0, 1, LOTS, [[GROUP, 0]])
    assert world.turn()[0][0][3][0][1] == errors.NotReady.code


def test_what_is_below_the_start_is_out_of_range(world: World) -> None:
    """C6: with start and end, from any replica."""
    for _ in range(3):
        world.produce(make_batch(1))
    item = t.Proposal(0, 0, t.COMMAND, start_command(2, 4, 0))
    world.engine.propose(world.replica, [item])
    world.engine.end_turn()
    world.engine.depose(world.replica, leader=2)
    world.ask(protocol.FETCH, 100, 1, LOTS, [[GROUP, 1]])
    row = [GROUP, errors.OffsetOutOfRange.code, 2, 3, [], None]
    assert world.turn()[-1][0][3] == [row]


def test_long_poll_is_woken_by_what_comes(world: World) -> None:
    asked = world.ask(protocol.FETCH, 9_000, 1, LOTS, [[GROUP, 0], [GROUP, 0]])
    assert world.turn() == [] and world.broker.fetch_handler.waiting == 1
    world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch(2)])
    (one, frames), _ = world.turn()
    assert one[1:3] == [protocol.FETCHED, asked] and one[3][0][3] == 2 and len(frames) == 2
    assert (
        world.broker.fetch_handler.waiting == 0 and not world.broker.fetch_handler._waiters_by_slot
    )


def test_long_poll_waits_for_min_bytes_in_all_parts(world: World) -> None:
    other = world.add(GROUP + 1)
    world.engine.lead(other)
    size = len(make_batch(1))
    world.produce(make_batch(1))
    world.ask(protocol.FETCH, 9_000, 3 * size, LOTS, [[GROUP, 0], [GROUP + 1, 0]])
    assert world.turn() == []
    assert len(world.produce(make_batch(1), group=GROUP + 1)) == 1
    world.ask(protocol.PRODUCE, [GROUP + 1], frames=[make_batch(1)])
    (one, frames), _ = world.turn()
    assert [len(row[4]) for row in one[3]] == [1, 2] and len(frames) == 3


def test_long_poll_ends(world: World) -> None:
    world.produce(make_batch(1))
    world.ask(protocol.FETCH, 120, LOTS, LOTS, [[GROUP, 0]])
    for _ in range(2):
        world.engine.now += 50
        world.broker.tick(world.engine.now)
        assert world.turn() == []
    world.engine.now += 50
    world.broker.tick(world.engine.now)
    ((envelope, frames),) = world.turn()
    assert len(frames) == 1 and envelope[3][0][3] == 1
    assert (
        not world.broker.fetch_handler._waiters_by_group
        and not world.broker.fetch_handler._waiters_by_slot
    )


def test_waiters_of_a_removed_group_are_told(world: World) -> None:
    world.ask(protocol.FETCH, 9_000, 1, LOTS, [[GROUP, 0]])
    world.broker._remove_replica(GROUP)
    assert world.turn()[0][0][3][0][1] == errors.UnknownPartition.code


def test_rounds_of_a_removed_group_are_forgotten(world: World) -> None:
    world.ask(protocol.FETCH, 9_000, 1, LOTS, [[GROUP, 2]])
    assert world.broker.fetch_handler._read_rounds
    world.broker._remove_replica(GROUP)
    assert not world.broker.fetch_handler._read_rounds
    assert world.turn()[0][0][3][0][1] == errors.UnknownPartition.code


def test_waiters_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "WAITERS_PER_CLIENT_MAX", 2)
    for _ in range(2):
        world.ask(protocol.FETCH, 9_000, 1, LOTS, [[GROUP, 0]])
    with pytest.raises(errors.Busy):
        world.ask(protocol.FETCH, 9_000, 1, LOTS, [[GROUP, 0]])
    with pytest.raises(errors.InvalidRequest):
        world.ask(protocol.FETCH, 9_000, 1, LOTS, [])


# -- reading ahead --------------------------------------------------------------------------------


class OnDisk:
    """A group's log of which nothing is in memory; other attributes are those of the real one."""

    def __init__(self, log: RaftLog) -> None:
        self._log = log

    def index_at_offset(self, offset: int) -> int | None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Reader:
    """A consumer of a partition with 20 batches of one message, of which each fetch gets two."""

    def __init__(self, world: World) -> None:
        self.world, self.next = world, 0
        self.batches = [make_batch(1) for _ in range(20)]
        world.produce(*self.batches)
        world.replica.raft.log = OnDisk(world.replica.log)
        self.reads: list[int] = []  # first index of each read
        read = world.replica.read

        def counted(first: int, last: int, max_bytes: int) -> list[t.Entry]:
            self.reads.append(first)
            return read(first, last, max_bytes)

        world.replica.read = counted  # type: ignore[method-assign]

    def fetch(self, batches: int = 2) -> int:
        """Fetch the next batches; return how many reads it took before the answer."""
        self.reads.clear()
        limit = batches * len(self.batches[0])
        self.world.ask(protocol.FETCH, 0, 1, limit, [[GROUP, self.next]])
        reads = len(self.reads)
        ((envelope, frames),) = self.world.turn()
        assert [offset for offset, _ in envelope[3][0][4]] == [
            *range(self.next, self.next + batches)
        ]
        assert frames == self.batches[self.next : self.next + batches]
        self.next += batches
        return reads

    @property
    def kept_bytes(self) -> int:
        return self.world.broker.fetch_handler._read_ahead.kept_bytes


def test_a_consumer_that_asks_quickly_finds_its_next_batches_read(world: World) -> None:
    reader = Reader(world)
    assert [reader.fetch() for _ in range(10)] == [1, 1, *[0] * 8]
    assert reader.kept_bytes == 0 and reader.reads == [], "nothing is after the last one"


@pytest.mark.parametrize("ticks", [False, True])
def test_a_consumer_that_asks_slowly_gets_nothing_read_ahead(world: World, ticks: bool) -> None:
    reader = Reader(world)
    for _ in range(5):
        assert reader.fetch() == 1
        world.engine.now += read_ahead.QUICK_MS + 1
        if ticks:
            world.broker.tick(world.engine.now)
    assert reader.kept_bytes == 0


def test_what_is_in_memory_is_not_read_ahead(world: World) -> None:
    reader = Reader(world)
    world.replica.raft.log = world.replica.log
    assert [reader.fetch() for _ in range(4)] == [1] * 4 and reader.kept_bytes == 0


def test_what_was_read_ahead_is_dropped_if_nobody_asks(world: World) -> None:
    reader = Reader(world)
    reader.fetch()
    reader.fetch()
    assert reader.kept_bytes == 2 * len(reader.batches[0])
    world.engine.now += read_ahead.KEPT_MS + 1
    world.broker.tick(world.engine.now)
    assert reader.kept_bytes == 0
    assert reader.fetch() == 1


def test_a_smaller_request_leaves_the_rest_of_what_was_read_ahead(world: World) -> None:
    reader = Reader(world)
    reader.fetch()
    reader.fetch()
    assert reader.fetch(1) == 0 and reader.reads == [], "the rest is what comes next"
    assert reader.fetch(1) == 0


def test_what_cannot_be_read_ahead_is_an_error_only_for_those_who_ask(world: World) -> None:
    reader = Reader(world)
    reader.fetch()
    reader.world.ask(protocol.FETCH, 0, 1, 2 * len(reader.batches[0]), [[GROUP, 2]])
    world.replica.broken = errors.CorruptData("segment 3")
    ((envelope, frames),) = world.turn()
    assert envelope[3][0][1] == 0 and len(frames) == 2
    world.ask(protocol.FETCH, 0, 1, LOTS, [[GROUP, 4]])
    assert world.turn()[0][0][3][0][1] == errors.CorruptData.code


def test_a_removed_group_leaves_nothing_read_ahead(world: World) -> None:
    reader = Reader(world)
    reader.fetch()
    reader.fetch()
    world.broker.fetch_handler.removed(GROUP)
    assert reader.kept_bytes == 0


def test_memory_for_reading_ahead_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(world)
    monkeypatch.setattr(read_ahead, "BYTES_MAX", len(reader.batches[0]))
    assert [reader.fetch() for _ in range(4)] == [1] * 4 and reader.kept_bytes == 0


def test_a_batch_that_would_hardly_fit_is_not_read_in_vain(world: World) -> None:
    reader = Reader(world)
    world.ask(protocol.FETCH, 0, 1, 3 * len(reader.batches[0]) - 1, [[GROUP, 0]])
    assert len(world.turn()[0][1]) == 2 and len(reader.reads) == 1
