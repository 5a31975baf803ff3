"""Sizes and limits of a daemon's log."""

from __future__ import annotations

from dataclasses import dataclass

from myqueue.errors import MisuseError
from myqueue.wal import format as f


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Sizes and limits; `myq config show` prints each of them."""

    segment_bytes: int = 64 << 20
    record_bytes_max: int = 16 << 20
    queue_bytes_max: int = 64 << 20
    soft_limit_bytes: int = 256 << 20  # free disk space below which new records are refused
    reserve_bytes: int = 16 << 20  # size of the file that makes room for a start on a full disk
    spare_at_share: float = 0.25  # prepare the next segment when this share of the open one is used
    close_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if not f.CAPACITY_MIN <= self.segment_bytes <= f.CAPACITY_MAX:
            low, high = f.CAPACITY_MIN, f.CAPACITY_MAX
            raise MisuseError(f"segment_bytes is {self.segment_bytes}, not {low} to {high}")
