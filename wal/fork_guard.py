"""A log belongs to the process that opened it; a forked child gets a copy that must not be used.

The child has the memory and the descriptors, but none of the threads: what it appends would wait
for a writer that is not there, its LMDB would spoil the parent's (L6), and the lock of the
directory would stay taken after the parent's death. So every open part of a log registers here, and
in a child each is told, before any other code of the child runs. It then refuses with
`WrongProcess`; nothing is checked while there is no fork.

Only forks of the interpreter are seen. Processes started with `subprocess` inherit nothing.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import ref

from myqueue.errors import WrongProcess


class Part(Protocol):
    def forked(self) -> None:
        """In the child: let go of what may be held there, refuse everything from now on."""


_parts: dict[int, ref[Part]] = {}


def refuse_after_fork(part: Part) -> None:
    """From now on `part` is told when the process was forked, in the child."""
    key = id(part)
    _parts[key] = ref(part, lambda _: _parts.pop(key, None))


def wrong_process() -> WrongProcess:
    return WrongProcess(f"this log was opened by another process, before it forked {os.getpid()}")


def _in_child() -> None:
    for part in [one() for one in list(_parts.values())]:
        if part is not None:
            part.forked()
    _parts.clear()


os.register_at_fork(after_in_child=_in_child)
