"""The accumulator: when a batch goes, in which order, with which sequence, and what a gap does."""

import random

import pytest

from myqueue.cluster.partitioner import Spread
from myqueue.errors import NONE, UNKNOWN, Busy, error_of
from myqueue.producer.accumulator import PRUNE_BATCHES_MIN, Accumulator
from myqueue.producer.batch import AWAITING, MESSAGE_OVERHEAD_BYTES, Batch
from myqueue.producer.lane import Lane
from myqueue.wire import batch as batches


class Desk:
    """An accumulator with one lane, or more, and short words for it."""

    def __init__(self, lanes=1, batch_messages=4, **settings):
        settings = {"linger_ms": 5, "max_in_flight": 3, "delivery_timeout_ms": 1000} | settings
        self.acc, self.now, self.spread = Accumulator(**settings), 0, Spread(lanes)
        size = batch_messages * (MESSAGE_OVERHEAD_BYTES + 1)
        self.lanes = [
            self.acc.add_lane(Lane("t", at, 100 + at, size, self.spread)) for at in range(lanes)
        ]

    def put(self, values, lane=0):
        """One letter is one message."""
        for letter in values:
            batch = self.acc.open_batch_for(
                self.lanes[lane], MESSAGE_OVERHEAD_BYTES + 1, self.now, 1000 + self.now
            )
            self.acc.put(batch, [letter.encode()], MESSAGE_OVERHEAD_BYTES + 1)
        self.acc.check_invariants()

    def take(self, lane=0, **how):
        taken = self.acc.take(self.lanes[lane], self.now, **how)
        self.acc.check_invariants()
        return taken

    def store(self, batch):
        news = self.acc.stored(batch, 0, 0)
        self.acc.check_invariants()
        return news

    def refuse_after_gap(self, batch):
        """Every attempt of it was refused, so it waits for the next epoch."""
        while batch.attempts_in_doubt:
            self.acc.attempt_not_stored(batch)
        self.acc.park(batch)
        self.acc.check_invariants()

    def give_up(self, batch):
        assert self.acc.give_up(batch, Busy())
        self.acc.check_invariants()
        return batch.error.outcome


def words(taken):
    return [b"".join(batch.values).decode() for batch in taken]


def test_a_single_message_goes_at_once():
    desk = Desk()
    desk.put("a")
    assert desk.lanes[0] in desk.acc._ready
    assert words(desk.take()) == ["a"]


def test_behind_a_batch_in_flight_messages_gather():
    desk = Desk()
    desk.put("a")
    (first,) = desk.take()
    desk.acc._ready.clear()
    desk.put("bc")
    assert not desk.acc._ready and desk.take() == []
    desk.store(first)
    assert desk.lanes[0] in desk.acc._ready and words(desk.take()) == ["bc"]


def test_until_they_lingered_enough():
    desk = Desk()
    desk.put("a")
    desk.take()
    desk.now = 10
    desk.put("b")
    desk.now = 14
    desk.put("c")
    assert desk.acc.next_tick() == 15
    assert desk.acc.tick(14) == [] and desk.take() == []
    assert desk.acc.tick(15) == [] and words(desk.take()) == ["bc"]


def test_or_are_a_full_batch():
    desk = Desk()
    desk.put("a")
    desk.take()
    desk.put("bcdefg")
    assert words(desk.take()) == ["bcde"]


def test_a_message_larger_than_a_batch_has_its_own():
    desk = Desk()
    desk.put("a")
    batch = desk.acc.open_batch_for(desk.lanes[0], 500, 0, 0)
    desk.acc.put(batch, [b"x" * 476], 500)
    desk.put("b")
    assert [len(b.values) for b in desk.take()] == [1, 1]
    assert desk.take() == [], "the third waits, as others are in flight"


def test_so_many_are_in_flight_and_no_more():
    desk = Desk(max_in_flight=2)
    desk.put("a" * 20)
    first, _ = desk.take()
    assert desk.take() == []
    desk.store(first)
    assert len(desk.take()) == 1


def test_sequences_count_messages():
    desk = Desk()
    desk.put("a" * 9)
    desk.acc.seal_all()
    assert [batch.sequence for batch in desk.take()] == [0, 4, 8]


def test_a_refusal_sends_it_and_all_behind_it_again_in_order_and_unchanged():
    desk = Desk()
    desk.put("abcdefghijkl")
    first, second, third = desk.take()
    data = second.pack(7, 0, batches.PLAIN)
    desk.acc.rewind(second, desk.now)
    assert first.state is AWAITING and desk.take() == []
    desk.now = 26  # 20 ms, or up to 30 % more
    assert desk.take() == [second, third]
    assert second.pack(7, 0, batches.PLAIN) is data


def test_pauses_double_until_something_is_stored():
    desk = Desk()
    desk.put("abcdefgh")
    first, second = desk.take()
    for pause in (20, 40, 80, 160, 320, 640, 1000, 1000):
        desk.acc.rewind(second, desk.now)
        assert 0.7 * pause <= desk.lanes[0].retry_at - desk.now <= 1.3 * pause
        desk.now = desk.lanes[0].retry_at
        desk.take()
    desk.store(first)
    desk.acc.rewind(second, desk.now, at_once=True)
    assert desk.lanes[0].retry_at == desk.now
    desk.take()
    desk.acc.rewind(second, desk.now, at_once=True)
    assert desk.lanes[0].retry_at > desk.now, "hints may go in circles"


def test_a_broker_that_advises_a_pause_gets_it():
    desk = Desk()
    desk.put("a")
    (batch,) = desk.take()
    desk.acc.rewind(batch, desk.now, error_of(Busy.code, details={"retry_ms": 300}))
    assert 210 <= desk.lanes[0].retry_at <= 390


def test_lanes_that_failed_together_do_not_return_together():
    desk = Desk(lanes=50)
    for lane in range(50):
        desk.put("a", lane)
        desk.acc.rewind(*desk.take(lane), 0, error_of(Busy.code, details={"retry_ms": 1000}))
    assert len({lane.retry_at for lane in desk.lanes}) > 10


def test_a_late_answer_of_an_old_attempt_counts_once():
    desk = Desk()
    desk.put("a")
    (batch,) = desk.take()
    desk.acc.rewind(batch, 0)
    assert desk.store(batch) and not desk.store(batch)
    assert desk.acc.buffered == 0 and not desk.acc.give_up(batch, Busy())


def test_what_was_never_sent_is_certainly_not_stored():
    desk = Desk()
    desk.put("abcde")
    (sealed, opened) = desk.acc.seal_all()
    assert desk.give_up(sealed) == NONE and desk.give_up(opened) == NONE
    assert not desk.acc.has_gap, "sequences were not given yet"


def test_what_was_sent_is_unknown_until_every_attempt_was_refused():
    desk = Desk()
    desk.put("a")
    (batch,) = desk.take()
    desk.acc.rewind(batch, 0)
    desk.now = 26
    desk.take()
    assert batch.attempts_in_doubt == 2
    for _ in range(2):
        desk.acc.attempt_not_stored(batch)
    assert desk.give_up(batch) == NONE
    desk.put("b")
    (batch,) = desk.take()
    assert desk.give_up(batch) == UNKNOWN


def test_late_are_those_past_their_deadline_wherever_they_are():
    desk = Desk(delivery_timeout_ms=100)
    desk.put("abcd")
    desk.take()
    desk.now = 50
    desk.put("efghi")
    assert desk.acc.next_tick() == 55
    assert words(desk.acc.tick(100)) == ["abcd"]
    assert words(desk.acc.tick(150)) == ["efgh", "i"]
    assert desk.acc.next_tick() is None


def test_settled_batches_go_though_an_older_one_waits_for_its_leader():
    desk = Desk(lanes=2, delivery_timeout_ms=100_000)
    desk.put("a", lane=1)  # its leader is gone
    for _ in range(3 * PRUNE_BATCHES_MIN):
        desk.put("bcde")
        for batch in desk.take():
            desk.store(batch)
        desk.acc.next_tick()
        assert len(desk.acc._by_deadline) <= PRUNE_BATCHES_MIN + 2
    assert words(desk.acc.tick(100_000)) == ["a"]


def test_behind_a_gap_nothing_gets_an_epoch_until_all_is_decided():
    desk = Desk(lanes=2)
    desk.put("abcdefghijkl")
    desk.put("m", lane=1)
    first, second, third = desk.take()
    (other,) = desk.take(lane=1)
    desk.give_up(second)
    assert desk.acc.has_gap and not desk.acc.may_restart
    desk.put("n")
    assert desk.take(only_repeats=True) == []
    desk.store(first)
    desk.refuse_after_gap(third)
    assert not desk.acc.may_restart, "the other lane has one"
    desk.store(other)
    assert desk.acc.may_restart
    desk.acc.restart()
    desk.acc.check_invariants()
    assert not desk.acc.has_gap
    again = desk.take()
    assert words(again) == ["ijkl"] and again[0].sequence == 0
    desk.store(again[0])
    assert words(desk.take()) == ["n"]


def test_columns_begin_with_the_first_message_that_needs_them():
    lane = Lane("t", 0, 1, 1000, Spread(1))
    batch = Batch(lane, 0, 5000, 1)
    for value, key, headers, time in (
        (b"a", None, None, None),
        (b"b", b"k", None, None),
        (b"c", None, {"h": b"1"}, 4990),
        (b"d", None, None, None),
    ):
        batch.describe_next(key, headers, time)
        batch.values.append(value)
        batch.count += 1
    batch.values.append(b"e")
    batch.count += 1
    header, columns = batches.open_batch(batch.pack(3, 1, batches.ZLIB))
    assert (header.producer, header.epoch, header.count) == (3, 1, 5)
    assert columns.values == [b"a", b"b", b"c", b"d", b"e"]
    assert columns.keys == [None, b"k", None, None, None]
    assert columns.headers == [None, None, {"h": b"1"}, None, None]
    assert header.time_ms == 4990 and columns.times == [10, 10, 0, 10, 10]


def test_batches_without_keys_fill_up_with_them_later():
    desk = Desk()
    batch = desk.acc.open_batch_for(desk.lanes[0], 26, 0, 0)
    desk.acc.put(batch, [b"a"], 25)
    desk.acc.put(batch, [b"b"], 26, [b"k"])
    _, columns = batches.open_batch(batch.pack(0, 0, batches.PLAIN))
    assert columns.keys == [None, b"k"]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_order_and_sums_hold(seed):
    """Random sends, answers, refusals and deadlines: every message ends once, stored ones in order
    and without a gap in sequences within an epoch."""
    chance = random.Random(seed)
    desk = Desk(lanes=2, batch_messages=3, max_in_flight=chance.randint(1, 5))
    desk.acc.delivery_timeout_ms = 300
    stored, sent, ended, limping, number = ([], []), 0, 0, False, 0
    for _ in range(600):
        desk.now += chance.randint(0, 9)
        lane = chance.randrange(2)
        if chance.random() < 0.4:
            for _ in range(chance.randint(1, 5)):
                number, sent = number + 1, sent + 1
                value = b"%07d" % number
                batch = desk.acc.open_batch_for(
                    desk.lanes[lane], MESSAGE_OVERHEAD_BYTES + 7, desk.now, 0
                )
                desk.acc.put(batch, [value], MESSAGE_OVERHEAD_BYTES + 7)
        for batch in desk.acc.tick(desk.now):
            ended += batch.count
            desk.give_up(batch)
        limping = limping or desk.acc.has_gap
        if limping and desk.acc.may_restart:
            desk.acc.restart()
            limping = False
        for ready in desk.acc.take_ready(desk.now)[0]:
            if chance.random() < 0.2:
                desk.acc.note_without_leader(ready, desk.now)
            else:
                desk.acc.take(ready, desk.now, only_repeats=limping)
        desk.acc.check_invariants()
        flight = desk.lanes[lane].flight
        if flight and flight[0].state is AWAITING:
            first = flight[0]
            behind_gap = 0 <= desk.lanes[lane].gap < first.sequence
            if behind_gap:
                desk.refuse_after_gap(first)
            elif chance.random() < 0.7:
                stored[lane].extend(first.values)
                ended += first.count
                desk.store(first)
            else:
                desk.acc.rewind(first, desk.now)
        desk.acc.check_invariants()
    for batch in desk.acc.seal_all():
        ended += batch.count
        desk.give_up(batch)
    assert ended == sent and desk.acc.buffered == 0
    assert all(values == sorted(set(values)) for values in stored)


def test_a_new_leader_gets_at_once_what_the_old_one_did_not_answer():
    desk = Desk(lanes=2)
    desk.put("a"), desk.put("b", lane=1)
    (first,) = desk.take()
    desk.take(1)
    for lane in desk.lanes:
        lane.address = "old"
    desk.acc._ready.clear()
    leaders = {100: "new", 101: "old"}
    desk.acc.resend_to_new_leaders(leaders.get, desk.now, may_repeat=False)
    assert not desk.acc._ready, "a repeat without sequences may store it twice"
    desk.acc.resend_to_new_leaders(leaders.get, desk.now, may_repeat=True)
    assert list(desk.acc._ready) == [desk.lanes[0]] and desk.take() == [first]
    assert desk.store(first), "whoever answers"


def test_a_pause_ends_when_somebody_else_leads():
    desk = Desk()
    desk.put("a")
    for _ in range(6):
        desk.now = max(desk.now, desk.lanes[0].retry_at)
        (batch,) = desk.take()
        desk.acc.rewind(batch, desk.now)
    desk.lanes[0].address = "old"
    assert not desk.take()
    desk.acc.resend_to_new_leaders(lambda group: "new", desk.now, may_repeat=False)
    assert desk.take() == [batch]


def test_lanes_are_taken_in_order_and_those_in_a_pause_stay_ready():
    desk = Desk(lanes=4)
    for lane in range(3):
        desk.put("a", lane)
    desk.lanes[1].retry_at = 30
    assert desk.acc.take_ready(10) == ([desk.lanes[0], desk.lanes[2]], 30)
    desk.acc.note_without_leader(desk.lanes[2], 10)
    assert desk.acc.lacks_leader and desk.acc.has_ready
    desk.put("a", lane=3)
    assert desk.acc.take_ready(30) == ([desk.lanes[2], desk.lanes[1], desk.lanes[3]], None)
    assert not desk.acc.lacks_leader and not desk.acc.has_ready


def test_a_removed_lane_never_gets_a_turn_again():
    """Also not while its batches fail one after another."""
    desk = Desk(lanes=2)
    desk.put("abcdefgh")
    desk.put("a", lane=1)
    desk.acc.note_without_leader(desk.lanes[1], 0)
    first, second = desk.acc.remove_lanes(desk.lanes[:1])
    (third,) = desk.acc.remove_lanes(desk.lanes[1:])
    for batch in (first, second, third):
        desk.acc.give_up(batch, Busy())
    desk.acc.check_invariants()
    assert desk.acc.take_ready(0) == ([], None) and desk.acc.buffered == 0


def test_invariants_see_a_lane_that_lost_its_turn():
    desk = Desk()
    desk.put("a")
    (batch,) = desk.take()
    desk.acc.rewind(batch, 0)
    desk.acc._ready.clear()
    with pytest.raises(ValueError, match="no turn"):
        desk.acc.check_invariants()
