"""What each public call of `Admin` has: arguments that were checked, and one deadline.

A call may be several requests, one after the other. The time-out is of the call, so that the
outermost one begins to count and all that it asks has what is left.
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
    """How much time the call of this thread has left."""

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
        if self._end is not None:  # within another call
            yield
            return
        self._end = monotonic() + self.seconds
        try:
            yield
        finally:
            self._end = None

    @contextmanager
    def at_least(self, seconds: float) -> Iterator[None]:
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
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value):
        raise wrong(name, "a mapping of names to numbers", value)
    return {key: one if one is None else whole(one, f"{name}[{key!r}]", -OFFSET_MAX)
            for key, one in value.items()}  # fmt: skip


def _any_whole(value: Any, name: str) -> int:
    return whole(value, name, -OFFSET_MAX)


def _named(value: Any, name: str) -> list[TopicPartition]:
    found = partitions(value)
    if isinstance(found, str) or found is None:
        raise wrong(name, "some TopicPartitions", value)
    return found


def _rows(value: Any, name: str) -> list[Mapping[str, Any]]:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        found = list(value)
        if all(isinstance(one, Mapping) and "address" in one for one in found):
            return found
    raise wrong(name, "rows as `daemons()` gives them", value)


# By how a parameter is annotated: with `| None` it may be None as well.
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
    known = {name: str(kind) for name, kind in method.__annotations__.items() if name != "return"}
    names = tuple(known)  # in order: all parameters have one
    checks = {name: _CHECKS[kind.removesuffix(" | None")] for name, kind in known.items()}
    optional = {name for name, kind in known.items() if kind.endswith(" | None")}

    def look(name: str, value: Any) -> Any:
        if name not in checks or (value is None and name in optional):
            return value
        return checks[name](value, name)

    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> T:
        given = [look(*pair) for pair in zip(names, arguments, strict=False)]
        rest = arguments[len(given) :]  # too many: the call itself says so
        more = {name: look(name, value) for name, value in named.items()}
        with self._limit.counting():
            return method(self, *given, *rest, **more)

    return call


def public(made: Class) -> Class:
    """Every public method of this class checks its arguments by their annotations, and counts its
    time.
    """
    for name, method in tuple(vars(made).items()):
        if callable(method) and not name.startswith("_") and name != "close":
            setattr(made, name, _public(method))
    return made
