"""Commands of partitions as brokers propose them, from rows that a test writes down."""

from __future__ import annotations

from typing import Any

from myqueue.daemons.partition.machine import COMMIT, FORGET, TAKE
from myqueue.wire import protocol


def commit_command(rows: list[list[Any]]) -> bytes:
    """Rows of [consumer, offset, member epoch, assignment epoch]."""
    return protocol.pack([COMMIT, rows])


def take_command(rows: list[list[Any]]) -> bytes:
    """Rows of [consumer, key, most messages, whether an empty take is remembered, too]."""
    return protocol.pack([TAKE, rows])


def forget_command(rows: list[list[Any]]) -> bytes:
    """Rows of [consumer, member epoch, assignment epoch]."""
    return protocol.pack([FORGET, rows])
