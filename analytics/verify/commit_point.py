"""How far each partition is committed, where no commit hint in the logs says so.

Comes in: a catalog and what is wanted of it. Goes out: a `Judgement`; the groups' `proven` index
and the parts' `right` index are raised.

Daemons write commit hints into their logs a second apart, and the newest hint of a group is kept.
Logs of older programs may lack hints, and so do the last moments of a killed daemon. Entries that
no hint covers are examined in this order:

1. The logs of a majority prove that they are committed (`commit_evidence`, `commit_proof`).
2. The store of a stopped daemon on this machine says that they were applied.

A group without any proof is `unknown`, never empty: the caller refuses it or names it as left out.
Entries after the last one that is known to be committed are `beyond`. A log that is being written
always has some for a second, so entries younger than HINT_COMES_MS are not examined.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from myqueue.analytics.log.catalog import (
    MANAGERS_GROUP,
    Catalog,
    Group,
    TermRun,
    make_catalog,
    same_to,
)
from myqueue.analytics.log.discovery import Log, find_logs, looked
from myqueue.analytics.log.plan import Wanted
from myqueue.analytics.verify import stores
from myqueue.analytics.verify.commit_evidence import bytes_of, stories
from myqueue.analytics.verify.commit_proof import Configs, Proof, Witness, proven
from myqueue.analytics.verify.replica_history import Story, in_force, is_described, is_whole
from myqueue.errors import CorruptData, FormatUnknown, UnknownTopic

HINT_COMES_MS = 10_000  # a hint that is not there after this time does not come
CLOCKS_DIFFER_MS = 10_000  # a leader's stamp may be later than now by so much
# The most that is read for entries after a hint. Without any hint, as much is read as it takes.
READ_FOR_TAILS_BYTES = 1 << 30
SHOWN = 5  # partitions that a text names


def wall_ms() -> int:
    """Milliseconds since 1970. Whether a hint may still come depends on the time of day."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000


class EntryRange(NamedTuple):
    """Consecutive entries of a partition, first and last included."""

    topic: str
    partition: int
    first: int
    last: int
    is_new: bool  # a hint may still come


class _Known(NamedTuple):
    """The proof about a group. It holds as long as `_seen` of the group stays the same."""

    seen: tuple[Any, ...]
    proof: Proof
    right: dict[str, int]  # by disk: `catalog.Part.right`


@dataclass
class Judgement:
    """Entries that can't be given out, by reason."""

    unknown: list[EntryRange] = field(
        default_factory=list
    )  # nothing tells what is committed of them
    beyond: list[EntryRange] = field(default_factory=list)  # all entries before these are committed
    absent: list[EntryRange] = field(default_factory=list)  # committed, and for certain in no log


class CommitJudge:
    """Finds how far groups are committed, and keeps its proofs: a stream asks for the same logs
    again and again.

    Without `ask_stores`, stores of stopped daemons are not read.
    """

    def __init__(
        self, *, ask_stores: bool = True, clock_ms: Callable[[], int] | None = None
    ) -> None:
        self._ask_stores, self._clock_ms = ask_stores, clock_ms or wall_ms
        self._known: dict[int, _Known] = {}

    def looked_at(self, paths: Iterable[str], wanted: Wanted) -> tuple[Catalog, Judgement]:
        """Make the catalog of these logs and judge it.

        Both are of one state of the logs, also while daemons reclaim segments.
        """

        def look() -> tuple[Catalog, Judgement]:
            catalog = make_catalog(find_logs(paths))
            return catalog, self.judge(catalog, wanted)

        return looked(look)

    def judge(self, catalog: Catalog, wanted: Wanted, *, with_managers: bool = False) -> Judgement:
        """Raise `proven` of the wanted groups as far as there is proof, and return the rest."""
        now = self._clock_ms()
        groups = {
            uid: group for uid, group in catalog.groups.items() if _is_asked_for(group, wanted)
        }
        if not with_managers:
            groups.pop(MANAGERS_GROUP, None)
        self._remember(groups)
        unsure = [uid for uid, group in groups.items() if _is_unknown(group)]
        tails = [
            uid
            for uid, group in groups.items()
            if (_has_tail(group) and not _is_new(group, now)) or _is_in_doubt(group)
        ]
        tails = [uid for uid in tails if uid not in self._known]
        if tails and bytes_of(catalog, {*unsure, *tails}) <= READ_FOR_TAILS_BYTES:
            unsure = [*{*unsure, *tails}]
        unsure = [uid for uid in unsure if uid not in self._known]
        if unsure:
            seen = {uid: _seen(groups[uid]) for uid in unsure}
            for uid, replicas in stories(catalog, set(unsure)).items():
                _take_stories(groups[uid], replicas)
            if self._ask_stores:
                _ask_stores(catalog, {uid: groups[uid] for uid in unsure})
            for uid in unsure:
                group = groups[uid]
                right = {disk: part.right for disk, part in group.parts.items()}
                self._known[uid] = _Known(seen[uid], Proof(group.proven, group.proven_term), right)
        judgement = Judgement()
        for group in groups.values():
            if _is_unknown(group):
                judgement.unknown.append(_rest(group, now))
            elif _has_tail(group):
                judgement.beyond.append(_rest(group, now))
            judgement.absent += _absent(group)
        return judgement

    def _remember(self, groups: dict[int, Group]) -> None:
        """Apply earlier proofs to groups that have not changed since; forget the other proofs."""
        for uid, known in list(self._known.items()):
            group = groups.get(uid)
            if group is None or _seen(group) != known.seen:
                del self._known[uid]
                continue
            _take_proof(group, known.proof)
            for disk, right in known.right.items():
                if disk in group.parts:
                    group.parts[disk].right = max(group.parts[disk].right, right)


def refuse_unknown(judgement: Judgement, way_on: str) -> None:
    """Raise CorruptData if a partition is unknown, unless it was created a moment ago.

    `way_on` ends the error's hint: how the caller leaves such partitions out.
    """
    stretches = [one for one in judgement.unknown if not one.is_new]
    if stretches:
        raise CorruptData(
            f"nothing in these logs tells what is committed of {named(stretches)}",
            hint=f"Give the logs of all replicas (or stop a daemon that has one). {way_on}",
        )


def refuse_strangers(catalog: Catalog, topics: Iterable[str] | None) -> None:
    """Raise UnknownTopic for a topic that is in none of the logs."""
    there = sorted({one.topic for one in catalog.groups.values() if one.topic and not one.removed})
    for name in topics or ():
        if name not in there:
            topics_shown = ", ".join(there[:50]) + (" …" if len(there) > 50 else "")
            raise UnknownTopic(
                f"topic {name!r} is in none of these logs",
                hint=f"There are {topics_shown}." if there else "There are no topics in them.",
            )


def notes(judgement: Judgement) -> list[str]:
    """Describe for people what is left out; empty if nothing is."""
    out = []
    if judgement.unknown:
        names = named(judgement.unknown)
        out.append(f"left out, since nothing tells what is committed of it: {names}")
    if judgement.beyond:
        count = sum(one.last - one.first + 1 for one in judgement.beyond)
        names = named(judgement.beyond)
        out.append(
            f"left out: {count:,} entries behind what is known to be committed, of {names}; "
            "a running cluster says so a second later"
        )
    if judgement.absent:
        out.append(f"left out: {absent(judgement)}")
    return out


def absent(judgement: Judgement) -> str:
    """Describe for people the committed entries that no log has for certain."""
    count = sum(one.last - one.first + 1 for one in judgement.absent)
    return (
        f"{count:,} committed entries that are in none of these logs for certain, of "
        f"{named(judgement.absent)}; other replicas or newer archives have them"
    )


def named(stretches: list[EntryRange]) -> str:
    """List the first SHOWN partitions with their entries, and the number of the others."""
    shown = [f"{_name(one)} (entries {one.first} to {one.last})" for one in stretches[:SHOWN]]
    more = f" and {len(stretches) - SHOWN:,} more partitions" if len(stretches) > SHOWN else ""
    return ", ".join(shown) + more


def _name(stretch: EntryRange) -> str:
    return f"{stretch.topic}/{stretch.partition}" if stretch.topic else "the managers' tables"


def _is_asked_for(group: Group, wanted: Wanted) -> bool:
    is_named = bool(group.topic) or group.uid == MANAGERS_GROUP
    return is_named and not group.removed and wanted.has_group(group)


def _has_tail(group: Group) -> bool:
    """Whether entries stand after the last one that is known to be committed."""
    return group.end is not None and group.end.last > group.commit_index


def _is_unknown(group: Group) -> bool:
    """Whether there are entries, and not one of them is known to be committed."""
    return _has_tail(group) and group.commit_index < group.first_index


def _is_new(group: Group, now_ms: int) -> bool:
    """Whether a hint may still come for its last entries.

    A stamp far in the future does not count: the group would be new until that time.
    """
    end = group.end
    newest_ms = max(end.last_time_ms if end else 0, group.created_ms)
    return -CLOCKS_DIFFER_MS <= now_ms - newest_ms < HINT_COMES_MS


def _rest(group: Group, now_ms: int) -> EntryRange:
    """The entries after the last one that is known to be committed."""
    last = group.end.last if group.end is not None else 0
    first = max(group.first_index, group.commit_index + 1)
    return EntryRange(group.topic, group.partition, first, last, _is_new(group, now_ms))


def _absent(group: Group) -> Iterator[EntryRange]:
    """Committed entries that no log has for certain.

    If a daemon was down when another leader was elected, the entries of its log after the commit
    that it knew do not count as copies: they may be cut off.
    """
    pieces = [(one.first, one.last) for disk in group.parts for one in group.right_pieces(disk)]
    for first, last in _holes(group, pieces):
        yield EntryRange(group.topic, group.partition, first, last, False)


def _is_in_doubt(group: Group) -> bool:
    """Whether a log has committed entries that no log has for certain. Their terms decide, which
    a closer reading finds.
    """
    right = [(one.first, one.last) for disk in group.parts for one in group.right_pieces(disk)]
    there = [(one.first, one.last) for part in group.parts.values() for one in part.in_force()]
    return any(
        max(first, low) <= min(last, high)
        for first, last in _holes(group, right)
        for low, high in there
    )


def _holes(group: Group, pieces: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Committed entries that are in none of the pieces."""
    at, after = group.first_index, group.commit_index + 1
    for first, last in [*sorted(pieces), (after, after)]:
        if at < min(first, after):
            yield at, min(first, after) - 1
        at = max(at, last + 1)


def _seen(group: Group) -> tuple[Any, ...]:
    """Changes when a proof about the group has to be made again."""
    return group.end, group.commit_index, tuple(_absent(group))


def _take_stories(group: Group, replicas: list[Story]) -> None:
    """Set from the terms of all entries what is committed, and how far each log is right."""
    _take_proof(group, _proven(replicas, group.commit_index))
    runs = {
        one.disk: [TermRun(*stretch[:3]) for stretch in in_force(one)]
        for one in replicas
        if is_whole(one)
    }
    sure = [TermRun(group.proven, group.proven, group.proven_term)] if group.proven_term else []
    for disk, part in group.parts.items():
        sure += part.sure()
        upto = part.commit_index
        sure += [
            one._replace(last=min(one.last, upto))
            for one in runs.get(disk, ())
            if one.first <= upto
        ]
    for disk, part in group.parts.items():
        part.right = max(part.right, same_to(runs.get(disk, ()), sure))


def _take_proof(group: Group, proof: Proof) -> None:
    if proof.index > group.proven:
        group.proven, group.proven_term = proof.index, proof.term


def _proven(replicas: list[Story], known: int) -> Proof:
    """Return what a majority of these logs proves.

    If something in a log can't be read after the group's first record, the log may lack a vote or
    a truncation, so it is no witness. Its configurations count all the same.
    """
    alive = [one for one in replicas if not one.removed]
    witnesses = [
        Witness(int(one.created[0]), one.term, one.vote, in_force(one))
        for one in alive
        if is_described(one.created) and not one.is_doubtful and is_whole(one)
    ]
    return proven(witnesses, _configs(alive), known)


def _configs(replicas: list[Story]) -> Configs:
    configs = {(0, tuple(one.created[1])) for one in replicas if is_described(one.created)}
    configs.update(one for story in replicas for one in (*story.saved_configs, *story.configs))
    return sorted(configs)


def _ask_stores(catalog: Catalog, groups: dict[int, Group]) -> None:
    """Read the stores of stopped daemons in folders of this machine for what they applied."""
    for log in catalog.logs:
        unsettled = {
            uid: group
            for uid, group in groups.items()
            if log.disk in group.parts and _has_tail(group)
        }
        if unsettled:
            for uid, applied in _applied(log, unsettled):
                take_applied(unsettled[uid], log.disk, applied)


def take_applied(group: Group, disk: str, applied: int) -> None:
    """Count entries up to `applied` as committed: the store of this disk applied them.

    A store that claims more than its log has proves nothing about the rest.
    """
    pieces = group.parts[disk].in_force() if disk in group.parts else []
    if pieces:
        index = min(applied, pieces[-1].last)
        _take_proof(group, Proof(index))
        group.parts[disk].right = max(group.parts[disk].right, index)


def _applied(log: Log, wanted: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(group, applied index) of the wanted groups; nothing if the store can't be read."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            state, _, _ = stores.dump(log, Path(folder) / "groups", rows=False)
        except FormatUnknown:
            return
    for uid in wanted if state is not None else ():
        if state is not None and uid in state.groups:
            yield uid, state.groups[uid].applied
