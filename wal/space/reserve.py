"""Room that nobody else can take: a small file that goes when a start finds its disk full (W15).

A disk that is full to the last byte must not keep a daemon from starting: it has to serve reads
and votes, and to remove what frees the disk again. But a start writes. LMDB's commits take fresh
pages before they free old ones, and its lock file is mapped, where a page that cannot be had ends
the process. So a file is kept beside the log, its blocks allocated, and a start with less room than
its size removes it first. So does a store that finds no room while the daemon runs: without its
commits nothing could be deleted. When there is room again, the file is made again.
"""

from __future__ import annotations

import errno

from myqueue.wal.files import TRANSIENT, Files

FILE_NAME = "reserve"


class Reserve:
    """The file, in the daemon's directory. `release` when it is needed, `keep` now and then."""

    def __init__(self, files: Files, size_bytes: int) -> None:
        self._files, self._size = files, size_bytes
        found = files.list().get(FILE_NAME)
        self.there = found == size_bytes > 0
        if found is not None and not self.there:  # half made, or of another configuration
            files.move(FILE_NAME, None)

    def release(self) -> None:
        """If the disk is full: the room of the file for what comes now."""
        if self.there and self._files.free_bytes() < self._size:
            self._files.move(FILE_NAME, None)
            self._files.sync(None)  # some file systems give blocks away only after that
            self.there = False

    def keep(self, spare_bytes: int) -> None:
        """Make the file, if as much as it takes is left beside it of these bytes."""
        if self.there or not self._size or spare_bytes < 2 * self._size:
            return
        try:
            self._files.create(FILE_NAME, self._size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, *TRANSIENT):
                raise
        else:
            self.there = True
