"""Batches at the edge of what fits: into a topic's limit, into a segment of this daemon."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.batches import WALL_MS
from support.broker_seam import World, config

from myqueue import errors
from myqueue.daemons.broker.broker import Broker
from myqueue.daemons.config import SETTINGS, check_config
from myqueue.wire import batch


def packed(size: int, codec: int = batch.PLAIN, seed: int = 1) -> bytes:
    value = random.Random(seed).randbytes(size)
    return batch.make([[value], None, None, None], WALL_MS, codec=codec)


@pytest.mark.parametrize("codec", [batch.PLAIN, batch.ZLIB])
def test_a_message_of_exactly_the_limit_fits_though_compressing_made_it_longer(codec: int) -> None:
    limit = 8 << 20
    world = World()
    world.broker.queues.set_settings(world.replica.uid, {"message_bytes_max": limit})
    assert [row[1] for row in world.produce(packed(limit, codec))] == [0]
    too_large = [row[1] for row in world.produce(packed(limit + (128 << 10)))]
    assert too_large == [errors.MessageTooLarge.code]


def test_what_no_segment_can_hold_is_refused_before_it_is_proposed(monkeypatch: Any) -> None:
    """C1: else the journal refuses it when it is an entry already, and every replica stops."""
    small = config()
    small.segment_bytes = 4 << 20
    monkeypatch.setattr("support.broker_seam.config", lambda: small)
    world = World()
    assert isinstance(world.broker, Broker)
    codes = [row[1] for row in world.produce(packed((1 << 20) + 1), packed(500_000))]
    assert sorted(codes) == [0, errors.MessageTooLarge.code]


def test_segments_hold_a_command_of_any_size() -> None:
    values = {one.name: one.default for one in SETTINGS} | {
        "id": 1,
        "data": "/d",
        "listen": "127.0.0.1:1",
        "peer_listen": "127.0.0.1:2",
        "managers": ["1@127.0.0.1:3"],
    }
    assert check_config("broker", values | {"segment_bytes": 4 << 20}).segment_bytes == 4 << 20
    with pytest.raises(errors.InvalidSetting):
        check_config("broker", values | {"segment_bytes": (4 << 20) - 1})
