"""What the paper leaves to Ongaro's thesis (2014): members, handing over, reads, pre-vote, disks.

And what neither has: replicas with damaged logs.
"""

from contextlib import suppress

import pytest
from raft.cluster import Cluster
from raft.disk import Disk
from raft.replicas import FIVE, FOUR, GROUP, ME, THREE, TWO, Solo, sent

from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.types import (
    DATA,
    Append,
    AppendReply,
    Config,
    NotLeader,
    NotPossibleNow,
    Proposal,
    RaftSettings,
    ReadReady,
    Role,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)


def ready_leader(**more: object) -> Solo:
    """Its first entry is committed and it heard everybody."""
    leader = Solo([], 5, **more).as_leader()
    for replica in leader.node.config.members[1:]:
        leader.ack(replica, 1)
    assert leader.node.commit_index == 1
    return leader


# -- 3.10 handing over -----------------------------------------------------------------------------


def test_leadership_goes_only_to_one_that_has_everything() -> None:
    """3.10. R24: the target gets all first; what it can't be given is refused."""
    leader = ready_leader(learners=(FOUR,))
    leader.do("propose", [Proposal(1, 5, DATA, b"x")])
    assert not sent(leader.with_out("transfer", TWO), TimeoutNow)
    with pytest.raises(NotPossibleNow):
        leader.node.propose([Proposal(1, 5, DATA, b"y")])
    leader.ack(TWO, 2)
    assert [message.target for message in sent(leader.out, TimeoutNow)] == [TWO]
    for wrong in (ME, FOUR, FIVE):
        with pytest.raises(NotPossibleNow):
            leader.with_out("transfer", wrong)


def test_a_handover_has_an_end() -> None:
    """3.10. R24: also if it is asked for again and again, to one whose disk stands still."""
    leader = ready_leader()
    for _ in range(20):
        leader.with_out("transfer", TWO)
        leader.now += 50
        leader.hear(2, 3)
        leader.with_out("tick")
    assert leader.do("propose", [Proposal(1, 5, DATA, b"y")]).persist


def test_a_learner_told_to_lead_does_not() -> None:
    """3.10. R18: nor does one that is not a member, or may not lead, or is recovering."""
    your_turn = TimeoutNow(GROUP, TWO, ME, 5)
    for solo in (
        Solo([1], 5, voters=(TWO, THREE), learners=(ME,)),
        Solo([1], 5, voters=(TWO, THREE)),
        Solo([1], 5, recovering=True),
    ):
        solo.step(your_turn)
        assert solo.node.role == Role.FOLLOWER and solo.node.term == 5
        solo.timeout()
        assert solo.node.role == Role.FOLLOWER and solo.node.term == 5
    stalled = Solo([1], 5)
    stalled.node.may_lead = False
    stalled.step(your_turn)
    assert stalled.node.role == Role.FOLLOWER


# -- 4 members -------------------------------------------------------------------------------------


def test_one_member_at_a_time() -> None:
    """4.1. R14: and none before an entry of the own term is committed."""
    leader = Solo([], 5).as_leader()
    with pytest.raises(NotPossibleNow, match="has not committed"):
        leader.node.change(Config((ME, TWO)), leader.now)
    leader.ack(TWO, 1)
    for wrong in (
        Config(()),
        Config((ME,)),
        Config((ME, TWO, THREE, FOUR)),
        Config((ME, TWO, THREE)),
        Config((ME, TWO, FOUR)),
        Config((ME, TWO, TWO)),
        Config((ME, TWO), (TWO,)),
        Config((ME, TWO, THREE), (FOUR, FIVE)),
        Config((ME, TWO), (FOUR,)),
    ):
        with pytest.raises(NotPossibleNow):
            leader.node.change(wrong, leader.now)
    leader.do("change", Config((ME, TWO)), leader.now)
    with pytest.raises(NotPossibleNow, match="under way"):
        leader.node.change(Config((ME, TWO, THREE)), leader.now)


def test_a_new_configuration_counts_at_once() -> None:
    """4.1. R15: with two voters of two, one acknowledgement is not enough any more."""
    leader = ready_leader(voters=(ME, TWO, THREE, FOUR))
    leader.do("change", Config((ME, TWO, THREE)), leader.now)
    assert leader.node.config == Config((ME, TWO, THREE))
    leader.ack(FOUR, 2)
    assert leader.node.commit_index == 1 and leader.node.ignored == 1, "R8, R17: it is removed"
    leader.ack(TWO, 2)
    assert leader.node.commit_index == 2


def test_a_configuration_goes_with_its_entry() -> None:
    """4.1. R15: truncated, the one before counts again."""
    leader = ready_leader()
    leader.do("change", Config((ME, TWO)), leader.now)
    old = leader.node.configs
    assert leader.node.config == Config((ME, TWO))
    leader.append([6], after=1, after_term=5, term=6)
    assert leader.node.config == Config((ME, TWO, THREE)) and leader.node.configs is old


def test_a_learner_is_promoted_when_it_has_caught_up() -> None:
    """4.2.1. R18: and its acknowledgements count for nothing before."""
    leader = ready_leader(learners=(FOUR,))
    leader.do("propose", [Proposal(1, 5, DATA, b"x")])
    leader.ack(FOUR, 2)
    assert leader.node.commit_index == 1
    leader.ack(TWO, 2)
    assert leader.node.commit_index == 2
    leader.do("propose", [Proposal(1, 5, DATA, b"x")])
    leader.ack(THREE, 3)
    leader.now += leader.node.settings.election_timeout_ms_min + 1
    promoted = Config((ME, TWO, THREE, FOUR))
    with pytest.raises(NotPossibleNow, match="caught up"):
        leader.node.change(promoted, leader.now)
    leader.ack(FOUR, 3)
    leader.do("change", promoted, leader.now)
    assert leader.node.config == promoted


def test_a_learner_of_a_group_that_never_rests_is_promoted_when_its_rounds_are_short() -> None:
    """4.2.1. R18: one that never has everything at the moment when it is looked at."""
    leader = ready_leader(learners=(FOUR,))
    promoted, pause_ms = Config((ME, TWO, THREE, FOUR)), 50

    def written(last: int) -> None:
        leader.now += pause_ms
        leader.do("propose", [Proposal(1, 5, DATA, b"x")])
        leader.ack(TWO, last)
        assert leader.node.commit_index == last

    def is_refused() -> bool:
        with suppress(NotPossibleNow):
            leader.node.change(promoted, leader.now)
            return False
        return True

    behind = 2 * leader.node.settings.election_timeout_ms_min // pause_ms
    for last in range(2, 100):
        written(last)
        leader.ack(FOUR, max(1, last - behind))
        if last > behind:
            assert is_refused(), "its rounds take two election timeouts"
    for last in range(100, 110):
        written(last)
        leader.ack(FOUR, last - 1)
    leader.now += leader.node.settings.election_timeout_ms_min + pause_ms
    assert is_refused(), "it was silent since"
    for last in range(110, 114):
        written(last)
        leader.ack(FOUR, last - 1)
    assert not is_refused()
    assert leader.node.config == promoted


def test_a_learner_votes_when_a_candidate_counts_it() -> None:
    """4.2.1. R18: the candidate's log may hold the promotion that the learner did not get yet."""
    learner = Solo([1], 5, voters=(TWO, THREE), learners=(ME,))
    reply = sent(learner.step(VoteRequest(GROUP, TWO, ME, 6, 2, 5, False)), VoteReply)[-1]
    assert reply.granted


def test_a_leader_does_not_count_itself_once_removed() -> None:
    """4.2.2. R17: and it stops when that is committed."""
    leader = ready_leader()
    leader.do("change", Config((TWO, THREE)), leader.now)
    leader.ack(TWO, 2)
    assert leader.node.commit_index == 1 and leader.node.role == Role.LEADER
    leader.ack(THREE, 2)
    assert leader.node.commit_index == 2 and leader.node.role == Role.FOLLOWER


def test_a_removed_member_gets_no_pre_vote() -> None:
    """4.2.3. R12, R17."""
    voter = Solo([1], 5, voters=(ME, TWO))
    reply = sent(voter.step(VoteRequest(GROUP, THREE, ME, 6, 1, 1, True)), VoteReply)[-1]
    assert not reply.granted


def test_a_live_leader_is_not_disturbed() -> None:
    """4.2.3. R13: unless the leader itself asked for the election."""
    follower = Solo([1], 5).as_follower()
    out = follower.step(VoteRequest(GROUP, THREE, ME, 9, 9, 9, False))
    assert follower.node.term == 5 and not out.send and not out.persist
    follower.step(VoteRequest(GROUP, THREE, ME, 9, 9, 9, False, True))
    assert follower.node.term == 9 and follower.node.vote == THREE


# -- 6 reads and contact ---------------------------------------------------------------------------


def test_a_leader_without_contact_stops() -> None:
    """6.2. R13: within one election timeout, in its own term."""
    leader = ready_leader(voters=(ME, TWO, THREE, FOUR, FIVE))
    leader.now += 499
    leader.hear(2)
    leader.with_out("check_quorum")
    assert leader.node.role == Role.LEADER
    leader.now += 1
    leader.with_out("check_quorum")
    assert leader.node.role == Role.FOLLOWER and leader.node.term == 5


def test_reads_need_a_round_that_began_after_them() -> None:
    """6.4. R10: the contexts of rounds are never used twice, not even by the next leadership."""
    leader = ready_leader()
    leader.with_out("read", 70)
    first = sent(leader.out, Append)[0].context
    leader.with_out("read", 71)
    leader.ack(TWO, 1, context=first)
    assert leader.out.reads == [ReadReady(GROUP, 70, 1)]
    leader.ack(TWO, 1)
    assert leader.out.reads == []
    leader.ack(THREE, 1, context=first + 1)
    assert leader.out.reads == [ReadReady(GROUP, 71, 1)]
    leader.step(AppendReply(GROUP, TWO, ME, 6, False, 0))
    leader.node.term, leader.node.durable_term = 7, 7
    leader.as_leader()
    leader.with_out("read", 72)
    assert sent(leader.out, Append)[0].context > first + 1


def test_there_is_no_lease() -> None:
    """6.4.1. R11: however fresh the contact is, a read waits for its own round."""
    leader = ready_leader()
    leader.ack(TWO, 1)
    leader.ack(THREE, 1)
    assert leader.with_out("read", 70).reads == []
    with pytest.raises(NotLeader):
        Solo([1], 5).as_follower().with_out("read", 71)


def test_reads_wait_for_the_first_entry_of_the_term() -> None:
    """6.4, step 1. R9."""
    leader = Solo([1], 5).as_leader()
    leader.with_out("read", 70)
    context = sent(leader.out, Append)[0].context
    leader.ack(TWO, 1, context=context)
    assert leader.out.reads == []
    leader.ack(TWO, 2)
    assert leader.out.reads == [ReadReady(GROUP, 70, 2)]


def test_an_entry_removed_by_a_leader_change_is_not_read() -> None:
    """6.4. R10: a leader that steps down forgets the reads that it took."""
    leader = ready_leader()
    leader.with_out("read", 70)
    context = sent(leader.out, Append)[0].context
    leader.with_out("step_down")
    leader.ack(TWO, 1, context=context)
    assert leader.out.reads == [] and leader.node.ignored == 1


# -- 9.6 pre-vote ----------------------------------------------------------------------------------


def test_a_pre_vote_changes_nothing() -> None:
    """9.6. R12: not the term, not the vote, not the deadline; the answer has the term asked for."""
    voter = Solo([1], 5, vote=THREE)
    before = (voter.node.term, voter.node.vote, voter.node.deadline)
    out = voter.step(VoteRequest(GROUP, TWO, ME, 6, 1, 1, True))
    assert [(reply.term, reply.granted) for reply in sent(out, VoteReply)] == [(6, True)]
    out = voter.step(VoteRequest(GROUP, TWO, ME, 6, 0, 0, True))
    assert [(reply.term, reply.granted) for reply in sent(out, VoteReply)] == [(5, False)]
    assert (voter.node.term, voter.node.vote, voter.node.deadline) == before and not out.persist


def test_a_candidate_of_an_old_term_learns_the_newer_one() -> None:
    """9.6. R12: or it would ask for a term that nobody grants, forever."""
    solo = Solo([1], 5).as_pre_candidate()
    solo.step(VoteReply(GROUP, TWO, ME, 8, False, True))
    assert (solo.node.term, solo.node.role) == (8, Role.FOLLOWER)


# -- damaged logs ----------------------------------------------------------------------------------


def test_a_recovering_replica_neither_votes_nor_stands_nor_counts() -> None:
    """R2."""
    solo = Solo([1, 1], 5, recovering=True)
    assert not sent(solo.step(VoteRequest(GROUP, TWO, ME, 6, 9, 9, True)), VoteReply)[-1].granted
    assert not sent(solo.step(VoteRequest(GROUP, TWO, ME, 6, 9, 9, False)), VoteReply)[-1].granted
    solo.timeout()
    assert solo.node.role == Role.FOLLOWER
    leader = Solo([], 5).as_leader()
    leader.ack(TWO, 1, is_unhealthy=True)
    assert leader.node.commit_index == 0
    leader.ack(TWO, 1)
    assert leader.node.commit_index == 1


def test_a_recovering_replica_waits_for_a_commit_of_a_newer_term() -> None:
    """R2: in the term of its start any commit may be one of before the crash."""
    solo = Solo([1, 1], 5, recovering=True)
    solo.append([5], commit=3)
    assert (
        solo.node.health is ReplicaHealth.RECOVERING
        and sent(solo.out, AppendReply)[-1].hint_term == 5
    )
    solo.append([6], commit=3, term=6)
    assert solo.node.health == "recovering", "entry 3 is of the older term"
    solo.append([], commit=4)
    assert solo.node.health is ReplicaHealth.HEALTHY
    assert not sent(solo.out, AppendReply)[-1].is_unhealthy, "it says so"


def test_a_recovering_replica_is_not_complete_before_its_disk_is() -> None:
    """R2, R19."""
    solo = Solo([1, 1], 5, recovering=True, instant=False)
    out = solo.append([6], commit=3, term=6)
    assert solo.node.health is ReplicaHealth.RECOVERING
    solo.persist(out)
    assert solo.node.health is ReplicaHealth.HEALTHY


def test_a_leader_makes_way_for_a_recovering_replica() -> None:
    """R2: there will be a newer term; not while nobody else could lead, and not twice."""
    leader = ready_leader()
    leader.step(AppendReply(GROUP, TWO, ME, 5, False, 0, 0, 0, True))
    assert leader.node.leading.followers[TWO].match_index == 0
    leader.ack(TWO, 1, is_unhealthy=True, hint_term=4)
    assert not sent(leader.out, TimeoutNow)
    leader.ack(TWO, 1, is_unhealthy=True, hint_term=5)
    assert [message.target for message in sent(leader.out, TimeoutNow)] == [THREE]
    pair = Solo([], 5, voters=(ME, TWO)).as_leader()
    pair.ack(TWO, 1, is_unhealthy=True, hint_term=5)
    assert not sent(pair.out, TimeoutNow) and pair.do("propose", [Proposal(1, 5, DATA, b"x")])


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_memory_is_bounded_in_every_role(role: str) -> None:
    """Entries that are applied leave memory; the log is the disk's."""
    settings = RaftSettings(memory_bytes_max=10_000)
    solo = Solo([], 5, voters=(ME, TWO), settings=settings)
    if role == "leader":
        solo.as_leader()
    else:
        solo.as_follower()
    for _ in range(100):
        if role == "leader":
            solo.do("propose", [Proposal(1, 5, DATA, b"x" * 1000)])
            solo.ack(TWO, solo.log.last_index)
        else:
            solo.append([5] * 1000, commit=1 << 40)
        solo.node.applied(solo.node.commit_index)
        assert solo.log.memory_bytes <= 10_000
    assert solo.log.last_index > 100 and solo.log.first_index == 1


def test_the_cluster_of_these_tests_loses_what_was_not_synced() -> None:
    """A fake that forgets nothing would prove nothing."""
    cluster = Cluster([1, 2, 3])
    cluster.elect(1)
    cluster.slow.add(1)
    cluster.propose(1, "x")
    cluster.crash(1)
    cluster.start(1)
    assert cluster.node(1).log.last_index == 1
    assert isinstance(cluster.disks[1], Disk)


def test_a_note_on_damage_repeats_no_vote() -> None:
    """R2: the report of the note is no reason to say a vote of before once more."""
    one = Solo([1], 1)
    assert sent(one.step(VoteRequest(GROUP, TWO, ME, 2, 1, 1, False)), VoteReply)[0].granted
    one.out.send.clear()
    one.node.set_repairing(True, one.now, one.out)
    one.persist(one.out)
    assert one.node.health is ReplicaHealth.REPAIRING and not sent(one.out, VoteReply)
