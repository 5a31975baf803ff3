"""A connection that breaks or stands is a hint: it makes an election come sooner, and can't make a
wrong one. Who should lead, the first voter, has a head start when all are started together.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from raft.flock import Flock
from raft.test_host import GROUPS, check_digests

from myqueue.daemons.raft.types import Config, Role, replica_id

ORDERS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))


def test_an_ended_process_is_replaced_without_waiting_for_its_silence() -> None:
    flock = Flock(groups=GROUPS)
    flock.elect_all()
    flock.elapse(300)
    victim = flock.leader_at(1)
    led = [group for group in GROUPS if flock.leader_at(group) == victim]
    flock.cut = {victim}
    for number, host in flock.hosts.items():
        if number != victim:
            host.disconnected(victim, flock.now)
    flock.settle()
    waits = [
        node.deadline - flock.now
        for number, host in flock.hosts.items()
        for group, node in host.groups.items()
        if number != victim and group in led and node.role == Role.FOLLOWER
    ]
    settings = flock.hosts[victim].settings
    spread = settings.election_timeout_ms_max - settings.election_timeout_ms_min
    assert waits and max(waits) <= spread, "the minimum of silence is not waited for"
    flock.elapse(1_500)
    assert all(flock.leader_at(group) not in (victim, 0) for group in led)


def test_one_broken_connection_deposes_nobody() -> None:
    """R12: the third one still hears the leader and grants no pre-vote."""
    flock = Flock(groups=GROUPS)
    flock.elect_all()
    flock.elapse(300)
    before = {group: (flock.leader_at(group), flock.leader(group).term) for group in GROUPS}
    leader = flock.leader_at(1)
    other = next(number for number in flock.hosts if number != leader)
    flock.hosts[other].disconnected(leader, flock.now)
    flock.hosts[leader].disconnected(other, flock.now)
    flock.elapse(2_000)
    after = {group: (flock.leader_at(group), flock.leader(group).term) for group in GROUPS}
    assert after == before
    assert all(flock.agreed(group) for group in GROUPS)
    check_digests(flock)


def started(**options: Any) -> tuple[Flock, dict[int, int]]:
    """Daemons that reach nobody yet, and who should lead each of their groups."""
    flock = Flock(**options)
    for group in range(1, 13):
        flock.create(group, ORDERS[group % 3])
    return flock, {group: ORDERS[group % 3][0] for group in range(1, 13)}


def leaders(flock: Flock) -> dict[int, int]:
    return {group: flock.leader_at(group) for group in flock.all_groups()}


@pytest.mark.parametrize("seed", range(20))
def test_the_first_voter_is_elected_after_a_start_of_all(seed: int) -> None:
    """However long nobody reached anybody, and whoever meets whom first; the first questions get
    no answer, as the ways back do not stand yet.
    """
    flock, first = started(groups=(), seed=seed)
    flock.cut = {1, 2, 3}
    random = Random(seed)
    flock.elapse(random.randrange(0, 3000, 50))
    ways = [(one, other) for one in (1, 2, 3) for other in (1, 2, 3) if one != other]
    random.shuffle(ways)
    for one, other in ways:
        flock.elapse(50)
        flock.hosts[one].connected(other, flock.now)
    flock.cut = set()
    flock.elapse(1000)
    assert leaders(flock) == first
    assert {node.term for host in flock.hosts.values() for node in host.groups.values()} == {1}


def test_who_should_lead_a_new_group_asks_again_until_the_others_have_it() -> None:
    """The others are told of it by others; they would stand for election after 500 ms."""
    flock = Flock(groups=())
    config = Config(tuple(replica_id(number, 1) for number in (1, 2, 3)))
    flock.add(1, 1, config).stand_soon(flock.now)
    flock.elapse(200)
    for number in (2, 3):
        flock.add(1, number, config)
    flock.elapse(300)
    assert flock.leader_at(1) == 1


def test_the_others_wait_once_for_one_that_should_lead_and_is_not_there() -> None:
    """However often connections come and go."""
    flock, first = started(groups=())
    flock.cut = {1}
    for _ in range(40):
        flock.hosts[2].connected(3, flock.now)
        flock.hosts[3].connected(2, flock.now)
        flock.elapse(50)
    found = leaders(flock)
    assert 1 not in found.values()
    assert all(found[group] == first[group] for group in first if first[group] != 1)
