"""The users' messages: converted to bytes, measured, and cut into runs that fit into batches.

Lists are handled by functions that run in C (`map`, `sum`, `accumulate`, `bisect`): at a million
messages a second there is no time for a Python statement for each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import accumulate
from types import NoneType
from typing import Any, Final

from myqueue.arguments import wrong
from myqueue.errors import InvalidRequest, MessageTooLarge
from myqueue.producer.batch import COUNT_MAX, HEADER_OVERHEAD_BYTES, MESSAGE_OVERHEAD_BYTES
from myqueue.wire.protocol import FRAME_BYTES_MAX

# Of one message: its frame also carries the batch's header and a little of msgpack.
MESSAGE_BYTES_MAX: Final = FRAME_BYTES_MAX - (64 << 10)


def plain_value(value: Any, what: str = "value") -> bytes:
    """Convert bytes, bytearray or memoryview to bytes. `what` it is: only for the error's text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidRequest(f"a {what} is bytes, not {type(value).__name__}; encode it first")


def plain_key(key: Any) -> bytes:
    """Convert a key to bytes; it may be a text, for UTF-8."""
    return _encoded(key, "key") if isinstance(key, str) else plain_value(key, "key")


def plain_headers(headers: Any) -> tuple[dict[str, bytes] | None, int]:
    """Copy headers, a mapping or pairs, to a new map; and the bytes that they count."""
    if headers is None:
        return None, 0
    plain_map, size = {}, 0
    for name, value in _header_map(headers).items():
        if not isinstance(name, str):
            raise InvalidRequest(f"names of headers are text, not {name!r}")
        plain = _encoded(value, name) if isinstance(value, str) else plain_value(value, "header")
        plain_map[name] = plain
        size += len(_encoded(name, "header's name")) + len(plain) + HEADER_OVERHEAD_BYTES
    return plain_map, size


def _header_map(headers: Any) -> dict[Any, Any]:
    if isinstance(headers, Mapping | list | tuple):
        with suppress(TypeError, ValueError):  # a list that is not one of pairs
            return dict(headers)
    raise wrong("headers", "a mapping of texts to bytes or texts", headers)


def _encoded(value: str, what: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"the {what} {value!r} is no text that UTF-8 can write") from None


def plain_keys(keys: Any, count: int) -> list[bytes | None]:
    """Copy keys to a new list, one or None for each value; texts become bytes."""
    if isinstance(keys, str | bytes | bytearray | Mapping) or not isinstance(keys, Iterable):
        raise wrong("keys", "a list with a key, or None, for each value", keys)
    key_list = list(keys)
    if len(key_list) != count:
        raise InvalidRequest(f"{count} values, but {len(key_list)} keys")
    if set(map(type, key_list)) - {bytes, NoneType}:
        key_list = [None if key is None else plain_key(key) for key in key_list]
    return key_list


def check_time(timestamp_ms: Any) -> None:
    if timestamp_ms is None:
        return
    if type(timestamp_ms) is not int or not 0 <= timestamp_ms < 1 << 63:
        raise InvalidRequest(f"timestamp_ms is ms since 1970, not {timestamp_ms!r}")


def plain_values(values: Iterable[Any], caller: str) -> list[bytes]:
    """Copy values to a new list of bytes. `caller`: the public method, for the error's text."""
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise InvalidRequest(f"{caller} takes a list of values; for one value there is send")
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise wrong("values", "a list of bytes", values)
    payloads = list(values)
    if set(map(type, payloads)) - {bytes}:
        payloads = [plain_value(value) for value in payloads]
    return payloads


def check_size(size: int, limit: int, topic: str) -> None:
    if size > limit:
        raise MessageTooLarge(f"{size} bytes for {topic}; a message may have {limit}")


class Runs:
    """Sizes of a list of messages, to cut it where batches are full.

    >>> runs = Runs([b"x" * 76] * 10, None)
    >>> runs.size(0, 10), runs.fitting(0, 450), runs.fitting(9, 450)
    (1000, 4, 10)
    """

    def __init__(self, values: list[bytes], keys: list[bytes | None] | None) -> None:
        self.count = len(values)
        sizes = list(map(len, values))
        if keys is not None:
            sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
        self._sizes = sizes
        self._ends: list[int] | None = None  # a list that fits into one batch needs no sums
        self.largest = max(sizes, default=0)
        self.total = self.count * MESSAGE_OVERHEAD_BYTES + sum(sizes)

    def size(self, first: int, end: int) -> int:
        if first == 0 and end == self.count:
            return self.total
        ends = self._sums()
        return ends[end] - ends[first]

    def fitting(self, first: int, room: int, count_max: int = COUNT_MAX) -> int:
        """Find the end of the run from `first` on that fits; it has at least one message."""
        end = min(self.count, first + count_max)
        if first == 0 and end == self.count and self.total <= room:
            return end
        ends = self._sums()
        fits = bisect_right(ends, ends[first] + room, lo=first, hi=end + 1) - 1
        return max(first + 1, fits)

    def _sums(self) -> list[int]:
        if self._ends is None:
            self._ends = list(
                accumulate(map(MESSAGE_OVERHEAD_BYTES.__add__, self._sizes), initial=0)
            )
        return self._ends
