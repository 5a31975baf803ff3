"""Numbers, times and states as people read them; and tables of them. Pure.

Every number on a page has a unit and a title that explains it. So pages are made of `Tile`s and
`Table`s, which have both, and templates only draw them. Nothing here is markup: Jinja escapes
names, keys and messages where it draws them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

# States: a word, a colour and a mark; never only a colour.
OK, WARN, BAD, OFF = "ok", "warn", "bad", "off"
NOTHING: Final = "–"


class Tile(NamedTuple):
    """One big number."""

    label: str
    text: str
    about: str
    state: str = ""
    link: str = ""
    note: str = ""


class Column(NamedTuple):
    head: str
    about: str
    is_number: bool = False


class Cell(NamedTuple):
    """`about` replaces the column's title; `state` puts a mark before the text."""

    text: str
    link: str = ""
    state: str = ""
    about: str = ""
    is_code: bool = False  # bytes or names that should not be wrapped as prose


@dataclass(slots=True)
class Table:
    """A table; `empty` says what to do when it has no rows."""

    caption: str
    columns: Sequence[Column]
    empty: str
    rows: list[list[Cell]] = field(default_factory=list)
    note: str = ""

    def add(self, *cells: Cell | str) -> None:
        self.rows.append([Cell(one) if isinstance(one, str) else one for one in cells])


def wall_ms() -> int:
    """Return milliseconds since 1970 by this machine's clock: only for the time when a page was
    made.
    """
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000


def count(number: float | None) -> str:
    return NOTHING if number is None else f"{number:,.0f}"


def per_second(number: float | None) -> str:
    """Write a rate: "0/s", "7.3/s", "212/s", "18.4 k/s", "1.2 M/s"."""
    return NOTHING if number is None else f"{_short(number)}/s"


def _short(number: float) -> str:
    if number < 0.05:
        return "0"
    if number < 99.95:
        return f"{number:.1f}".removesuffix(".0")
    for scale, letter in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if number >= scale:
            return f"{number / (1e3 if letter == ' k' else scale):,.1f}{letter}"
    return f"{number:,.0f}"


def bytes_(number: float | None) -> str:
    """Write a size: 1023 is "1,023 B", 1536 is "1.5 KiB"."""
    if number is None:
        return NOTHING
    if number < 1024:
        return f"{number:,.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        number /= 1024
        if number < 1023.95 or unit == "TiB":
            break
    return f"{number:,.1f} {unit}"


def bytes_per_second(number: float | None) -> str:
    return NOTHING if number is None else f"{bytes_(round(number))}/s"


def millis(number: float | None) -> str:
    if number is None:
        return NOTHING
    return f"{number:.1f} ms" if number < 100 else f"{number:,.0f} ms"


def duration(ms: float) -> str:
    """Write a time span in the largest unit that fits: "850 ms", "12 s", "3 min", "5 h", "9 d"."""
    if ms < 1000:
        return f"{max(0, ms):.0f} ms"
    seconds = ms / 1000
    for length, unit in ((120, "s"), (120 * 60, "min"), (48 * 3600, "h")):
        if seconds < length:
            return f"{seconds / {'s': 1, 'min': 60, 'h': 3600}[unit]:.0f} {unit}"
    return f"{seconds / 86400:,.0f} d"


def age(then_ms: int, now_ms: int) -> str:
    """Write how long ago something was; "now" within a second and a half."""
    if not then_ms:
        return "never"
    passed = now_ms - then_ms
    return "now" if passed < 1500 else f"{duration(passed)} ago"


def moment(ms: int) -> str:
    """Write a date and time, in UTC."""
    if not ms:
        return NOTHING
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):  # messages may carry any number
        return f"{ms} ms since 1970"


def clock(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%H:%M:%S}"


def is_digits(text: str) -> bool:
    """True for ASCII digits only: other alphabets have digits that are not numbers."""
    return text.isascii() and text.isdigit()


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
