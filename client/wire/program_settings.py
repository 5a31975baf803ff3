"""Settings of daemons and the gateway: flag over environment over file over default.

A program has one table of `Setting`s. Its flags, the keys of its TOML file, its variables `MYQ_…`
and the rows of `myq config show` come from it. In come the four sources (`gather`). Out go values
of the right type (`typed`), or an `InvalidSetting` that names the setting and its source. Each
program checks itself whether its values fit together.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, ip_address
from socket import inet_aton
from typing import Any, Final, NamedTuple

from myqueue.errors import InvalidSetting

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/]+):(\d{1,5})")
_NO_SETTINGS: Final[Mapping[str, str]] = {}


class Setting(NamedTuple):
    """One setting. The default also decides the type; None: the setting must be given."""

    name: str
    default: Any
    unit: str
    meaning: str
    low: int = 0
    high: int = 1 << 40


def gather(
    table: Iterable[Setting],
    file: str | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    variables: Mapping[str, str] = _NO_SETTINGS,
) -> dict[str, Any]:
    """Map each setting to its value in the strongest source, as written there.

    `variables`: names in the environment that do not follow the rule MYQ_<NAME>. A flag that was
    not given is None or an empty tuple.
    """
    values = {setting.name: setting.default for setting in table}
    given = {} if file is None else _read(file, values)
    for name in values:
        variable = variables.get(name, f"MYQ_{name.upper()}")
        if variable in environment:
            given[name] = environment[variable]
    return values | given | {k: value for k, value in flags.items() if value not in (None, ())}


def _read(file: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with open(file, "rb") as stream:
            content = tomllib.load(stream)
    except OSError as error:
        raise InvalidSetting(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{file}: {error}") from error
    for name in content:
        if name not in defaults:
            raise InvalidSetting(f"{file}: there is no setting {name!r}")
    return content


def typed(setting: Setting, value: Any) -> Any:
    """Convert a value to its default's type. Files have types; variables and flags are texts."""
    name, default = setting.name, setting.default
    if isinstance(default, bool):
        if isinstance(value, bool) or str(value).lower() in ("0", "1", "true", "false"):
            return str(value).lower() in ("1", "true")
        raise InvalidSetting(f"{name} = {value!r} is neither true nor false")
    if isinstance(default, int):
        return number(setting, value)
    if not isinstance(value, str):
        raise InvalidSetting(f"{name} = {value!r} is not a text")
    if name == "log" and value not in ("text", "json"):
        raise InvalidSetting(f"log = {value!r} is neither text nor json")
    return value


def number(setting: Setting, value: Any) -> int:
    """Convert a value to a whole number within the setting's range."""
    name, low, high = setting.name, setting.low, setting.high
    try:
        converted = int(value)
    except (TypeError, ValueError):
        raise InvalidSetting(f"{name} = {value!r} is not a number") from None
    if not low <= converted <= high:
        raise InvalidSetting(f"{name} = {converted} is not {low} to {high}")
    return converted


def address(name: str, value: str) -> str:
    """Check `host:port` and return it without a leading tcp://."""
    match = _ADDRESS.fullmatch(value.removeprefix("tcp://"))
    if match is None or not 0 < int(match[2]) < 65536:
        raise InvalidSetting(f"{name} = {value!r} is not host:port")
    return match[0]


def is_loopback(address: str) -> bool:
    """Is this `host:port` certainly unreachable from other machines?"""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name: it may resolve to any address
        return False


def is_unspecified(address: str) -> bool:
    """Does this `host:port` mean every address of a machine? Valid to listen on only."""
    host = address.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        ip = ip_address(host)
    except ValueError:
        if host == "*":
            return True
        try:
            return not any(inet_aton(host))  # "0", as the system's resolver reads it
        except OSError:
            return False
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return ip.is_unspecified or (mapped is not None and mapped.is_unspecified)
