"""How far each partition is committed, where hints in the logs do not say so.

Hints are records of the logs, a second apart, and the newest one of a group is kept. Logs of older
programs may lack them, and so do the last moments of a daemon that was killed. So what is wanted
and not covered by a hint is looked at closely, in this order:

1. the logs of a majority prove it (`commit_evidence`, `proof`);
2. the store of a daemon of this machine that is down says what it applied.

An end that nothing proves is `unknown`, never empty: the caller refuses it or names it as left out.
Entries behind what is known to be committed are `beyond`; a log that is being written always has
some for a second, so what is younger than that is not looked at.
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
    Run,
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
# Read for the sake of entries behind a hint; where nothing at all is known, as much as it takes.
READ_FOR_TAILS_BYTES = 1 << 30
SHOWN = 5


def wall_ms() -> int:
    """Milliseconds since 1970: whether a hint may still come is a question of now."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000


class Stretch(NamedTuple):
    """Entries of a partition."""

    topic: str
    partition: int
    first: int
    last: int
    is_new: bool  # a hint may still come


class _Known(NamedTuple):
    """What was found out about a group, while it looks as it did."""

    seen: tuple[Any, ...]
    proof: Proof
    right: dict[str, int]  # by disk: `Part.right`


@dataclass
class Judgement:
    unknown: list[Stretch] = field(default_factory=list)  # nothing of these is known
    beyond: list[Stretch] = field(default_factory=list)  # up to their first, all is committed
    absent: list[Stretch] = field(default_factory=list)  # committed, and for certain in no log


class Judge:
    """Remembers what it proved, for a stream that looks at the same logs again and again."""

    def __init__(
        self, *, ask_stores: bool = True, clock_ms: Callable[[], int] | None = None
    ) -> None:
        self._ask_stores, self._clock_ms = ask_stores, clock_ms or wall_ms
        self._known: dict[int, _Known] = {}

    def looked_at(self, paths: Iterable[str], wanted: Wanted) -> tuple[Catalog, Judgement]:
        """Both of one state of the logs, also while segments are reclaimed."""

        def look() -> tuple[Catalog, Judgement]:
            catalog = make_catalog(find_logs(paths))
            return catalog, self.judge(catalog, wanted)

        return looked(look)

    def judge(self, catalog: Catalog, wanted: Wanted, *, with_managers: bool = False) -> Judgement:
        """Sets `proven` of the groups, and tells what is left."""
        now = self._clock_ms()
        groups = {uid: one for uid, one in catalog.groups.items() if _is_asked_for(one, wanted)}
        if not with_managers:
            groups.pop(MANAGERS_GROUP, None)
        self._remember(groups)
        unsure = [uid for uid, one in groups.items() if _is_unknown(one)]
        tails = [
            uid for uid, one in groups.items()
            if (_has_tail(one) and not _is_new(one, now)) or _is_in_doubt(one)
        ]  # fmt: skip
        tails = [uid for uid in tails if uid not in self._known]
        if tails and bytes_of(catalog, {*unsure, *tails}) <= READ_FOR_TAILS_BYTES:
            unsure = [*{*unsure, *tails}]
        unsure = [uid for uid in unsure if uid not in self._known]
        if unsure:
            seen = {uid: _seen(groups[uid]) for uid in unsure}
            for uid, its in stories(catalog, set(unsure)).items():
                _take_stories(groups[uid], its)
            if self._ask_stores:
                _ask_stores(catalog, {uid: groups[uid] for uid in unsure})
            for uid in unsure:
                one = groups[uid]
                right = {disk: part.right for disk, part in one.parts.items()}
                self._known[uid] = _Known(seen[uid], Proof(one.proven, one.proven_term), right)
        judgement = Judgement()
        for one in groups.values():
            if _is_unknown(one):
                judgement.unknown.append(_rest(one, now))
            elif _has_tail(one):
                judgement.beyond.append(_rest(one, now))
            judgement.absent += _absent(one)
        return judgement

    def _remember(self, groups: dict[int, Group]) -> None:
        for uid, known in list(self._known.items()):
            one = groups.get(uid)
            if one is None or _seen(one) != known.seen:
                del self._known[uid]
                continue
            _take_proof(one, known.proof)
            for disk, right in known.right.items():
                if disk in one.parts:
                    one.parts[disk].right = max(one.parts[disk].right, right)


def refuse_unknown(judgement: Judgement, way_on: str) -> None:
    """Raise for partitions that were not made a moment ago."""
    its = [one for one in judgement.unknown if not one.is_new]
    if its:
        raise CorruptData(
            f"nothing in these logs tells what is committed of {named(its)}",
            hint=f"Give the logs of all replicas (or stop a daemon that has one). {way_on}",
        )


def refuse_strangers(catalog: Catalog, topics: Iterable[str] | None) -> None:
    """Raise for a topic that is in none of the logs."""
    there = sorted({one.topic for one in catalog.groups.values() if one.topic and not one.removed})
    for name in topics or ():
        if name not in there:
            known = ", ".join(there[:50]) + (" …" if len(there) > 50 else "")
            raise UnknownTopic(
                f"topic {name!r} is in none of these logs",
                hint=f"There are {known}." if there else "There are no topics in them.",
            )


def notes(judgement: Judgement) -> list[str]:
    """The partitions that are left out, in words for people."""
    out = []
    if judgement.unknown:
        its = named(judgement.unknown)
        out.append(f"left out, since nothing tells what is committed of it: {its}")
    if judgement.beyond:
        count = sum(one.last - one.first + 1 for one in judgement.beyond)
        its = named(judgement.beyond)
        out.append(
            f"left out: {count:,} entries behind what is known to be committed, of {its}; "
            "a running cluster says so a second later"
        )
    if judgement.absent:
        out.append(f"left out: {absent(judgement)}")
    return out


def absent(judgement: Judgement) -> str:
    count = sum(one.last - one.first + 1 for one in judgement.absent)
    return (
        f"{count:,} committed entries that are in none of these logs for certain, of "
        f"{named(judgement.absent)}; other replicas or newer archives have them"
    )


def named(its: list[Stretch]) -> str:
    shown = [f"{_name(one)} (entries {one.first} to {one.last})" for one in its[:SHOWN]]
    more = f" and {len(its) - SHOWN:,} more partitions" if len(its) > SHOWN else ""
    return ", ".join(shown) + more


def _name(one: Stretch) -> str:
    return f"{one.topic}/{one.partition}" if one.topic else "the managers' tables"


def _is_asked_for(group: Group, wanted: Wanted) -> bool:
    is_named = bool(group.topic) or group.uid == MANAGERS_GROUP
    return is_named and not group.removed and wanted.has_group(group)


def _has_tail(group: Group) -> bool:
    return group.end is not None and group.end.last > group.commit_index


def _is_unknown(group: Group) -> bool:
    return _has_tail(group) and group.commit_index < group.first_index


def _is_new(group: Group, now_ms: int) -> bool:
    """A stamp far in the future tells nothing: by it a group would be new until then."""
    end = group.end
    made = max(end.last_time_ms if end else 0, group.created_ms)
    return -CLOCKS_DIFFER_MS <= now_ms - made < HINT_COMES_MS


def _rest(group: Group, now_ms: int) -> Stretch:
    last = group.end.last if group.end is not None else 0
    first = max(group.first_index, group.commit_index + 1)
    return Stretch(group.topic, group.partition, first, last, _is_new(group, now_ms))


def _absent(group: Group) -> Iterator[Stretch]:
    """Entries behind the commit of a log that was down when another leader came are no copies."""
    pieces = [(one.first, one.last) for disk in group.parts for one in group.right_pieces(disk)]
    for first, last in _holes(group, pieces):
        yield Stretch(group.topic, group.partition, first, last, False)


def _is_in_doubt(group: Group) -> bool:
    """Whether a log has committed entries that no log has for certain: their terms decide."""
    right = [(one.first, one.last) for disk in group.parts for one in group.right_pieces(disk)]
    there = [(one.first, one.last) for part in group.parts.values() for one in part.in_force()]
    return any(
        max(first, one) <= min(last, other)
        for first, last in _holes(group, right)
        for one, other in there
    )


def _holes(group: Group, pieces: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Committed entries that are in none of the pieces."""
    at, after = group.first_index, group.commit_index + 1
    for first, last in [*sorted(pieces), (after, after)]:
        if at < min(first, after):
            yield at, min(first, after) - 1
        at = max(at, last + 1)


def _seen(group: Group) -> tuple[Any, ...]:
    return group.end, group.commit_index, tuple(_absent(group))


def _take_stories(group: Group, its: list[Story]) -> None:
    """By the terms of all entries: what is committed, and how far each log is right about it."""
    _take_proof(group, _proven(its, group.commit_index))
    runs = {
        one.disk: [Run(*stretch[:3]) for stretch in in_force(one)] for one in its if is_whole(one)
    }
    sure = [Run(group.proven, group.proven, group.proven_term)] if group.proven_term else []
    for disk, part in group.parts.items():
        sure += part.sure()
        upto = part.commit_index
        sure += [one._replace(last=min(one.last, upto)) for one in runs.get(disk, ())
                 if one.first <= upto]  # fmt: skip
    for disk, part in group.parts.items():
        part.right = max(part.right, same_to(runs.get(disk, ()), sure))


def _take_proof(group: Group, proof: Proof) -> None:
    if proof.index > group.proven:
        group.proven, group.proven_term = proof.index, proof.term


def _proven(its: list[Story], known: int) -> Proof:
    """A log in which something can't be read after the group's first record may lack a vote or a
    truncation, so it is no witness; its configurations count all the same.
    """
    alive = [one for one in its if not one.removed]
    witnesses = [
        Witness(int(one.created[0]), one.term, one.vote, in_force(one))
        for one in alive
        if is_described(one.created) and not one.is_doubtful and is_whole(one)
    ]
    return proven(witnesses, _configs(alive), known)


def _configs(its: list[Story]) -> Configs:
    configs = {(0, tuple(one.created[1])) for one in its if is_described(one.created)}
    configs.update(one for story in its for one in (*story.saved_configs, *story.configs))
    return sorted(configs)


def _ask_stores(catalog: Catalog, groups: dict[int, Group]) -> None:
    """Those of daemons that are down, in folders of this machine."""
    for log in catalog.logs:
        its = {uid: one for uid, one in groups.items() if log.disk in one.parts and _has_tail(one)}
        if its:
            for uid, applied in _applied(log, its):
                take_applied(its[uid], log.disk, applied)


def take_applied(group: Group, disk: str, applied: int) -> None:
    """A store applied all up to there; what it says beyond its log is another matter."""
    pieces = group.parts[disk].in_force() if disk in group.parts else []
    if pieces:
        index = min(applied, pieces[-1].last)
        _take_proof(group, Proof(index))
        group.parts[disk].right = max(group.parts[disk].right, index)


def _applied(log: Log, wanted: Iterable[int]) -> Iterator[tuple[int, int]]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            state, _, _ = stores.dump(log, Path(folder) / "groups", rows=False)
        except FormatUnknown:
            return
    for uid in wanted if state is not None else ():
        if state is not None and uid in state.groups:
            yield uid, state.groups[uid].applied
