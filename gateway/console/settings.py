"""A topic's settings in words; those of a newer cluster, which are not known here, as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from myqueue.gateway.console import words


class Shown(NamedTuple):
    name: str
    text: str
    about: str


_Write = Callable[[int], str]
KNOWN: Final[dict[str, tuple[_Write, str, str]]] = {
    # name: how it is written, what 0 means, what it is
    "message_bytes_max": (words.bytes_, "", "The largest batch that the topic takes"),
    "partition_growth": (
        lambda number: f"{number:,} messages", "off",
        "So many messages for each partition, and one more partition is added",
    ),
    "retention_bytes": (
        words.bytes_, "all are kept",
        "A partition that is larger than this loses its oldest messages",
    ),
    "retention_ms": (words.duration, "kept for ever", "Messages older than this may go"),
}  # fmt: skip


def shown(settings: dict[str, Any]) -> list[Shown]:
    out = []
    for name, value in sorted(settings.items()):
        write, nothing, about = KNOWN.get(name, (str, "", "A setting of a newer version"))
        text = nothing if value == 0 and nothing else write(value)
        out.append(Shown(name, text, about))
    return out
