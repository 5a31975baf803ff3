"""A `concurrent.futures.Future` that costs almost nothing until a caller needs its parts.

A Future has a condition, lists and states: 2 µs and 500 bytes. A `LazyFuture` has none of them at
first. It becomes a full one at the first access to one of them, by `wait`, `as_completed`,
`asyncio.wrap_future` or `add_done_callback`.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")
_becoming_full: Final = threading.Lock()


class LazyFuture(Future[T]):
    """A future without parts. Subclasses answer `result`, `exception` and `done` themselves."""

    __slots__ = ()
    __init__ = object.__init__

    @abstractmethod
    def _became_full(self) -> None:
        """See to it that the outcome is set, also if it is known already. Called once."""

    def _become_full(self) -> None:
        with _becoming_full:
            is_first = "_condition" not in vars(self)
            if is_first:
                super().__init__()
        if is_first:
            self._became_full()


class _PartOfFuture:
    """An attribute of a full Future; the first access to one makes the LazyFuture a full future.

    An attribute of the instance hides it afterwards. `__getattr__` would do the same, but in a
    class that has one, every access to an attribute is slower: 0.1 µs for each message.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, future: LazyFuture[Any], _: type[LazyFuture[Any]]) -> Any:
        future._become_full()
        return vars(future)[self._name]


for _name in vars(Future()):
    setattr(LazyFuture, _name, _PartOfFuture(_name))
