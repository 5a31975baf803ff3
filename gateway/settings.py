"""Settings of a gateway: flag over environment over file over default; each with unit and meaning.

`SETTINGS` is the one table: the flags of `bin/myq-gateway`, the keys of the TOML file, the
variables `MYQ_…`, and the output of `myq config show` are all made from it. This module does not
need Flask, so that the command line can show the settings where the gateway is not installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from myqueue.errors import InvalidSetting
from myqueue.wire.program_settings import Setting, address, gather, is_loopback, typed

_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_-][A-Za-z0-9_.-]{0,252})(:[0-9]{1,5})?")

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "cluster", "127.0.0.1:9092", "host:port,…",
        "Managers of the cluster, with commas between; one is enough to find the others.",
    ),
    Setting("listen", "127.0.0.1:8080", "host:port", "Address that HTTP is served at."),
    Setting(
        "tokens", "", "path", "File of bearer tokens; without it every client may do everything."
    ),
    Setting("tls_certificate", "", "path", "Certificate chain (PEM); with it, HTTPS is served."),
    Setting("tls_key", "", "path", "Private key of the certificate (PEM)."),
    Setting("insecure", False, "", "Listen on other addresses than loopback without tokens."),
    Setting(
        "allowed_host", (), "name …",
        "A name by which browsers and programs reach this gateway, besides its address.",
    ),
    Setting("key", "", "path", "This gateway's key, if the cluster has keys."),
    Setting(
        "agent", "", "path",
        "Folder of the 'myq up' on this machine that starts and stops brokers when asked.",
    ),
    Setting("log", "text", "text, json", "Form of the lines on stderr."),
    Setting(
        "empty", "failure", "failure, success",
        "Status of a consume that finds nothing left, if the request does not say (empty=…).",
    ),
    Setting("threads", 32, "threads", "Threads that run requests.", 4, 512),
    Setting(
        "waiting_max", 0, "requests",
        "Long polls and streams at once; more are refused (429). 0: a third of the threads.", 0, 512
    ),
    Setting("wait_ms_max", 30_000, "ms", "How long a long poll may wait.", 0, 300_000),
    Setting(
        "request_timeout_ms", 5_000, "ms", "How long the cluster may take for one request.",
        100, 300_000,
    ),
    Setting("body_bytes_max", 16 << 20, "bytes", "Largest body of a request.", 1024, 1 << 30),
    Setting(
        "bodies_bytes_max", 64 << 20, "bytes",
        "Bodies that are being read, and large ones not answered yet, together; at least four"
        " thirds of body_bytes_max.", 1024, 1 << 40,
    ),
    Setting("header_bytes_max", 16 << 10, "bytes", "All headers together.", 1024, 1 << 20),
    Setting("connections_max", 4_000, "", "Idle ones are closed for new ones.", 16, 100_000),
    Setting("header_timeout_ms", 10_000, "ms", "From the first byte to the last header.", 100),
    Setting("body_timeout_ms", 30_000, "ms", "From the last header to the last byte.", 100),
    Setting("idle_timeout_ms", 75_000, "ms", "Between two requests of a connection.", 100),
    Setting(
        "stop_within_ms", 4_000, "ms", "For requests under way when the gateway stops.", 0, 60_000
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The checked settings of one gateway. `SETTINGS` gives their meanings and units."""

    cluster: str
    listen: str
    tokens: str
    tls_certificate: str
    tls_key: str
    allowed_host: tuple[str, ...]
    key: str
    agent: str
    log: str
    empty: str
    threads: int
    waiting_max: int
    wait_ms_max: int
    request_timeout_ms: int
    body_bytes_max: int
    bodies_bytes_max: int
    header_bytes_max: int
    connections_max: int
    header_timeout_ms: int
    body_timeout_ms: int
    idle_timeout_ms: int
    stop_within_ms: int

    @property
    def url(self) -> str:
        return f"{'https' if self.tls_certificate else 'http'}://{self.listen}"

    @property
    def small_bodies_bytes_max(self) -> int:
        """The part of `bodies_bytes_max` for bodies of up to 64 KiB: a quarter."""
        return self.bodies_bytes_max // 4

    @property
    def large_bodies_bytes_max(self) -> int:
        """The part of `bodies_bytes_max` for larger bodies; one of them must fit."""
        return self.bodies_bytes_max - self.small_bodies_bytes_max

    @property
    def is_local(self) -> bool:
        """True if only programs on this machine can connect."""
        return is_loopback(self.listen)


def load(
    file: str | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> GatewayConfig:
    """Merge the four sources. Raises InvalidSetting, which names the wrong source."""
    return check(gather(SETTINGS, file, environment, flags))


def check(values: Mapping[str, Any]) -> GatewayConfig:
    """Check the values together and make the configuration. Raises InvalidSetting."""
    clean = {setting.name: _typed(setting, values[setting.name]) for setting in SETTINGS}
    insecure = clean.pop("insecure")
    if clean["empty"] not in ("failure", "success"):
        raise InvalidSetting(f"empty = {clean['empty']!r} is neither failure nor success")
    clean["listen"] = address("listen", clean["listen"])
    if not (insecure or clean["tokens"] or is_loopback(clean["listen"])):
        raise InvalidSetting(
            f"listen = {clean['listen']} is not a loopback address, and there are no tokens",
            hint="Name a file with --tokens, or allow every client everything with --insecure.",
        )
    if bool(clean["tls_certificate"]) != bool(clean["tls_key"]):
        raise InvalidSetting("tls_certificate and tls_key: one of them is missing")
    clean["waiting_max"] = clean["waiting_max"] or max(1, clean["threads"] // 3)
    if clean["waiting_max"] >= clean["threads"]:
        raise InvalidSetting(
            f"waiting_max = {clean['waiting_max']} leaves none of {clean['threads']} threads"
            " for other requests"
        )
    for name in ("tokens", "tls_certificate", "tls_key", "key", "agent"):
        clean[name] = os.path.abspath(clean[name]) if clean[name] else ""
    config = GatewayConfig(**clean)
    if config.body_bytes_max > config.large_bodies_bytes_max:
        raise InvalidSetting(
            f"body_bytes_max = {config.body_bytes_max}: one body would be larger than the"
            f" {config.large_bodies_bytes_max} bytes for all large bodies together, three quarters"
            f" of bodies_bytes_max = {config.bodies_bytes_max}",
            hint="Raise bodies_bytes_max to at least four thirds of body_bytes_max.",
        )
    return config


def _typed(setting: Setting, value: Any) -> Any:
    if setting.name != "allowed_host":
        return typed(setting, value)
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
        raise InvalidSetting(f"allowed_host = {value!r} is not a list of names")
    return tuple(host_name(one) for one in names if one.strip())


def name_of(host: str) -> str:
    """Return the name in `name:port` as it is compared; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower().removesuffix(".")


def host_name(text: str) -> str:
    """Return the machine name in a setting, which may have a port. Raises InvalidSetting."""
    if _HOST.fullmatch(text.strip()) is None:
        raise InvalidSetting(
            f"allowed_host = {text!r} is not the name of a machine",
            hint="Write it as in an address, without http:// and path: queue.example.com",
        )
    return name_of(text.strip())


def is_address(name: str) -> bool:
    """True for an address in numbers, for which no name server is asked."""
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


DEFAULTS: Final = check({setting.name: setting.default for setting in SETTINGS})
