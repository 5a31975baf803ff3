"""Batches with a key of their own, and takes that remember nothing: repeats are harmless (H4)."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from support.batches import WALL_MS, make_batch
from support.broker_seam import GROUP, World
from support.partition_commands import take_command

from myqueue import errors
from myqueue.daemons.broker import proposals
from myqueue.daemons.partition import keyed_batches
from myqueue.daemons.partition import old_takes as taken
from myqueue.daemons.partition.keyed_batches import KEY_REUSED, KeyedBatches, batch_key
from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.partition.positions import ConsumerPositions
from myqueue.daemons.partition.producers import NEW
from myqueue.daemons.raft import types as t
from myqueue.wire import batch, protocol
from myqueue.wire.batch import KEYED_EPOCH

FIRST_BIT = 1 << 63


def keyed(number: int, count: int = 1) -> bytes:
    return make_batch(count, FIRST_BIT | number, number, KEYED_EPOCH)


@pytest.fixture
def world() -> World:
    return World()


def test_a_known_key_has_its_first_offset() -> None:
    known = KeyedBatches()
    assert known.judge(5, 2) == NEW
    known.record(5, 2, 100, WALL_MS)
    known.record(5, 2, 200, WALL_MS)  # nobody proposes it; all would keep the first
    assert known.judge(5, 2) == 100
    assert known.judge(5, 3) == KEY_REUSED


def test_keys_are_bounded_by_number_and_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_batches, "KEYS_MAX", 3)
    known = KeyedBatches()
    for key in range(5):
        known.record(key, 1, key, WALL_MS)
    assert [known.judge(key, 1) for key in range(5)] == [NEW, NEW, 2, 3, 4]
    rows, gone = known.take_changes()
    assert set(rows) == {2, 3, 4} and gone == [0, 1]
    known.record(9, 1, 50, WALL_MS + keyed_batches.KEY_AGE_MS + 1)
    assert len(known) == 1 and known.take_changes()[1] == [2, 3, 4]


def test_they_take_nothing_from_producers_with_sessions() -> None:
    machine = PartitionMachine()
    data = keyed(7)
    machine.apply([(1, 1, 0, 1, WALL_MS, t.DATA, 1, data)])
    assert len(machine.keys) == 1 and len(machine.sessions) == 0
    other = PartitionMachine()
    other.restore(machine.snapshot())
    assert other.keys.judge(batch_key(FIRST_BIT | 7, 7), 1) == 0
    loaded = PartitionMachine()
    loaded.load(1, machine.take_changes()[0].items())
    assert loaded.snapshot() == machine.snapshot()


def test_a_repeat_is_stored_once_and_gets_the_first_offset(world: World) -> None:
    world.produce(make_batch(3))
    (first,) = world.produce(keyed(1, 2))
    world.produce(make_batch(1))
    (again,) = world.produce(keyed(1, 2))
    assert first[1:4] == again[1:4] == [0, 3, WALL_MS]
    (reused,) = world.produce(keyed(1, 4))
    assert reused[1] == errors.KeyReused.code
    assert world.replica.log.next_offset == 6


def test_a_repeat_of_what_is_on_its_way_waits_for_it(world: World) -> None:
    world.engine.apply_at_once = False
    one = world.ask(protocol.PRODUCE, [GROUP] * 2, frames=[keyed(1), keyed(1)])
    assert world.turn() == [] and len(world.engine.proposals[-1][1]) == 1
    two = world.ask(protocol.PRODUCE, [GROUP] * 2, frames=[keyed(1), keyed(1, 9)])
    ((refused, _),) = world.turn()
    assert refused[3] == [[two + 1, errors.KeyReused.code, 0, 0, proposals.REFUSED_KEY.details]]
    world.engine.apply(world.replica)
    ((envelope, _),) = world.turn()
    assert sorted(row[:3] for row in envelope[3]) == [[one, 0, 0], [one + 1, 0, 0], [two, 0, 0]]
    world.broker.tick(world.engine.now + 5_000)
    (later,) = world.produce(keyed(1))
    assert later[1:3] == [0, 0]  # by now the applied state speaks for it


def same_key(text: bytes, codec: int = batch.PLAIN, time_ms: int = WALL_MS, **more: Any) -> bytes:
    columns = [[text * 50, b"2"], more.get("keys"), more.get("headers"), None]
    return batch.make(
        columns, time_ms, producer=FIRST_BIT, epoch=KEYED_EPOCH, sequence=7, codec=codec
    )


OTHERS = [
    same_key(b"b"),
    same_key(b"b", batch.ZLIB),
    same_key(b"a", keys=[b"k", None]),
    same_key(b"aa"),
    same_key(b"a", headers=[{"h": b"1"}, None]),
]
SAME = [same_key(b"a"), same_key(b"a", time_ms=WALL_MS + 9), same_key(b"a", batch.ZLIB)]


@pytest.mark.parametrize("first", SAME, ids=range(len(SAME)))
def test_the_same_key_with_other_messages_is_refused(world: World, first: bytes) -> None:
    (stored,) = world.produce(first)
    for same in SAME:
        assert [row[1:4] for row in world.produce(same)] == [stored[1:4]]
    for other in OTHERS:
        assert [row[1] for row in world.produce(other)] == [errors.KeyReused.code]
    assert world.replica.log.next_offset == 2


def test_so_it_is_while_the_first_is_on_its_way(world: World) -> None:
    world.engine.apply_at_once = False

    def asked(*batches: bytes) -> int:
        return world.ask(protocol.PRODUCE, [GROUP] * len(batches), frames=batches)

    one = asked(SAME[0], OTHERS[0], *SAME)  # in one turn
    refused = [row for envelope, _ in world.turn() for row in envelope[3]]
    assert [row[:2] for row in refused] == [[one + 1, errors.KeyReused.code]]
    two = asked(*OTHERS, *SAME)  # in the next one
    refused = [row for envelope, _ in world.turn() for row in envelope[3]]
    assert [row[:2] for row in refused] == [
        [two + at, errors.KeyReused.code] for at in range(len(OTHERS))
    ]
    world.engine.apply(world.replica)
    ((envelope, _),) = world.turn()
    assert len(envelope[3]) == 7 and {tuple(row[1:3]) for row in envelope[3]} == {(0, 0)}


def test_a_key_whose_messages_are_gone_has_its_first_offset(world: World) -> None:
    """Retention took them: nobody can say what they were."""
    (stored,) = world.produce(same_key(b"a"))
    world.replica.broken = errors.EntryMissing("gone")
    assert [row[:3][1:] for row in world.produce(same_key(b"b"))] == [[0, stored[2]]]


def test_what_can_not_be_decompressed_is_no_repeat(world: World) -> None:
    world.produce(same_key(b"a", batch.ZLIB))
    made = bytearray(same_key(b"a", batch.ZLIB))
    made[batch.HEADER_BYTES + 5] ^= 255
    crc = zlib.crc32(made[batch.HEADER_BYTES :], zlib.crc32(made[:44]))
    made[44:48] = crc.to_bytes(4, "little")
    assert [row[1] for row in world.produce(bytes(made))] == [errors.KeyReused.code]


def test_what_was_refused_may_be_sent_again(world: World) -> None:
    world.engine.refusal = errors.Busy("the disk is behind")
    assert [row[1] for row in world.produce(keyed(1))] == [errors.Busy.code]
    world.engine.refusal = None
    assert [row[1:3] for row in world.produce(keyed(1))] == [[0, 0]]


def test_a_take_that_found_nothing_is_remembered_if_asked_for(world: World) -> None:
    """Who looked here with this key, and went on to another partition, finds it empty again."""
    key, other = b"k" * 16, b"o" * 16
    takes = [[GROUP, "a", key, 1, True], [GROUP, "a", other, 1, False]]

    def taken() -> list[list[Any]]:
        asked = world.ask(protocol.TAKE, takes)
        ((envelope, _),) = world.turn()
        return [row[1:] for row in sorted(envelope[3]) if row[0] in (asked, asked + 1)]

    assert taken() == [[0, 0, 0, [], None], [0, 0, 0, [], None]]
    world.produce(make_batch(2))
    assert taken() == [[0, 0, 0, [], None], [0, 0, 1, [[0, 0]], None]]


def test_nothing_is_remembered_without_moving() -> None:
    positions = ConsumerPositions()
    assert positions.take("a", b"k", 5, 3, 3, True) == (0, 3, 3)
    assert positions.offset("a") == 3
    assert positions.take("a", b"k", 5, 3, 9) == (0, 3, 3)
    assert positions.take("a", b"l", 5, 3, 9) == (0, 3, 8)


def test_h4_a_take_is_repeated_though_others_of_its_consumer_took_often_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it got is nobody else's; also by a replica that got the state, or read it."""
    monkeypatch.setattr(taken, "OLDER_TAKES_MAX", 50)
    machine, rows = PartitionMachine(), dict[bytes, bytes]()
    machine.apply([(1, 1, 0, 100, WALL_MS, t.DATA, 0, make_batch(100))])

    def take(machine: PartitionMachine, consumer: str, number: int) -> Any:
        command = take_command([[consumer, number.to_bytes(16, "big"), 1]])
        index = machine.applied_index + 1
        ((result,),) = machine.apply([(index, 1, 100, 0, WALL_MS, t.COMMAND, 0, command)])
        return result

    assert take(machine, "quiet", 7) == (0, 0, 1)
    for number in range(60):
        assert take(machine, "a", number) == (0, number, number + 1)
    puts, _ = machine.take_changes()
    rows.update(puts)
    restored, loaded = PartitionMachine(), PartitionMachine()
    restored.restore(machine.snapshot())
    loaded.load(machine.applied_index, rows.items())
    for one in (restored, loaded, machine):
        assert [take(one, "a", n) for n in range(60)] == [(0, n, n + 1) for n in range(60)]
        assert take(one, "quiet", 7) == (0, 0, 1), "it has its own few"
    for number in range(60, 75):
        take(machine, "a", number)
    assert take(machine, "a", 8)[1] == 75, "the oldest of all are forgotten"
    puts, gone = machine.take_changes()
    assert len(puts.keys() - rows.keys()) == 16 and not rows.keys().isdisjoint(gone)
