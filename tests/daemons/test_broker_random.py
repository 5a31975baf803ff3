"""Produce through lost leaders, lost answers and refusals: every batch once, in order (C2, R32)."""

from __future__ import annotations

from random import Random

import pytest
from support.batches import make_batch
from support.broker_seam import GROUP, World

from myqueue import errors
from myqueue.daemons.interfaces import Client
from myqueue.daemons.partition.producers import IDENTITY
from myqueue.daemons.raft import types as t
from myqueue.wire import protocol

WINDOW = 8
RETRIED = {
    errors.OutcomeUnknown.code,
    errors.OutOfSequence.code,
    errors.Busy.code,
    errors.NotLeader.code,
    errors.DiskFull.code,
}


class Sender:
    """A producer that keeps the rules of PROTOCOL.md: in order, at most `WINDOW` unanswered."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.client = Client(b"%d" % number, f"client-{number}")
        self.counts: list[int] = []  # messages of each batch
        self.offsets: dict[int, int] = {}  # batch -> offset, of those that were answered
        self.asked: dict[int, int] = {}  # request -> batch
        self.again = False

    def sequence(self, at: int) -> int:
        return sum(self.counts[:at])

    def send(self, world: World, random: Random) -> None:
        open_ones = [at for at in range(len(self.counts)) if at not in self.offsets]
        if self.again or (open_ones and random.random() < 0.1):
            wanted = open_ones  # from the first unanswered one
            self.again = False
        elif len(open_ones) < WINDOW:
            self.counts.append(random.randint(1, 3))
            wanted = [len(self.counts) - 1]
        else:
            return
        for at in wanted:
            frame = make_batch(self.counts[at], self.number, self.sequence(at))
            number = world.ask(protocol.PRODUCE, [GROUP], frames=[frame], client=self.client)
            self.asked[number] = at

    def hear(self, request: int, code: int, offset: int) -> None:
        at = self.asked.pop(request)
        if code == 0:
            assert self.offsets.setdefault(at, offset) == offset  # the same answer, always
        else:
            assert code in RETRIED
            self.again = True


def stir(world: World, random: Random) -> None:
    engine, replica = world.engine, world.replica
    chance = random.random()
    engine.refusal = errors.DiskFull() if chance < 0.05 else None
    if chance > 0.9 and replica.is_leader:
        engine.depose(replica, leader=2)
    elif chance > 0.7 and not replica.is_leader:
        engine.lead(replica, ready=random.random() < 0.5)
    elif replica.log.last_index > replica.machine.applied_index:
        first = replica.machine.applied_index + 1
        engine.apply(replica, random.randint(first, replica.log.last_index))
    engine.now += random.choice((0, 50, 500))
    world.broker.tick(engine.now)


def deliver(world: World, senders: dict[Client, Sender], lost: Random | None) -> None:
    replies, world.engine.replies = world.engine.replies, []
    for client, envelope, _ in replies:
        for request, code, offset, _, _ in envelope[3]:
            if lost is None or lost.random() > 0.1:
                senders[client].hear(request, code, offset)


@pytest.mark.parametrize("seed", range(40))
def test_every_batch_once_and_in_order(seed: int) -> None:
    random, world = Random(seed), World()
    senders = {one.client: one for one in map(Sender, (1, 2, 3))}
    world.engine.apply_at_once = False
    for _ in range(400):
        for sender in senders.values():
            if random.random() < 0.6:
                sender.send(world, random)
        world.engine.end_turn()
        stir(world, random)
        deliver(world, senders, random)
    world.engine.refusal = None
    if not world.replica.is_leader:
        world.engine.lead(world.replica)
    world.engine.apply_at_once = True
    for _ in range(3):
        for sender in senders.values():
            sender.again = True
            sender.send(world, random)
        world.engine.end_turn()
        deliver(world, senders, None)
    check(world, list(senders.values()))
    assert world.broker.produce_handler.inflight_bytes == 0


def check(world: World, senders: list[Sender]) -> None:
    entries = world.replica.log.in_memory(1, world.replica.log.last_index) or []
    stored: dict[int, list[tuple[int, int, int]]] = {one.number: [] for one in senders}
    for entry in entries:
        if entry[t.TYPE] == t.DATA:
            producer, _, sequence = IDENTITY.unpack_from(entry[t.PAYLOAD])
            stored[producer].append((sequence, entry[t.COUNT], entry[t.OFFSET]))
    for sender in senders:
        want = [
            (sender.sequence(at), count, sender.offsets[at])
            for at, count in enumerate(sender.counts)
        ]
        assert stored[sender.number] == want and len(want) > 20
