"""A node of the simulated cluster: its disk, its store, its clock; a process may run on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sim.disk import SimDisk

from myqueue.wal.store.store import Store

if TYPE_CHECKING:
    from sim.process import Process


@dataclass
class Slot:
    """A node: what outlives its process."""

    number: int
    disk: SimDisk
    store_path: str
    rate: float
    offset: int
    disk_ms: int  # at most, for a flush
    process: Process | None = None
    store: Store | None = None
    saved: bytes = b""  # an older state of the store, which a crash may bring back
    incarnation: int = 0
    proven: tuple[int, int] = (0, 0)  # segment and position: a later record proves all before it
    paused_until: int = 0
    backlog: list[Callable[[], None]] = field(default_factory=list)
    writer_at: int = -1
