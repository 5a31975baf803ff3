"""A group whose invariants a message breaks ends alone: its host, and all other groups, go on."""

from __future__ import annotations

import pytest
from raft.flock import Flock

from myqueue.daemons.raft.groups import NodeHeartbeat, Packet
from myqueue.daemons.raft.types import (
    DATA,
    NOOP,
    Append,
    Entry,
    InvariantBroken,
    Message,
    Proposal,
    VoteRequest,
    node_of,
)

LIED, OTHER = 1, 2


def propose(flock: Flock, group: int) -> None:
    leader = flock.leader(group)
    assert leader is not None
    node = flock.hosts[node_of(leader.replica)].touch(group)
    assert node is not None
    node.propose([Proposal(1, flock.now, DATA, b"x")])
    flock.settle()


def filled() -> Flock:
    flock = Flock(groups=(LIED, OTHER))
    flock.elect_all()
    for group in (LIED, OTHER):
        for _ in range(3):
            propose(flock, group)
    flock.elapse(500)
    return flock


def lies(flock: Flock, number: int, what: str) -> Message:
    """What a leader would send that has forgotten what is committed."""
    node = flock.hosts[number].groups[LIED]
    liar = next(one for one in node.config.voters if node_of(one) != number)
    index, term = node.commit_index, node.term + 1
    assert index > 2
    entry: Entry = (index, term, 0, 0, 0, NOOP, 1, b"")
    previous = node.log.term(index - 1)
    target = (LIED, liar, node.replica, term)
    if what == "overwrites":
        return Append(*target, index - 1, previous, 0, [entry], 0)
    if what == "differs":
        before = node.log.chain(index - 1)
        other: Entry = (index, node.log.term(index), 0, 1, 0, DATA, 1, b"other")
        return Append(*target, index - 1, previous, before, [other], 0)
    if what == "contradicts":
        return Append(*target, index, term, 0, [], 0)
    return Append(*target, index, node.log.term(index), node.log.chain(index) ^ 1, [], 0)


@pytest.mark.parametrize("what", ["overwrites", "contradicts", "digest", "differs"])
@pytest.mark.parametrize("leads", [False, True])
def test_only_that_group_ends(what: str, leads: bool) -> None:
    flock = filled()
    led = flock.leader_at(LIED)
    number = led if leads else next(one for one in flock.hosts if one != led)
    host, lie = flock.hosts[number], lies(flock, number, what)
    log = host.groups[LIED].log
    known = [log.term(index) for index in range(1, log.last_index + 1)]
    ask = VoteRequest(OTHER, lie.source, host.groups[OTHER].replica, 1, 9, 9, True)
    host.receive(node_of(lie.source), Packet([lie, ask, lie]), flock.now)
    assert host.touch(LIED) is None
    effects, packets = host.end_turn(flock.now)
    assert list(host.broken) == [LIED] and isinstance(host.broken.pop(LIED), InvariantBroken)
    assert list(host.groups) == [OTHER]
    sent = [one for packet in packets.values() for one in packet.messages]
    assert {one.group for one in sent} == {OTHER}  # its answer is there
    for one in (effects.persist, effects.apply, effects.changed, effects.dropped):
        assert not [of for of in one if of.group == LIED]
    assert known == [log.term(index) for index in range(1, log.last_index + 1)]  # kept as it was
    for _ in range(3):
        propose(flock, OTHER)
    flock.elapse(5000)
    assert OTHER in host.groups and flock.agreed(OTHER)
    at = {one.groups[OTHER].commit_index for one in flock.hosts.values()}
    assert len(at) == 1


def test_a_turn_without_it_says_nothing_of_it_in_its_beats() -> None:
    """Who led it, and ended, does not claim to lead it."""
    flock = filled()
    number = flock.leader_at(LIED)
    host, lie = flock.hosts[number], lies(flock, number, "contradicts")
    other = node_of(lie.source)
    leads = host.peer(other).leads
    host.receive(other, Packet([lie]), flock.now)
    host.tick(flock.now + 200)
    _, packets = host.end_turn(flock.now + 200)
    beats = [one for one in packets[other].beats if isinstance(one, NodeHeartbeat)]
    assert [one.leads for one in beats] == [leads - 1]
    flock.elapse(5000)  # the others elect another leader
    assert flock.leader(LIED) is not None and flock.leader_at(LIED) != number


def breaks(*_: object) -> None:
    raise InvariantBroken("planted")


def test_a_report_of_the_journal_that_breaks_it_ends_it_alone() -> None:
    flock = filled()
    host = flock.hosts[1]
    host.call(LIED, breaks)
    host.end_turn(flock.now)
    assert list(host.broken) == [LIED] and list(host.groups) == [OTHER]
