"""The broker's answers to PRODUCE, COMMIT and questions, at the seam to the engine."""

from __future__ import annotations

import zlib
from typing import Any
from zlib import crc32

import msgpack
import pytest
from support.batches import WALL_MS, forged, make_batch, unreadable
from support.broker_seam import GROUP, World

from myqueue import errors
from myqueue.daemons.broker import produce, proposals, queries
from myqueue.daemons.interfaces import Client
from myqueue.daemons.raft import types as t
from myqueue.wire import batch, protocol

KEY = b"k" * 16


@pytest.fixture
def world() -> World:
    return World()


def codes(rows: list[list[Any]]) -> list[int]:
    return [row[1] for row in rows]


# -- produce --------------------------------------------------------------------------------------


def test_a_turn_is_one_proposal_and_one_answer_a_client(world: World) -> None:
    other = Client(b"c2", "client-2")
    one = world.ask(protocol.PRODUCE, [GROUP] * 2, frames=[make_batch(3), make_batch(2)])
    two = world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch(1)])
    three = world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch(4)], client=other)
    world.engine.end_turn()
    assert [len(items) for _, items in world.engine.proposals] == [4]
    found = {client.name: envelope for client, envelope, _ in world.engine.replies}
    assert found["client-1"][:3] == [1, protocol.PRODUCED, 0]
    assert found["client-1"][3] == [
        [one, 0, 0, WALL_MS, None],
        [one + 1, 0, 3, WALL_MS, None],
        [two, 0, 5, WALL_MS, None],
    ]
    assert found["client-2"][3] == [[three, 0, 6, WALL_MS, None]]
    assert len(world.engine.replies) == 2 and world.broker.produce_handler.inflight_bytes == 0


def test_payload_is_passed_on_as_it_came(world: World) -> None:
    frame = memoryview(make_batch(3))
    world.produce(frame)
    assert world.engine.proposals[-1][1][0][3] is frame


def test_no_answer_before_it_is_applied(world: World) -> None:
    world.engine.apply_at_once = False
    assert world.produce(make_batch()) == []
    world.engine.apply(world.replica)
    assert codes(world.produce()) == [0]


def test_time_never_goes_back(world: World) -> None:
    world.produce(make_batch())
    world.engine.wall -= 5_000
    assert world.produce(make_batch())[0][3] == WALL_MS


def test_what_is_malformed_is_refused_alone(world: World) -> None:
    broken = bytearray(make_batch(2))
    broken[-1] ^= 1
    rows = world.produce(bytes(broken), b"short", make_batch(1))
    assert codes(sorted(rows)) == [errors.BatchInvalid.code, errors.BatchInvalid.code, 0]
    with pytest.raises(errors.InvalidRequest):
        world.ask(protocol.PRODUCE, [GROUP], frames=[])


def test_limit_of_the_topic(world: World) -> None:
    small = world.add(GROUP + 1, message_bytes_max=10_000)
    world.engine.lead(small)
    fits, over = make_batch(1, size=10_000), make_batch(1, size=12_000)
    rows = world.produce(fits, over, group=GROUP + 1)
    assert codes(sorted(rows)) == [0, errors.MessageTooLarge.code]


def test_so_is_one_that_unpacks_to_more_than_its_topic_takes(world: World) -> None:
    """A few bytes on their way, which whoever opens them pays for."""
    small = world.add(GROUP + 1, message_bytes_max=10_000)
    world.engine.lead(small)

    def zeros(size: int) -> bytes:
        return batch.make([[bytes(size)], None, None, None], 0, codec=batch.ZLIB)

    fits, bomb = zeros(10_000), zeros(60 << 20)
    assert len(bomb) < 300_000
    assert codes(world.produce(fits, group=GROUP + 1)) == [0]
    ((_, code, _, _, details),) = world.produce(zeros(12_000), group=GROUP + 1)
    assert code == errors.MessageTooLarge.code and "decompressed" in details["message"]
    assert codes(world.produce(bomb)) == [errors.MessageTooLarge.code], "whatever a topic allows"


def test_more_messages_than_bytes_are_refused(world: World) -> None:
    """They would take offsets that no message is at."""
    lie = bytearray(make_batch(1))
    lie[4:8] = (1 << 30).to_bytes(4, "little")
    lie[44:48] = crc32(lie[48:], crc32(lie[:44])).to_bytes(4, "little")
    assert codes(world.produce(bytes(lie))) == [errors.BatchInvalid.code]
    assert codes(world.produce(make_batch(2, size=0))) == [0]


NOBODY_READS = {
    "no msgpack": forged(b"\xc1" * 9, 2),
    "too few values": unreadable(2),
    "too many values": forged(msgpack.packb(([b""] * 300, None, None, None)), 200),
    "a map": forged(msgpack.packb({"a": 1}), 2),
    "two columns": forged(msgpack.packb(([b"a", b"b"], None)), 2),
    "no values": forged(msgpack.packb((None, None, None, None)), 2),
    "texts": forged(msgpack.packb((["a", "b"], None, None, None)), 2),
    "it ends too early": forged(b"\x94\xdd", 2),
    "no zlib": forged(b"nonsense", 2, codec=batch.ZLIB),
    "raw deflate": forged(zlib.compress(b"x" * 99)[2:-4], 2, size=99, codec=batch.ZLIB),
    "a dictionary": forged(b"\x78\xbb" + bytes(9), 2, codec=batch.ZLIB),
}


@pytest.mark.parametrize("name", NOBODY_READS)
def test_what_nobody_could_read_is_refused_as_far_as_its_beginning_tells(
    world: World, name: str
) -> None:
    frame = NOBODY_READS[name]
    with pytest.raises(errors.BatchInvalid):
        batch.open_batch(frame)
    ((_, code, _, _, details),) = world.produce(memoryview(frame))
    assert code == errors.BatchInvalid.code and "nobody can read it" in details["message"]
    assert not world.engine.proposals


def lists(count: int) -> list[bytes]:
    """Heads of a list in msgpack, as short as possible and not."""
    forms = [b"\xdc" + count.to_bytes(2, "big"), b"\xdd" + count.to_bytes(4, "big")]
    return [bytes([0x90 + count]), *forms] if count < 16 else forms


@pytest.mark.parametrize("count", [1, 15, 16, 300])
def test_however_it_is_packed_it_is_taken_if_it_can_be_read(world: World, count: int) -> None:
    values = [b"\xc4\x01v", b"\xc5\0\x01v", b"\xc6\0\0\0\x01v"]
    frames = [
        forged(around + column + value * count + b"\xc0" * 3, count)
        for around in lists(4)
        for column in lists(count)
        for value in values
    ]
    for level in range(10):
        body: bytes = msgpack.packb(([b"v"] * count, None, None, None))
        packed = zlib.compress(body, level)
        frames.append(forged(packed, count, size=len(body), codec=batch.ZLIB))
    for frame in frames:
        assert len(batch.open_batch(frame)[1].values) == count
    assert codes(world.produce(*frames)) == [0] * len(frames)


def test_repeats_get_the_first_answer(world: World) -> None:
    first = make_batch(3, producer=9)
    world.produce(first)
    world.produce(make_batch(2))
    again = world.produce(first, make_batch(1, producer=9, sequence=3))
    assert [row[1:4] for row in sorted(again)] == [[0, 0, WALL_MS], [0, 5, WALL_MS]]


def test_a_repeat_of_what_is_on_its_way_waits_for_it(world: World) -> None:
    world.engine.apply_at_once = False
    first, second = make_batch(3, producer=9), make_batch(2, producer=9, sequence=3)
    one = world.ask(protocol.PRODUCE, [GROUP] * 3, frames=[first, second, first])
    assert world.turn() == []
    two = world.ask(protocol.PRODUCE, [GROUP], frames=[second])
    assert world.turn() == []
    assert len(world.engine.proposals) == 1 and world.replica.log.next_offset == 5
    world.engine.apply(world.replica)
    ((envelope, _),) = world.turn()
    found = {row[0]: row[1:3] for row in envelope[3]}
    assert found == {one: [0, 0], one + 1: [0, 3], one + 2: [0, 0], two: [0, 3]}
    assert world.broker.produce_handler.inflight_bytes == 0
    assert world.engine.counts["produced_bytes_total"] == len(first) + len(second)


def test_gaps_and_old_epochs(world: World) -> None:
    world.engine.apply_at_once = False
    rows = world.produce(
        make_batch(1, producer=9, sequence=4),  # begins not at 0
        make_batch(2, producer=9),
        make_batch(2, producer=9, sequence=3),  # 2 is missing
        make_batch(2, producer=9, sequence=1),  # half known
        make_batch(1, producer=9, epoch=1, sequence=2),
        make_batch(1, producer=9, epoch=1),
        make_batch(1, producer=9, sequence=2),
    )
    gap, fenced = errors.OutOfSequence.code, errors.Fenced.code
    assert codes(rows) == [gap, gap, gap, gap, fenced]
    world.engine.apply(world.replica)
    assert codes(world.produce()) == [0, 0]
    assert codes(world.produce(make_batch(1, producer=9, sequence=2))) == [fenced]


def test_not_leader_says_who_is(world: World) -> None:
    world.broker.orders.broker_addresses[3] = "three:1"
    world.engine.depose(world.replica, leader=3)
    (row,) = world.produce(make_batch())
    assert row[1] == errors.NotLeader.code and row[4] == {"leader": 3, "address": "three:1"}
    (row,) = world.produce(make_batch(), group=5)
    assert row[1] == errors.UnknownPartition.code


def test_held_until_ready(world: World) -> None:
    """R9"""
    world.engine.depose(world.replica)
    world.engine.lead(world.replica, ready=False)
    world.engine.apply_at_once = False
    first, second = make_batch(1, producer=9), make_batch(1, producer=9, sequence=1)
    world.ask(protocol.PRODUCE, [GROUP], frames=[first])
    assert world.turn() == [] and world.broker.produce_handler.inflight_bytes == len(first)
    world.engine.apply(world.replica)
    world.engine.apply_at_once = True
    rows = world.produce(second)
    assert [row[1:3] for row in rows] == [[0, 0], [0, 1]]


def test_held_until_leadership_is_lost(world: World) -> None:
    world.engine.depose(world.replica)
    world.engine.lead(world.replica, ready=False)
    world.engine.apply_at_once = False
    world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch()])
    world.engine.depose(world.replica, leader=2)
    ((envelope, _),) = world.turn()
    assert codes(envelope[3]) == [errors.NotLeader.code]
    assert world.broker.produce_handler.inflight_bytes == 0


def test_dropped_is_unknown_committed_is_not(world: World) -> None:
    """C1: what is applied before the leader is lost was done; what is not, nobody knows."""
    world.engine.apply_at_once = False
    asked = world.ask(protocol.PRODUCE, [GROUP] * 3, frames=[make_batch() for _ in range(3)])
    world.ask(protocol.COMMIT, "a", [[GROUP, 0, 0, 0]])
    world.ask(protocol.TAKE, [[GROUP, "a", KEY, 1, False]])
    assert [envelope[1] for envelope, _ in world.turn()] == [protocol.TAKEN]  # nothing is there
    world.engine.apply(world.replica, world.replica.log.last_index - 3)
    world.engine.depose(world.replica, leader=2)
    found = {envelope[1]: envelope for envelope, _ in world.turn()}
    unknown = errors.OutcomeUnknown.code
    rows = sorted(found[protocol.PRODUCED][3])
    assert [row[:2] for row in rows] == [[asked, 0], [asked + 1, unknown], [asked + 2, unknown]]
    assert found[protocol.COMMITTED][3] == [[GROUP, unknown, 0, None]]
    assert world.broker.produce_handler.inflight_bytes == 0


def test_an_entry_of_another_leader_is_no_answer(world: World) -> None:
    """W11: even if the news of its loss came late."""
    world.engine.apply_at_once = False
    world.produce(make_batch())
    log = world.replica.log
    log.truncate(log.last_index)
    log.make([t.Proposal(1, 0, t.DATA, make_batch())], 9)
    world.engine.apply(world.replica)
    assert codes(world.produce()) == [errors.OutcomeUnknown.code]


def test_entries_before_those_of_another_leader_are_answered(world: World) -> None:
    world.engine.apply_at_once = False
    first = world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch()])
    world.turn()
    second = world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch()])
    third = world.ask(protocol.COMMIT, "a", [[GROUP, 1, 0, 0]])
    world.turn()
    log = world.replica.log
    log.truncate(log.last_index - 1)
    log.make([t.Proposal(1, 0, t.DATA, make_batch())], 9)
    world.engine.apply(world.replica)
    answers = {envelope[1]: envelope for envelope, _ in world.turn()}
    unknown = errors.OutcomeUnknown.code
    rows = {row[0]: row[1] for row in answers[protocol.PRODUCED][3]}
    assert rows == {first: 0, second: unknown}
    committed = answers[protocol.COMMITTED]
    assert (committed[2], committed[3][0][1]) == (third, unknown)


def test_sequences_after_a_change_of_leader(world: World) -> None:
    """R32: a batch whose outcome was unknown is stored once, whichever way it went."""
    first, second = make_batch(1, producer=9), make_batch(1, producer=9, sequence=1)
    world.engine.apply_at_once = False
    world.produce(first, second)
    world.engine.apply(world.replica, world.replica.log.last_index - 1)
    world.engine.depose(world.replica)
    world.turn()
    world.engine.lead(world.replica)
    world.engine.apply_at_once = True
    rows = world.produce(first, second)
    assert [row[1:3] for row in sorted(rows)] == [[0, 0], [0, 1]]
    assert world.replica.machine.end == 2


@pytest.mark.parametrize(
    ("refusal", "details"),
    [(errors.DiskFull(), 1000), (errors.Busy(), 50), (errors.JournalBusy(), 50)],
)
def test_what_the_engine_refuses(world: World, refusal: errors.MyQueueError, details: int) -> None:
    """Nothing was done: the same batches are new when they come again."""
    batches = [make_batch(1, producer=9, sequence=number) for number in range(3)]
    assert codes(world.produce(batches[0])) == [0]
    world.engine.refusal = refusal
    rows = world.produce(batches[1], batches[2], batches[1])
    assert codes(rows) == [refusal.code] * 3
    assert all(row[4]["retry_ms"] == details for row in rows)
    world.engine.refusal = None
    assert [row[1:3] for row in sorted(world.produce(batches[1], batches[2]))] == [[0, 1], [0, 2]]
    assert world.broker.produce_handler.inflight_bytes == 0


def test_an_epoch_that_was_refused_leaves_the_older_one_fenced(world: World) -> None:
    world.engine.apply_at_once = False
    old = make_batch(1, producer=9)
    world.produce(old)
    world.engine.refusal = errors.Busy()
    world.produce(make_batch(1, producer=9, epoch=1))
    world.engine.refusal = None
    for _ in range(3):  # the sweep must not forget that the old batch is on its way
        world.engine.now += 1_000
        world.broker.tick(world.engine.now)
    assert codes(world.produce(old)) == [errors.Fenced.code]
    world.engine.apply(world.replica)
    assert codes(world.produce(make_batch(1, producer=9, epoch=1))) == [0]


def test_bytes_in_flight_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(make_batch())
    monkeypatch.setattr(produce, "CLIENT_INFLIGHT_BYTES_MAX", 2 * size)
    monkeypatch.setattr(produce, "DAEMON_INFLIGHT_BYTES_MAX", 3 * size)
    world.engine.apply_at_once = False
    (busy,) = world.produce(*(make_batch() for _ in range(3)))
    assert busy[1] == errors.Busy.code and busy[4] == {"retry_ms": 50}
    other = Client(b"c2", "client-2")
    world.ask(protocol.PRODUCE, [GROUP] * 2, frames=[make_batch()] * 2, client=other)
    ((envelope, _),) = world.turn()
    assert codes(envelope[3]) == [errors.Busy.code]
    world.engine.apply(world.replica)
    world.turn()
    assert world.broker.produce_handler.inflight_bytes == 0
    assert codes(world.produce(make_batch())) == []  # taken; waits to be applied


def test_idle_clients_and_producers_are_forgotten(world: World) -> None:
    world.produce(make_batch(1, producer=9))
    world.engine.now += 2_000
    world.broker.tick(world.engine.now)
    assert not world.broker.produce_handler._accounts
    assert not world.broker.queues.led[GROUP].in_flight
    assert codes(world.produce(make_batch(1, producer=9, sequence=1))) == [0]


def test_a_producer_in_full_flow_takes_little_memory(world: World) -> None:
    """It is never idle, so nothing of it is swept."""
    world.engine.apply_at_once = False
    for number in range(600):
        world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch(1, 9, number)])
        world.engine.end_turn()
        world.engine.apply(world.replica, max(2, world.replica.log.last_index - 3))
    assert (
        len(world.broker.queues.led[GROUP].in_flight[9].tickets_by_sequence)
        <= proposals.IN_FLIGHT_PER_PRODUCER_MAX + 1
    )


# -- positions ------------------------------------------------------------------------------------


def test_commits_of_a_turn_are_one_entry(world: World) -> None:
    world.produce(make_batch(5))
    one = world.ask(protocol.COMMIT, "a", [[GROUP, 3, 0, 0], [5, 1, 0, 0]])
    two = world.ask(protocol.COMMIT, "group/g", [[GROUP, 9, 0, 0]])
    found = {envelope[2]: envelope[3] for envelope, _ in world.turn()}
    assert found[one] == [[GROUP, 0, 3, None], [5, errors.UnknownPartition.code, 0, None]]
    assert found[two] == [[GROUP, errors.OffsetOutOfRange.code, 0, None]]
    assert [item[2] for item in world.engine.proposals[-1][1]] == [t.COMMAND]


def test_commands_see_the_batches_of_their_turn(world: World) -> None:
    world.ask(protocol.COMMIT, "a", [[GROUP, 2, 0, 0]])
    world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch(2)])
    found = {envelope[1]: envelope for envelope, _ in world.turn()}
    assert found[protocol.COMMITTED][3] == [[GROUP, 0, 2, None]]


@pytest.mark.parametrize("refusal", [errors.DiskFull(), errors.Busy()])
def test_w15_positions_go_on_beside_batches_that_are_refused(
    world: World, refusal: errors.MyQueueError
) -> None:
    world.produce(make_batch(5))
    world.engine.refusal, world.engine.takes_urgent = refusal, True
    again = make_batch(1, producer=9)
    for position in (3, 4):
        world.ask(protocol.PRODUCE, [GROUP], frames=[again])
        world.ask(protocol.COMMIT, "a", [[GROUP, position, 0, 0]])
        found = {envelope[1]: envelope[3] for envelope, _ in world.turn()}
        assert codes(found[protocol.PRODUCED]) == [refusal.code]
        assert found[protocol.COMMITTED] == [[GROUP, 0, position, None]]
    world.engine.takes_urgent = False
    world.ask(protocol.PRODUCE, [GROUP], frames=[again])
    world.ask(protocol.COMMIT, "a", [[GROUP, 5, 0, 0]])
    found = {envelope[1]: envelope[3] for envelope, _ in world.turn()}
    assert codes(found[protocol.PRODUCED]) == codes(found[protocol.COMMITTED]) == [refusal.code]
    world.engine.refusal = None
    assert codes(world.produce(again)) == [0] and world.broker.produce_handler.inflight_bytes == 0


# -- questions ------------------------------------------------------------------------------------


def test_positions_are_told_after_a_round(world: World) -> None:
    world.produce(make_batch(5))
    world.ask(protocol.COMMIT, "a", [[GROUP, 3, 0, 0]])
    world.turn()
    world.replica.times = 2
    world.ask(protocol.OFFSETS, "a", 1, [GROUP, 5])
    assert world.turn() == []
    (context,) = world.engine.reads
    world.broker.read_ready(context)
    ((envelope, _),) = world.turn()
    size = len(make_batch(5))
    gone = [5, errors.UnknownPartition.code, 0, 0, None, None, 0]
    assert envelope[3] == [[GROUP, 0, 0, 5, 3, 2, size], gone]


def test_reads_end_with_leadership(world: World) -> None:
    world.ask(protocol.OFFSETS, "a", None, [GROUP])
    world.engine.depose(world.replica, leader=2)
    ((envelope, _),) = world.turn()
    assert envelope[3][0][:2] == [GROUP, errors.NotLeader.code]
    world.ask(protocol.OFFSETS, "a", None, [GROUP])
    ((envelope, _),) = world.turn()
    assert envelope[3][0][:2] == [GROUP, errors.NotLeader.code]
    world.ask(protocol.OFFSETS, None, None, [GROUP])  # the ends are told by any replica
    ((envelope, _),) = world.turn()
    assert envelope[3] == [[GROUP, 0, 0, 0, None, None, 0]]


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_reads_that_ended_make_room_for_others(
    world: World, monkeypatch: pytest.MonkeyPatch, is_confirmed: bool
) -> None:
    monkeypatch.setattr(queries, "POSITIONS_AWAITED_MAX", 1)
    world.ask(protocol.OFFSETS, "a", None, [GROUP])
    with pytest.raises(errors.Busy):
        world.ask(protocol.OFFSETS, "a", None, [GROUP])
    if is_confirmed:
        world.broker.read_ready(*world.engine.reads)
    else:
        world.engine.depose(world.replica)
        world.engine.lead(world.replica)
    assert len(world.turn()) == 1
    world.ask(protocol.OFFSETS, "a", None, [GROUP])


def test_a_leader_of_a_newer_term_is_not_ready_at_once(world: World) -> None:
    """It was deposed and elected within a turn, so the broker sees the newer term alone."""
    world.produce(make_batch(1, producer=9))
    world.engine.lead(world.replica, ready=False)
    assert GROUP not in world.broker.queues.led
    request = world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch(1, producer=9, sequence=1)])
    assert world.turn() == [], "it is held until the replica is ready"
    ((envelope, _),) = world.turn()
    assert envelope[3] == [[request, 0, 1, WALL_MS, None]]


def test_where_status_stats(world: World) -> None:
    world.produce(make_batch(5))
    world.ask(protocol.COMMIT, "a", [[GROUP, 3, 0, 0]])
    world.turn()
    world.ask(protocol.WHERE, GROUP, 1)
    world.ask(protocol.STATUS, 0)
    world.ask(protocol.STATUS, GROUP)
    world.ask(protocol.STATS)
    where, status, one, stats = (envelope[3] for envelope, _ in world.turn())
    assert where == {"offset": 1, "segment": "one", "node": 1, "past": {"a": 3}}
    assert status["groups"][0]["end"] == 5 and status["groups_total"] == 1
    assert one["ready"] and one["consumers"] == 1
    assert stats["counters"]["produce_results_total"] == 1 and stats["gauges"]["groups_led"] == 1
    for ask in ((protocol.WHERE, GROUP, 5), (protocol.WHERE, 5, 0), (protocol.STATUS, 5)):
        with pytest.raises(errors.MyQueueError):
            world.ask(*ask)
    with pytest.raises(errors.Unsupported):
        world.ask(protocol.ALIVE, [], [])
