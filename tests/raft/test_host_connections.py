"""A broken connection is a hint: it makes an election come sooner, and can't make a wrong one."""

from __future__ import annotations

from raft.flock import Flock
from raft.test_host import GROUPS, check_digests

from myqueue.daemons.raft.types import Role


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
