"""What a majority of logs proves: never an entry that is lost later, and all of a quiet group."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from myqueue.analytics.verify.commit_proof import Configs, Witness, proven
from myqueue.analytics.verify.replica_history import Stretch


class Node:
    """A voter of a small Raft: what is on its disk, and as a leader what is not yet."""

    def __init__(self, name: int) -> None:
        self.name, self.term, self.vote = name, 0, 0
        self.log: list[int] = []  # terms
        self.leads = False
        self.extra: list[int] = []  # sent to followers, and still on its way to the own disk

    def witness(self) -> Witness:
        stretches = [Stretch(at + 1, at + 1, term, 1, 0) for at, term in enumerate(self.log)]
        return Witness(self.name, self.term, self.vote, stretches)

    def follow(self, term: int) -> None:
        if term > self.term:
            self.term, self.vote = term, 0
        self.crash()

    def crash(self) -> None:
        self.leads, self.extra = False, []


class World:
    def __init__(self, rng: Random, voters: int) -> None:
        self.rng = rng
        self.weights = rng.choice(((2, 4, 4, 8), (1, 4, 20, 90)))
        self.nodes = [Node(name) for name in range(1, voters + 1)]
        self.elected: list[tuple[int, list[int]]] = []  # terms, and logs with which leaders began

    def campaign(self) -> None:
        node = self.rng.choice(self.nodes)
        node.crash()
        node.term, node.vote = node.term + 1, node.name
        votes = 1
        for other in self.rng.sample(self.nodes, self.rng.randint(0, len(self.nodes))):
            if other is node or other.term > node.term:
                continue
            if other.term < node.term:
                other.follow(node.term)
            mine, its = ((one.log[-1:] or [0], len(one.log)) for one in (node, other))
            if other.vote in (0, node.name) and mine >= its:
                other.vote = node.name
                votes += 1
        if votes > len(self.nodes) // 2:
            node.leads = True
            self.elected.append((node.term, list(node.log)))

    def append(self) -> None:
        for node in self.nodes:
            if node.leads and self.rng.random() < 0.6:
                node.extra.append(node.term)

    def persist(self) -> None:
        node = self.rng.choice(self.nodes)
        node.log += node.extra
        node.extra = []

    def replicate(self) -> None:
        """Some of what follows the part that both have, also of older terms alone."""
        leader, other = self.rng.sample(self.nodes, 2)
        if not leader.leads or other.term > leader.term:
            return
        other.follow(leader.term)
        whole = leader.log + leader.extra
        same = 0
        while same < min(len(whole), len(other.log)) and whole[same] == other.log[same]:
            same += 1
        upto = self.rng.randint(same, len(whole))
        if upto > same:
            other.log = whole[:upto]

    def act(self) -> None:
        actions = (self.campaign, self.append, self.persist, self.replicate)
        self.rng.choices(actions, self.weights)[0]()
        if self.rng.random() < 0.05:
            self.rng.choice(self.nodes).crash()


@pytest.mark.parametrize("voters", [2, 3, 5])
def test_what_was_proved_is_in_the_log_of_every_later_leader(voters: int) -> None:
    """Each log is read at another moment, some are not given at all, and the group goes on."""
    proofs = 0
    for seed in range(400):
        world = World(Random(seed), voters)
        while not world.elected:
            world.campaign()
        for _ in range(world.rng.randint(5, 120)):
            world.act()
        given = []
        for node in world.rng.sample(world.nodes, world.rng.randint(voters // 2 + 1, voters)):
            given.append(node.witness())
            for _ in range(world.rng.randint(0, 3)):
                world.act()
        index = proven(given, [(0, tuple(range(1, voters + 1)))]).index
        proofs += index > 0
        for _ in range(150):
            world.act()
        logs = [[one.term for one in witness.stretches] for witness in given]
        holders = Counter(tuple(log[:index]) for log in logs if len(log) >= index)
        wanted = holders.most_common(1)[0][0]
        assert holders[wanted] > voters // 2
        for term, log in world.elected:
            if index and term > wanted[-1]:
                assert tuple(log[:index]) == wanted, (seed, term, index)
    assert proofs > 30, proofs


def witness(replica: int, term: int, vote: int, *runs: tuple[int, int, int]) -> Witness:
    return Witness(replica, term, vote, [Stretch(*run, 1, 0) for run in runs])


THREE: Configs = [(0, (1, 2, 3))]


def proved(logs: list[Witness], configs: Configs = THREE, known: int = 0) -> int:
    return proven(logs, configs, known).index


def test_all_of_a_group_that_is_quiet() -> None:
    logs = [witness(n, 4, 1, (1, 5, 2), (6, 9, 4)) for n in (1, 2, 3)]
    assert proved(logs) == proved(logs[1:]) == 9
    assert proved(logs[:1]) == 0


def test_a_vote_of_a_later_term_may_have_done_harm() -> None:
    """Unless it is known for whom it was, and that one has the entry too."""
    whole = ((1, 9, 4),)
    assert proved([witness(1, 4, 1, *whole), witness(2, 5, 3, *whole)]) == 0
    assert proved([witness(1, 4, 1, *whole), witness(2, 5, 1, *whole)]) == 9
    assert proved([witness(1, 5, 1, *whole), witness(2, 5, 1, *whole)]) == 9
    assert proved([witness(1, 7, 1, *whole), witness(2, 7, 1, *whole)]) == 0


def test_entries_of_a_leader_that_was_deposed_are_not_proved() -> None:
    """The figure with which the rule about the leader's own term is explained."""
    old = [witness(n, 4, 1, (1, 1, 1), (2, 2, 2)) for n in (1, 2, 3)]
    other = witness(5, 3, 5, (1, 1, 1), (2, 2, 3))
    five = [(0, (1, 2, 3, 4, 5))]
    assert proved([*old, other], five) < 2
    new = [witness(n, 4, 1, (1, 1, 1), (2, 2, 2), (3, 3, 4)) for n in (1, 2, 3)]
    assert proved([*new, other], five) == 3


def test_a_log_that_lost_its_votes_proves_nothing() -> None:
    whole = ((1, 9, 4),)
    assert proved([witness(1, 4, 1, *whole), witness(2, 3, 1, *whole)]) == 0


def test_a_single_voter_is_right() -> None:
    assert proved([witness(1, 9, 1, (1, 5, 2))], [(0, (1,))]) == 5
    assert proved([witness(2, 2, 2, (1, 5, 2))], [(0, (1,))]) == 0
    assert proved([witness(1, 2, 1, (1, 5, 2))], []) == 0


def test_older_members_may_still_elect_while_no_later_ones_are_known_to_be_committed() -> None:
    """Logs that were copied while a fourth and a fifth voter came: 2 and 3 know of neither."""
    grown: Configs = [(0, (1, 2, 3)), (3, (1, 2, 3, 4)), (4, (1, 2, 3, 4, 5))]
    logs = [witness(n, 4, 1, (1, 9, 4)) for n in (1, 4, 5)]
    assert proved(logs, grown) == 0
    assert proved(logs, grown, known=3) == 0
    assert proved(logs, grown, known=4) == 9
    assert proved([*logs, witness(2, 4, 1, (1, 9, 4))], grown) == 9


def test_replicas_that_were_created_with_different_members_prove_nothing_alone() -> None:
    """Nobody knows which of them held at the entry, until a configuration stands before it."""
    created: Configs = [(0, (1, 2, 3)), (0, (1, 2, 4))]
    logs = [witness(n, 4, 1, (1, 9, 4)) for n in (1, 2, 3, 4)]
    assert proved(logs, created) == 0
    assert proved(logs, [*created, (5, (1, 2, 4))]) == 9
    assert proved([logs[0], logs[3]], [*created, (5, (1, 2, 4))]) == 0
    assert proved([logs[0], logs[3]], [*created, (5, (1, 2, 4))], known=5) == 9
