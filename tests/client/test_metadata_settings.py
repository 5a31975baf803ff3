"""The tables of settings: each default is allowed, and PROTOCOL.md names every setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from myqueue.wire.metadata_settings import CLUSTER_SETTINGS, TOPIC_SETTINGS, NumberSetting

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("setting", (TOPIC_SETTINGS | CLUSTER_SETTINGS).values())
def test_a_default_is_in_its_range(setting: NumberSetting) -> None:
    assert setting.low <= setting.default <= setting.high


@pytest.mark.parametrize(
    ("begin", "end", "table"),
    [
        ("Settings of a topic:", "Of the cluster:", TOPIC_SETTINGS),
        ("Of the cluster:", "All are numbers", CLUSTER_SETTINGS),
    ],
)
def test_the_protocol_names_every_setting(
    begin: str, end: str, table: dict[str, NumberSetting]
) -> None:
    page = (ROOT / "client/PROTOCOL.md").read_text()
    part = page.partition(begin)[2].partition(end)[0]
    assert set(re.findall(r"`(\w+)`", part)) == table.keys()
