"""Both halves of a consumer group, the leader's and the members', under a random schedule.

Messages are late, lost and overtake each other; members fall silent and wake up; the managers'
leader changes. At no time do two members hold a partition by their own knowledge and clock (C8),
and each epoch of it belongs to one of them (C7).
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.manager_rig import ManagerCluster

from myqueue.consumer.assignment import Assignment
from myqueue.errors import MyQueueError
from myqueue.wire import protocol

SESSION_MS = 1000


class Client:
    """A member as its process knows it."""

    def __init__(self) -> None:
        self.shares = Assignment()
        self.asleep_until = 0

    def holds(self, now: int) -> dict[int, int]:
        """Partition -> epoch, of what it would hand out now. It lets go at once."""
        shares = self.shares
        if not shares.member or shares.has_ended(now):
            return {}
        return {group: share.epoch for group, share in shares.by_group.items() if shares.has(group)}


class World(ManagerCluster):
    """A manager, the members, and what is on its way between them."""

    def __init__(self, seed: int) -> None:
        super().__init__(brokers=1)
        self.random = Random(seed)
        self.update("create_topic", topic="t", partitions=5)
        self.clients = [Client() for _ in range(4)]
        self.sent: dict[int, tuple[Client, int, int]] = {}  # request -> whose, id, when
        self.coming: list[Any] = []
        self.owners: dict[tuple[int, int], Client] = {}
        self.leads = True
        self.most = 0  # partitions held at a time

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def step(self) -> None:
        self.turn(self.random.randint(10, 300))
        if self.leads and self.chance(0.08):
            self.follow(2)
            self.leads = False
        elif not self.leads and self.chance(0.9):
            self.lead()
            self.leads = True
        contexts, self.engine.reads[:] = list(self.engine.reads), []
        for context in contexts:
            if self.chance(0.8):
                self.manager.read_ready(context)
        self.check()
        for client in self.clients:
            self.act(client)
            self.check()
        self.coming += self.answers()
        self.random.shuffle(self.coming)
        for answer in [one for one in self.coming if self.chance(0.6)]:
            self.coming.remove(answer)
            self.hear(answer)
            self.check()

    def act(self, client: Client) -> None:
        now, shares = self.engine.now, client.shares
        if now < client.asleep_until or not self.leads:
            return
        if self.chance(0.02):
            client.asleep_until = now + self.random.randint(100, 3 * SESSION_MS)
            return
        if not shares.member or shares.has_ended(now):
            shares.clear()
            arguments = {"group": "g", "topics": ["t"], "session_ms": SESSION_MS}
            shares.begin(self.joined(arguments), now + SESSION_MS)
        for group, share in shares.by_group.items():
            if share.is_revoked:
                shares.released.setdefault(group, share.epoch)
        if self.chance(0.4):
            released = [list(pair) for pair in shares.released.items()]
            wait_ms = self.random.choice([0, 100, 300])
            try:
                request = self.ask(
                    protocol.MEMBER, "g", shares.member, shares.version, wait_ms, released
                )
            except MyQueueError:
                shares.clear()
                return
            self.sent[request] = client, shares.member, now

    def joined(self, arguments: dict[str, Any]) -> int:
        """Its id; what others are told meanwhile is on its way."""
        key = (self._request + 1).to_bytes(16, "big")
        request = self.ask(protocol.UPDATE, key, "join_group", arguments)
        self.commit()
        told = self.answers()
        (mine,) = [answer for answer in told if answer[1] == request]
        self.coming += [answer for answer in told if answer is not mine]
        return int(mine[3]["member"])

    def hear(self, answer: Any) -> None:
        kind, request, *fields = answer
        if request not in self.sent:
            return
        client, member, sent_at = self.sent.pop(request)
        shares = client.shares
        if self.engine.now < client.asleep_until or member != shares.member or self.chance(0.1):
            return  # lost
        if kind == protocol.ERROR:
            return
        version, session_ms, rows = fields
        if not shares.has_ended(self.engine.now):
            shares.ends_at = max(shares.ends_at, sent_at + session_ms)
            shares.update(version, rows)

    def check(self) -> None:
        held: dict[int, Client] = {}
        for client in self.clients:
            for group, epoch in client.holds(self.engine.now).items():
                assert held.setdefault(group, client) is client, "two hold it at a time (C8)"
                owner = self.owners.setdefault((group, epoch), client)
                assert owner is client, "two had it in one epoch (C7)"
        self.most = max(self.most, len(held))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_c7_c8_at_no_time_two_members_hold_a_partition(seed: int) -> None:
    world = World(seed)
    for _ in range(120):
        world.step()


def test_partitions_are_held_and_change_hands() -> None:
    """The test above would prove little about a group in which nothing happens."""
    world = World(7)
    for _ in range(400):
        world.step()
    assert world.most == 5
    assert len(world.owners) > 50
    assert {id(owner) for owner in world.owners.values()} == {id(one) for one in world.clients}
