"""A group becomes what is wanted, one member at a time: every step is safe, and they end."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from raft.replicas import Solo

from myqueue.daemons.broker.reconcile_members import (
    UNREACHABLE,
    ChangeMembers,
    MemberStatus,
    TransferTo,
    next_step,
)
from myqueue.daemons.raft.membership import change_problem
from myqueue.daemons.raft.quorum import majority
from myqueue.daemons.raft.types import DATA, Config, Proposal, node_of, replica_id

WHOLE, BEHIND = MemberStatus(True, True), MemberStatus(True, False)


def r(node: int, incarnation: int = 1) -> int:
    return replica_id(node, incarnation)


A, B, C, D = r(1), r(2), r(3), r(4)
ALL = dict.fromkeys((A, B, C, D), WHOLE)


def test_a_group_as_it_is_wanted_is_left_alone() -> None:
    assert next_step(Config((A, B, C)), A, (C, B, A), ALL) is None


def test_r18_a_replica_moves_as_a_learner_first_and_the_old_one_goes_last() -> None:
    """add, catch up, promote, remove: at no time fewer whole copies than wanted."""
    config, wanted = Config((A, B, C)), (A, B, D)
    config = step(config, A, wanted, ALL | {D: UNREACHABLE})
    assert config == Config((A, B, C), (D,))
    assert next_step(config, A, wanted, ALL | {D: UNREACHABLE}) is None  # it is not there yet
    assert next_step(config, A, wanted, ALL | {D: BEHIND}) is None  # nor whole
    config = step(config, A, wanted, ALL)
    assert config == Config((A, B, C, D))
    config = step(config, A, wanted, ALL)
    assert config == Config((A, B, D))


def step(
    config: Config, me: int, wanted: tuple[int, ...], standing: dict[int, MemberStatus]
) -> Config:
    found = next_step(config, me, wanted, standing)
    assert isinstance(found, ChangeMembers)
    return found.config


def test_r17_r24_a_leader_that_is_to_go_hands_over_first() -> None:
    full = Config((A, B, C, D))
    assert next_step(full, A, (D, C, B), ALL) == TransferTo(D)
    assert next_step(full, A, (D, C, B), ALL | {D: BEHIND}) == TransferTo(C)
    assert next_step(full, A, (D, C, B), dict.fromkeys((B, C, D), BEHIND)) is None


def test_a_silent_member_goes_before_its_successor_votes() -> None:
    """Else four voters of which one is dead would need all three others."""
    silent = ALL | {C: MemberStatus(False, False)}
    waiting = Config((A, B, C), (D,))
    assert next_step(waiting, A, (A, B, D), silent | {D: BEHIND}) is None
    config = step(waiting, A, (A, B, D), silent)
    assert config == Config((A, B), (D,))
    assert step(config, A, (A, B, D), silent) == Config((A, B, D))


def test_r18_a_member_that_lacks_what_came_a_moment_ago_is_no_silent_one() -> None:
    """Where writing never pauses, the slower follower lacks a batch at each look. Cast out before
    its successor votes, it would leave two voters of which none may fail.
    """
    leader = Solo([], 5, learners=(D,)).as_leader()
    for last in range(1, 30):
        leader.now += 50
        leader.ack(B, last)
        leader.ack(D, last)
        leader.ack(C, last - 1)
        leader.do("propose", [Proposal(1, 5, DATA, b"x")])
    node = leader.node
    found = {
        one: MemberStatus(True, node.leading.is_caught_up(one, leader.now)) for one in (B, C, D)
    }
    assert step(node.config, A, (A, B, D), found) == Config((A, B, C, D))
    leader.now += 2 * node.settings.election_timeout_ms_min
    assert not node.leading.is_caught_up(C, leader.now), "it said nothing since"


def test_r2_w7_a_lost_replica_goes_before_its_node_gets_another() -> None:
    """A node can't hold both, so the old one holds nothing."""
    again = r(3, 9)
    standing = ALL | {C: WHOLE}
    config = step(Config((A, B, C)), A, (A, B, again), standing)
    assert config == Config((A, B))
    config = step(config, A, (A, B, again), standing)
    assert config == Config((A, B), (again,))
    assert next_step(config, A, (A, B, again), standing) is None
    assert step(config, A, (A, B, again), standing | {again: WHOLE}) == Config((A, B, again))


def test_no_step_leaves_a_group_without_a_majority() -> None:
    alone = {B: MemberStatus(False, True), C: MemberStatus(False, True), D: WHOLE}
    assert next_step(Config((A, B, C), (D,)), A, (A, B, D), alone) is None
    assert step(Config((A, B)), A, (A, r(2, 7)), {B: UNREACHABLE}) == Config((A,))
    assert next_step(Config((A, B, C)), A, (A, B, r(3, 7)), alone) is None


def test_learners_that_nobody_wants_any_more_go() -> None:
    assert step(Config((A, B, C), (D,)), A, (A, B, C), ALL) == Config((A, B, C))


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_happens_every_step_is_safe_and_the_end_is_what_is_wanted(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(60):
        world.happen()
        world.step()
    world.heal()
    for _ in range(60):
        if world.is_done:
            break
        world.step()
        world.fill()
    assert world.is_done, (seed, world.config, world.wanted)


class World:
    """One group, and managers that change their mind."""

    def __init__(self, random: Random) -> None:
        self.random, self.drawn = random, 5
        self.nodes = list(range(1, 7))
        count = random.choice((1, 2, 3, 3, 5))
        self.wanted = tuple(r(node) for node in self.nodes[:count])
        self.config = Config(self.wanted)
        self.silent: set[int] = set()
        self.whole = set(self.wanted)  # these have everything
        self.leader = self.wanted[0]

    def happen(self) -> None:
        what, random = random_choice(self.random), self.random
        if what == "fill":
            self.fill()
        elif what == "silence":
            if self.is_able_without(node := random.choice(self.nodes)):
                self.silent.add(node)
        elif what == "speak" and self.silent:
            self.silent.discard(random.choice(sorted(self.silent)))
        elif what == "move":
            self.move()
        elif what == "lead":
            able = [one for one in self.config.voters if self.is_usable(one)]
            self.leader = random.choice(able) if able else self.leader

    def is_usable(self, replica: int) -> bool:
        return replica in self.whole and node_of(replica) not in self.silent

    def is_able_without(self, node: int) -> bool:
        voters = self.config.voters
        able = sum(self.is_usable(one) and node_of(one) != node for one in voters)
        return able >= majority(len(voters)) and node_of(self.leader) != node

    def move(self) -> None:
        """To another node, or made anew on the same one because it is lost there."""
        place = self.random.randrange(len(self.wanted))
        old = self.wanted[place]
        free = set(self.nodes) - {node_of(one) for one in (*self.wanted, *self.config.members)}
        to = self.random.choice([*sorted(free), node_of(old)])
        if to == node_of(old):
            if old == self.leader or not self.is_able_without(to):
                return
            self.whole.discard(old)
        self.drawn += 1
        wanted = list(self.wanted)
        wanted[place] = r(to, self.drawn)
        self.wanted = tuple(wanted)

    def standing(self) -> dict[int, MemberStatus]:
        return {
            one: MemberStatus(node_of(one) not in self.silent, one in self.whole)
            for one in self.config.members
        }

    def step(self) -> None:
        if not self.is_usable(self.leader) or self.leader not in self.config.voters:
            able = [one for one in self.config.voters if self.is_usable(one)]
            self.leader = able[0]
        found = next_step(self.config, self.leader, self.wanted, self.standing())
        if isinstance(found, TransferTo):
            leader = found.replica_id
            assert leader in self.config.voters and self.is_usable(leader) and leader in self.wanted
            self.leader = leader
        elif found is not None:
            self.check(found.config)
            self.config = found.config

    def check(self, new: Config) -> None:
        old = self.config
        assert change_problem(old, new) == ""
        able = sum(map(self.is_usable, new.voters))
        assert able >= majority(len(new.voters)), "it could not commit that"
        for gone in set(old.voters) - set(new.voters):
            assert gone not in self.wanted and gone != self.leader
            if self.is_usable(gone):
                assert len(new.voters) >= len(self.wanted), "one copy fewer than wanted"
        for one in set(new.voters) - set(old.voters):
            assert self.is_usable(one) and one in self.wanted
        if all(map(self.is_usable, old.voters)):  # else one more that is there may be what it needs
            assert len(new.voters) <= len(self.wanted) + 1
        nodes = [node_of(one) for one in new.members]
        assert len(set(nodes)) == len(nodes), "a node holds one replica of a group"

    def fill(self) -> None:
        for one in self.config.learners:
            if node_of(one) not in self.silent and one in self.wanted:
                self.whole.add(one)

    def heal(self) -> None:
        self.silent.clear()
        self.fill()

    @property
    def is_done(self) -> bool:
        return self.config.learners == () and set(self.config.voters) == set(self.wanted)


def random_choice(random: Random) -> str:
    return random.choice(("fill", "silence", "speak", "move", "lead", "nothing", "nothing"))
