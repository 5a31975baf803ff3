"""Settings of a topic and of the cluster, in words.

Settings of a newer cluster, which are not known here, are shown unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from myqueue.gateway.console.view import format


class ShownSetting(NamedTuple):
    name: str
    text: str
    about: str


_Write = Callable[[int], str]
Known = dict[str, tuple[_Write, str, str]]
OF_TOPIC: Final[Known] = {
    # name: how its value is written, what 0 means, what the setting is
    "message_bytes_max": (format.bytes_, "", "The largest batch that the topic takes"),
    "partition_growth": (
        lambda number: f"{number:,} messages",
        "off",
        "One more partition is added each time the topic has this many messages per partition",
    ),
    "retention_bytes": (
        format.bytes_,
        "all are kept",
        "The oldest messages of a partition larger than this are deleted",
    ),
    "retention_ms": (format.duration, "kept forever", "Messages older than this are deleted"),
}
OF_CLUSTER: Final[Known] = {
    "consumers_max": (format.count, "", "Consumers that may be registered"),
    "groups_max": (format.count, "", "Consumer groups that may exist"),
    "inactive_ms": (
        format.duration,
        "",
        "A producer or consumer that is silent for this long counts as inactive",
    ),
    "moves_per_broker": (
        lambda number: format.plural(number, "replica"),
        "none are moved",
        "Replicas that one broker copies or hands over at a time",
    ),
    "partitions_max": (format.count, "", "Partitions that all topics may have together"),
    "producers_max": (format.count, "", "Producers that may be registered"),
    "replace_after_ms": (
        format.duration,
        "",
        "A broker that is silent for this long counts as dead: others get new copies",
    ),
    "replicas_per_broker_max": (format.count, "", "Replicas that one broker may hold"),
}


def shown(settings: dict[str, Any], known: Known) -> list[ShownSetting]:
    out = []
    for name, value in sorted(settings.items()):
        write, nothing, about = known.get(name, (str, "", "A setting of a newer version"))
        text = nothing if value == 0 and nothing else write(value)
        out.append(ShownSetting(name, text, about))
    return out
