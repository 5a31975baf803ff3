"""The broker's answers to TAKE, at the seam to the engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.batches import make_batch
from support.broker_seam import GROUP, World

from myqueue import errors
from myqueue.daemons.broker import commit_take
from myqueue.daemons.raft.types import COUNT, INDEX, OFFSET, PAYLOAD
from myqueue.wire import protocol

KEY = b"k" * 16


@pytest.fixture
def world() -> World:
    return World()


def test_take_reads_what_it_took(world: World) -> None:
    batches = [make_batch(3), make_batch(3)]
    world.produce(*batches)
    asked = world.ask(protocol.TAKE, [[GROUP, "a", KEY, 2, False]])
    ((first, frames),) = world.turn()
    assert first[1:] == [protocol.TAKEN, 0, [[asked, 0, 0, 2, [[0, 0]], None]]]
    assert frames == batches[:1]
    asked = world.ask(protocol.TAKE, [[GROUP, "a", b"2" * 16, 9, False]])
    ((second, frames),) = world.turn()
    assert second[3] == [[asked, 0, 2, 6, [[0, 0], [3, 1]], None]] and frames == batches
    proposals = len(world.engine.proposals)
    again = world.ask(protocol.TAKE, [[GROUP, "a", KEY, 2, False]])  # repeated
    empty = world.ask(protocol.TAKE, [[GROUP, "a", b"3" * 16, 2, False]])  # nothing left
    ((both, frames),) = world.turn()
    assert both[3] == [[again, 0, 0, 2, [[0, 0]], None], [empty, 0, 6, 6, [], None]]
    assert frames == batches[:1] and len(world.engine.proposals) == proposals


def test_takes_of_a_turn_share_an_entry_and_an_answer(world: World) -> None:
    """Each batch is in it once, whoever got of it; what is wrong with one is told of that one."""
    batch = make_batch(3)
    world.produce(batch)
    proposals = len(world.engine.proposals)
    takes = [[GROUP, str(n), KEY, 2, False] for n in range(5)]
    asked = world.ask(
        protocol.TAKE, [*takes, [GROUP, "a b", KEY, 1, False], [7, "1", KEY, 1, False]]
    )
    other = world.ask(protocol.TAKE, [[GROUP, "5", KEY, 0, False], [GROUP, "6", KEY, 1, False]])
    ((answer, frames),) = world.turn()
    assert len(world.engine.proposals) == proposals + 1 and frames == [batch]
    rows = {row[0]: row[1:] for row in answer[3]}
    assert [rows[asked + n][:4] for n in range(5)] == [[0, 0, 2, [[0, 0]]]] * 5
    wrong = {number: row[0] for number, row in rows.items() if row[0]}
    assert wrong == {
        asked + 5: errors.InvalidName.code,
        asked + 6: errors.UnknownPartition.code,
        other: errors.InvalidRequest.code,
    }
    assert "a b" in rows[asked + 5][4]["message"] and rows[other + 1][:3] == [0, 0, 1]
    with pytest.raises(errors.InvalidRequest, match="256 at most"):
        world.ask(protocol.TAKE, takes * 52)


def test_take_elsewhere_and_of_damaged_data(world: World) -> None:
    world.produce(make_batch())
    world.replica.broken = errors.CorruptData("segment 3")
    world.ask(protocol.TAKE, [[GROUP, "a", KEY, 1, False]])
    ((answer, frames),) = world.turn()
    ((_, code, _, _, batches, _),) = answer[3]
    assert (code, batches, frames) == (errors.CorruptData.code, [], [])
    world.engine.depose(world.replica, leader=4)
    world.ask(protocol.TAKE, [[GROUP, "a", KEY, 1, False]])
    ((answer, _),) = world.turn()
    ((_, code, _, _, _, details),) = answer[3]
    assert code == errors.NotLeader.code and details["leader"] == 4


def index_rows(
    world: World, group: int, first: int, last: int, bytes_max: int
) -> list[SimpleNamespace]:
    """Rows of the index as the log has them: at least one, then up to the limits."""
    rows: list[SimpleNamespace] = []
    for entry in world.replica.log.in_memory(first, last) or []:
        bytes_max -= len(entry[PAYLOAD])
        if rows and bytes_max < 0:
            break
        rows.append(SimpleNamespace(index=entry[INDEX], offset=entry[OFFSET], count=entry[COUNT]))
    assert group == GROUP
    return rows


def test_a_take_is_no_larger_than_an_answer_and_nothing_is_read_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [make_batch(3, size=100) for _ in range(4)]
    monkeypatch.setattr(commit_take, "REPLY_BYTES_MAX", 2 * len(batches[0]) + 1)
    world.engine.log.index = SimpleNamespace(rows=lambda *limits: index_rows(world, *limits))
    world.produce(*batches)
    world.replica.broken = errors.CorruptData("nothing is read before the step is replicated")
    asked = world.ask(protocol.TAKE, [[GROUP, "a", KEY, 100, False]])
    world.replica.broken = None
    ((answer, frames),) = world.turn()
    assert answer[3] == [[asked, 0, 0, 6, [[0, 0], [3, 1]], None]] and frames == batches[:2]
    asked = world.ask(protocol.TAKE, [[GROUP, "a", b"2" * 16, 4, False]])
    ((answer, _),) = world.turn()
    assert answer[3][0][:4] == [asked, 0, 6, 10]


def test_an_answer_to_takes_is_bounded_by_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [make_batch(1, size=100) for _ in range(3)]
    monkeypatch.setattr(commit_take, "REPLY_BYTES_MAX", 2 * len(batches[0]) - 1)
    world.engine.log.index = SimpleNamespace(rows=lambda *limits: index_rows(world, *limits))
    world.produce(*batches)
    takes = [[GROUP, "a", bytes([number]) * 16, 1, False] for number in range(3)]
    world.ask(protocol.TAKE, [*takes, [GROUP, "b", KEY, 1, False]])
    answers = world.turn()
    assert [frames for _, frames in answers] == [
        [batches[0]],
        [batches[1]],
        [batches[2]],
        batches[:1],
    ]
