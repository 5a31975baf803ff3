"""Nodes that fall silent, come back or restart; groups that come and go."""

from __future__ import annotations

import pytest
from raft.flock import Flock
from raft.test_host import GROUPS, check_digests, propose

from myqueue.daemons.raft.groups import LeaderList, NodeHeartbeat, Packet
from myqueue.daemons.raft.types import (
    NOBODY,
    Append,
    NotLeader,
    RaftSettings,
    Role,
    node_of,
    replica_id,
)

# -- peers ----------------------------------------------------------------------------------------


def test_a_silent_node_loses_its_groups_and_its_followers_elect() -> None:
    """R13, both sides: it stops leading, the others find a leader; at its return it follows."""
    flock = Flock(groups=GROUPS)
    flock.elect_all()
    victim = flock.leader_at(1)
    flock.cut = {victim}
    flock.elapse(600)
    assert all(node.role != Role.LEADER for node in flock.hosts[victim].groups.values())
    flock.elapse(2_000)
    assert {flock.leader_at(group) for group in GROUPS} <= {1, 2, 3} - {victim}
    terms = {group: flock.leader(group).term for group in GROUPS}
    flock.cut = set()
    flock.elapse(2_000)
    assert all(flock.agreed(group) for group in GROUPS)
    assert {group: flock.leader(group).term for group in GROUPS} == terms, "R12: undisturbed"


def test_what_was_held_back_from_a_silent_node_is_sent_when_it_is_back() -> None:
    """Also if no tick came in between that noticed its silence."""
    for ticks in (True, False):
        flock = Flock()
        flock.elect_all()
        flock.elapse(300)
        leader = flock.leader(1)
        assert leader is not None
        number = node_of(leader.replica)
        host = flock.hosts[number]
        silent, awake = (n for n in flock.hosts if n != number)
        flock.now += 600
        host.receive(awake, Packet(), flock.now)
        if ticks:
            host.tick(flock.now)
        propose(flock, 1)
        _, packets = host.end_turn(flock.now)
        assert packets[awake].messages and not packets[silent].messages
        host.receive(silent, Packet(), flock.now)
        _, packets = host.end_turn(flock.now)
        (message,) = packets[silent].messages
        assert isinstance(message, Append)


def test_nothing_is_told_to_a_dead_node() -> None:
    """Commits for it wait, as many as there are groups, and are not sent in every beat."""
    flock = Flock(groups=GROUPS)
    flock.elect_all()
    victim = next(n for n in flock.hosts if n != flock.leader_at(1))
    flock.cut = {victim}
    flock.elapse(3_000)
    for _ in range(3):
        for group in GROUPS:
            propose(flock, group)
        flock.settle()
    for host in flock.hosts.values():
        if host.node == victim:
            continue
        assert len(host._peers[victim].commits) <= len(GROUPS)
        flock.now += 100
        _, packets = host.end_turn(flock.now)
        assert all(not b.commits for b in packets[victim].beats if isinstance(b, NodeHeartbeat))
    flock.cut = set()
    flock.elapse(1_500)
    commits = {group: flock.leader(group).commit_index for group in GROUPS}
    assert {g: n.commit_index for g, n in flock.hosts[victim].groups.items()} == commits


def test_a_restarted_node_is_recognised_at_once() -> None:
    """By the incarnation in its beat, faster than any timeout; at the first contact nothing is
    lost, though the leader's entries came before its first beat."""
    flock = Flock()
    flock.elect_all()
    leader = flock.leader(1)
    assert leader is not None
    number = node_of(leader.replica)
    other = next(n for n in flock.hosts if n != number)
    follower = flock.hosts[other].groups[1]
    peer = flock.hosts[other]._peers[number]
    beat = NodeHeartbeat(peer.incarnation, 99, peer.followed, peer.followed_digest, [])
    known, peer.incarnation = peer.incarnation, 0
    flock.hosts[other].receive(number, Packet([], [beat]), flock.now)
    assert follower.leader == leader.replica and peer.incarnation == known
    beat.incarnation += 100
    newer = Append(
        1,
        leader.replica,
        follower.replica,
        leader.term + 1,
        follower.log.last_index,
        follower.log.last_term,
        0,
        [],
        0,
    )
    flock.hosts[other].receive(number, Packet([newer], [beat]), flock.now)
    assert follower.leader == leader.replica, "what it says after its restart counts"
    beat.incarnation += 1
    flock.hosts[other].receive(number, Packet([], [beat]), flock.now)
    flock.hosts[other].end_turn(flock.now)
    assert follower.leader == NOBODY


# -- groups come and go ---------------------------------------------------------------------------


def test_a_group_that_was_made_anew_does_not_hear_the_old_one() -> None:
    """R26: its uid is another one; and another replica of a group is not the one that is meant."""
    flock = Flock(groups=[1, 2])
    flock.elect_all()
    old = flock.leader(1)
    assert old is not None
    for host in flock.hosts.values():
        host.remove(1)
    flock.create(3, [1, 2, 3])
    late = Append(1, old.replica, replica_id(2, 1), 9, 0, 0, 0, [], 0)
    wrong = Append(3, old.replica, replica_id(2, 7), 9, 0, 0, 0, [], 0)
    flock.hosts[2].receive(
        1, Packet([late, wrong], [LeaderList([(1, old.replica, 1, 9)])]), flock.now
    )
    assert 1 not in flock.hosts[2].groups
    node = flock.hosts[2].groups[3]
    assert (node.term, node.ignored) == (0, 1)
    flock.elect_all()
    check_digests(flock)


def test_books_are_closed_with_the_group() -> None:
    """Removal in the middle of a turn, with a leader, followers, hints and deadlines."""
    flock = Flock(groups=GROUPS)
    flock.elect_all()
    for group in GROUPS:
        propose(flock, group)
    flock.settle()
    for group in GROUPS:
        for host in flock.hosts.values():
            host.touch(group)
            host.remove(group)
    flock.elapse(500)
    for host in flock.hosts.values():
        assert not (host.groups or host._known or host._dirty or host._timed)
        for peer in host._peers.values():
            assert (peer.leads, peer.leads_digest, peer.followed, peer.followed_digest) == (0,) * 4
            assert not peer.commits and not peer.replies


def test_queues_are_bounded_by_groups_and_peers() -> None:
    """However long a majority is away, and however much is tried meanwhile."""
    flock = Flock(groups=GROUPS)
    flock.elect_all()
    flock.cut = {1, 2}
    for _ in range(40):
        flock.elapse(500)
        for host in flock.hosts.values():
            assert len(host._timed) <= len(GROUPS) and not host._dirty
            for peer in host._peers.values():
                assert len(peer.replies) <= 3 and len(peer.commits) <= len(GROUPS)
    for host in flock.hosts.values():
        with pytest.raises(NotLeader):
            host.groups[1].propose([])


def test_all_groups_of_a_node_that_dies_are_led_again_soon() -> None:
    """Deadlines after the loss of a leader are spread, so that groups do not elect all at once."""
    settings = RaftSettings()
    flock = Flock(groups=range(1, 101), settings=settings)
    flock.elect_all()
    victim = flock.leader_at(1)
    flock.cut = {victim}
    flock.elapse(550)
    flock.elapse(settings.election_timeout_ms_max)
    led = [group for group in flock.all_groups() if flock.leader(group)]
    assert len(led) >= 95
    flock.elapse(settings.election_timeout_ms_max)
    assert all(flock.leader_at(group) != victim for group in flock.all_groups())
