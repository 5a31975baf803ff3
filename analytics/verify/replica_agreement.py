"""One group, all its replicas: whether each log is a possible history, and all are the same one.

Pure: rows of `inspect_range` come in, sorted by disk and place; findings and one summary go out.
This compares terms; `comparisons` compares the bytes of the same entries. The rules, each with its
short name:

| rule | what has to hold |
|---|---|
| vote | a replica's term never falls, and it votes for one candidate in a term |
| term | along a log, terms never fall |
| gap | indices rise by one; what is not there was cut off by a truncation or a log start |
| offset | each entry begins at the offset where the one before ended |
| cut | what was known to be committed is never truncated |
| hint | what is said to be committed is there |
| unknown | entries and votes belong to a group that was created |
| prefix | up to what is committed, all replicas have the same terms at the same indices |
| majority | every committed entry is on a majority of the voters |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from myqueue.analytics.log.msgpack_values import BadPack, unpack
from myqueue.analytics.verify.inspection_rows import WRONG, Event, Finding, Run
from myqueue.analytics.verify.replica_history import (
    Names,
    Story,
    Stretch,
    Teller,
    in_force,
    is_described,
)

MAJORITY_OF = 2


class GroupSummary(NamedTuple):
    """One row of the report: a group over all disks."""

    group: int
    topic: str
    partition: int
    replicas: int
    voters: int
    missing: int  # voters whose logs were not given
    first: int
    commit: int
    entries: int  # in force, up to the commit, on the replica that has most
    lags: list[tuple[str, int]]  # (daemon, entries behind the longest log)
    ends: list[tuple[str, int, int, int]]  # (disk, last index, term, first index)
    removed: bool  # from all disks; a partition that moved was so from some


def judge_group(
    group: int, rows: Iterable[Run | Event], names: Names, known: int = 0
) -> Iterator[Finding | GroupSummary]:
    """Judge the rows of one group, sorted by (disk, segment, position).

    `known` is the index up to which the group is committed, as found elsewhere than in its records
    (`commit_point`); 0 if nothing was found.
    """
    stories: list[Teller] = []
    for row in rows:
        if not stories or stories[-1].story.disk != row.disk:
            if stories:
                yield from stories[-1].ended()
            stories.append(Teller(group, row.disk, names))
        if isinstance(row, Run):
            yield from stories[-1].run(row)
        else:
            yield from stories[-1].event(row)
    if stories:
        yield from stories[-1].ended()
        yield from _compared(group, [one.story for one in stories], names, known)


# -- over the replicas ----------------------------------------------------------------------------


def _compared(
    group: int, stories: list[Story], names: Names, known: int
) -> Iterator[Finding | GroupSummary]:
    topic, partition = _name(stories)
    alive = [one for one in stories if not one.removed]
    voters = _voters(stories)
    commit = max((one.commit for one in alive), default=0)
    commit = max(commit, known) if alive else 0
    spans = {one.disk: in_force(one) for one in alive}
    right = {disk: _right(spans[disk], one) for disk, one in _right_to(alive, spans).items()}
    yield from _prefix(group, alive, right, commit, names)
    ids = {one.created[0] for one in alive if is_described(one.created)}
    missing = len([one for one in voters if one not in ids])
    first = max((one.first_index for one in alive), default=1)
    # If some disk removed the group and not all voters are there, the topic is being deleted.
    if voters and alive and (len(alive) == len(stories) or not missing):
        yield from _majority(group, alive, right, (first, commit), len(voters), missing, names)
    longest = max((one.last for one in alive), default=0)
    counts = [_count(one, commit) for one in right.values()]
    yield GroupSummary(
        group,
        topic,
        partition,
        len(alive),
        len(voters),
        missing,
        first,
        commit,
        max(counts, default=0),
        [(names.daemons.get(one.disk, one.disk), longest - one.last) for one in alive],
        [(one.disk, one.last, one.term, one.first_index) for one in alive],
        not alive,
    )


def _right_to(stories: list[Story], spans: dict[str, list[Stretch]]) -> dict[str, int]:
    """Up to where each log is surely the group's, by disk; as `catalog.Group.right_to`."""
    stretches = {one.disk: [*_joined(spans[one.disk]), *_bases(one)] for one in stories}
    ends = {disk: max((one.term for one in its), default=0) for disk, its in stretches.items()}
    newest = max(ends.values(), default=0)
    newest_stretches = [
        one for disk, its in stretches.items() if ends[disk] == newest for one in its
    ]
    return {
        story.disk: story.last
        if ends[story.disk] in (0, newest)
        else max(story.commit, _same_to(stretches[story.disk], newest_stretches))
        for story in stories
    }


def _bases(story: Story) -> list[Stretch]:
    """The last entry that each snapshot or log start covers, as a stretch of one entry."""
    return [Stretch(index, index, term, 0, 0) for index, term in story.bases if term]


def _same_to(its: list[Stretch], others: list[Stretch]) -> int:
    """The last index of the same term in both; up to there two logs are the same (log matching)."""
    return max(
        (
            min(one.last, other.last)
            for one in its
            for other in others
            if one.term == other.term and max(one.first, other.first) <= min(one.last, other.last)
        ),
        default=0,
    )


def _right(stretches: list[Stretch], last: int) -> list[Stretch]:
    """The stretches, clipped at `last`."""
    clipped = (one._replace(last=min(one.last, last)) for one in stretches)
    return [one for one in clipped if one.first <= one.last]


def _name(stories: list[Story]) -> tuple[str, int]:
    """Topic and partition, from the first creation that can be read; ("", -1) without one."""
    for one in stories:
        if is_described(one.created):
            try:
                about = unpack(one.created[3])
            except (BadPack, TypeError):
                continue
            if isinstance(about, list) and len(about) >= 2:
                return str(about[0]), int(about[1])
    return "", -1


def _voters(stories: list[Story]) -> tuple[int, ...]:
    """The voters of the newest configuration that any replica has, else those of the creation."""
    configs = [one.config for one in stories if one.config is not None]
    if configs:
        return max(configs)[1]
    created = [one.created for one in stories if is_described(one.created)]
    return tuple(created[0][1]) if created else ()


def _count(stretches: list[Stretch], commit: int) -> int:
    """How many committed entries the stretches hold."""
    return sum(max(0, min(one.last, commit) - one.first + 1) for one in stretches)


def _prefix(
    group: int, stories: list[Story], spans: dict[str, list[Stretch]], commit: int, names: Names
) -> Iterator[Finding]:
    """Compare the replicas' terms at each index where a term begins on any of them.

    A replica that differs from most others is named once for each term.
    """
    joined = {one.disk: _joined(spans[one.disk]) for one in stories}
    edges = {one.first for whole in joined.values() for one in whole}
    reported: set[tuple[str, int]] = set()
    for index in sorted(edge for edge in edges if edge <= commit):
        terms = {disk: _term_at(whole, index) for disk, whole in joined.items()}
        known = Counter(term for term in terms.values() if term)
        if len(known) < 2:
            continue
        usual = known.most_common(1)[0][0]
        for disk, term in terms.items():
            if not term or term == usual or (disk, term) in reported:
                continue
            reported.add((disk, term))
            at = next(one for one in spans[disk] if one.first <= index <= one.last)
            other = next(peer for peer, peer_term in terms.items() if peer_term == usual)
            what = (
                f"committed entry {index} has term {term} here and term {usual} on "
                f"{names.daemons.get(other, other)}"
            )
            yield Finding(
                WRONG,
                "prefix",
                what,
                names.daemons.get(disk, disk),
                names.segments.get((disk, at.number), str(at.number)),
                at.position,
                group,
                index,
            )


def _term_at(whole: list[Stretch], index: int) -> int:
    """The term of the entry; 0 if it is not there."""
    return next((one.term for one in whole if one.first <= index <= one.last), 0)


def _joined(stretches: list[Stretch]) -> list[Stretch]:
    """Join neighbours of one term: as many stretches remain as there are terms."""
    out: list[Stretch] = []
    for one in stretches:
        if out and out[-1].term == one.term and out[-1].last + 1 == one.first:
            out[-1] = out[-1]._replace(last=one.last)
        else:
            out.append(one)
    return out


def _majority(
    group: int,
    stories: list[Story],
    spans: dict[str, list[Stretch]],
    bounds: tuple[int, int],
    voters: int,
    missing: int,
    names: Names,
) -> Iterator[Finding]:
    """Find committed entries that fewer than a majority of the voters have.

    `edges` has by index how many replicas begin (+) or end (-) to have the entries there; between
    two edges their number is the same.
    """
    first, commit = bounds
    needed = voters // MAJORITY_OF + 1 - missing  # logs that were not given may have it
    edges: dict[int, int] = {first: 0, commit + 1: 0}
    for story in stories:
        if story.first_index > first:  # what its state covers
            _edge(edges, first, min(story.first_index - 1, commit))
        for one in spans[story.disk]:
            _edge(edges, max(one.first, first), min(one.last, commit))
    have, at = 0, 0
    for edge in sorted(edges):
        if at and have < needed and at <= commit and edge > at:
            what = (
                f"committed entries {at} to {min(edge - 1, commit)} are on {have} of {voters} "
                f"voters, {missing} of which were not looked at"
            )
            yield Finding(WRONG, "majority", what, "", "", 0, group, at)
        have, at = have + edges[edge], edge


def _edge(edges: dict[int, int], first: int, last: int) -> None:
    """Note that one replica more has entries first … last."""
    if first <= last:
        edges[first] = edges.get(first, 0) + 1
        edges[last + 1] = edges.get(last + 1, 0) - 1
