"""Questions about a whole log that are answered from few of its rows.

Terms never fall along a log, and leaders stamp times that never fall, so a binary search over the
index finds where either begins: some twenty look-ups in a log of a million entries. Rows that wait
for the store count like those in it. A hole (entries that were lost) is no obstacle: what is asked
for is always the next row that is there.

The answer is that of the index: a truncation or an append counts from when it is persisted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from myqueue.wal.append.groups import Row
from myqueue.wal.store.index import Index


def term_runs(index: Index, group: int, first_index: int) -> list[tuple[int, int]]:
    """(index of its first entry, term) of each run of entries of one term, from `first_index`."""
    runs: list[tuple[int, int]] = []
    row, last = index.next_row(group, first_index), index.last_row(group)
    while row is not None and last is not None:
        runs.append((row.index, row.term))
        if row.term >= last.term:
            break
        higher = partial(_is_higher, row.term)
        row = _first(index, group, row.index + 1, last, higher)
    return runs


def _is_higher(term: int, row: Row) -> bool:
    return row.term > term


def _first(
    index: Index, group: int, low: int, last: Row, wanted: Callable[[Row], bool]
) -> Row | None:
    """The first row from `low` to `last` that is wanted, as are all behind it; None if none is."""
    if not wanted(last):
        return None
    found, high = last, last.index
    while low < high:
        middle = (low + high) // 2
        row = index.next_row(group, middle)
        if row is None or wanted(row):
            found, high = row or found, middle
        else:
            low = row.index + 1
    return found
