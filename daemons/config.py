"""Settings of a daemon: flag over environment over file over default; each with unit and meaning.

`SETTINGS` is the one table: the flags of `bin/myq-manager` and `bin/myq-broker`, the keys of the
TOML file, the variables `MYQ_…`, and what `myq config show` prints are all made from it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from myqueue.errors import InvalidSetting

SEGMENT_BYTES_MIN = 4 << 20  # a quarter of it takes any command of a client
LOG_ENTRIES_MIN = 10
LOOPBACK = ("127.", "localhost", "[::1]")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/]+):(\d{1,5})")
_MANAGER = re.compile(r"(\d{1,4})@(\S+)")


class Setting(NamedTuple):
    name: str
    default: Any  # None: must be given
    unit: str
    meaning: str


SETTINGS: tuple[Setting, ...] = (
    Setting("id", None, "", "Number of this daemon among those of its kind, 1 to 9999."),
    Setting("cluster", "myqueue", "", "Name of the cluster; daemons of another one are refused."),
    Setting("data", None, "path", "Directory of this daemon alone: identity, log, store."),
    Setting("listen", None, "host:port", "The door for clients."),
    Setting("peer_listen", None, "host:port", "The door for other daemons."),
    Setting("advertise", "", "host:port", "How clients reach the door, if not as in `listen`."),
    Setting("peer_advertise", "", "host:port", "How daemons reach the peers' door."),
    Setting("managers", (), "ID@host:port …", "The peers' doors of all managers."),
    Setting("host", "", "", "Label of this machine; replicas are spread over labels."),
    Setting("keys", "", "path", "Folder of the cluster's keys; 'myq key generate' makes one."),
    Setting("insecure", False, "", "Listen on other addresses than loopback without keys."),
    Setting("log", "text", "text, json", "Form of the lines on stderr."),
    Setting("heartbeat_ms", 150, "ms", "Between the beats of a daemon to its peers."),
    Setting("election_timeout_ms", 500, "ms", "Silence of a leader before others stand."),
    Setting("segment_bytes", 64 << 20, "bytes", "Size of a segment of the log."),
    Setting("soft_limit_bytes", 256 << 20, "bytes", "Free disk below which writes are refused."),
    Setting("log_entries", 20_000, "entries", "Of a manager's log; older ones become its state."),
    Setting("stop_within_ms", 3000, "ms", "For handing over leadership when asked to stop."),
)
# Where the rule MYQ_<NAME> would clash: MYQ_CLUSTER is the address that `myq` talks to.
VARIABLES = {"cluster": "MYQ_CLUSTER_NAME"}
_NAMES = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """One daemon's settings, checked."""

    kind: str
    id: int
    cluster: str
    data: str
    listen: str
    peer_listen: str
    advertise: str
    peer_advertise: str
    managers: tuple[tuple[int, str], ...]
    host: str
    keys: str
    log: str
    heartbeat_ms: int
    election_timeout_ms: int
    segment_bytes: int
    soft_limit_bytes: int
    log_entries: int
    stop_within_ms: int


def load(
    kind: str, file: str | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> DaemonConfig:
    """Put the four sources together; whatever is wrong is named with its place."""
    values: dict[str, Any] = {one.name: one.default for one in SETTINGS}
    if file is not None:
        values |= _from_file(file)
    for name in _NAMES:
        variable = VARIABLES.get(name, f"MYQ_{name.upper()}")
        if variable in environment:
            values[name] = environment[variable]
    values |= {name: value for name, value in flags.items() if value not in (None, ())}
    return check(kind, values)


def _from_file(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as stream:
            found = tomllib.load(stream)
    except OSError as error:
        raise InvalidSetting(f"{file}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"{file}: {error}") from error
    for name in found:
        if name not in _NAMES:
            raise InvalidSetting(f"{file}: there is no setting {name!r}")
    return found


def check(kind: str, values: Mapping[str, Any]) -> DaemonConfig:
    for name, setting in _NAMES.items():
        if setting.default is None and values.get(name) in (None, ""):
            raise InvalidSetting(f"{name} is missing: {setting.meaning}")
    clean: dict[str, Any] = {name: _typed(_NAMES[name], values[name]) for name in _NAMES}
    insecure = clean.pop("insecure")
    for name in ("listen", "peer_listen"):
        address = _address(name, clean[name])
        if not (insecure or clean["keys"]) and not address.startswith(LOOPBACK):
            raise InvalidSetting(
                f"{name} = {address} is not a loopback address, and there are no keys",
                hint="Make keys with 'myq key generate' and name them by --keys; with --insecure"
                " anybody on that network can read and write.",
            )
    for name, origin in (("advertise", "listen"), ("peer_advertise", "peer_listen")):
        clean[name] = _address(name, clean[name]) if clean[name] else clean[origin]
    if not 1 <= clean["id"] <= 9999:
        raise InvalidSetting(f"id = {clean['id']} is not 1 to 9999")
    if not SEGMENT_BYTES_MIN <= clean["segment_bytes"] < 1 << 32:
        raise InvalidSetting(
            f"segment_bytes = {clean['segment_bytes']} is not {SEGMENT_BYTES_MIN} to 4 GiB - 1",
            hint="A batch may have a quarter of it, on every broker; leave it as it is.",
        )
    if clean["log_entries"] < LOG_ENTRIES_MIN:
        raise InvalidSetting(f"log_entries = {clean['log_entries']} is below {LOG_ENTRIES_MIN}")
    clean["managers"] = _managers(clean["managers"])
    if kind == "manager" and clean["id"] not in dict(clean["managers"]):
        raise InvalidSetting(f"managers does not name this one, {clean['id']}@…")
    clean["data"] = os.path.abspath(clean["data"])
    return DaemonConfig(kind=kind, **clean)


def _typed(setting: Setting, value: Any) -> Any:
    name, default = setting.name, setting.default
    if name == "managers":
        return value.split(",") if isinstance(value, str) else list(value)
    if isinstance(default, bool):
        if isinstance(value, bool) or str(value).lower() in ("0", "1", "true", "false"):
            return str(value).lower() in ("1", "true")
        raise InvalidSetting(f"{name} = {value!r} is neither true nor false")
    if isinstance(default, int) or name == "id":
        try:
            number = int(value)
        except (TypeError, ValueError):
            raise InvalidSetting(f"{name} = {value!r} is not a number") from None
        if number < 0:
            raise InvalidSetting(f"{name} = {number} is below 0")
        return number
    if not isinstance(value, str):
        raise InvalidSetting(f"{name} = {value!r} is not a text")
    if name == "log" and value not in ("text", "json"):
        raise InvalidSetting(f"log = {value!r} is neither text nor json")
    return value


def _address(name: str, value: str) -> str:
    found = _ADDRESS.fullmatch(value.removeprefix("tcp://"))
    if found is None or not 0 < int(found[2]) < 65536:
        raise InvalidSetting(f"{name} = {value!r} is not host:port")
    return found[0]


def _managers(values: list[str]) -> tuple[tuple[int, str], ...]:
    if not values:
        raise InvalidSetting("managers is empty: name the peers' doors of all managers")
    out: dict[int, str] = {}
    for value in values:
        found = _MANAGER.fullmatch(value.strip())
        if found is None:
            raise InvalidSetting(f"managers: {value!r} is not ID@host:port")
        if int(found[1]) in out:
            raise InvalidSetting(f"managers: {found[1]} is named twice")
        out[int(found[1])] = _address("managers", found[2])
    return tuple(sorted(out.items()))
