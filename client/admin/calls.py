"""What `@public` adds to each call of `Admin`: checked arguments and one deadline.

A call may send several requests. The timeout belongs to the outermost call: it starts the deadline,
and every request within it gets the time that is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from time import monotonic
from typing import Any, Final, TypeVar

from myqueue.arguments import (
    OFFSET_MAX,
    definite_seconds,
    partitions,
    text,
    texts,
    whole,
    wrong,
)
from myqueue.consumer.message import TopicPartition

T = TypeVar("T")
Class = TypeVar("Class", bound=type)


class Limit(threading.local):
    """The deadline of the call that this thread is in."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end: float | None = None

    @property
    def ms(self) -> int:
        return max(1, round(self.seconds * 1000))

    @property
    def left_ms(self) -> int:
        if self._end is None:
            return self.ms
        return max(1, round((self._end - monotonic()) * 1000))

    @property
    def is_over(self) -> bool:
        return self._end is not None and monotonic() >= self._end

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Start the deadline, unless an outer call has started it."""
        if self._end is not None:
            yield
            return
        self._end = monotonic() + self.seconds
        try:
            yield
        finally:
            self._end = None

    @contextmanager
    def at_least(self, seconds: float) -> Iterator[None]:
        """Extend the deadline for a while, to end what was begun."""
        end, self._end = self._end, max(self._end or 0.0, monotonic() + seconds)
        try:
            yield
        finally:
            self._end = end


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(name, "True or False", value)
    return value


def _settings(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise wrong(name, "a mapping of names to numbers", value)
    return {
        key: None if number is None else whole(number, f"{name}[{key!r}]", -OFFSET_MAX)
        for key, number in value.items()
    }


def _any_whole(value: Any, name: str) -> int:
    return whole(value, name, -OFFSET_MAX)


def _named(value: Any, name: str) -> list[TopicPartition]:
    chosen = partitions(value)
    if isinstance(chosen, str) or chosen is None:
        raise wrong(name, "some TopicPartitions", value)
    return chosen


def _rows(value: Any, name: str) -> list[Mapping[str, Any]]:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        rows = list(value)
        if all(isinstance(row, Mapping) and "address" in row for row in rows):
            return rows
    raise wrong(name, "rows as `daemons()` gives them", value)


# The check for each annotation of a parameter. With `| None` it may be None as well.
_CHECKS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "str": text,
    "int": _any_whole,
    "bool": _flag,
    "float": definite_seconds,
    "Mapping[str, int | None]": _settings,
    "Iterable[str]": texts,
    "Iterable[TopicPartition]": _named,
    "Iterable[Facts]": _rows,
}


def _public(method: Callable[..., T]) -> Callable[..., T]:
    kinds = {name: str(kind) for name, kind in method.__annotations__.items() if name != "return"}
    names = tuple(kinds)  # in order: every parameter is annotated
    checks = {name: _CHECKS[kind.removesuffix(" | None")] for name, kind in kinds.items()}
    optional = {name for name, kind in kinds.items() if kind.endswith(" | None")}

    def checked(name: str, value: Any) -> Any:
        if name not in checks or (value is None and name in optional):
            return value
        return checks[name](value, name)

    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> T:
        given = [checked(*pair) for pair in zip(names, arguments, strict=False)]
        rest = arguments[len(given) :]  # too many arguments: the method itself raises TypeError
        more = {name: checked(name, value) for name, value in named.items()}
        with self._limit.counting():
            return method(self, *given, *rest, **more)

    return call


def public(made: Class) -> Class:
    """Let each public method check its arguments by their annotations and keep one deadline."""
    for name, method in tuple(vars(made).items()):
        if callable(method) and not name.startswith("_") and name != "close":
            setattr(made, name, _public(method))
    return made
