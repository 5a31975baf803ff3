"""D2, P12: a healthy cluster has no finding; each planted fault gives one that names its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.forging import records_to_forge
from support.queue_logs import replica_id, some_topics, write_cluster
from support.verifying import A, B, C, verified

from myqueue.analytics.verify.report import RULES
from myqueue.daemons.raft import types as t
from myqueue.wal import format as f
from myqueue.wire import batch


def test_a_healthy_cluster_has_no_finding(healthy: Path, tmp_path: Path) -> None:
    report = verified(healthy, tmp_path, stores=True, split_bytes=3000)
    assert report.findings == []
    assert report.notes == []
    brokers = [records_to_forge(healthy / f"broker-{n}") for n in (1, 2, 3)]
    assert report.entries == sum(map(len, brokers)) == 3 * len(brokers[0])
    assert report.messages == sum(one.record.count for spot in brokers for one in spot)
    assert report.state_rows == 3 * 3 * 4  # two producers, a consumer, and how far the log is


@pytest.mark.parametrize("split", [500, 1 << 30])
def test_many_small_segments_have_no_finding(tmp_path: Path, split: int) -> None:
    write_cluster(tmp_path / "c", some_topics(60), segment_bytes=1 << 14)
    report = verified(tmp_path / "c", tmp_path, stores=True, split_bytes=split)
    assert [*report.findings, *report.notes] == []
    assert report.segments > 12


# -- faults in the bytes and in the story ---------------------------------------------------------


class Place(NamedTuple):
    daemon: str
    position: int


Plant = Callable[[Path], Place]
Line = dict[str, Any]
FAULTS: dict[str, tuple[str, Plant]] = {}


def fault(rule: str) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = (rule, plant)
        return plant

    return register


def entry(cluster: Path, node: int, group: int = A, number: int = 9) -> Any:
    """An entry with a batch, in the middle."""
    found = records_to_forge(cluster / f"broker-{node}", f.ENTRY, group)
    return [one for one in found if one.record.count][number]


@fault("payload")
def a_bit_of_a_payload(cluster: Path) -> Place:
    spot = entry(cluster, 2)
    spot.flip(f.RECORD_HEADER_BYTES + 60, 3)
    return Place("broker-2", spot.position)


@fault("payload")
def a_bit_of_a_checksum(cluster: Path) -> Place:
    spot = entry(cluster, 1)
    spot.flip(5)
    return Place("broker-1", spot.position)


@fault("header")
def a_bit_of_a_header(cluster: Path) -> Place:
    spot = entry(cluster, 3)
    spot.flip(34)
    return Place("broker-3", spot.position)


@fault("file")
def a_bit_of_a_segments_header(cluster: Path) -> Place:
    spot = entry(cluster, 1)
    spot.put(40, b"\xff")
    return Place("broker-1", 0)


@fault("header")
def a_record_that_is_missing(cluster: Path) -> Place:
    spot = entry(cluster, 2)
    spot.blank()
    return Place("broker-2", spot.position)


@fault("header")
def records_that_are_swapped(cluster: Path) -> Place:
    one, other = entry(cluster, 1, A, 3), entry(cluster, 1, A, 6)
    assert len(one.raw()) == len(other.raw())
    first, second = one.raw(), other.raw()
    one.put(one.position, second)
    other.put(other.position, first)
    return Place("broker-1", one.position)


@fault("header")
def a_record_of_another_segment(cluster: Path) -> Place:
    spot, other = entry(cluster, 1), entry(cluster, 2)
    spot.put(spot.position, other.raw())
    return Place("broker-1", spot.position)


@fault("gap")
def a_record_of_another_group(cluster: Path) -> Place:
    """Right checksums, and another group's number: its own group lacks it."""
    spot = entry(cluster, 1, A, 9)
    its = records_to_forge(cluster / "broker-1", f.ENTRY, A)
    behind = next(one for one in its if one.record.index == spot.record.index + 1)
    spot.forge(group=B)
    return Place("broker-1", behind.position)


@fault("unknown")
def entries_of_a_group_that_was_never_created(cluster: Path) -> Place:
    spot = entry(cluster, 3)
    spot.forge(group=999, index=1)
    return Place("broker-3", spot.position)


@fault("gap")
def an_index_that_is_there_twice(cluster: Path) -> Place:
    spot = entry(cluster, 2)
    spot.forge(index=spot.record.index - 1)
    return Place("broker-2", spot.position)


@fault("term")
def a_term_that_falls(cluster: Path) -> Place:
    spot = entry(cluster, 1)
    spot.forge(term=2)
    return Place("broker-1", spot.position)


@fault("bytes")
def a_replica_with_other_bytes(cluster: Path) -> Place:
    spot = entry(cluster, 3)
    count, head = spot.record.count, batch.header(spot.payload)
    body = batch.make(
        [[b"z" * 40] * count, None, None, None],
        head.time_ms,
        producer=head.producer,
        sequence=head.sequence,
    )
    spot.forge(body)
    return Place("broker-3", spot.position)


@fault("prefix")
def a_replica_with_another_term(cluster: Path) -> Place:
    found = records_to_forge(cluster / "broker-3", f.ENTRY, A)
    for spot in found[-3:]:
        spot.forge(term=9)
    return Place("broker-3", found[-3].position)


@fault("batch")
def a_batch_that_its_producer_did_not_make(cluster: Path) -> Place:
    spots_ = [entry(cluster, node) for node in (1, 2, 3)]
    for spot in spots_:
        spot.forge(spot.payload[:-1] + bytes([spot.payload[-1] ^ 1]))
    return Place("broker-1", spots_[0].position)


@fault("batch")
def a_batch_with_another_count(cluster: Path) -> Place:
    spot = entry(cluster, 2)
    spot.forge(count=spot.record.count + 1)
    return Place("broker-2", spot.position)


@fault("offset")
def an_offset_that_leaves_one_out(cluster: Path) -> Place:
    spot = entry(cluster, 2)
    spot.forge(offset=spot.record.offset + 1)
    return Place("broker-2", spot.position)


@fault("hint")
def a_hint_about_what_is_not_there(cluster: Path) -> Place:
    spot = records_to_forge(cluster / "broker-1", f.COMMIT, B)[-1]
    spot.forge(index=5000)
    return Place("broker-1", spot.position)


@fault("vote")
def a_vote_that_is_forgotten(cluster: Path) -> Place:
    """A hint becomes a hard state of an older term: the same size, and no payload."""
    spot = records_to_forge(cluster / "broker-1", f.COMMIT, C)[0]
    spot.forge(kind=f.HARD_STATE, term=2, index=7)
    return Place("broker-1", spot.position)


@fault("vote")
def two_votes_in_a_term(cluster: Path) -> Place:
    spot = records_to_forge(cluster / "broker-1", f.COMMIT, C)[0]
    spot.forge(kind=f.HARD_STATE, term=3, index=replica_id(3))
    return Place("broker-1", spot.position)


@fault("cut")
def a_truncation_of_what_is_committed(cluster: Path) -> Place:
    for node in (1, 2, 3):
        records_to_forge(cluster / f"broker-{node}", f.COMMIT, A)[0].forge(index=10)
    hint = records_to_forge(cluster / "broker-1", f.COMMIT, B)[0]
    before = entry(cluster, 1, A, 0).record
    hint.forge(kind=f.TRUNCATE, group=A, index=4, term=3, offset=before.offset)
    return Place("broker-1", hint.position)


@fault("mark")
def a_mark_that_counts_otherwise(cluster: Path) -> Place:
    found = [one for one in records_to_forge(cluster / "broker-2", f.MARK) if one.record.count > 2]
    spot = found[0]
    behind = next(
        one.position
        for one in records_to_forge(cluster / "broker-2", f.MARK)
        if one.position == spot.record.end + spot.record.offset
    )
    spot.forge(count=spot.record.count + 1)
    return Place("broker-2", behind)


@fault("created")
def a_creation_that_cant_be_read(cluster: Path) -> Place:
    spot = records_to_forge(cluster / "broker-3", f.GROUP_CREATED, B)[0]
    spot.forge(b"\xc1" * spot.record.length)
    return Place("broker-3", spot.position)


@fault("sequence")
def a_batch_that_is_there_twice(cluster: Path) -> Place:
    """On all replicas: the leader let a repeat through."""
    return _resequenced(cluster, -8)


@fault("sequence")
def a_batch_that_comes_too_early(cluster: Path) -> Place:
    return _resequenced(cluster, 5)


def _resequenced(cluster: Path, by: int) -> Place:
    found = [entry(cluster, node) for node in (1, 2, 3)]
    for spot in found:
        head, columns = batch.open_batch(spot.payload)
        body = batch.make(
            list(columns), head.time_ms, producer=head.producer, sequence=head.sequence + by
        )
        spot.forge(body)
    return Place("broker-1", 0)  # the step's place is that of its first entry


@fault("command")
def a_command_that_cant_be_read(cluster: Path) -> Place:
    found = [
        one for one in records_to_forge(cluster / "broker-2", f.ENTRY, A) if not one.record.count
    ]
    spot = next(one for one in found if one.record.entry_type == t.COMMAND)
    spot.forge(b"\xc1" * spot.record.length)  # a byte that msgpack does not have
    return Place("broker-2", 0)  # the step's place is that of its first entry


@fault("config")
def a_configuration_that_cant_be_read(cluster: Path) -> Place:
    """The entry that a leader begins with becomes one, and has nothing in it."""
    spot = records_to_forge(cluster / "broker-2", f.ENTRY, A)[0]
    assert spot.record.entry_type == t.NOOP and not spot.payload
    spot.forge(flags=t.CONFIG << f.ENTRY_TYPE_SHIFT)
    return Place("broker-2", spot.position)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with_its_place(name: str, cluster: Path, tmp_path: Path) -> None:
    rule, plant = FAULTS[name]
    place = plant(cluster)
    report = verified(cluster, tmp_path)
    found = [one for one in report.findings if one.rule == rule and one.verdict != "torn"]
    assert found, [str(one) for one in report.findings]
    mine = [one for one in found if one.daemon == place.daemon]
    assert mine, found
    if place.position:
        assert place.position in [one.position for one in mine], (place, mine)
    assert all(one.segment.endswith(".seg") for one in mine)
    assert not report.ok


def test_every_rule_was_seen_to_fail() -> None:
    """Those of whole files, of stores and of the ledger are in `test_verify_*` and `test_kept`."""
    planted = {rule for rule, _ in FAULTS.values()}
    elsewhere = {"footer", "seal", "lost", "tail", "majority", "store", "ahead", "state", "ack"}
    assert planted | elsewhere | {"behind", "format"} == set(RULES)
