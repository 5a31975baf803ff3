"""The table of limits in `gateway/http` has every setting that is one, with its true default."""

from __future__ import annotations

import re

from myqueue.gateway import http
from myqueue.gateway.api import auth
from myqueue.gateway.dispatch import head_check
from myqueue.gateway.http import (
    deadlines,
    eviction,
    open_connections,
    request_head,
    worker_pool,
)
from myqueue.gateway.settings import DEFAULTS, SETTINGS

MODULES = (auth, head_check, deadlines, eviction, request_head, open_connections, worker_pool)


def test_every_limit_is_listed_with_its_default() -> None:
    text = http.__doc__ or ""
    lines = (re.split(" {2,}", line.strip()) for line in text.splitlines())
    listed = {row[1]: row[2] for row in lines if len(row) == 4 and row[0] != "limit"}
    missing = [s.name for s in SETTINGS if type(s.default) is int and s.name not in text]
    assert len(listed) == 21 and missing == []
    computed = {
        "waiting_max": "a third",
        "wait_ms_max": f"{deadlines.making_ms_max(DEFAULTS) / 1000:g} s",
    }
    true = {name: computed.get(name) or shown(name, value_of(name)) for name in listed}
    assert listed == true


def value_of(name: str) -> float:
    """The value of a setting, or of the constant with this name."""
    if name.islower():
        return float(getattr(DEFAULTS, name))
    return float(next(getattr(module, name) for module in MODULES if hasattr(module, name)))


def shown(name: str, value: float) -> str:
    if name.endswith(("_ms", "_S")):
        return f"{value / (1000 if name.islower() else 1):g} s"
    if "BYTES" not in name.upper():
        return f"{value:,.0f}"
    return f"{value / (1 << 20):g} MiB" if value >= 1 << 20 else f"{value / 1024:g} KiB"
