"""The part of Spark that judging needs: `job` implements it, and tests do so with a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol


class Judge(NamedTuple):
    """Rows of these kinds whose keys begin with the same `width` items are judged together.

    `judge(those items, rows)` gets the rows sorted by the whole key, and yields results.
    """

    kinds: tuple[type, ...]
    key: Callable[[Any], tuple[Any, ...]]
    width: int
    judge: Callable[[tuple[Any, ...], Iterator[Any]], Iterator[Any]]


class Spreader(Protocol):
    """Spreads tasks over executors, and sorts what they yield to judges."""

    def judged(
        self, orders: list[Any], function: Callable[[Any], Iterator[Any]], judges: Sequence[Judge]
    ) -> Iterator[Any]:
        """Yield what judges say about the rows of `function(order)`, and rows without a judge.

        Results of one call of a judge come together; everything else comes in any order.
        """
        ...
