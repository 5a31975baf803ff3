"""Everything of a daemon's log behind one door: directory, identity, journal, store, reader,
reclaim.

This is the composition that daemons use and that tests of whole logs start. It owns no decision; it
opens the parts in the right order and carries persisted ops from the journal to the index:

    lock -> identity -> store (or an empty one) -> recovery from the store's watermark -> journal
    journal.poll -> Persisted -> index.add -> (store's thread) -> index.poll
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from random import Random

from myqueue.errors import StoreBroken
from myqueue.wal.files import RealFiles, lock_directory
from myqueue.wal.identity import Identity, claim
from myqueue.wal.index import Index
from myqueue.wal.journal import Journal, JournalConfig
from myqueue.wal.reader import Reader
from myqueue.wal.reclaim import Reclaimer
from myqueue.wal.store import Store, delete_store
from myqueue.wal.writer import Event, Persisted


class Log:
    """One daemon's directory, open."""

    def __init__(
        self, directory: str, identity: tuple[str, str, str], config: JournalConfig,
        clock_ms: Callable[[], int], random: Random,
    ) -> None:  # fmt: skip
        """`identity` is (cluster, daemon, kind), see `wal/identity`."""
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._lock = lock_directory(directory)
        self._base = RealFiles(directory)
        try:
            self.identity: Identity = claim(self._base, *identity, random)
            self.files = RealFiles(os.path.join(directory, "wal"))
            self.store, self.store_problem = _open_store(os.path.join(directory, "store"))
            self._open_journal(config, clock_ms, random)
        except BaseException:
            self._base.close()
            os.close(self._lock)
            raise

    def _open_journal(
        self, config: JournalConfig, clock_ms: Callable[[], int], random: Random
    ) -> None:
        watermark = self.store.watermark
        with self.store.view() as view:
            groups = view.groups()
        self.journal = Journal.open(
            self.files, self.identity.owner, config, clock_ms, random,
            groups=groups, watermark=watermark, sink=self.store.commit,
        )  # fmt: skip
        self.index = Index(self.store, True, self.journal.wake)
        self.reader = Reader(self.files, self.index, self.journal.segment_name)
        self.reclaimer = Reclaimer(self.files, self.journal, self.index, self.reader)

    def poll(self) -> list[Event]:
        """What happened since the last call; persisted ops are on their way to the store."""
        events = self.journal.poll()
        for event in events:
            if isinstance(event, Persisted):
                self.index.add(event.ops, event.segment, event.position)
        self.index.poll()
        return events

    def close(self) -> bool:
        """Write and commit what waits, then let go; False if the disk took too long."""
        written = self.journal.close()
        with suppress(StoreBroken):  # the store can be rebuilt; closing goes on
            self.poll()
        committed = self.index.close()
        if written and committed:
            self.journal.close_signal()
            self.store.close()
        self.files.close()
        self._base.close()
        os.close(self._lock)
        return written and committed


def _open_store(directory: str) -> tuple[Store, str]:
    """The store and what was wrong with it: a broken one is replaced by an empty one."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    try:
        return Store(directory), ""
    except StoreBroken as error:
        delete_store(directory)
        return Store(directory), str(error)
