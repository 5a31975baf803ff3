"""One replica's log of one group, as its records tell it: whether it is a possible history.

Pure: rows of `inspect_range` come in, sorted by place. Findings go out, and a `Story` remains:
which entries are in force, how far they are known to be committed, and the vote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from myqueue.analytics.log.msgpack_values import BadPack, unpack
from myqueue.analytics.verify.inspection_rows import WRONG, Event, Finding, Run
from myqueue.wal import format as f


class Names(NamedTuple):
    """The names that findings use: of the daemon and of the segment's file."""

    daemons: dict[str, str]  # disk → name
    segments: dict[tuple[str, int], str]


Config = tuple[int, tuple[int, ...]]  # (index, voters)


class Stretch(NamedTuple):
    """Consecutive entries of one term, in force; `number` and `position` say where they begin."""

    first: int
    last: int
    term: int
    number: int
    position: int


@dataclass
class Story:
    """One replica's log, as its records tell it."""

    disk: str
    term: int = 0
    vote: int = 0
    is_doubtful: bool = False  # its newest vote may be lost
    created: Any = None
    was_created: bool = False
    removed: bool = False
    configs: list[Config] = field(default_factory=list)  # of entries that were not cut off
    saved_configs: list[Config] = field(default_factory=list)  # of snapshots: never cut off
    is_damaged: bool = False  # a record after its first one can't be read; set by `commit_evidence`
    first_index: int = 1
    bases: list[tuple[int, int]] = field(default_factory=list)  # (index, term) below the entries
    state_index: int = 0  # of a snapshot; a new replica gets the entries before it afterwards
    commit: int = 0
    commit_at: tuple[int, int] = (0, 0)
    stretches: list[Stretch] = field(default_factory=list)
    # (first, last, segment, position) of holes; the place is where the log goes on after the hole
    missing: list[tuple[int, int, int, int]] = field(default_factory=list)
    last: int = 0
    next_offset: int | None = None
    begun: bool = False
    hints: list[tuple[int, Finding]] = field(default_factory=list)  # of entries not there so far

    @property
    def config(self) -> Config | None:
        """The newest configuration. A relocated record may come after one with a higher index."""
        return max([*self.saved_configs, *self.configs], key=lambda one: one[0], default=None)


def in_force(story: Story) -> list[Stretch]:
    """The entries in force from the log start on, in order, each index once."""
    out: list[Stretch] = []
    for one in sorted(story.stretches, key=lambda s: (s.first, -s.last)):
        first = max(one.first, story.first_index, out[-1].last + 1 if out else 0)
        if first <= one.last:
            out.append(one._replace(first=first))
    return out


def is_described(created: Any) -> bool:
    """Whether this is the content of a creation record: replica, voters, learners, about."""
    return isinstance(created, list) and len(created) == 4 and isinstance(created[1], list)


def is_whole(story: Story) -> bool:
    """Whether all records of the replica were read, as far as its own indices tell."""
    return not story.is_damaged and not any(first <= last for first, last, *_ in story.missing)


class Teller:
    """Makes the story of one replica from its rows, and yields what can't be true in it."""

    def __init__(self, group: int, disk: str, names: Names) -> None:
        self._group, self._names = group, names
        self.story = Story(disk)

    def _finding(self, rule: str, what: str, number: int, position: int, index: int) -> Finding:
        disk = self.story.disk
        return Finding(
            WRONG,
            rule,
            what,
            self._names.daemons.get(disk, disk),
            self._names.segments.get((disk, number), str(number)),
            position,
            self._group,
            index,
        )

    # -- entries -------------------------------------------------------------------------------

    def run(self, run: Run) -> Iterator[Finding]:
        """Add entries that follow each other."""
        story = self.story
        if run.relocated:
            self._relocated(run)
            return
        if not story.begun:
            story.begun = True
            if run.first > story.first_index and not story.stretches:
                story.missing.append((story.first_index, run.first - 1, run.number, run.position))
        elif run.first > story.last + 1:
            story.missing.append((story.last + 1, run.first - 1, run.number, run.position))
        elif run.first <= story.last:
            what = f"index {run.first} follows index {story.last}, and nothing was truncated"
            yield self._finding("gap", what, run.number, run.position, run.first)
            self._cut(run.first)
        yield from self._came_late(run)
        before = story.stretches[-1].term if story.stretches else 0
        for index, term, position in run.terms:
            if term < before:
                what = f"term {term} follows term {before}"
                yield self._finding("term", what, run.number, position, index)
            before = max(before, term)
        if story.next_offset not in (None, run.first_offset) and run.first == story.last + 1:
            what = f"begins at offset {run.first_offset}, the entry before ends at "
            what += f"{story.next_offset}"
            yield self._finding("offset", what, run.number, run.position, run.first)
        for index, offset, expected, position in run.gaps:
            what = f"begins at offset {offset}, the entry before ends at {expected}"
            yield self._finding("offset", what, run.number, position, index)
        self._add(run)
        story.last, story.next_offset = run.last, run.next_offset

    def _came_late(self, run: Run) -> Iterator[Finding]:
        """Findings for hints that said these entries are committed before they were there."""
        story = self.story
        yield from (finding for index, finding in story.hints if index >= run.first)
        story.hints = [one for one in story.hints if one[0] < run.first]

    def _add(self, run: Run) -> None:
        ends = [index - 1 for index, _, _ in run.terms[1:]] + [run.last]
        for (index, term, position), last in zip(run.terms, ends, strict=True):
            self.story.stretches.append(Stretch(index, last, term, run.number, position))

    def _relocated(self, run: Run) -> None:
        """Add entries that reclaim moved here: they fill a hole, or stand in the log twice."""
        story = self.story
        self._add(run)
        still_missing = []
        for first, last, number, position in story.missing:
            if run.last < first or last < run.first:
                still_missing.append((first, last, number, position))
                continue
            if first < run.first:
                still_missing.append((first, run.first - 1, number, position))
            if run.last < last:
                still_missing.append((run.last + 1, last, number, position))
        story.missing = still_missing
        if run.last > story.last:
            story.last, story.next_offset, story.begun = run.last, run.next_offset, True

    def _cut(self, index: int) -> None:
        """Take the entries from `index` on out of force."""
        story = self.story
        story.stretches = [
            one._replace(last=min(one.last, index - 1))
            for one in story.stretches
            if one.first < index
        ]
        story.missing = [
            (a, min(b, index - 1), number, at) for a, b, number, at in story.missing if a < index
        ]
        story.last = min(story.last, index - 1)

    # -- other records -------------------------------------------------------------------------

    def event(self, event: Event) -> Iterator[Finding]:
        """Add a record that is not a plain entry: a vote, a hint, a truncation, a snapshot, …"""
        story, kind = self.story, event.kind
        if kind == f.GROUP_CREATED:
            if not event.flags & f.RELOCATED and not story.was_created and not story.stretches:
                story.is_damaged = False  # the group begins here: damage before is not its own
            story.was_created, story.removed = True, False
            try:
                story.created = unpack(event.payload)
            except BadPack:
                story.created = None
        elif kind == f.GROUP_REMOVED:  # the name stays; created again, it is another replica
            self.story = Story(story.disk, created=story.created, removed=True)
        elif kind == f.HARD_STATE:
            yield from self._hard_state(event)
        elif kind == f.COMMIT:
            known = max(story.last, story.state_index)
            if event.index > known and not story.missing and story.begun:
                what = f"entries up to {event.index} are said to be committed; {story.last} is "
                what += "the last one that is there"
                at = event.number, event.position, event.index
                story.hints.append((event.index, self._finding("hint", what, *at)))
            self._committed(event)
        elif kind == f.SNAPSHOT:
            story.state_index = max(story.state_index, event.index)
            if event.flags & f.LAST:
                story.bases.append((event.index, event.term))
            self._committed(event)
            if event.payload:  # the entry with this configuration may be removed already
                story.saved_configs.append((event.index, tuple(unpack(event.payload))))
        elif kind == f.TRUNCATE:
            yield from self._truncate(event)
        elif kind == f.START:
            self._start(event)
        elif kind == f.ENTRY:  # a configuration
            try:
                voters, _ = json.loads(event.payload)
                story.configs.append((event.index, tuple(voters)))
            except (ValueError, TypeError):
                what = "a configuration that can't be read"
                yield self._finding("config", what, event.number, event.position, event.index)

    def _committed(self, event: Event) -> None:
        if event.index > self.story.commit:
            self.story.commit = event.index
            self.story.commit_at = (event.number, event.position)

    def _hard_state(self, event: Event) -> Iterator[Finding]:
        story, term, vote = self.story, event.term, event.index
        if term < story.term:
            what = f"term {term} after term {story.term}: the replica forgot"
            yield self._finding("vote", what, event.number, event.position, 0)
        elif term == story.term and story.vote and vote != story.vote:
            what = f"two votes in term {term}: for replica {story.vote:x}, then for {vote:x}"
            yield self._finding("vote", what, event.number, event.position, 0)
        story.term, story.vote = max(term, story.term), vote
        story.is_doubtful = bool(event.flags & f.DOUBTFUL)

    def _truncate(self, event: Event) -> Iterator[Finding]:
        story = self.story
        if event.index <= story.commit:
            what = f"entries from {event.index} on are cut off, but up to {story.commit} all was "
            what += "known to be committed"
            yield self._finding("cut", what, event.number, event.position, event.index)
        self._cut(event.index)
        story.last, story.next_offset = event.index - 1, event.offset
        story.configs = [one for one in story.configs if one[0] < event.index]

    def _start(self, event: Event) -> None:
        story = self.story
        if event.flags & f.RESET:
            # A snapshot replaces all entries, so their configurations as well.
            story.stretches, story.missing, story.configs = [], [], []
            story.last, story.next_offset, story.begun = event.index - 1, event.offset, True
        story.first_index = event.index
        story.bases.append((event.index - 1, event.term))
        if story.last < event.index - 1:
            story.last, story.next_offset, story.begun = event.index - 1, event.offset, True
        story.missing = [
            (max(a, event.index), b, number, at)
            for a, b, number, at in story.missing
            if b >= event.index
        ]

    def ended(self) -> Iterator[Finding]:
        """Findings that can be made only when all rows are there: holes, hints without entries."""
        story = self.story
        if not story.was_created and not story.removed:
            what = "records of a group that was never created on this disk"
            place = story.stretches[0] if story.stretches else Stretch(0, 0, 0, 0, 0)
            yield self._finding("unknown", what, place.number, place.position, place.first)
        if story.removed:
            return
        for index, finding in story.hints:
            # Up to there the entry was in a segment that reclaim removed: the entry was removed
            # with it, or was appended again.
            if index > max(story.last, story.state_index):
                yield finding
        for first, last, number, position in story.missing:
            if last >= first:
                which = f"entry {first} is" if first == last else f"entries {first} to {last} are"
                what = f"{which} missing before this record"
                yield self._finding("gap", what, number, position, first)
