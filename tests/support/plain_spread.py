"""The seam between judging and Spark, served by a loop: for tests that need no JVM.

What belongs together is brought together and sorted, as Spark does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from myqueue.analytics.spread import Judge


class PlainSpread:
    def judged(
        self, orders: list[Any], function: Callable[[Any], Iterator[Any]], judges: Sequence[Judge]
    ) -> Iterator[Any]:
        rows = [row for one in orders for row in function(one)]
        taken = {kind for judge in judges for kind in judge.kinds}
        yield from (row for row in rows if type(row) not in taken)
        for judge in judges:
            yield from _judged([row for row in rows if type(row) in judge.kinds], judge)


def _judged(rows: list[Any], judge: Judge) -> Iterator[Any]:
    rows.sort(key=judge.key)
    for part, together in groupby(rows, lambda row: judge.key(row)[: judge.width]):
        yield from judge.judge(part, together)
