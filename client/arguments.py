"""Checks of the arguments of public calls, made in the call itself.

A wrong argument that is noticed later fails another caller's call, or all of them: a position that
was no whole number made every fetch of a broker fail. So each public call checks its arguments
first; the error says what was given and what was expected. Arguments with one possible meaning are
accepted: a list of addresses, `("orders", 0)` for a `TopicPartition`, one partition for a list.

    >>> name_of_partition("orders", (0, 17))
    (TopicPartition(topic='orders', partition=0), (17,))
    >>> milliseconds(1_700_000_000_123.9)
    1700000000123
    >>> milliseconds(1_700_000_000.5)
    Traceback (most recent call last):
    myqueue.errors.InvalidRequest: time_ms counts ms since 1970, and 1700000000.5 looks like seconds
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite, isnan
from typing import Any, Final, TypeVar

from myqueue.consumer.message import Message, TopicPartition
from myqueue.errors import InvalidRequest

T = TypeVar("T")
OFFSET_MAX: Final = (1 << 63) - 1
SECONDS_MAX: Final = 1e8  # three years; a longer time counts as endless
MS_MIN: Final = 1e11  # as ms this is 1973; as seconds the year 5138


def wrong(name: str, expected: str, value: object) -> InvalidRequest:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return InvalidRequest(f"{name} is {expected}, not {shown}")


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def whole(value: Any, name: str, low: int = 0, high: int = OFFSET_MAX) -> int:
    if not is_whole(value) or not low <= value <= high:
        limits = f"from {low} to 2^63 - 1" if high == OFFSET_MAX else f"from {low} to {high}"
        raise wrong(name, f"a whole number {limits}", value)
    return int(value)


def seconds(value: Any, name: str = "timeout") -> float | None:
    """A timeout: None has no limit, as far as the call allows; a negative number does not wait."""
    if value is None:
        return None
    is_number = isinstance(value, float) or is_whole(value)
    if not is_number or isnan(value):
        raise wrong(name, "a number of seconds, or None", value)
    return float(min(max(value, 0), SECONDS_MAX))


def definite_seconds(value: Any, name: str = "timeout") -> float:
    """A timeout that must not be None."""
    limit_s = seconds(value, name)
    if limit_s is None:
        raise wrong(name, "a number of seconds", value)
    return limit_s


def milliseconds(value: Any, name: str = "time_ms") -> int:
    """A moment in ms since 1970: `time.time() * 1000`. `time.time()`, in seconds, is refused."""
    if isinstance(value, float) and isfinite(value):
        if value < MS_MIN:
            raise InvalidRequest(
                f"{name} counts ms since 1970, and {value!r} looks like seconds",
                hint="Multiply it: int(time.time() * 1000).",
            )
        value = int(value)
    if not is_whole(value) or not 0 <= value <= OFFSET_MAX:
        raise wrong(name, "a whole number of ms since 1970", value)
    return int(value)


def text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise wrong(name, "a text", value)
    return value


def texts(value: Any, name: str) -> list[str]:
    """A list of texts, given as one text or several."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | Mapping):
        several = list(value)
        if all(isinstance(item, str) for item in several):
            return several
    raise wrong(name, "a text, or several", value)


def numbers_of(value: Any, name: str) -> dict[str, int]:
    """A map of topics to ids."""
    if not isinstance(value, Mapping):
        raise wrong(name, "a mapping of topics to numbers", value)
    return {text(key, name): whole(id_, f"{name}[{key!r}]", 1) for key, id_ in value.items()}


def callback(value: T, name: str) -> T:
    if value is not None and not callable(value):
        raise wrong(name, "a function, or None", value)
    return value


# -- partitions -----------------------------------------------------------------------------------

PARTITION: Final = "a TopicPartition, or a topic and a number"


def is_partition(value: object) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and isinstance(value[0], str)
        and is_whole(value[1])
    )


def partition(value: Any) -> TopicPartition:
    if not is_partition(value):
        raise wrong("a partition", PARTITION, value)
    return TopicPartition(*value)


def name_of_partition(value: Any, more: tuple[Any, ...]) -> tuple[TopicPartition, tuple[Any, ...]]:
    """Split `(partition, …)` or `(topic, number, …)` into the partition and the other arguments."""
    if isinstance(value, str) and more and is_whole(more[0]):
        return TopicPartition(value, more[0]), more[1:]
    return partition(value), more


def partitions(value: Any) -> list[TopicPartition] | str | None:
    """A list of partitions, one, a topic for all of its partitions, or None for all assigned."""
    if value is None or isinstance(value, str):
        return value
    if is_partition(value):
        return [TopicPartition(*value)]
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray):
        return [partition(item) for item in value]
    raise wrong("partitions", "some TopicPartitions, a topic, or None for all", value)


def partitions_and_timeout(
    value: Any, timeout: Any
) -> tuple[list[TopicPartition] | str | None, float | None]:
    """The arguments of calls whose first one may also be their timeout."""
    if isinstance(value, float) or is_whole(value):
        return None, seconds(value)
    return partitions(value), seconds(timeout)


def positions(upto: Any) -> Message | dict[TopicPartition, int] | None:
    """The positions to commit: a message, or a map of partitions to offsets."""
    if upto is None:
        return None
    if isinstance(upto, Message):
        whole(upto.offset, "offset of the message", 0, OFFSET_MAX - 1)
        partition(upto[:2])
        return upto
    if isinstance(upto, Mapping):
        return {partition(name): whole(at, "an offset") for name, at in upto.items()}
    raise wrong("upto", "a Message, or a mapping of TopicPartitions to offsets", upto)
