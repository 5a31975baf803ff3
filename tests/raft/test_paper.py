"""The Raft paper (Ongaro and Ousterhout, 2014), section by section, on one replica at a time."""

import pytest
from raft.replicas import FIVE, FOUR, GROUP, ME, THREE, TWO, Solo, sent

from myqueue.daemons.raft.types import (
    CHAIN,
    DATA,
    TERM,
    TYPE,
    Append,
    AppendReply,
    Config,
    Dropped,
    Effects,
    InstallSnapshot,
    InvariantBroken,
    NeedSnapshot,
    NotLeader,
    PersistEntries,
    PersistHardState,
    PersistTruncate,
    Proposal,
    RaftSettings,
    Role,
    VoteReply,
    VoteRequest,
)


def proposal(text: bytes = b"x") -> list[Proposal]:
    return [Proposal(1, 5, DATA, text)]


def ask(term: int, source: int = TWO, log: tuple[int, int] = (9, 9), **more: bool) -> VoteRequest:
    """`log`: last index and term."""
    return VoteRequest(GROUP, source, ME, term, *log, **({"pre": False} | more))


# -- 5.1 terms ------------------------------------------------------------------------------------


def test_a_newer_term_is_taken_over_and_an_older_one_refused() -> None:
    """5.1. R4: a term never goes back. R8: answers of other terms are nothing."""
    leader = Solo([1], 5).as_leader()
    leader.step(AppendReply(GROUP, TWO, ME, 4, True, 2))
    leader.step(VoteReply(GROUP, TWO, ME, 4, True, False))
    assert (leader.node.term, leader.node.commit_index, leader.node.role) == (5, 0, Role.LEADER)
    leader.step(AppendReply(GROUP, TWO, ME, 6, False, 0))
    assert (leader.node.term, leader.node.role) == (6, Role.FOLLOWER)


def test_term_and_vote_are_one_write() -> None:
    """5.1, figure 2, state. R1: and they are on disk before the answer leaves."""
    voter = Solo(term=1, instant=False)
    out = voter.step(ask(2))
    writes = [op for op in out.persist if isinstance(op, PersistHardState)]
    assert writes[-1] == PersistHardState(GROUP, 2, TWO)
    assert not sent(out, VoteReply)
    voter.persist(out)
    assert [reply.granted for reply in sent(out, VoteReply)] == [True]


def test_an_old_report_about_the_hard_state_proves_nothing() -> None:
    """5.1. R1: the report of term 2 comes when the vote of term 3 is not on disk yet."""
    voter = Solo(term=1, instant=False)
    voter.step(ask(2))
    out = voter.step(ask(3, THREE))
    voter.node.hard_state_persisted(2, TWO, voter.now, out)
    assert not sent(out, VoteReply)
    voter.node.hard_state_persisted(3, THREE, voter.now, out)
    assert [reply.target for reply in sent(out, VoteReply)] == [THREE]


# -- 5.2 elections --------------------------------------------------------------------------------


def test_one_vote_a_term_first_come_first_served() -> None:
    """5.2. R1: asked again by the same candidate, the vote is said again, and not written again."""
    voter = Solo(term=1)
    assert sent(voter.step(ask(2)), VoteReply)[-1].granted
    assert not sent(voter.step(ask(2, THREE)), VoteReply)[-1].granted
    again = voter.step(ask(2))
    assert sent(again, VoteReply)[-1].granted and not again.persist


def test_the_own_vote_counts_when_it_is_on_disk() -> None:
    """5.2. R31: with both other votes in, a candidate whose own vote is not written is none."""
    solo = Solo(term=1, instant=False).as_pre_candidate()
    solo.vote(TWO, pre=True)
    assert solo.node.role == Role.CANDIDATE and not sent(solo.out, VoteRequest)
    solo.vote(TWO)
    solo.vote(THREE)
    assert solo.node.role == Role.CANDIDATE
    solo.node.hard_state_persisted(2, ME, solo.now, solo.out)
    assert solo.node.role == Role.LEADER


def test_timeouts_are_random_and_drawn_anew() -> None:
    """5.2. R31: the same timeout each time would split the votes again."""
    solo = Solo(term=1)
    waits = []
    for _ in range(20):
        solo.now = solo.node.deadline
        solo.with_out("tick")
        waits.append(solo.node.deadline - solo.now)
    assert len(set(waits)) > 15 and min(waits) >= 500 and max(waits) <= 1000


def test_refusals_of_a_majority_end_a_candidacy() -> None:
    """5.2. A candidate that can't win any more waits anew; R30: it never speaks as a leader."""
    solo = Solo([1], 5, voters=(ME, TWO, THREE, FOUR, FIVE)).as_candidate()
    for voter in (TWO, THREE, FOUR):
        solo.vote(voter, granted=False)
    assert solo.node.role == Role.FOLLOWER and not sent(solo.out, Append)


def test_a_late_vote_does_not_make_a_leader() -> None:
    """5.2. R8, R30: votes of a term that is over, or for a candidacy that is over."""
    solo = Solo([1], 5).as_candidate()
    solo.append(source=TWO, term=5)
    solo.vote(THREE)
    assert solo.node.role == Role.FOLLOWER and solo.node.leader == TWO


# -- 5.3 log replication --------------------------------------------------------------------------


def test_a_message_that_does_not_fit_is_refused() -> None:
    """5.3, consistency check. R23: the answer names the last place that can still agree."""
    follower = Solo([1, 1, 2, 2, 4], 5).as_follower()
    reply = sent(follower.append([5], after=9, after_term=3))[-1]
    assert (reply.ok, reply.index, reply.hint_term) == (False, 4, 2)
    assert not follower.out.persist and follower.node.log.last_index == 5


def test_only_an_entry_whose_term_differs_is_removed() -> None:
    """5.3, figure 2, 3. and 4. R6: a shorter, older message removes nothing."""
    follower = Solo([1, 1, 2, 2], 5).as_follower()
    follower.append([1, 2], after=1)
    assert follower.node.log.last_index == 4 and not follower.out.persist
    follower.append([1, 2, 5], after=1)
    removed = next(one for one in follower.out.persist if isinstance(one, PersistTruncate))
    assert removed.index == 4
    assert (follower.node.log.last_index, follower.node.log.last_term) == (4, 5)


def test_a_commit_goes_as_far_as_this_message_proved() -> None:
    """5.3, figure 2, 5.: index of last *new* entry. R3: what is behind it may be another's."""
    follower = Solo([1, 1, 1, 1, 1], 5)
    follower.append([], after=2, commit=5)
    assert follower.node.commit_index == 2
    assert sent(follower.out, AppendReply)[-1].index == 2, "nor is more acknowledged"


def test_what_is_committed_is_never_removed() -> None:
    """5.3. R7: a leader that contradicts a committed entry stops the process."""
    follower = Solo([1, 1, 2], 5, commit=3).as_follower()
    with pytest.raises(InvariantBroken, match="truncation at 3, committed 3"):
        follower.append([4], after=2, term=6)


def test_logs_that_differ_within_a_term_stop_the_process() -> None:
    """5.3, log matching. W21: the digest of everything before is in each message."""
    follower = Solo([1, 1], 5).as_follower()
    message = Append(GROUP, TWO, ME, 5, 2, 1, 12345, [], 0)
    with pytest.raises(InvariantBroken, match="W21"):
        follower.step(message)
    same = Append(GROUP, TWO, ME, 5, 2, 1, follower.node.log.chain(2), [], 0)
    assert sent(follower.step(same))[-1].ok


def test_nothing_is_acknowledged_before_it_is_on_disk() -> None:
    """5.3. W1; W11: a report about an entry that is another one by now is ignored."""
    follower = Solo([1], 5, instant=False).as_follower()
    out = follower.append([5, 5])
    assert not sent(out, AppendReply)
    follower.node.persisted(5, 2, follower.now, out)
    assert [reply.index for reply in sent(out, AppendReply)] == [2]
    follower.node.persisted(4, 3, follower.now, out)
    assert follower.node.log.persisted_index == 2


def test_the_term_is_on_disk_before_its_leader_gets_an_answer() -> None:
    """5.3. R1: or two leaders of one term could each be answered, around a crash."""
    follower = Solo([1], 5, instant=False)
    out = follower.append([], term=6)
    assert not sent(out, AppendReply)
    follower.node.hard_state_persisted(6, 0, follower.now, out)
    assert sent(out, AppendReply)[-1].ok


def test_a_slow_follower_is_probed_and_blocks_nobody() -> None:
    """5.3. R28: messages and bytes on their way to one follower are limited."""
    settings = RaftSettings(inflight_messages_max=4, append_entries_max=1)
    leader = Solo([], 5, settings=settings).as_leader()
    leader.ack(TWO, 1)
    leader.ack(THREE, 1)
    leader.do("propose", proposal() * 10)
    assert [len(sent(leader.out, Append)), {m.target for m in leader.out.send}] == [8, {TWO, THREE}]
    leader.ack(TWO, 3)
    assert {message.target for message in leader.out.send} == {TWO}
    bytes_limited = RaftSettings(inflight_bytes_max=1000, append_bytes_max=600)
    leader = Solo([], 5, settings=bytes_limited).as_leader()
    leader.ack(TWO, 1)
    leader.do("propose", proposal(b"x" * 300) * 10)
    sizes = [len(m.entries) for m in sent(leader.out, Append) if m.target == TWO]
    assert sizes == [2, 2]


def test_next_never_goes_below_match() -> None:
    """5.3. R4, R23: a late refusal does not make the leader forget what was acknowledged."""
    leader = Solo([1, 1, 1], 5).as_leader()
    leader.ack(TWO, 4)
    leader.step(AppendReply(GROUP, TWO, ME, 5, False, 1, 1))
    follower = leader.node.leading.followers[TWO]
    assert (follower.match_index, follower.next_index) == (4, 5)
    leader.ack(TWO, 2)
    assert follower.match_index == 4
    leader.do("propose", proposal())
    leader.step(AppendReply(GROUP, TWO, ME, 5, False, 5, 0))
    assert (follower.match_index, follower.next_index) == (4, 5)


# -- 5.4 safety -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "granted"), [((3, 2), True), ((2, 3), True), ((9, 1), False), ((2, 2), False)]
)
def test_the_log_decides_by_term_and_then_by_length(log: tuple[int, int], granted: bool) -> None:
    """5.4.1. R31. The own log is 1 1 2."""
    voter = Solo([1, 1, 2], 5)
    assert sent(voter.step(ask(6, log=log)), VoteReply)[-1].granted == granted


def test_only_entries_of_the_own_term_are_counted() -> None:
    """5.4.2, figure 8. R5: a majority has entries 1..3 of older terms; nothing is committed."""
    leader = Solo([1, 1, 2], 5).as_leader()
    leader.ack(TWO, 3)
    leader.ack(THREE, 3)
    assert leader.node.commit_index == 0
    leader.ack(TWO, 4)
    assert leader.node.commit_index == 4, "and all before it"


def test_the_first_entry_of_a_leader_is_empty() -> None:
    """5.4.2 and 8. R9."""
    leader = Solo([1], 5).as_leader()
    entry = leader.node.log.in_memory(2, 2)
    assert entry and (entry[0][TERM], entry[0][TYPE]) == (5, 1)


def test_a_leader_does_not_count_its_own_entries_before_its_disk_has_them() -> None:
    """5.4; thesis 10.2.1. W1, W2: also in a group of one."""
    leader = Solo([], 5).as_leader()
    leader.ack(TWO, 1)
    leader.instant = False
    out = leader.do("propose", proposal())
    assert leader.node.commit_index == 1
    leader.ack(TWO, 2)
    assert leader.node.commit_index == 1
    leader.persist(out)
    assert leader.node.commit_index == 2
    alone = Solo([], 5, voters=(ME,)).as_leader()
    assert alone.node.commit_index == 1
    alone.instant = False
    out = alone.do("propose", proposal())
    assert alone.node.commit_index == 1
    alone.persist(out)
    assert alone.node.commit_index == 2


def test_all_replicas_hold_the_same_entry() -> None:
    """5.4.3. R27: the leader stamps the time; offsets and digests come with the entry."""
    leader = Solo([], 5).as_leader()
    leader.ack(TWO, 1)
    leader.do("propose", [Proposal(3, 77, DATA, b"a"), Proposal(2, 78, DATA, b"b")])
    entries = sent(leader.out, Append)[0].entries
    assert [entry[2:5] for entry in entries] == [(0, 3, 77), (3, 2, 78)]
    assert entries == leader.node.log.in_memory(2, 3)
    assert len({entry[CHAIN] for entry in entries}) == 2


# -- 5.5 to 7: crashes, timing, snapshots ---------------------------------------------------------


def test_a_leader_that_stops_says_what_is_uncertain() -> None:
    """5.5 and 8. R30: what it has in hand is written, and nothing is sent in the new term."""
    leader = Solo([], 5).as_leader()
    leader.node.propose(proposal())
    out = leader.step(AppendReply(GROUP, TWO, ME, 6, False, 0))
    assert [type(op) for op in out.persist] == [PersistEntries, PersistHardState]
    assert out.dropped == [Dropped(GROUP, 1, 5)] and not out.send
    with pytest.raises(NotLeader):
        leader.node.propose(proposal())


def test_a_commit_ahead_of_the_log_is_clamped() -> None:
    """5.5. R25: a state machine that is ahead of what the disk kept of the log."""
    solo = Solo([1, 1], 5, commit=9, applied=4)
    assert (solo.node.commit_index, solo.node.applied_index) == (2, 4)
    solo.append([5, 5, 5], commit=5)
    assert [(apply.first, apply.last) for apply in solo.out.apply] == [(5, 5)]


def test_a_missing_term_is_an_error() -> None:
    """7. R22: an index below the start of the log has no term; it is not term 0."""
    solo = Solo([1, 1, 2, 2], 5, commit=4, applied=4)
    solo.node.start_log_at(4, 2, 3, 0)
    with pytest.raises(InvariantBroken, match="no term at 2"):
        solo.node.log.term(2)
    leader = solo.as_leader()
    leader.step(AppendReply(GROUP, TWO, ME, 5, False, 1, 1))
    assert leader.out.fetch == [NeedSnapshot(GROUP, TWO)]


def test_a_snapshot_is_of_what_was_applied() -> None:
    """7. R20, R16: a configuration that is committed but not applied is not in it."""
    leader = Solo([], 5).as_leader()
    leader.ack(TWO, 1)
    leader.node.applied(1)
    before = leader.node.config
    leader.do("change", before._replace(voters=(ME, TWO)), leader.now)
    leader.ack(TWO, 2)
    assert leader.node.commit_index == 2 and leader.node.applied_index == 1
    assert leader.node.configs.at(leader.node.applied_index) == before
    leader.node.applied(2)
    assert leader.node.configs.at(2).voters == (ME, TWO)


def test_only_applied_entries_may_leave_the_log() -> None:
    """7. R20."""
    solo = Solo([1, 1, 1], 5, commit=3, applied=1)
    with pytest.raises(InvariantBroken, match="beyond applied"):
        solo.node.start_log_at(3, 1, 2, 0)


def test_a_snapshot_that_is_behind_the_state_brings_no_members_of_before() -> None:
    """7. R16, R25: the log lost its end, the state knows a later change; it is saved with it."""
    solo = Solo([1], 5, applied=12, recovering=True).as_follower()
    now, before = solo.node.config, Config((ME, TWO, THREE, FOUR))
    snapshot = solo.snapshot(9, 4, 6, 4)._replace(config=before)
    solo.step(InstallSnapshot(GROUP, TWO, ME, 5, snapshot))
    assert (solo.node.commit_index, solo.node.applied_index) == (5, 12)
    assert solo.node.configs.at(solo.node.applied_index) == now


def test_a_follower_that_installs_acknowledges_nothing() -> None:
    """7. R19: until the state is on its disk; and what it has not verified does not count."""
    solo = Solo([1], 5, instant=False).as_follower()
    message = InstallSnapshot(GROUP, TWO, ME, 5, solo.snapshot(9, 4, 6, 4))
    out = solo.step(message)
    solo.append([5], after=5, commit=9)
    assert not sent(out, AppendReply) and not sent(solo.out, AppendReply)
    solo.append([], after=6, commit=9, context=1)
    assert not sent(solo.out, AppendReply), "nor is a read confirmed by a log that may vanish"
    assert (solo.node.commit_index, solo.node.applied_index) == (6, 9)
    solo.node.snapshot_persisted(9, solo.out)
    assert sent(solo.out, AppendReply)[-1].index == 5, "up to the start; the rest is being written"


def test_a_snapshot_is_refused_by_a_log_that_reaches_its_start() -> None:
    """7. R19: what follows the start was acknowledged, and may be missing for a majority."""
    for start in (5, 2, 1):
        solo = Solo([1] * 6, 5, commit=3, applied=3).as_follower()
        solo.step(InstallSnapshot(GROUP, TWO, ME, 5, solo.snapshot(9, 4, start, min(1, start - 1))))
        assert solo.node.log.last_index == 6 and not solo.out.persist
        assert sent(solo.out, AppendReply)[-1].ok
    solo.step(InstallSnapshot(GROUP, TWO, ME, 5, solo.snapshot(9, 4, 5, 3)))
    assert solo.node.log.first_index == 5, "entry 4 is of another term: the logs differ there"


def test_what_a_snapshot_holds_is_not_applied_again() -> None:
    """7. R20: nor is what was handed over for it in the same turn, before it came."""
    solo = Solo([1, 1], 5).as_follower()
    message = InstallSnapshot(GROUP, TWO, ME, 5, solo.snapshot(9, 4, 6, 4))
    out = Effects()
    solo.node.step(Append(GROUP, TWO, ME, 5, 2, 1, 0, [], 2), solo.now, out)
    assert len(out.apply) == 1
    solo.node.step(message, solo.now, out)
    assert out.apply == []
    solo.append([4] * 4 + [5], after=5, commit=10)
    assert [(apply.first, apply.last) for apply in solo.out.apply] == [(10, 10)]


def test_the_same_turn_makes_entries_only_once() -> None:
    """5.3. Proposals of one turn are one write and one message to each follower."""
    leader = Solo([], 5).as_leader()
    for replica in (TWO, THREE):
        leader.ack(replica, 1)
    leader.node.propose(proposal())
    leader.do("propose", proposal())
    assert [len(op.entries) for op in leader.out.persist] == [2]
    assert [len(message.entries) for message in sent(leader.out, Append)] == [2, 2]
