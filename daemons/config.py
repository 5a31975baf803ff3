"""Settings of a daemon: flag over environment over file over default.

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

SEGMENT_BYTES_MIN = 4 << 20  # a quarter of it holds any command of a client
_MANAGER = re.compile(r"(\d{1,4})@(\S+)")


SETTINGS: tuple[Setting, ...] = (
    Setting("id", None, "", "Number of this daemon among those of its kind.", 1, 9999),
    Setting("cluster", "myqueue", "", "Name of the cluster; daemons of another one are refused."),
    Setting("data", None, "path", "Folder of this daemon alone: identity, log, store."),
    Setting("listen", None, "host:port", "Listener for clients."),
    Setting("peer_listen", None, "host:port", "Listener for other daemons."),
    Setting("advertise", "", "host:port", "What clients connect to, if not `listen`."),
    Setting("peer_advertise", "", "host:port", "What daemons connect to, if not `peer_listen`."),
    Setting("managers", (), "ID@host:port …", "Peer listeners of all managers."),
    Setting("host", "", "", "Label of this machine; replicas are spread over labels."),
    Setting("keys", "", "path", "Folder of the cluster's keys; 'myq key generate' makes one."),
    Setting("insecure", False, "", "Listen on other addresses than loopback without keys."),
    Setting("log", "text", "text, json", "Form of the lines on stderr."),
    Setting("heartbeat_ms", 150, "ms", "Time between heartbeats to peers."),
    Setting("election_timeout_ms", 500, "ms", "Silence of a leader until others campaign."),
    Setting("segment_bytes", 64 << 20, "bytes", "Size of a segment of the log."),
    Setting("soft_limit_bytes", 256 << 20, "bytes", "Free disk below which writes are refused."),
    Setting("scrub_bytes_per_s", 8 << 20, "bytes", "Log read in search of damage; 0: off."),
    Setting("fill_bytes_per_s", 16 << 20, "bytes", "Log sent to new replicas; 0: no limit."),
    Setting("waiting_bytes", 0, "bytes", "Memory for unread messages; 0: 1/8 of all memory."),
    Setting("log_entries", 20_000, "entries", "In a manager's log; its state has older ones.", 10),
    Setting("stop_within_ms", 3000, "ms", "Time to transfer leadership after a request to stop."),
)
# MYQ_CLUSTER is already the address that `myq` connects to.
ENVIRONMENT_NAMES = {"cluster": "MYQ_CLUSTER_NAME"}
_NAMES = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """The checked settings of one daemon. `SETTINGS` gives their meanings and units."""

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
    """Merge the four sources and check the result.

    Raises InvalidSetting, which names the setting and where it came from.
    """
    return check_config(kind, gather(SETTINGS, file, environment, flags, ENVIRONMENT_NAMES))


def check_config(kind: str, values: Mapping[str, Any]) -> DaemonConfig:
    for name, setting in _NAMES.items():
        if setting.default is None and values.get(name) in (None, ""):
            raise InvalidSetting(f"{name} is missing: {setting.meaning}")
    clean: dict[str, Any] = {name: _typed(_NAMES[name], values[name]) for name in _NAMES}
    insecure = clean.pop("insecure")
    for name in ("listen", "peer_listen"):
        listener = address(name, clean[name])
        if not (insecure or clean["keys"] or is_loopback(listener)):
            raise InvalidSetting(
                f"{name} = {listener} is not a loopback address, and there are no keys",
                hint="Make keys with 'myq key generate' and name them by --keys; with --insecure"
                " everyone on that network can read and write.",
            )
    for name, origin in (("advertise", "listen"), ("peer_advertise", "peer_listen")):
        is_given = bool(clean[name])
        clean[name] = address(name, clean[name]) if is_given else address(origin, clean[origin])
        if is_unspecified(clean[name]):
            flag = "--" + name.replace("_", "-")
            named = name if is_given else origin
            raise InvalidSetting(
                f"{named} = {clean[name]} is every address of this machine, so no other machine can"
                " connect to it",
                hint=f"Name the address that others connect to, with {flag} HOST:PORT.",
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
        raise InvalidSetting("managers is empty: name the peer listeners of all managers")
    out: dict[int, str] = {}
    for value in values:
        match = _MANAGER.fullmatch(value.strip())
        if match is None:
            raise InvalidSetting(f"managers: {value!r} is not ID@host:port")
        if int(match[1]) in out:
            raise InvalidSetting(f"managers: {match[1]} is named twice")
        manager_address = out[int(match[1])] = address("managers", match[2])
        if is_unspecified(manager_address):
            raise InvalidSetting(f"managers: {value!r} is no address to connect to; name the host")
    return tuple(sorted(out.items()))
