"""A log belongs to the process that opened it; a forked child must not use its copy.

The child has the memory and the descriptors, but none of the threads. Its appends would wait for a
writer thread that does not exist, its LMDB environment would damage the parent's, and its
descriptor would keep the directory locked after the parent's death. So every open part of a log
registers here. In a child, `forked` is called on each part before any other code runs, and the part
then raises `WrongProcess`. Without a fork this costs nothing.

Only forks by the interpreter are noticed. Processes started with `subprocess` inherit nothing.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import ref

from myqueue.errors import WrongProcess


class Part(Protocol):
    """A part of a log that must not be used after a fork."""

    def forked(self) -> None:
        """Release, in the child, what must not be held there; refuse everything from now on."""


_parts: dict[int, ref[Part]] = {}


def refuse_after_fork(part: Part) -> None:
    """Call `part.forked()` in every child that this process forks from now on."""
    key = id(part)
    _parts[key] = ref(part, lambda _: _parts.pop(key, None))


def wrong_process() -> WrongProcess:
    """Return the error of a part that is used in a forked child."""
    return WrongProcess(f"this log was opened by another process, before it forked {os.getpid()}")


def _in_child() -> None:
    for part in [reference() for reference in list(_parts.values())]:
        if part is not None:
            part.forked()
    _parts.clear()


os.register_at_fork(after_in_child=_in_child)
