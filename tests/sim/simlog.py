"""What `wal/log` composes, without threads and on a simulated disk.

The reader notes whatever it met that can't be read: from then on the process knows of it.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from sim.disk import SimDisk

from myqueue.wal.append.journal import Journal, JournalConfig
from myqueue.wal.groups import Row
from myqueue.wal.read.reader import Reader
from myqueue.wal.read.term_search import term_runs
from myqueue.wal.space.background import BackgroundJobs
from myqueue.wal.space.reclaim import Reclaimer
from myqueue.wal.store.index import Index
from myqueue.wal.store.store import Store

if TYPE_CHECKING:
    from sim.world import World

OWNER = b"simulated daemon"


class SimReader(Reader):
    def __init__(self, log: SimLog) -> None:
        super().__init__(log.files, log.index, log.journal.segment_name)
        self.unreadable: list[Row] = []

    def _note_damage(self, row: Row, what: str) -> None:
        super()._note_damage(row, what)
        self.unreadable.append(row)


class SimLog:
    """See the module's docstring."""

    def is_there(self) -> bool:
        """Nobody removes directories in a simulated world."""
        return True

    def __init__(self, world: World, disk: SimDisk, store: Store, random: Random) -> None:
        self.files, self.store, self.background = disk, store, BackgroundJobs()
        config = JournalConfig(
            segment_bytes=world.segment_bytes, soft_limit_bytes=0, queue_bytes_max=1 << 30
        )
        with store.view() as view:
            groups = view.groups()
        self.journal = Journal.open(
            disk,
            OWNER,
            config,
            world.wall_ms,
            random,
            groups=groups,
            watermark=store.watermark,
            sink=store.commit,
            threads=False,
        )
        self.index = Index(store, False, self.journal.wake)
        self.reader = SimReader(self)
        self.reclaimer = Reclaimer(disk, self.journal, self.index, self.reader, self.background)

    def term_runs(self, uid: int) -> list[tuple[int, int]]:
        return term_runs(self.index, uid, self.journal.group(uid).first_index)
