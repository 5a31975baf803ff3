"""The metadata machine is the same everywhere: whenever it was saved, and in whatever process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.metadata_rig import CLUSTER, Rig, comparable, history_digest, random_script

from myqueue.daemons.metadata.machine import MetadataMachine
from myqueue.daemons.metadata.tables import RESULTS_MAX, Tables
from myqueue.daemons.raft.types import InvariantBroken
from myqueue.daemons.state_machine import RowChanges


class Store:
    """What a store keeps of one machine."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.applied = 0

    def save(self, machine: MetadataMachine) -> None:
        puts, deletes = machine.take_changes()
        self.rows |= puts
        for key in deletes:
            self.rows.pop(key, None)
        self.applied = machine.applied_index


def check_counted(tables: Tables) -> None:
    """What is kept beside the rows is what the rows say."""
    again = Tables.from_rows((key, tables.row(key) or b"") for key in tables.row_keys())
    assert dict(again.held) == {node: held for node, held in tables.held.items() if held}
    assert {n: c for n, c in again.led.items() if c} == {n: c for n, c in tables.led.items() if c}
    assert again.producer_names == tables.producer_names
    assert again.result_keys == tables.result_keys
    assert list(again.results) == list(tables.results)
    assert {g: (t.uid, n) for g, (t, n) in again.groups.items()} == {
        g: (t.uid, n) for g, (t, n) in tables.groups.items()
    }


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_saved_loaded_and_copied_machines_stay_equal(seed: int) -> None:
    random = Random(seed)
    steady, restless = MetadataMachine(CLUSTER), MetadataMachine(CLUSTER)
    store = Store()
    entries = random_script(random, 120)
    at = 0
    while at < len(entries):
        part = entries[at : at + random.randint(1, 8)]
        at += len(part)
        expected = [comparable(one) for one in steady.apply(part)]
        assert [comparable(one) for one in restless.apply(part)] == expected
        choice = random.randint(0, 5)
        if choice == 0:  # saved
            store.save(restless)
        elif choice == 1:  # saved, and started again
            store.save(restless)
            restless = MetadataMachine(CLUSTER)
            restless.load(store.applied, reversed(store.rows.items()))
        elif choice == 2:  # died unsaved: entries behind what was saved are applied again
            restless = MetadataMachine(CLUSTER)
            restless.load(store.applied, store.rows.items())
            restless.apply(entries[store.applied : at])
        elif choice == 3:  # took the state of another replica, having been somewhere else
            restless = MetadataMachine(CLUSTER)
            restless.load(store.applied, store.rows.items())
            restless.restore(steady.snapshot())
        assert restless.snapshot() == steady.snapshot()
    store.save(restless)
    loaded = MetadataMachine(CLUSTER)
    loaded.load(store.applied, store.rows.items())
    assert loaded.snapshot() == steady.snapshot()
    check_counted(steady.tables)


def test_r27_the_hash_seed_of_the_process_changes_nothing() -> None:
    program = Path(__file__).parents[1] / "support" / "metadata_rig.py"
    command = [sys.executable, "-P", str(program), "7", "400"]
    found = {
        subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout.decode()
        for seed in ("0", "1", "12345")
    }
    assert found == {history_digest(7, 400)}


def test_random_histories_do_both_work_and_refusals() -> None:
    """The tests above would prove little about a history in which nothing happens."""
    machine = MetadataMachine(CLUSTER)
    results = machine.apply(random_script(Random(3), 1500))
    done = sum(isinstance(one, dict) for one in results)
    assert done > 500
    assert len(results) - done > 300
    assert machine.tables.topics and machine.tables.producers and machine.tables.gone


def changes_of(rig: Rig, operation: str, **arguments: object) -> RowChanges:
    rig.machine.take_changes()
    rig.run(operation, **arguments)
    return rig.machine.take_changes()


def test_only_what_changed_is_handed_to_the_store() -> None:
    rig = Rig(brokers=3)
    rig.run("create_topic", topic="big", partitions=130)
    puts, deletes = changes_of(rig, "grow_topic", topic="big")
    kinds = sorted(key[:1] for key in puts)
    # Counters, one row of partitions, the result, and the three brokers that are concerned.
    assert kinds == [b"b", b"b", b"b", b"c", b"k", b"p"]
    assert deletes == []
    assert rig.machine.take_changes() == ({}, [])
    puts, deletes = changes_of(rig, "seen", producers=[[99, 5]])
    assert (puts, deletes) == ({}, [])


def test_only_the_last_results_are_kept() -> None:
    rig = Rig()
    first = b"1" * 16
    rig.run("open_producer", first)
    rig.machine.apply([rig.script.entry("open_producer") for _ in range(RESULTS_MAX - 1)])
    assert rig.run("open_producer", first)["producer_id"] == 1
    rig.machine.take_changes()
    rig.run("open_producer")
    assert len([key for key in rig.machine.take_changes()[1] if key[:1] == b"k"]) == 1
    assert rig.run("open_producer", first)["producer_id"] == RESULTS_MAX + 2
    assert len(rig.machine.tables.results) == RESULTS_MAX


def test_a_gap_between_entries_stops_the_process() -> None:
    rig = Rig(brokers=1)
    rig.script.index += 1
    with pytest.raises(InvariantBroken):
        rig.machine.apply([rig.script.entry("open_producer")])
