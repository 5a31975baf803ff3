"""How far a group is committed where no hint says so: proved by the logs of a majority. Pure.

An entry is safe for good if a majority of the voters has it, and no leader without it was or can be
elected in a later term. A leader needs the votes of a majority, so the vote of at least one voter
that has the entry. A voter votes at most once in a term, and never for a replica whose log lacks
entries that its own log has. So the newest vote of each voter that has the entry decides:

- The voter's term is the entry's term: it has not voted since, and will not vote for a log without
  the entry.
- It voted in a later term, for a replica that has the entry as well: that vote did no harm.
- Anything else: it may have voted for a leader that cuts the entry off.

If in each later term fewer than a majority may have voted for such a leader, the entry is
committed, or will be as soon as there is a leader. The argument holds for each voter from the
moment at which its log was read, so the logs need not be of one moment.

Members may have changed. The members of a configuration can elect no leader any more once a later
configuration is known to be committed. So a majority is required in the newest configuration up to
the known commit, and in each one after it, also in those before the entry: if logs were copied
while members changed, a replica that knows only such an older configuration may still be elected by
its members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from myqueue.analytics.verify.replica_history import Stretch

Configs = Sequence[tuple[int, tuple[int, ...]]]  # (index, voters), by index


class Witness(NamedTuple):
    """One replica's log: its newest term and vote, and the entries that are in force."""

    replica: int
    term: int
    vote: int  # 0: none in this term
    stretches: Sequence[Stretch]


class Proof(NamedTuple):
    """The last entry that is proved to be committed; index 0: none is."""

    index: int = 0  # type: ignore[assignment]  # tuple.index is not used
    term: int = 0


def proven(witnesses: Sequence[Witness], configs: Configs, known: int = 0) -> Proof:
    """Return the last entry that the witnesses prove to be committed.

    `known` is the index up to which the group is known to be committed from elsewhere.
    """
    ends: dict[int, set[int]] = {}
    for witness in witnesses:
        for stretch in witness.stretches:
            ends.setdefault(stretch.term, set()).add(stretch.last)
    for term in sorted(ends, reverse=True):
        for index in sorted(ends[term], reverse=True):
            holders = {w.replica: w for w in witnesses if _has(w, index, term)}
            relevant = _may_be_in_force(configs, index, known)
            if relevant and all(_is_safe(holders, voters, term) for voters in relevant):
                return Proof(index, term)
    return Proof()


def _has(witness: Witness, index: int, term: int) -> bool:
    """Whether this log has the entry and can prove something about it.

    A log whose newest term is older than its entries' has lost votes, so it proves nothing.
    """
    return witness.term >= term and any(
        one.term == term and one.first <= index <= one.last for one in witness.stretches
    )


def _may_be_in_force(configs: Configs, index: int, known: int) -> list[tuple[int, ...]]:
    """The voters of each configuration that may be in force at `index`: the newest one that is
    known to be committed, and all after it, since each of these may be cut off or not.

    Empty if the members at the entry are not known: its replicas were created with different ones.
    """
    least = max((at for at, _ in configs if at <= known), default=0)
    before = [at for at, _ in configs if least <= at <= index]
    if not before or (max(before) == 0 and len(before) > 1):
        return []
    return [voters for at, voters in configs if at >= least]


def _is_safe(holders: Mapping[int, Witness], voters: tuple[int, ...], term: int) -> bool:
    """Whether these voters elected, and can elect, no leader that lacks the entry of this term."""
    have = [holders[voter] for voter in voters if voter in holders]
    needed = len(voters) // 2 + 1
    if not voters or len(have) < needed:
        return False
    if len(voters) == 1:
        return True  # no other replica was ever the leader
    newest = max(one.term for one in have)
    # Votes change only at the known terms, so these and their neighbours stand for all terms.
    near = {term + 1} | {one.term + by for one in have for by in (-1, 0, 1)}
    for later in near:
        if term < later <= newest:
            against = sum(_may_have_harmed(one, later, holders) for one in have)
            if len(voters) - len(have) + against >= needed:
                return False
    return True


def _may_have_harmed(voter: Witness, later: int, holders: Mapping[int, Witness]) -> bool:
    """Whether the voter may have voted in the later term for a log without the entry."""
    if voter.term < later or (voter.term == later and not voter.vote):
        return False
    voted_for = holders.get(voter.vote) if voter.term == later else None
    return voted_for is None or voted_for.term > later
