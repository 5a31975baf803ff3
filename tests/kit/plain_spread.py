"""The seam between judging and Spark, served by a loop: for tests that need no JVM.

What belongs together is brought together and sorted, as Spark does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any


class PlainRows:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def only(self, *kinds: type) -> Iterator[Any]:
        return (row for row in self.rows if isinstance(row, kinds))

    def judged(
        self, kinds: tuple[type, ...], key: Callable[[Any], tuple[Any, ...]], width: int,
        judge: Callable[[tuple[Any, ...], Iterator[Any]], Iterator[Any]],
    ) -> Iterator[Any]:  # fmt: skip
        rows = sorted(self.only(*kinds), key=key)
        for part, its in groupby(rows, lambda row: key(row)[:width]):
            yield from judge(part, its)

    def forget(self) -> None:
        self.rows = []


class PlainSpread:
    def run(self, orders: list[Any], function: Callable[[Any], Iterator[Any]]) -> PlainRows:
        return PlainRows([row for one in orders for row in function(one)])

    def join(self, *rows: PlainRows) -> PlainRows:
        return PlainRows([row for one in rows for row in one.rows])
