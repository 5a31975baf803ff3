"""What the logs say about their groups, without reading all of them.

The footer of a sealed segment lists its groups, with the indices, offsets and times of their
entries. So records are read only where footers are not enough: in open segments, in segments with
records that change the meaning of others (a group's creation, a truncation, a log start), and for
each group in the newest segment with a commit hint.

Comes in: logs. Goes out: a `Catalog` with each group's name (topic and partition), how far it is
committed, and on each disk the *pieces* of its log that are in force, by index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from myqueue.analytics.log.discovery import Log, Segment, valid_to, walked
from myqueue.analytics.log.msgpack_values import BadPack, unpack
from myqueue.wal import format as f

MANAGERS_GROUP = 1
ALL = 2**64 - 1
_SPECIAL = sum(
    1 << kind for kind in (f.GROUP_CREATED, f.GROUP_REMOVED, f.TRUNCATE, f.START, f.SNAPSHOT)
)
_COMMITTED = 1 << f.COMMIT
DATA, NOOP, CONFIG, COMMAND = 0, 1, 2, 3
TYPES = {DATA: "data", NOOP: "noop", CONFIG: "config", COMMAND: "command"}

Place = tuple[int, int]  # (segment's number, position)


class Piece(NamedTuple):
    """Consecutive entries of one group in one segment; positions are of their records."""

    first: int
    last: int
    segment: int
    begin: int
    end: int  # at or after the position of the last entry's record
    first_offset: int
    next_offset: int
    first_time_ms: int
    last_time_ms: int
    last_term: int
    first_term: int = 0  # 0: not known, a footer does not have it


class TermRun(NamedTuple):
    """Entries first … last of one term. If only the last one's term is known, it stands alone."""

    first: int
    last: int
    term: int


class Cut(NamedTuple):
    """Takes the entries from `index` on that stand before `place` out of force."""

    place: Place
    index: int  # type: ignore[assignment]  # tuple.index is not used


@dataclass
class Part:
    """One group on one disk."""

    pieces: list[Piece] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    first_index: int = 1
    start_offset: int = 0
    commit_index: int = 0
    about: Any = None  # (replica, voters, learners, about) of its creation
    created_ms: int = 0
    removed: bool = False
    started_at: Place = (0, 0)
    snapshots: list[tuple[int, int]] = field(default_factory=list)  # (index, term), complete
    base: tuple[int, int] = (0, 0)  # (index, term) of the entry below the log's start
    right: int = 0  # up to here it is the group's log, as `verify/commit_point` proved
    _found: tuple[tuple[int, int, int], list[Piece]] = ((0, 0, 0), [])  # what `in_force` said last

    def remove(self, place: Place) -> None:
        """Take all that stands before out of force; created again, it is another replica."""
        self.removed, self.first_index, self.start_offset, self.commit_index = True, 1, 0, 0
        self.cuts.append(Cut(place, 0))
        self.snapshots.clear()
        self.base = (0, 0)

    def in_force(self) -> list[Piece]:
        """The pieces that cuts leave, by first index. Callers must not change the list."""
        state = len(self.pieces), len(self.cuts), self.first_index
        if self._found[0] != state:
            self._found = state, self._pieces_in_force()
        return self._found[1]

    def _pieces_in_force(self) -> list[Piece]:
        out = []
        for piece in self.pieces:
            last, place = piece.last, (piece.segment, piece.begin)
            for cut in self.cuts:
                if cut.place > place and cut.index <= last:
                    last = cut.index - 1
            first = max(piece.first, self.first_index)
            if first <= last:
                cut_off = last < piece.last and piece.first_term != piece.last_term
                term = piece.first_term if cut_off else piece.last_term
                out.append(piece._replace(first=first, last=last, last_term=term))
        return sorted(out)

    @property
    def state(self) -> tuple[Any, ...]:
        """Changes whenever an answer about this part may change."""
        sizes = len(self.pieces), len(self.cuts), len(self.snapshots)
        return (*sizes, self.first_index, self.base, self.commit_index, self.right)

    def runs(self) -> list[TermRun]:
        """The entries in force whose terms are known."""
        out: list[TermRun] = []
        for one in self.in_force():
            term, before = one.last_term, out[-1] if out else TermRun(0, 0, 0)
            is_one = one.first_term == term or (
                before.term == term and before.last >= one.first - 1
            )
            if term:
                out.append(TermRun(one.first if is_one else one.last, one.last, term))
        return out

    def sure(self) -> list[TermRun]:
        """Return the runs of this log that are committed, with its snapshots and its start."""
        bases = [
            TermRun(index, index, term) for index, term in (*self.snapshots, self.base) if term
        ]
        upto = max(self.commit_index, self.right)
        return bases + [
            one._replace(last=min(one.last, upto)) for one in self.runs() if one.first <= upto
        ]

    @property
    def newest_term(self) -> int:
        """The highest term of the entries that it has, or had before a snapshot replaced them."""
        terms = [one.last_term for one in self.in_force()]
        return max([*terms, self.base[1], *(term for _, term in self.snapshots)])


@dataclass
class Group:
    """One group on all disks."""

    uid: int
    topic: str = ""
    partition: int = -1
    topic_uid: int = 0
    superseded: bool = False  # by a newer topic of the same name, so it was deleted
    proven: int = 0  # committed up to here for another reason than a record in the logs
    proven_term: int = 0  # of that entry, if it is known
    parts: dict[str, Part] = field(default_factory=dict)  # by disk
    _rights: tuple[Any, dict[str, int]] = ((), {})  # what `right_to` found out last

    @property
    def commit_index(self) -> int:
        """The highest index that is known to be committed: any log says so by a hint, a snapshot
        or a log start (only committed entries are removed), or `verify/commit_point` proved it.
        """
        known = max((part.commit_index for part in self.parts.values()), default=0)
        return max(known, self.proven, self.first_index - 1)

    @property
    def end(self) -> Piece | None:
        """The last piece of the log that ends in the highest term, so is right about the end."""
        lasts = [one.in_force()[-1] for disk, one in self.parts.items() if self.is_newest(disk)]
        return max(lasts, key=lambda one: (one.last_term, one.last), default=None)

    def is_newest(self, disk: str) -> bool:
        """Whether the log of this disk ends in the highest term that any log has, or had."""
        newest = max(part.newest_term for part in self.parts.values())
        return bool(self.parts[disk].in_force()) and self.parts[disk].newest_term >= newest

    def right_to(self, disk: str) -> int:
        """The index up to which the log of this disk is surely the group's.

        If a daemon was down when another leader was elected, its log may end in entries that were
        never committed and will be cut off. So a log is right up to the commit that it knew, and
        as far as its terms are those of entries known to be committed.
        """
        state = self.proven, self.proven_term, *(part.state for part in self.parts.values())
        if self._rights[0] != state:
            self._rights = state, self._all_right()
        return self._rights[1][disk]

    def _all_right(self) -> dict[str, int]:
        sure = [one for its in self.parts.values() for one in its.sure()]
        if self.proven_term:
            sure.append(TermRun(self.proven, self.proven, self.proven_term))
        return {
            disk: max(part.commit_index, part.right, same_to(part.runs(), sure))
            for disk, part in self.parts.items()
        }

    def right_pieces(self, disk: str) -> list[Piece]:
        """The committed entries of this disk's log that are surely the group's."""
        upto = min(self.right_to(disk), self.commit_index)
        clipped = (one._replace(last=min(one.last, upto)) for one in self.parts[disk].in_force())
        return [one for one in clipped if one.first <= one.last]

    @property
    def first_index(self) -> int:
        """Where the log begins. A log start is an entry, so the highest one holds for all disks."""
        return max((part.first_index for part in self.parts.values()), default=1)

    @property
    def removed(self) -> bool:
        """Whether it was removed from all disks; one that moved was removed from some only."""
        return self.superseded or all(part.removed for part in self.parts.values())

    @property
    def created_ms(self) -> int:
        return max((part.created_ms for part in self.parts.values()), default=0)


def same_to(its: Iterable[TermRun], others: Iterable[TermRun]) -> int:
    """The last index up to which two logs are the same.

    The leader of a term had all entries of that term in its log, and any log with an entry of that
    term is the same as the leader's up to that entry (log matching).
    """
    lasts: dict[int, int] = {}
    for one in others:
        lasts[one.term] = max(one.last, lasts.get(one.term, 0))
    return max((min(one.last, lasts.get(one.term, 0)) for one in its), default=0)


@dataclass
class Catalog:
    """Logs and their groups; `certain` and `moved` are by (disk, number) of open segments."""

    logs: list[Log]
    groups: dict[int, Group]
    certain: dict[tuple[str, int], int]  # the position up to which all is surely synced
    moved: dict[tuple[str, int], int] = field(default_factory=dict)  # the end of relocated entries

    def readable(self, disk: str, segment: Segment) -> int:
        """The position up to which the segment has entries that can be read."""
        key = disk, segment.number
        return max(self.certain.get(key, segment.capacity), self.moved.get(key, 0))

    def log(self, disk: str) -> Log:
        return next(log for log in self.logs if log.disk == disk)


def make_catalog(
    logs: list[Log], topics: Iterable[str] | None = None, *, with_tails: bool = False
) -> Catalog:
    """Read what is needed of the logs into a catalog, for all topics or the named ones.

    `with_tails`: open segments are read as far as records are whole, also where no mark proves
    that they are synced.
    """
    catalog = Catalog(logs, {}, {})
    for log in logs:
        _LogReader(catalog, log, with_tails).read()
    for group in catalog.groups.values():
        _name(group)
    _supersede(list(catalog.groups.values()))
    if topics is not None:
        wanted = set(topics)
        catalog.groups = {uid: one for uid, one in catalog.groups.items() if one.topic in wanted}
    return catalog


def _name(group: Group) -> None:
    for part in group.parts.values():
        try:
            about = unpack(part.about[3]) if part.about else None
        except (BadPack, TypeError, IndexError):
            continue
        if isinstance(about, list) and len(about) >= 3 and isinstance(about[0], str):
            group.topic, group.partition, group.topic_uid = about[:3]
            return


def _supersede(groups: Collection[Group]) -> None:
    """Mark the groups of older topics as superseded: a name belongs to the topic created last.

    Replicas of an older topic may be left on disks whose daemon was down when it was deleted.
    """
    newest: dict[str, Group] = {}
    for group in groups:
        known = newest.setdefault(group.topic, group)
        if known.topic_uid != group.topic_uid and known.created_ms < group.created_ms:
            newest[group.topic] = group
    for group in groups:
        group.superseded = newest[group.topic].topic_uid != group.topic_uid


class _LogReader:
    """Reads one log into the catalog."""

    def __init__(self, catalog: Catalog, log: Log, with_tails: bool) -> None:
        self._catalog, self._log, self._with_tails = catalog, log, with_tails

    def _part(self, uid: int) -> Part:
        group = self._catalog.groups.setdefault(uid, Group(uid))
        return group.parts.setdefault(self._log.disk, Part())

    def read(self) -> None:
        by_footer: list[Segment] = []
        to_walk: dict[int, Segment] = {}
        newest_commit: dict[int, Segment] = {}
        for segment in self._log.segments:
            if not segment.used:
                continue
            if segment.rows is None or any(_has_to_be_walked(row) for row in segment.rows):
                to_walk[segment.number] = segment
            else:
                by_footer.append(segment)
            for row in segment.rows or ():
                if row.kinds & _COMMITTED:
                    newest_commit[row.group] = segment
        for segment in by_footer:
            for row in segment.rows or ():
                if row.entries:
                    self._part(row.group).pieces.append(_piece(segment, row))
        commits: defaultdict[int, set[int]] = defaultdict(set)
        for uid, segment in newest_commit.items():
            if segment.number not in to_walk:
                commits[segment.number].add(uid)
        for segment in self._log.segments:
            if segment.number in to_walk:
                self._walk(segment)
            elif segment.number in commits:
                self._commits(segment, commits[segment.number])

    def _commits(self, segment: Segment, uids: set[int]) -> None:
        for record, _ in walked(segment):
            if record.kind == f.COMMIT and record.group in uids:
                part = self._part(record.group)
                part.commit_index = max(part.commit_index, record.index)

    def _walk(self, segment: Segment) -> None:
        """Read all records of a segment. An open one ends where its marks prove; if the log went
        on in a later segment, all of it counts.
        """
        proven = self._log.synced_to(segment)
        certain = proven or 0
        waiting: list[tuple[f.Record, Any]] = []
        runs = Runs(segment)
        for record, payload in walked(segment):
            keep = bytes(payload) if record.kind == f.GROUP_CREATED else None
            if record.kind == f.MARK and not proven and record.term > certain:
                certain = record.term
                self._take(runs, waiting, certain)
            waiting.append((record, keep))
            if proven and len(waiting) > 1024:
                self._take(runs, waiting, proven)
        if self._with_tails and not proven:
            certain = valid_to(segment, certain)
        self._take(runs, waiting, certain)
        self._catalog.certain[self._log.disk, segment.number] = certain
        self._moved(runs, waiting, certain)
        for uid, pieces in runs.done().items():
            self._part(uid).pieces += pieces

    def _moved(self, runs: Runs, waiting: list[tuple[f.Record, Any]], certain: int) -> None:
        """Take what counts also after the last mark: commit hints and relocated records.

        Reclaim removes the first copy of a record as soon as the second is synced; the mark that
        proves it comes with the next write.
        """
        if not any(record.flags & f.RELOCATED for record, _ in waiting):
            return
        whole = valid_to(runs.segment, certain)
        for record, payload in waiting:
            if record.position >= whole:
                break
            is_moved = bool(record.flags & f.RELOCATED)
            if record.kind == f.ENTRY and is_moved:
                runs.entry(record)
                self._catalog.moved[self._log.disk, runs.segment.number] = record.end
            elif record.kind == f.COMMIT or (record.kind == f.GROUP_CREATED and is_moved):
                self._special(runs, record, payload)

    def _take(self, runs: Runs, waiting: list[tuple[f.Record, Any]], certain: int) -> None:
        taken = 0
        for record, payload in waiting:
            if record.position >= certain:
                break
            taken += 1
            if record.kind == f.ENTRY:
                runs.entry(record)
            elif record.group:
                self._special(runs, record, payload)
        del waiting[:taken]

    def _special(self, runs: Runs, record: f.Record, payload: bytes | None) -> None:
        part, place = self._part(record.group), (runs.segment.number, record.position)
        kind = record.kind
        if kind == f.SNAPSHOT and record.flags & f.LAST:
            part.snapshots.append((record.index, record.term))
        if kind in (f.COMMIT, f.SNAPSHOT):
            part.commit_index = max(part.commit_index, record.index)
        elif kind == f.TRUNCATE:
            part.cuts.append(Cut(place, record.index))
            runs.broken(record.group)
        elif kind == f.START:
            if record.flags & f.RESET:
                part.cuts.append(Cut(place, 0))
                runs.broken(record.group)
            if place > part.started_at:
                part.started_at = place
                part.first_index, part.start_offset = record.index, record.offset
                part.base = (record.index - 1, record.term)
        elif kind == f.GROUP_REMOVED:
            part.remove(place)
            runs.broken(record.group)
        elif kind == f.GROUP_CREATED and payload is not None:
            part.removed, part.created_ms = False, record.time_ms
            try:
                part.about = unpack(payload)
            except BadPack:
                part.about = None


def _has_to_be_walked(row: f.FooterRow) -> bool:
    return bool(row.kinds & _SPECIAL) or (
        row.entries != 0 and row.entries != row.last_index - row.first_index + 1
    )


def _piece(segment: Segment, row: f.FooterRow) -> Piece:
    return Piece(
        row.first_index,
        row.last_index,
        segment.number,
        0,
        segment.capacity,
        row.first_offset,
        row.next_offset,
        row.first_time_ms,
        row.last_time_ms,
        row.last_term,
    )


class _OpenPiece:
    """A `Piece` to which more entries may be added; all of them have one term."""

    __slots__ = (
        "begin",
        "end",
        "first",
        "first_offset",
        "first_time_ms",
        "last",
        "last_time_ms",
        "next_offset",
        "term",
    )

    def __init__(self, record: f.Record) -> None:
        self.first = self.last = record.index
        self.begin = self.end = record.position
        self.first_offset, self.next_offset = record.offset, record.offset + record.count
        self.first_time_ms = self.last_time_ms = record.time_ms
        self.term = record.term

    def add(self, record: f.Record) -> None:
        self.last, self.end = record.index, record.position
        self.next_offset = record.offset + record.count
        time_ms = record.time_ms
        if time_ms:
            self.first_time_ms = min(self.first_time_ms or time_ms, time_ms)
            self.last_time_ms = max(self.last_time_ms, time_ms)

    def piece(self, segment: int) -> Piece:
        return Piece(
            self.first,
            self.last,
            segment,
            self.begin,
            self.end,
            self.first_offset,
            self.next_offset,
            self.first_time_ms,
            self.last_time_ms,
            self.term,
            self.term,
        )


class Runs:
    """Gathers entries of one segment into pieces: consecutive indices of one term, by group."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._open: dict[int, _OpenPiece] = {}
        self._done: defaultdict[int, list[Piece]] = defaultdict(list)

    def entry(self, record: f.Record) -> None:
        run = self._open.get(record.group)
        if run is not None and record.index == run.last + 1 and record.term == run.term:
            run.add(record)
            return
        self.broken(record.group)
        self._open[record.group] = _OpenPiece(record)

    def broken(self, group: int) -> None:
        run = self._open.pop(group, None)
        if run is not None:
            self._done[group].append(run.piece(self.segment.number))

    def done(self) -> dict[int, list[Piece]]:
        for group in list(self._open):
            self.broken(group)
        return self._done
