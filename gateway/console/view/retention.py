"""Retention in forms: how much of a topic is kept, and for how long. Pure.

People write megabytes and minutes; a topic's settings are bytes and milliseconds. What stands in a
form is a number with or without a fraction, and empty means that all is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from myqueue.errors import InvalidRequest

MOST: Final = 1 << 53
# field of a form -> setting of a topic, how many of its units, what it is called
FIELDS: Final = {
    "megabytes": ("retention_bytes", 1_000_000, "megabytes of each partition"),
    "minutes": ("retention_ms", 60_000, "minutes"),
}


def read(form: Mapping[str, str]) -> dict[str, int]:
    """Settings of a topic, as a form has them; 0: all is kept."""
    return {
        setting: _amount(form.get(field, ""), unit, called)
        for field, (setting, unit, called) in FIELDS.items()
    }


def _amount(text: str, unit: int, called: str) -> int:
    try:
        amount = float(text.strip() or 0) * unit
    except ValueError:
        amount = -1.0
    if not 0 <= amount < MOST:  # what is no number is neither
        raise InvalidRequest(f"{called}: a number from 0 to {MOST // unit:,}, not {text[:40]!r}")
    return round(amount)


def written(settings: Mapping[str, Any]) -> dict[str, str]:
    """The other way; reading it again gives the same settings."""
    out = {}
    for field, (setting, unit, _) in FIELDS.items():
        value = int(settings.get(setting, 0))
        short = f"{value / unit:g}"
        exact = short if round(float(short) * unit) == value else repr(value / unit)
        out[field] = exact if value else ""
    return out


def given(form: Mapping[str, str]) -> dict[str, str]:
    """What was typed, to be shown again."""
    return {field: form.get(field, "") for field in FIELDS}
