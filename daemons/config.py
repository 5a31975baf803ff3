"""Settings of a daemon: flag over environment over file over default; each with unit and meaning.

`SETTINGS` is the one table: the flags of `bin/myq-manager` and `bin/myq-broker`, the keys of the
TOML file, the variables `MYQ_…`, and what `myq config show` prints are all made from it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from myqueue.errors import InvalidSetting
from myqueue.wire.program_settings import (
    Setting,
    address,
    gather,
    is_loopback,
    is_unspecified,
    number,
    typed,
)

SEGMENT_BYTES_MIN = 4 << 20  # a quarter of it takes any command of a client
_MANAGER = re.compile(r"(\d{1,4})@(\S+)")


SETTINGS: tuple[Setting, ...] = (
    Setting("id", None, "", "Number of this daemon among those of its kind.", 1, 9999),
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
    Setting("scrub_bytes_per_s", 8 << 20, "bytes", "Of the log read in search of damage; 0: off."),
    Setting("fill_bytes_per_s", 16 << 20, "bytes", "Of its log sent to new replicas; 0: no limit."),
    Setting("waiting_bytes", 0, "bytes", "Memory for messages not read yet; 0: 1/8 of all memory."),
    Setting("log_entries", 20_000, "entries", "A manager's log; older ones become its state.", 10),
    Setting("stop_within_ms", 3000, "ms", "For handing over leadership when asked to stop."),
)
# Where the rule MYQ_<NAME> would clash: MYQ_CLUSTER is the address that `myq` talks to.
ENVIRONMENT_NAMES = {"cluster": "MYQ_CLUSTER_NAME"}
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
    scrub_bytes_per_s: int
    fill_bytes_per_s: int
    waiting_bytes: int
    log_entries: int
    stop_within_ms: int


def load_config(
    kind: str, file: str | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> DaemonConfig:
    """Put the four sources together; whatever is wrong is named with its place."""
    return check_config(kind, gather(SETTINGS, file, environment, flags, ENVIRONMENT_NAMES))


def check_config(kind: str, values: Mapping[str, Any]) -> DaemonConfig:
    for name, setting in _NAMES.items():
        if setting.default is None and values.get(name) in (None, ""):
            raise InvalidSetting(f"{name} is missing: {setting.meaning}")
    clean: dict[str, Any] = {name: _typed(_NAMES[name], values[name]) for name in _NAMES}
    insecure = clean.pop("insecure")
    for name in ("listen", "peer_listen"):
        door = address(name, clean[name])
        if not (insecure or clean["keys"] or is_loopback(door)):
            raise InvalidSetting(
                f"{name} = {door} is not a loopback address, and there are no keys",
                hint="Make keys with 'myq key generate' and name them by --keys; with --insecure"
                " anybody on that network can read and write.",
            )
    for name, origin in (("advertise", "listen"), ("peer_advertise", "peer_listen")):
        is_given = bool(clean[name])
        clean[name] = address(name, clean[name]) if is_given else address(origin, clean[origin])
        if is_unspecified(clean[name]):
            flag = "--" + name.replace("_", "-")
            what = name if is_given else origin
            raise InvalidSetting(
                f"{what} = {clean[name]} is every address of this machine, so nobody elsewhere can"
                " connect to it",
                hint=f"Name the address by which others reach this door, with {flag} HOST:PORT.",
            )
    if not SEGMENT_BYTES_MIN <= clean["segment_bytes"] < 1 << 32:
        raise InvalidSetting(
            f"segment_bytes = {clean['segment_bytes']} is not {SEGMENT_BYTES_MIN} to 4 GiB - 1",
            hint="A batch may have a quarter of it, on every broker; leave it as it is.",
        )
    clean["managers"] = _managers(clean["managers"])
    if kind == "manager" and clean["id"] not in dict(clean["managers"]):
        raise InvalidSetting(f"managers does not name this one, {clean['id']}@…")
    clean["data"] = os.path.abspath(clean["data"])
    return DaemonConfig(kind=kind, **clean)


def _typed(setting: Setting, value: Any) -> Any:
    if setting.name == "managers":
        return value.split(",") if isinstance(value, str) else list(value)
    return number(setting, value) if setting.name == "id" else typed(setting, value)


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
        where = out[int(found[1])] = address("managers", found[2])
        if is_unspecified(where):
            raise InvalidSetting(f"managers: {value!r} is no address to connect to; name the host")
    return tuple(sorted(out.items()))
