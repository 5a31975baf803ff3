"""Narrow what is read by Spark's filters. Pure: what is wanted and filters come in, less is wanted.

A filter is also handed back to Spark, which applies it to every row. So the narrowed plan must
include all rows that pass the filter; a filter that is not understood here costs only time.
"""

from __future__ import annotations

import json
from typing import Any

from myqueue.analytics.log.plan import Wanted
from myqueue.errors import InvalidRequest
from myqueue.wal import format as f

_KINDS = {name: kind for kind, name in f.KIND_NAMES.items()}


def paths_of(path: str | None, paths: str | None) -> list[str]:
    """All paths, each once. Spark gives one path as `path`, several as a JSON list in `paths`."""
    locations = [path] if path else []
    if paths:
        try:
            locations += [str(one) for one in json.loads(paths)]
        except ValueError:
            locations.append(paths)
    if not locations:
        raise InvalidRequest("no path", hint="Say where the logs are: .load(PATH).")
    return list(dict.fromkeys(locations))


def narrowed(wanted: Wanted, filters: list[Any], view: str) -> Wanted:
    """The part of the logs that a query wants, narrowed by filters on single columns."""
    for one in filters:
        path: Any = getattr(one, "attribute", ())
        if len(path) == 1:
            value = getattr(one, "value", None)
            wanted = _by(wanted, type(one).__name__, path[0], value, view)
    return wanted


def _by(wanted: Wanted, kind: str, name: str, value: Any, view: str) -> Wanted:
    values = {"EqualTo": (value,), "EqualNullSafe": (value,)}.get(kind)
    if kind == "In":
        values = tuple(value)
    if values is not None and None not in values:
        return _one_of(wanted, name, values)
    if name == "offset" and view != "records" and isinstance(value, int):
        low, high = _narrow(wanted.offsets, kind, value, value + 1)
        return wanted._replace(offsets=(low, high))
    return wanted


def _narrow(bounds: tuple[int, int], kind: str, value: int, behind: int) -> tuple[int, int]:
    low, high = bounds
    match kind:
        case "GreaterThan":
            return max(low, behind), high
        case "GreaterThanOrEqual":
            return max(low, value), high
        case "LessThan":
            return low, min(high, max(value, 0))
        case "LessThanOrEqual":
            return low, min(high, max(behind, 0))
    return bounds


def _one_of(wanted: Wanted, name: str, values: tuple[Any, ...]) -> Wanted:
    match name:
        case "topic":
            return wanted._replace(topics=_both(wanted.topics, values))
        case "partition":
            return wanted._replace(partitions=_both(wanted.partitions, values))
        case "daemon":
            return wanted._replace(daemons=_both(wanted.daemons, values))
        case "segment":
            return wanted._replace(segments=_both(wanted.segments, values))
        case "group":
            return wanted._replace(groups=_both(wanted.groups, _hex(values)))
        case "kind":
            kinds = tuple(_KINDS[one] for one in values if one in _KINDS)
            return wanted._replace(kinds=_both(wanted.kinds, kinds))
    return wanted


def _both(before: tuple[Any, ...] | None, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return values if before is None else tuple(one for one in before if one in values)


def _hex(values: tuple[Any, ...]) -> tuple[int, ...]:
    out = []
    for one in values:
        try:
            out.append(int(one, 16))
        except (TypeError, ValueError):
            continue
    return tuple(out)
