"""From which log each entry is read: several replicas have it, and one copy is enough.

Pure: a group, logs in order of preference and known damage come in; pieces go out. A damaged entry
is read from another copy, entry by entry: each disk may be damaged somewhere, and no message is
lost while one copy is whole. A segment with damage at unknown places comes after all others. A
committed entry is taken only from a log that is surely right about it (`Group.right_to`). After the
commit, the end of a log that another leader may have made invalid is taken last of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from myqueue.analytics.log.catalog import Catalog, Group, Piece
from myqueue.errors import CorruptData


class Damage(NamedTuple):
    """An entry that can't be read; index 0: any entry of that segment may be damaged."""

    disk: str
    segment: int
    group: int = 0
    index: int = 0  # type: ignore[assignment]  # tuple.index is not used


def logs_by_bytes(catalog: Catalog) -> list[str]:
    """Disks, most bytes of entries first, so that as few segments as possible are opened."""
    sizes = {
        log.disk: sum(row.entry_bytes for one in log.segments for row in one.rows or ())
        for log in catalog.logs
    }
    return sorted(sizes, key=lambda disk: (-sizes[disk], disk))


def by_term(group: Group, order: list[str]) -> list[str]:
    """Disks, highest last term first: after the known commit, the log with that term is right."""

    def newest(disk: str) -> tuple[int, int]:
        pieces = group.parts[disk].in_force()
        return (-pieces[-1].last_term, -pieces[-1].last) if pieces else (0, 0)

    return sorted((disk for disk in order if disk in group.parts), key=newest)


def choose(
    group: Group,
    order: list[str],
    first: int,
    end: int,
    may_miss: bool,
    damages: Iterable[Damage] = (),
    *,
    with_doubtful_ends: bool = False,
) -> Iterator[tuple[str, Piece]]:
    """Choose one (disk, piece) for every index from `first` to before `end`.

    Entries at the end that no log has are not written or not archived yet, so the choice ends
    there. A hole before them raises CorruptData, unless `may_miss`.
    """
    sound, doubtful = _sources(group, order, damages, with_doubtful_ends)
    index = first
    while index < end:
        source = next((one for one in sound if one.covers(index)), None)
        index_after = end
        if source is None:
            later = [at for one in sound if (at := one.next_after(index))]
            index_after = min([end, *later])
            source = next((one for one in doubtful if one.covers(index)), None)
        if source is None:
            later = [at for one in doubtful if (at := one.next_after(index))]
            index_after = min([index_after, *later])
            if index_after >= end:
                return
            if not may_miss:
                raise CorruptData(
                    f"{group.topic}/{group.partition}: entries {index} to {index_after - 1} of "
                    f"group {group.uid:016x} are in none of these logs for certain",
                    hint="Give the other replicas' logs as well, or set failOnDataLoss=false.",
                )
            index = index_after
            continue
        piece = source.piece
        last = min(piece.last, end - 1, index_after - 1)
        yield source.disk, piece._replace(first=index, last=last)
        index = last + 1


def _sources(
    group: Group, order: list[str], damages: Iterable[Damage], with_doubtful_ends: bool
) -> tuple[list[_Source], list[_Source]]:
    """Sources that can be read, and sources that perhaps can be."""
    entries: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    segments = set()
    for one in damages:
        if not one.index:
            segments.add((one.disk, one.segment))
        elif one.group == group.uid:
            entries[one.disk, one.segment].add(one.index)
    sound, doubtful, perhaps_cut_off = [], [], []
    for disk in order:
        if disk not in group.parts:
            continue
        pieces = [
            part
            for piece in group.parts[disk].in_force()
            for part in _without(piece, sorted(entries.get((disk, piece.segment), ())))
        ]
        right_to, known = group.right_to(disk), group.commit_index
        after = _from(pieces, max(right_to, known) + 1)
        pieces = _upto(pieces, right_to)
        if group.is_newest(disk):
            pieces += after
        elif after and with_doubtful_ends:
            perhaps_cut_off.append(_Source(disk, after))
        bad = [one for one in pieces if (disk, one.segment) in segments]
        sound.append(_Source(disk, [one for one in pieces if one not in bad] if bad else pieces))
        if bad:
            doubtful.append(_Source(disk, bad))
    return sound, [*doubtful, *perhaps_cut_off]


def _upto(pieces: list[Piece], last: int) -> list[Piece]:
    return [one._replace(last=min(one.last, last)) for one in pieces if one.first <= last]


def _from(pieces: list[Piece], first: int) -> list[Piece]:
    return [one._replace(first=max(one.first, first)) for one in pieces if one.last >= first]


def _without(piece: Piece, indices: list[int]) -> Iterator[Piece]:
    """The piece in parts, without these indices."""
    first = piece.first
    for index in indices:
        if first <= index <= piece.last:
            if first < index:
                yield piece._replace(first=first, last=index - 1)
            first = index + 1
    if first <= piece.last:
        yield piece._replace(first=first)


class _Source:
    """The pieces of one disk; callers must ask for rising indices."""

    def __init__(self, disk: str, pieces: list[Piece]) -> None:
        self.disk, self._pieces, self._at = disk, pieces, 0

    @property
    def piece(self) -> Piece:
        return self._pieces[self._at]

    def covers(self, index: int) -> bool:
        while self._at < len(self._pieces) and self.piece.last < index:
            self._at += 1
        return self._at < len(self._pieces) and self.piece.first <= index

    def next_after(self, index: int) -> int:
        """The next index that this disk has; 0 if it has none."""
        return self.piece.first if self._at < len(self._pieces) else 0
