"""A daemon's whole log in one object: directory, identity, journal, store, reader, reclaim.

Daemons use it, and so do tests of whole logs. It decides nothing; it opens the parts in the right
order and carries persisted ops from the journal to the index:

    lock -> identity -> room -> store (or an empty one) -> recovery from its watermark -> journal
    journal.poll -> Persisted -> index.add -> (store's thread) -> index.poll
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from random import Random

from myqueue.errors import (
    DirectoryUnusable,
    DiskFull,
    IdentityMismatch,
    JournalStopped,
    MyQueueError,
    StoreBroken,
)
from myqueue.wal import format as f
from myqueue.wal.append.journal import Journal
from myqueue.wal.append.reserve import Reserve
from myqueue.wal.append.writer import Event, Persisted
from myqueue.wal.closed_groups import ClosedGroups
from myqueue.wal.config import JournalConfig
from myqueue.wal.files import RealFiles, lock_directory, unlock_directory
from myqueue.wal.fork_guard import refuse_after_fork
from myqueue.wal.groups import Groups
from myqueue.wal.identity import FILE_NAME, Identity, claim
from myqueue.wal.read.reader import Reader
from myqueue.wal.read.term_search import term_runs
from myqueue.wal.recover.recovery import UNSURE
from myqueue.wal.space.background import BackgroundJobs
from myqueue.wal.space.reclaim import SETTLE_MS, Reclaimer
from myqueue.wal.store.index import Index
from myqueue.wal.store.store import Store, delete_store

BEGUN = "begun"  # a file that says that a log exists; if it does not, this daemon's votes are lost


class Log:
    """One daemon's directory, open: `journal` appends, `reader` and `index` read, `store` keeps."""

    def __init__(
        self,
        directory: str,
        identity: tuple[str, str, str],
        config: JournalConfig,
        clock_ms: Callable[[], int],
        random: Random,
    ) -> None:
        """Open or create the log; `identity` is (cluster, daemon, kind), see `wal/identity`.

        DirectoryLocked: another process has it. IdentityMismatch: it is another daemon's, or its
        log is missing. DiskFull, DirectoryUnusable, JournalStopped: the disk refuses.
        """
        self._closed = False
        with ExitStack() as undo:
            try:
                self._open_directory(directory, identity, config, random, undo)
                try:
                    self._open_journal(config, clock_ms, random, undo)
                except StoreBroken as error:  # met while recovery wrote to it
                    self._replace_store(directory, str(error))
                    self._open_journal(config, clock_ms, random, undo)
                if BEGUN not in self._base.list():
                    self._base.create(BEGUN, 1)
                    self._base.sync(None)
            except OSError as error:
                raise _unusable(directory, error) from error
            undo.pop_all()

    def _open_directory(
        self,
        directory: str,
        identity: tuple[str, str, str],
        config: JournalConfig,
        random: Random,
        undo: ExitStack,
    ) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._lock = lock_directory(directory)
        undo.callback(lambda: unlock_directory(self._lock))
        refuse_after_fork(self)
        self._base = RealFiles(directory)
        undo.callback(self._base.close)
        self.identity: Identity = claim(
            self._base, *identity, random, os.path.join(directory, FILE_NAME)
        )
        self._reserve = Reserve(self._base, config.reserve_bytes)
        self._reserve.release()
        self.files = RealFiles(os.path.join(directory, "wal"))
        undo.callback(self.files.close)
        segments = any(map(f.parse_segment_name, self.files.list()))
        if BEGUN in self._base.list() and not segments:
            raise IdentityMismatch(
                f"{directory}: the log is missing, and with it what this daemon voted for",
                hint="Is the file system of wal/ mounted? Else remove the whole directory: a "
                "daemon without its log is another one.",
            )
        store_directory = os.path.join(directory, "store")
        self.store, self._groups, self.store_problem = _open_store(store_directory)
        undo.callback(lambda: self.store.close())
        self.kept = ClosedGroups(directory, self._base, lambda: self.store)

    def _replace_store(self, directory: str, problem: str) -> None:
        with suppress(StoreBroken):
            self.store.close()
        delete_store(os.path.join(directory, "store"))
        self.store, self._groups, _ = _open_store(os.path.join(directory, "store"))
        self.store_problem = problem

    def _open_journal(
        self, config: JournalConfig, clock_ms: Callable[[], int], random: Random, undo: ExitStack
    ) -> None:
        with ExitStack() as mine:  # a second try must not find the first one's writer
            self.journal = Journal.open(
                self.files,
                self.identity.owner,
                config,
                clock_ms,
                random,
                groups=self._groups,
                watermark=self.store.watermark,
                sink=self.store.commit,
                reserve=self._reserve,
            )
            mine.callback(self.journal.close_signal)
            mine.callback(self.journal.close)
            self.index = Index(self.store, True, self.journal.wake, self._reserve.release)
            mine.callback(self.index.close)
            self.reader = Reader(self.files, self.index, self.journal.segment_name)
            self.background = BackgroundJobs(threads=True)
            mine.callback(self.background.close)
            self.reclaimer = Reclaimer(
                self.files, self.journal, self.index, self.reader, self.background, SETTLE_MS
            )
            undo.push(mine.pop_all())

    def is_there(self) -> bool:
        """False if the daemon's directory, or that of its log, was removed."""
        return self._base.is_there() and self.files.is_there()

    def forked(self) -> None:
        """Close the lock's descriptor in a forked child, so that the lock ends with the parent.

        The child must not unlock: that would release the parent's lock as well.
        """
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def poll(self) -> list[Event]:
        """Return the journal's events since the last call, and pass persisted ops to the store.

        Raises the error of a failed store's thread; the journal's events then wait for a next call.
        """
        try:
            self.index.poll()
        except OSError as error:
            why = str(error) if self.is_there() else "the data folder was removed"
            raise JournalStopped(f"the disk failed: {why}") from error
        events = self.journal.poll()
        for event in events:
            if isinstance(event, Persisted):
                self.index.add(event.ops, event.segment, event.position)
        return events

    def term_runs(self, uid: int) -> list[tuple[int, int]]:
        """Return (index of its first entry, term) of each run of entries of one term, in order.

        Only persisted entries count. Costs some look-ups for each run, for any length of the log.
        """
        return term_runs(self.index, uid, self.journal.group(uid).first_index)

    def clear_unknown_loss(self) -> None:
        """Forget `Recovered.unknown_loss` for later starts: the owner has replaced all of it."""
        if UNSURE in self.files.list():
            self.files.move(UNSURE, None)

    def close(self) -> bool:
        """Write and commit what waits, then release the directory; False if the disk is too slow.

        In that case a thread may still be writing. Files and lock then stay open until the process
        ends: no other process may own the directory before that.

        True means that no thread writes any more. Records that found no room on a full disk, or a
        failed disk, were never acknowledged and are not written: see `journal.writer.waiting`.
        """
        if self._closed:
            return True
        self.reclaimer.cancel()
        written = self.journal.close()
        with suppress(MyQueueError):  # the store can be rebuilt; closing goes on
            self.poll()
        if not (self.background.close() and self.index.close() and written):
            return False
        self._closed = True
        with suppress(MyQueueError):
            self.store.close()
        self.journal.close_signal()
        self.files.close()
        self._base.close()
        unlock_directory(self._lock)
        self._lock = -1
        return True


def _open_store(directory: str) -> tuple[Store, Groups, str]:
    """Return the store, its groups, and a text if the old store was broken.

    A broken store is replaced by an empty one. So is a store without a watermark that is not empty:
    its rebuild was interrupted.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    problem = ""
    try:
        store = Store(directory)
        try:
            if store.watermark != (0, 0) or _is_empty(store):
                return store, _groups(store), ""
        except StoreBroken as error:
            problem = str(error)
        store.close()
    except StoreBroken as error:
        problem = str(error)
    delete_store(directory)
    store = Store(directory)
    return store, _groups(store), problem


def _is_empty(store: Store) -> bool:
    with store.view() as view:
        return next(view.dump(), None) is None


def _groups(store: Store) -> Groups:
    with store.view() as view:
        return view.groups()


def _unusable(directory: str, error: OSError) -> DirectoryUnusable | DiskFull | JournalStopped:
    if error.errno == errno.EIO:
        return JournalStopped(f"{error.filename or directory}: {error.strerror}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{directory}: no room to open the log")
    return DirectoryUnusable(f"{error.filename or directory}: {error.strerror}")
