"""The reserve file: its blocks are freed when a start finds the disk full.

A disk that is full to the last byte must not keep a daemon from starting: the daemon has to serve
reads and votes, and to delete data. But a start writes. LMDB's commits take fresh pages before they
free old ones, and its lock file is mapped, where a missing page ends the process. So a file with
allocated blocks stands next to the log, and a start with less room than its size removes it first.
A store that finds no room while the daemon runs removes it as well: without the store's commits
nothing could be deleted. When there is room again, the file is made again.
"""

from __future__ import annotations

import errno

from myqueue.wal.files import TRANSIENT, Files

FILE_NAME = "reserve"


class Reserve:
    """The file in the daemon's directory; `release` removes it on a full disk, `keep` makes it."""

    def __init__(self, files: Files, size_bytes: int) -> None:
        self._files, self._size = files, size_bytes
        size = files.list().get(FILE_NAME)
        self.there = size == size_bytes > 0
        if size is not None and not self.there:  # half made, or of another configuration
            files.move(FILE_NAME, None)

    def release(self) -> None:
        """Remove the file if the disk has less room than its size."""
        if self.there and self._files.free_bytes() < self._size:
            self._files.move(FILE_NAME, None)
            self._files.sync(None)  # some file systems give blocks away only after that
            self.there = False

    def keep(self, spare_bytes: int) -> None:
        """Make the file again if these free bytes are at least twice its size."""
        if self.there or not self._size or spare_bytes < 2 * self._size:
            return
        try:
            self._files.create(FILE_NAME, self._size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, *TRANSIENT):
                raise
        else:
            self.there = True
