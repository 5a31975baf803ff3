"""What callers hand in, checked in the call that hands it in.

A wrong argument that is noticed later fails somebody else's call, or all of them: a position that
is no whole number made every fetch of a broker fail. So each public call looks at its arguments
first, and says what it was given and what it expected. Where a call can only mean one thing it is
understood: a list of addresses, `("orders", 0)` for a `TopicPartition`, one partition for a list.

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
SECONDS_MAX: Final = 1e8  # three years: what is longer never ends
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
    """None waits without an end, as far as the call allows; a negative number does not wait."""
    if value is None:
        return None
    is_number = isinstance(value, float) or is_whole(value)
    if not is_number or isnan(value):
        raise wrong(name, "a number of seconds, or None", value)
    return float(min(max(value, 0), SECONDS_MAX))


def definite_seconds(value: Any, name: str = "timeout") -> float:
    found = seconds(value, name)
    if found is None:
        raise wrong(name, "a number of seconds", value)
    return found


def milliseconds(value: Any, name: str = "time_ms") -> int:
    """A moment. `time.time() * 1000` is understood, `time.time()` is not what it looks like."""
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
    """One text, or several."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | Mapping):
        found = list(value)
        if all(isinstance(one, str) for one in found):
            return found
    raise wrong(name, "a text, or several", value)


def numbers_of(value: Any, name: str) -> dict[str, int]:
    """Ids by topic."""
    if not isinstance(value, Mapping):
        raise wrong(name, "a mapping of topics to numbers", value)
    return {text(key, name): whole(one, f"{name}[{key!r}]", 1) for key, one in value.items()}


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
    """`(partition, …)` or `(topic, number, …)`; and the arguments behind it."""
    if isinstance(value, str) and more and is_whole(more[0]):
        return TopicPartition(value, more[0]), more[1:]
    return partition(value), more


def partitions(value: Any) -> list[TopicPartition] | str | None:
    """Some partitions, one, all of a topic, or (None) all that are read."""
    if value is None or isinstance(value, str):
        return value
    if is_partition(value):
        return [TopicPartition(*value)]
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray):
        return [partition(one) for one in value]
    raise wrong("partitions", "some TopicPartitions, a topic, or None for all", value)


def partitions_and_timeout(
    value: Any, timeout: Any
) -> tuple[list[TopicPartition] | str | None, float | None]:
    """Of calls whose first argument may also be their time-out."""
    if isinstance(value, float) or is_whole(value):
        return None, seconds(value)
    return partitions(value), seconds(timeout)


def positions(upto: Any) -> Message | dict[TopicPartition, int] | None:
    """What is to be committed."""
    if upto is None:
        return None
    if isinstance(upto, Message):
        whole(upto.offset, "offset of the message", 0, OFFSET_MAX - 1)
        partition(upto[:2])
        return upto
    if isinstance(upto, Mapping):
        return {partition(name): whole(at, "an offset") for name, at in upto.items()}
    raise wrong("upto", "a Message, or a mapping of TopicPartitions to offsets", upto)
