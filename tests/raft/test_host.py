"""Many groups in one process: quiet ones cost nothing, and what is lost is found again."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random

import pytest
from raft.flock import Flock

from myqueue.daemons.raft import groups as host_module
from myqueue.daemons.raft.groups import (
    LeaderList,
    NodeHeartbeat,
    NodeHeartbeatReply,
    Packet,
    RaftGroups,
)
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.types import (
    DATA,
    NOBODY,
    AppendReply,
    Config,
    NotPossibleNow,
    Proposal,
    node_of,
    replica_id,
)

GROUPS = range(1, 31)


def propose(flock: Flock, group: int) -> None:
    leader = flock.leader(group)
    assert leader is not None
    node = flock.hosts[node_of(leader.replica)].touch(group)
    assert node is not None
    node.propose([Proposal(1, flock.now, DATA, b"x")])


def recount(host: RaftGroups) -> dict[int, tuple[int, int, int, int]]:
    """The digests of a host, from what its groups are now."""
    found = {number: [0, 0, 0, 0] for number in host._peers}
    for node in host.groups.values():
        if node.leader == NOBODY:
            continue
        value = host_module._mix(node.group, node.term, node.leader)
        if node.leader == node.replica:
            for number in {node_of(member) for member in node.config.members} - {host.node}:
                found[number][0] += 1
                found[number][1] += value
        else:
            found[node_of(node.leader)][2] += 1
            found[node_of(node.leader)][3] += value
    return {n: (a, b & 2**64 - 1, c, d & 2**64 - 1) for n, (a, b, c, d) in found.items()}


def check_digests(flock: Flock) -> None:
    for host in flock.hosts.values():
        kept = {
            number: (peer.leads, peer.leads_digest, peer.followed, peer.followed_digest)
            for number, peer in host._peers.items()
        }
        assert kept == recount(host)


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often any replica is called, by name."""
    calls: Counter[str] = Counter()
    for name in (
        "step",
        "tick",
        "flush",
        "commit_hint",
        "leader_announced",
        "check_quorum",
        "applied",
    ):
        original = getattr(RaftNode, name)

        def counted(self: RaftNode, *args: object, _do=original, _name=name) -> object:
            calls[_name] += 1
            return _do(self, *args)

        monkeypatch.setattr(RaftNode, name, counted)
    return calls


# -- quiet ----------------------------------------------------------------------------------------


def test_quiet_groups_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No replica is called in ten seconds, whatever their number; only beats go back and forth."""
    flock = Flock(groups=GROUPS)
    flock.elect_all()
    flock.elapse(500)
    calls = count_calls(monkeypatch)
    flock.elapse(10_000)
    assert calls == {}
    assert all(not host._timed and not host._dirty for host in flock.hosts.values())


def test_a_beat_says_the_same_for_any_number_of_groups() -> None:
    """Its size does not depend on how many groups are quiet."""
    flock = Flock(groups=GROUPS)
    flock.elect_all()
    flock.elapse(500)
    flock.now += 100
    _, packets = flock.hosts[1].end_turn(flock.now)
    for packet in packets.values():
        (beat,) = packet.beats
        assert isinstance(beat, NodeHeartbeat) and beat.commits == [] and not packet.messages


def test_only_touched_groups_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    flock = Flock(groups=GROUPS)
    flock.elect_all()
    flock.elapse(500)
    calls = count_calls(monkeypatch)
    propose(flock, 3)
    flock.settle()
    assert calls["flush"] < 12 and calls["step"] == 4


def test_what_is_committed_reaches_everybody() -> None:
    """With the beats; and it is not said again once a beat that said it was answered."""
    flock = Flock(groups=GROUPS)
    flock.elect_all()
    for group in GROUPS:
        propose(flock, group)
    flock.settle()
    flock.elapse(200)
    for host in flock.hosts.values():
        assert {node.commit_index for node in host.groups.values()} == {2}
        assert all(not peer.commits for peer in host._peers.values())


def test_an_answer_to_an_older_beat_does_not_settle_a_hint() -> None:
    """The commit came after that beat had left."""
    flock = Flock()
    flock.elect_all()
    flock.elapse(300)
    number = flock.leader_at(1)
    host = flock.hosts[number]
    propose(flock, 1)
    flock.settle()
    other = next(n for n in flock.hosts if n != number)
    peer = host._peers[other]
    assert peer.commits
    host.receive(other, Packet([], [NodeHeartbeatReply(peer.beat, False)]), flock.now)
    assert peer.commits, "not said yet"
    flock.now += 100
    _, packets = host.end_turn(flock.now)
    host.receive(other, Packet([], [NodeHeartbeatReply(peer.beat - 1, False)]), flock.now)
    assert peer.commits and packets[other].beats[0].commits
    host.receive(other, Packet([], [NodeHeartbeatReply(peer.beat, False)]), flock.now)
    assert not peer.commits


# -- digests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_digests_agree_with_a_recount(seed: int) -> None:
    """Under random elections, proposals, losses, changes of members, removals and restarts."""
    flock = Flock(4, groups=range(1, 9), seed=seed, loss=0.1)
    random = Random(seed)
    for group in range(20, 24):
        flock.create(group, sorted(random.sample([1, 2, 3, 4], 3)))
    for step in range(120):
        act = random.choice(("pass", "pass", "step_down", "propose", "change", "remove", "cut"))
        group = random.choice(sorted(flock.all_groups()))
        leader = flock.leader(group)
        if act == "step_down" and leader:
            host = flock.hosts[node_of(leader.replica)]
            host.touch(group)
            leader.step_down(flock.now, host.out)
        elif act == "propose" and leader:
            propose(flock, group)
        elif act == "change" and leader:
            maybe_change(flock, leader, random)
        elif act == "remove" and step % 10 == 0:
            number = random.choice(sorted(flock.hosts))
            if group in flock.hosts[number].groups:
                flock.hosts[number].remove(group)
        elif act == "cut":
            flock.cut = {random.randint(1, 4)} if random.random() < 0.5 else set()
        flock.elapse(random.choice((50, 50, 300, 700)))
        check_digests(flock)
    assert sum(node.term for host in flock.hosts.values() for node in host.groups.values()) > 20


def maybe_change(flock: Flock, leader: RaftNode, random: Random) -> None:
    """Remove a voter that is not the leader, if that is allowed now."""
    others = [voter for voter in leader.config.voters if voter != leader.replica]
    if len(others) > 1:
        gone = random.choice(others)
        left = tuple(voter for voter in leader.config.voters if voter != gone)
        flock.hosts[node_of(leader.replica)].touch(leader.group)
        with suppress(NotPossibleNow):
            leader.change(Config(left), flock.now)


@pytest.mark.parametrize("seed", range(8))
def test_with_losses_all_agree_in_the_end(seed: int) -> None:
    """A third of all packets is lost: hints, lists, beats, entries. Then none is."""
    flock = Flock(groups=range(1, 9), seed=seed, loss=0.33)
    flock.elapse(8_000)
    for group in range(1, 9):
        if flock.leader(group):
            propose(flock, group)
        flock.elapse(100)
    flock.loss = 0.0
    flock.elapse(3_000)
    for group in range(1, 9):
        assert flock.agreed(group)
        ends = {
            (host.groups[group].commit_index, host.groups[group].log.last_index)
            for host in flock.hosts.values()
        }
        assert len(ends) == 1, "everybody has everything, and knows what is committed"
    check_digests(flock)
    for host in flock.hosts.values():
        for number, peer in host._peers.items():
            other = flock.hosts[number]._peers[host.node]
            assert (peer.leads, peer.leads_digest) == (other.followed, other.followed_digest)


def test_a_lost_list_is_asked_for_again() -> None:
    """Twice unequal, then the question; the answer is lost, and so on until one comes."""
    flock = Flock()
    flock.elect_all()
    leader = flock.leader(1)
    assert leader is not None
    number = node_of(leader.replica)
    other = next(n for n in flock.hosts if n != number)
    host = flock.hosts[other]
    host.touch(1)
    host.groups[1].leader_lost(flock.now, host.out)
    host.groups[1].deadline = flock.now + 60_000
    flock.turn(other)
    asked = 0
    for _ in range(6):
        flock.now += 100
        for source, target in ((number, other), (other, number)):
            flock.hosts[source].tick(flock.now)
            _, packets = flock.hosts[source].end_turn(flock.now)
            beats = [one for one in packets[target].beats if not isinstance(one, LeaderList)]
            asked += sum(isinstance(one, NodeHeartbeatReply) and one.ask for one in beats)
            flock.hosts[target].receive(source, Packet([], beats), flock.now)
    assert asked == 3 and host.groups[1].leader == NOBODY
    flock.elapse(300)
    assert host.groups[1].leader == leader.replica


def test_a_list_names_only_what_is_led_now() -> None:
    """R30: a group that was lost in this very turn is not claimed for the term that ended it."""
    flock = Flock()
    flock.elect_all()
    leader = flock.leader(1)
    assert leader is not None
    number = node_of(leader.replica)
    other = next(n for n in flock.hosts if n != number)
    newer = AppendReply(1, replica_id(other, 1), leader.replica, leader.term + 1, False, 0)
    host = flock.hosts[number]
    host.receive(other, Packet([newer], [NodeHeartbeatReply(1, True)]), flock.now)
    _, packets = host.end_turn(flock.now)
    lists = [one for one in packets[other].beats if isinstance(one, LeaderList)]
    assert [one.groups for one in lists] == [[]]
