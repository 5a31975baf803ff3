"""What a broker adds to each batch: `bin/test bench -k broker`.

The engine is the fake of `support/broker_seam.py`, with the log of the Raft core in memory: no
disks, no sockets, one replica. "Request to log" holds the batch's CRC and the log's chain. Figures
are microseconds of the CPU for each batch, 16 batches a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import process_time
from typing import Any

import pytest
from bench.figures import Row, median
from support.batches import make_batch
from support.broker_seam import GROUP, World

from myqueue.daemons.partition.machine import PartitionMachine
from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.types import DATA, Entry, Proposal

ROUNDS, TURNS, TURN = 5, 1_000, 16
Report = list[Row]


def microseconds(times: int, work: Callable[[], Any]) -> float:
    began = process_time()
    work()
    return (process_time() - began) * 1e6 / times


def quiet_world() -> World:
    """Answers are made, and thrown away."""
    world = World()
    world.engine.apply_at_once = False
    world.engine.reply = lambda client, frames: None  # type: ignore[method-assign]
    world.broker.manager_link._next_heartbeat_at = 10**12
    return world


def produced(world: World, producer: int, sequence: int) -> tuple[float, float]:
    """(request to propose, applied to result) of `TURNS` turns."""
    broker, replica = world.broker, world.replica
    asked = answered = 0.0
    for _ in range(TURNS):
        frames = [make_batch(10, producer, sequence + 10 * at) for at in range(TURN)]
        sequence += 10 * TURN
        envelope = [1, 30, sequence, [GROUP] * TURN]
        began = process_time()
        broker.request(world.client, envelope, list(frames))
        broker.before_turn_ends(0)
        asked += process_time() - began
        log = replica.log
        entries = log.in_memory(replica.machine.applied_index + 1, log.last_index) or []
        began = process_time()
        results = replica.machine.apply(entries)
        broker.applied(replica, entries, results)  # type: ignore[arg-type]
        broker.end_turn(0)
        answered += process_time() - began
        log.forget_before(replica.machine.applied_index - 100)
        world.engine.proposals.clear()
    return asked * 1e6 / (TURNS * TURN), answered * 1e6 / (TURNS * TURN)


@pytest.mark.parametrize("producer", [0, 7])
def test_produce(report: Report, producer: int) -> None:
    world = quiet_world()
    figures = [produced(world, producer, at * TURNS * TURN * 10) for at in range(ROUNDS)]
    who = "de-duplicated" if producer else "without a producer's id"
    name = f"broker, {TURN} batches a turn, {who}"
    report.append(Row(f"{name}: request to log", median([a for a, _ in figures]), "us", "", 4, -1))
    report.append(
        Row(f"{name}: applied to result", median([b for _, b in figures]), "us", "", 4, -1)
    )


@pytest.mark.parametrize("producers", [1, 100])
def test_apply_on_a_follower(report: Report, producers: int) -> None:
    random, log = Random(1), RaftLog()
    sequences = dict.fromkeys(range(1, producers + 1), 0)
    items = []
    for _ in range(TURNS * TURN):
        producer = random.randint(1, producers)
        items.append(Proposal(1, 5, DATA, make_batch(1, producer, sequences[producer])))
        sequences[producer] += 1
    entries: list[Entry] = log.make(items, 1)

    def work() -> None:
        machine = PartitionMachine()
        for at in range(0, len(entries), TURN):
            machine.apply(entries[at : at + TURN])

    figure = median([microseconds(len(entries), work) for _ in range(ROUNDS)])
    what = f"broker, apply an entry, batches of {producers} producers"
    report.append(Row(what, figure, "us", "", 3, -1))


@pytest.mark.parametrize("count", [1, 16])
def test_fetch(report: Report, count: int) -> None:
    """From memory; finding the first entry is the log's."""
    world = quiet_world()
    batches = [make_batch(10) for _ in range(count)]
    world.produce(*batches)
    world.engine.apply(world.replica)
    found = world.replica.index_at_offset(0)
    world.replica.index_at_offset = lambda offset: found  # type: ignore[method-assign]
    envelope = [1, 32, 5, 0, 1, 1 << 20, [[GROUP, 0]]]

    def work() -> None:
        for _ in range(TURNS):
            world.broker.request(world.client, envelope, [])

    figure = median([microseconds(TURNS * count, work) for _ in range(ROUNDS)])
    report.append(Row(f"broker, fetch of {count} batches: each", figure, "us"))
