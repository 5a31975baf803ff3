"""Producers' sequences: verdicts, runs, and what is forgotten (C2, R32)."""

from __future__ import annotations

from random import Random

import pytest

from myqueue.daemons.partition import producers
from myqueue.daemons.partition.producers import FENCED, IDENTITY, NEW, OUT_OF_SEQUENCE, Sessions
from myqueue.wire import batch


def test_identity_is_where_the_batch_has_it() -> None:
    made = batch.make([[b"x"], None, None, None], 9, producer=2**63, epoch=7, sequence=2**40)
    assert IDENTITY.unpack_from(made) == (2**63, 7, 2**40)


def test_first_batch_begins_at_zero() -> None:
    known = Sessions()
    assert known.judge(1, 0, 0, 5) == NEW
    assert known.judge(1, 0, 3, 5) == OUT_OF_SEQUENCE


def test_repeats_get_their_first_offset() -> None:
    known = Sessions()
    known.record(1, 0, 0, 5, 100, 1)
    known.record(1, 0, 5, 5, 105, 2)  # continues: the same run
    known.record(1, 0, 10, 5, 200, 4)  # another producer wrote in between
    assert known.judge(1, 0, 0, 5) == 100
    assert known.judge(1, 0, 5, 5) == 105
    assert known.judge(1, 0, 10, 5) == 200
    assert known.judge(1, 0, 15, 1) == NEW
    assert known.judge(1, 0, 16, 1) == OUT_OF_SEQUENCE
    assert known.judge(1, 0, 14, 5) == OUT_OF_SEQUENCE  # half known: not a batch that was sent
    assert len(known.get(1).runs) == 2  # type: ignore[union-attr]


def test_epochs_fence() -> None:
    known = Sessions()
    known.record(1, 3, 0, 5, 0, 1)
    assert known.judge(1, 2, 5, 1) == FENCED
    assert known.judge(1, 4, 5, 1) == OUT_OF_SEQUENCE
    assert known.judge(1, 4, 0, 1) == NEW
    known.record(1, 4, 0, 1, 9, 2)
    assert known.judge(1, 3, 0, 5) == FENCED
    known.record(1, 3, 5, 1, 10, 3)  # no leader proposes it; ignored alike by all
    assert known.judge(1, 4, 1, 1) == NEW


def test_the_last_64_batches_are_remembered() -> None:
    known = Sessions()
    for number in range(200):
        known.record(1, 0, number, 1, number * 2, number + 1)  # never continues
    assert [known.judge(1, 0, number, 1) for number in range(136, 200)] == list(range(272, 400, 2))
    assert known.judge(1, 0, 135, 1) == OUT_OF_SEQUENCE


def test_least_recently_written_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    known = Sessions()
    for index, producer in enumerate((1, 2, 3, 1, 4), 1):
        known.record(producer, 0, 1 if index == 4 else 0, 1, index, index)
    assert known.get(2) is None and len(known) == 3
    rows, gone = known.take_changes()
    assert set(rows) == {1, 3, 4} and gone == [2]
    known.record(2, 0, 0, 1, 10, 6)  # back again, in place of 3
    rows, gone = known.take_changes()
    assert set(rows) == {2} and gone == [3]


def test_changes_are_only_of_producers_that_wrote() -> None:
    known = Sessions()
    known.record(1, 0, 0, 1, 0, 1)
    known.record(2, 0, 0, 1, 1, 2)
    assert set(known.take_changes()[0]) == {1, 2}
    known.record(2, 0, 1, 1, 2, 3)
    assert set(known.take_changes()[0]) == {2}
    assert known.take_changes() == ({}, [])


@pytest.mark.parametrize("seed", range(20))
def test_against_a_list_of_all_batches(seed: int) -> None:
    """A plain memory of everything gives the same verdicts, as far back as is promised."""
    random, known = Random(seed), Sessions()
    sent: dict[int, list[tuple[int, int, int]]] = {1: [], 2: [], 3: []}
    offset = 0
    for index in range(1, 400):
        producer, count = random.choice((1, 1, 2, 3)), random.randint(1, 4)
        batches = sent[producer]
        sequence = batches[-1][0] + batches[-1][1] if batches else 0
        assert known.judge(producer, 0, sequence, count) == NEW
        known.record(producer, 0, sequence, count, offset, index)
        batches.append((sequence, count, offset))
        offset += count
        for one in sent:
            for first, many, at in random.sample(sent[one][-64:], min(3, len(sent[one]))):
                assert known.judge(one, 0, first, many) == at
