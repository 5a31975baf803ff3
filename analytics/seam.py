"""What judging needs of Spark: `engine` serves it, and tests serve it with a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Rows(Protocol):
    """See `engine.Rows`."""

    def only(self, *kinds: type) -> Iterator[Any]: ...

    def judged(
        self, kinds: tuple[type, ...], key: Callable[[Any], tuple[Any, ...]], width: int,
        judge: Callable[[tuple[Any, ...], Iterator[Any]], Iterator[Any]],
    ) -> Iterator[Any]: ...  # fmt: skip

    def forget(self) -> None: ...


class Spread(Protocol):
    """See `engine.Spread`."""

    def run(self, orders: list[Any], function: Callable[[Any], Iterator[Any]]) -> Rows: ...

    def join(self, *rows: Any) -> Rows: ...
