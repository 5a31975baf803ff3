"""Arguments of operations on the metadata: names, numbers, settings, and their limits.

An operation reads its arguments one by one and then calls `done`, which refuses the ones that it
did not read: a misspelt argument is an error, never silently the default. All of this happens
before the operation changes anything. A refusal leaves only its answer, which is kept for repeats;
so the answer shows only the beginning of a bad value.

Limits of the cluster are settings inside the replicated state (`wire/metadata_settings.py`), not of
a daemon's configuration: replicas that disagree about a limit would disagree about the state.
"""

from __future__ import annotations

import re
from collections.abc import Container
from reprlib import repr as brief  # not longer than a line, whatever it shows
from typing import Any, Final

from myqueue.errors import InvalidName, InvalidRequest, InvalidSetting
from myqueue.wire import protocol
from myqueue.wire.metadata_settings import NumberSetting

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
FORBIDDEN_TOPIC_NAMES: Final = (".", "..")  # no new topic or group has these: see `check_new_name`
TEXT_MAX: Final = 300  # addresses, hosts, ids of disks
PARTITIONS_PER_CALL: Final = 1000
REPLICATION_MAX: Final = 9
REPLICATION_DEFAULT: Final = 3


def default_settings(known: dict[str, NumberSetting]) -> dict[str, int]:
    return {name: setting.default for name, setting in sorted(known.items())}


def merge_settings(
    known: dict[str, NumberSetting], before: dict[str, int], given: dict[Any, Any]
) -> dict[str, int]:
    """Return all settings after the change; None restores a default."""
    after = dict(before)
    for name, value in given.items():
        setting = known.get(name)
        if setting is None:
            names = ", ".join(known)
            raise InvalidSetting(f"there is no setting {brief(name)}; there are {names}")
        if value is None:
            value = setting.default
        if type(value) is not int or not setting.low <= value <= setting.high:
            raise InvalidSetting(
                f"{name} is {brief(value)}; it has to be a number "
                f"from {setting.low} to {setting.high}"
            )
        after[name] = value
    return dict(sorted(after.items()))


def checked_name(value: Any, what: str) -> str:
    if type(value) is not str or NAME_PATTERN.fullmatch(value) is None:
        raise InvalidName(f"{what}: {brief(value)} is not a name of 1 to 200 of A-Z a-z 0-9 . _ -")
    return value


def check_new_name(kind: str, name: Any, existing: Container[str]) -> None:
    """Refuse "." and ".." as the name of a new "topic" or "group": URLs and paths give them a
    meaning.

    The leader checks this before it proposes an entry. Entries of existing logs that created such a
    topic or group are applied as before, so it can be used and deleted.
    """
    if name in FORBIDDEN_TOPIC_NAMES and name not in existing:
        raise InvalidName(
            f"a {kind} can't be named {name!r}: in a URL that leads to another page",
            hint="Choose another name, of A-Z a-z 0-9 . _ -",
        )


class Arguments:
    """The arguments of one operation. Each method reads one and raises if it is not valid."""

    def __init__(self, call: str, given: dict[Any, Any]) -> None:
        self._call, self._left = call, dict(given)

    def _take(self, name: str, default: Any) -> Any:
        value = self._left.pop(name, None)
        if value is not None:
            return value
        if default is None:
            raise InvalidRequest(f"{self._call} needs {name}")
        return default

    def name(self, name: str, default: str | None = None) -> str:
        """Read the name of a topic or a producer; "" is valid only as the default."""
        value = self._take(name, default)
        return "" if value == "" and default == "" else checked_name(value, name)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._take(name, default)
        if type(value) is not str or len(value) > TEXT_MAX:
            raise InvalidRequest(
                f"{name} of {self._call} is a text of at most {TEXT_MAX} characters"
            )
        return value

    def number(
        self, name: str, default: int | None = None, low: int = 0, high: int = protocol.INT_END - 1
    ) -> int:
        value = self._take(name, default)
        if type(value) is not int or not low <= value <= high:
            shown = f"from {low} to {high}" if high < protocol.INT_END - 1 else f"of at least {low}"
            raise InvalidRequest(f"{name} of {self._call} is {brief(value)}, not a number {shown}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._take(name, default)
        if type(value) is not bool:
            raise InvalidRequest(f"{name} of {self._call} is {brief(value)}, not true or false")
        return value

    def settings(self) -> dict[Any, Any]:
        """Read settings as given; `merge_settings` checks them."""
        value = self._take("settings", {})
        if type(value) is not dict:
            raise InvalidSetting(f"settings of {self._call} is a map of names to numbers")
        return value

    def numbers(self, name: str) -> list[int]:
        value = self._take(name, [])
        if type(value) is not list or not all(map(protocol.is_int, value)):
            raise InvalidRequest(f"{name} of {self._call} is a list of numbers")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._take(name, [])
        if type(value) is not list or not all(map(protocol.is_text, value)):
            raise InvalidRequest(f"{name} of {self._call} is a list of texts")
        return value

    def pairs(self, name: str) -> list[tuple[int, int]]:
        value = self._take(name, [])
        pair = protocol.row(protocol.is_int, protocol.is_int)
        if type(value) is not list or not all(map(pair, value)):
            raise InvalidRequest(f"{name} of {self._call} is a list of pairs of numbers")
        return [(first, second) for first, second in value]

    def rows(self, name: str, width: int) -> list[list[int]]:
        """Read a list of lists of `width` numbers each."""
        value = self._take(name, [])
        row = protocol.row(*[protocol.is_int] * width)
        if type(value) is not list or not all(map(row, value)):
            raise InvalidRequest(f"{name} of {self._call} is a list of {width} numbers each")
        return value

    def done(self) -> None:
        """Raise InvalidRequest if an argument was not read."""
        if self._left:
            names = ", ".join(sorted(map(str, self._left)))[:TEXT_MAX]
            raise InvalidRequest(f"{self._call} knows no argument {names}")
