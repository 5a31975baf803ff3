"""How far a group is committed where no hint says so: proved by the logs of a majority. Pure.

An entry is safe for good if a majority of the voters has it and no leader without it was elected
after its term, nor can be. To be elected takes the votes of a majority, so of one that has the
entry; and a voter gives its vote in a term at most once, and never to a replica whose log lacks
what its own has. So what counts of each voter that has the entry is its newest vote:

- its term is the entry's: it gave no vote since, and will give none to a log without the entry;
- it voted in a later term, for a replica that has the entry as well: that vote did no harm;
- anything else: it may have voted for a leader that cuts the entry off.

If in each later term fewer than a majority may have voted so, the entry is committed, or will be as
soon as there is a leader. The argument holds for each voter from the moment on at which its log was
read, so logs of the same members need not be of one moment.

Members may have changed. Members of a configuration elect nobody any more once a later one is known
to be committed. So a majority is asked for in the newest configuration up to the known commit, and
in each one after it, also in those before the entry: where logs were copied while members changed,
a replica that knows only such an older one may still be elected by its members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from myqueue.analytics.verify.replica_history import Stretch

Configs = Sequence[tuple[int, tuple[int, ...]]]  # (index, voters), by index


class Witness(NamedTuple):
    """One replica's log: the newest term and vote, and the entries that are in force."""

    replica: int
    term: int
    vote: int  # 0: none in this term
    stretches: Sequence[Stretch]


class Proof(NamedTuple):
    """The last entry that is proved to be committed; index 0: none is."""

    index: int = 0  # type: ignore[assignment]  # tuple.index is not used
    term: int = 0


def proven(witnesses: Sequence[Witness], configs: Configs, known: int = 0) -> Proof:
    """`known`: up to here the group is known to be committed."""
    ends: dict[int, set[int]] = {}
    for one in witnesses:
        for stretch in one.stretches:
            ends.setdefault(stretch.term, set()).add(stretch.last)
    for term in sorted(ends, reverse=True):
        for index in sorted(ends[term], reverse=True):
            holders = {w.replica: w for w in witnesses if _has(w, index, term)}
            relevant = _may_be_in_force(configs, index, known)
            if relevant and all(_is_safe(holders, voters, term) for voters in relevant):
                return Proof(index, term)
    return Proof()


def _has(witness: Witness, index: int, term: int) -> bool:
    """A log whose votes are older than its entries has lost some: it proves nothing."""
    return witness.term >= term and any(
        one.term == term and one.first <= index <= one.last for one in witness.stretches
    )


def _may_be_in_force(configs: Configs, index: int, known: int) -> list[tuple[int, ...]]:
    """The newest one that is known to be committed, and all after it: each may be cut off, or not.
    None if the members at the entry are not known: its replicas were created with different ones.
    """
    least = max((at for at, _ in configs if at <= known), default=0)
    before = [at for at, _ in configs if least <= at <= index]
    if not before or (max(before) == 0 and len(before) > 1):
        return []
    return [voters for at, voters in configs if at >= least]


def _is_safe(holders: Mapping[int, Witness], voters: tuple[int, ...], term: int) -> bool:
    have = [holders[voter] for voter in voters if voter in holders]
    needed = len(voters) // 2 + 1
    if not voters or len(have) < needed:
        return False
    if len(voters) == 1:
        return True  # nobody else was ever its leader
    newest = max(one.term for one in have)
    # Between two of the terms that are known all is as it is next to them.
    near = {term + 1} | {one.term + by for one in have for by in (-1, 0, 1)}
    for later in near:
        if term < later <= newest:
            against = sum(_may_have_harmed(one, later, holders) for one in have)
            if len(voters) - len(have) + against >= needed:
                return False
    return True


def _may_have_harmed(one: Witness, later: int, holders: Mapping[int, Witness]) -> bool:
    """Whether it may have given its vote of this term to a log without the entry."""
    if one.term < later or (one.term == later and not one.vote):
        return False
    voted_for = holders.get(one.vote) if one.term == later else None
    return voted_for is None or voted_for.term > later
