"""Settings of programs: flag over environment over file over default; each with unit and meaning.

A program has one table of `Setting`s. Its flags, the keys of its TOML file, its variables `MYQ_…`
and what `myq config show` prints are all made from it. In come the four sources (`gather`), out
go values of the right type (`typed`) or an `InvalidSetting` that names what is wrong and where.
What values mean together is the program's own to check.
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
    """`default` tells the type as well; None: it must be given."""

    name: str
    default: Any
    unit: str
    meaning: str
    low: int = 0
    high: int = 1 << 40


def gather(
    table: Iterable[Setting], file: str | None, environment: Mapping[str, str],
    flags: Mapping[str, Any], variables: Mapping[str, str] = _NO_SETTINGS,
) -> dict[str, Any]:  # fmt: skip
    """What each setting was given by the strongest source, as it was written there.

    `variables` has the names in the environment that don't follow the rule MYQ_<NAME>. A flag
    that was not given is None, or an empty tuple.
    """
    values = {one.name: one.default for one in table}
    given = {} if file is None else _read(file, values)
    for name in values:
        variable = variables.get(name, f"MYQ_{name.upper()}")
        if variable in environment:
            given[name] = environment[variable]
    return values | given | {k: value for k, value in flags.items() if value not in (None, ())}


def _read(file: str, known: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with open(file, "rb") as stream:
            found = tomllib.load(stream)
    except OSError as error:
        raise InvalidSetting(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{file}: {error}") from error
    for name in found:
        if name not in known:
            raise InvalidSetting(f"{file}: there is no setting {name!r}")
    return found


def typed(setting: Setting, value: Any) -> Any:
    """The value as its default's type; files have types, variables and flags are texts."""
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
    name, low, high = setting.name, setting.low, setting.high
    try:
        found = int(value)
    except (TypeError, ValueError):
        raise InvalidSetting(f"{name} = {value!r} is not a number") from None
    if not low <= found <= high:
        raise InvalidSetting(f"{name} = {found} is not {low} to {high}")
    return found


def address(name: str, value: str) -> str:
    """`host:port`, perhaps behind tcp://, without it."""
    found = _ADDRESS.fullmatch(value.removeprefix("tcp://"))
    if found is None or not 0 < int(found[2]) < 65536:
        raise InvalidSetting(f"{name} = {value!r} is not host:port")
    return found[0]


def is_loopback(address: str) -> bool:
    """Whether nobody on another machine can come in by this `host:port`."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name: who knows where it leads
        return False


def is_unspecified(address: str) -> bool:
    """Whether this `host:port` means every address of a machine: one to listen on, and none to
    connect to.
    """
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
