"""Where each term begins in a group's log, found from few rows of the index.

Terms never fall along a log, so a binary search finds where one begins: some twenty look-ups in a
log of a million entries. Rows that wait for the store count like those in it. A hole (entries that
were lost) is no obstacle: each look-up takes the next row that exists.

The answer is that of the index: a truncation or an append counts from when it is persisted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from myqueue.wal.groups import Row
from myqueue.wal.store.index import Index


def term_runs(index: Index, group: int, first_index: int) -> list[tuple[int, int]]:
    """Return (index of its first entry, term) of each run of entries of one term, in order.

    The first run begins at `first_index` or after it.
    """
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
    """Return the first row from `low` to `last` that is wanted; None if there is none.

    All rows after a wanted row must be wanted, too.
    """
    if not wanted(last):
        return None
    lowest, high = last, last.index
    while low < high:
        middle = (low + high) // 2
        row = index.next_row(group, middle)
        if row is None or wanted(row):
            lowest, high = row or lowest, middle
        else:
            low = row.index + 1
    return lowest
