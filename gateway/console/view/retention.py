"""Retention in forms: how much of a topic is kept, and for how long. Pure.

People write megabytes and minutes; a topic's settings are bytes and milliseconds. A form has a
number with or without a fraction; an empty field means that everything is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from myqueue.errors import InvalidRequest

MOST: Final = 1 << 53
# field of a form: setting of a topic, units in one, name in errors
FIELDS: Final = {
    "megabytes": ("retention_bytes", 1_000_000, "megabytes of each partition"),
    "minutes": ("retention_ms", 60_000, "minutes"),
}


def read(form: Mapping[str, str]) -> dict[str, int]:
    """Read the settings of a topic from a form; 0: everything is kept."""
    return {
        setting: _amount(form.get(field, ""), unit, called)
        for field, (setting, unit, called) in FIELDS.items()
    }


def _amount(text: str, unit: int, called: str) -> int:
    try:
        amount = float(text.strip() or 0) * unit
    except ValueError:
        amount = -1.0
    if not 0 <= amount < MOST:  # also false for a value that is not a number
        raise InvalidRequest(f"{called}: a number from 0 to {MOST // unit:,}, not {text[:40]!r}")
    return round(amount)


def written(settings: Mapping[str, Any]) -> dict[str, str]:
    """Write settings into form fields; reading these again gives the same settings."""
    out = {}
    for field, (setting, unit, _) in FIELDS.items():
        value = int(settings.get(setting, 0))
        short = f"{value / unit:g}"
        exact = short if round(float(short) * unit) == value else repr(value / unit)
        out[field] = exact if value else ""
    return out


def given(form: Mapping[str, str]) -> dict[str, str]:
    """Return what a person typed, to show it again."""
    return {field: form.get(field, "") for field in FIELDS}
