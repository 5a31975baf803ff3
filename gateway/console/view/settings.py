"""Settings of a topic and of the cluster, in words.

Settings of a newer cluster, which are not known here, are shown unchanged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from myqueue.gateway.console.view import format
from myqueue.wire.metadata_settings import CLUSTER_SETTINGS, TOPIC_SETTINGS, NumberSetting


class ShownSetting(NamedTuple):
    name: str
    text: str
    about: str


def of_topic(settings: dict[str, Any]) -> list[ShownSetting]:
    return _shown(settings, TOPIC_SETTINGS)


def of_cluster(settings: dict[str, Any]) -> list[ShownSetting]:
    return _shown(settings, CLUSTER_SETTINGS)


def _shown(settings: dict[str, Any], known: dict[str, NumberSetting]) -> list[ShownSetting]:
    out = []
    for name, value in sorted(settings.items()):
        setting = known.get(name)
        if setting is None:
            out.append(ShownSetting(name, str(value), "A setting of a newer version"))
        else:
            out.append(ShownSetting(name, _in_words(value, setting), setting.console_text))
    return out


def _in_words(value: int, setting: NumberSetting) -> str:
    if value == 0 and setting.zero_text:
        return setting.zero_text
    match setting.unit:
        case "bytes":
            return format.bytes_(value)
        case "ms":
            return format.duration(value)
        case "":
            return format.count(value)
        case noun:
            return format.plural(value, noun)
