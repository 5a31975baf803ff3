"""Settings of a topic and of the cluster, in words.

Those of a newer cluster, which are not known here, are shown as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from myqueue.gateway.console.view import format


class Shown(NamedTuple):
    name: str
    text: str
    about: str


_Write = Callable[[int], str]
Known = dict[str, tuple[_Write, str, str]]
OF_TOPIC: Final[Known] = {
    # name: how it is written, what 0 means, what it is
    "message_bytes_max": (format.bytes_, "", "The largest batch that the topic takes"),
    "partition_growth": (
        lambda number: f"{number:,} messages",
        "off",
        "So many messages for each partition, and one more partition is added",
    ),
    "retention_bytes": (
        format.bytes_,
        "all are kept",
        "A partition that is larger than this loses its oldest messages",
    ),
    "retention_ms": (format.duration, "kept for ever", "Messages older than this may go"),
}
OF_CLUSTER: Final[Known] = {
    "consumers_max": (format.count, "", "So many consumers may be registered"),
    "groups_max": (format.count, "", "So many consumer groups may be known"),
    "inactive_ms": (
        format.duration,
        "",
        "A producer or consumer that is silent for so long counts as inactive",
    ),
    "moves_per_broker": (
        lambda number: format.plural(number, "replica"),
        "none are moved",
        "So many replicas one broker takes or gives away at a time",
    ),
    "partitions_max": (format.count, "", "So many partitions all topics may have together"),
    "producers_max": (format.count, "", "So many producers may be known"),
    "replace_after_ms": (
        format.duration,
        "",
        "A broker that is silent for so long is dead: its replicas are made anew on others",
    ),
    "replicas_per_broker_max": (format.count, "", "So many replicas one broker may hold"),
}


def shown(settings: dict[str, Any], known: Known) -> list[Shown]:
    out = []
    for name, value in sorted(settings.items()):
        write, nothing, about = known.get(name, (str, "", "A setting of a newer version"))
        text = nothing if value == 0 and nothing else write(value)
        out.append(Shown(name, text, about))
    return out
