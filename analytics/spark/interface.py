"""What judging needs of Spark: `job` serves it, and tests serve it with a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol


class Judge(NamedTuple):
    """Rows of these kinds whose keys begin with the same `width` items are judged together.

    `judge(those items, the rows sorted by the whole key)` says what is handed on.
    """

    kinds: tuple[type, ...]
    key: Callable[[Any], tuple[Any, ...]]
    width: int
    judge: Callable[[tuple[Any, ...], Iterator[Any]], Iterator[Any]]


class Spread(Protocol):
    """See `job.Spread`."""

    def judged(
        self, orders: list[Any], function: Callable[[Any], Iterator[Any]], judges: Sequence[Judge]
    ) -> Iterator[Any]:
        """`function(order)` makes rows, judges take them; what they say comes here, and the rows
        that no judge takes. What one call of a judge says comes together, all else in any order.
        """
        ...
