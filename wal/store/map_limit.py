"""How much address space a file may be mapped into, where the system limits it (`ulimit -v`).

LMDB maps its whole file, and wants to be told at once how large that may become; a large map costs
nothing but addresses. Where these are limited, a map takes at most half of what is left, so that
threads, buffers and the next larger map have room too. It has to be asked before the map grows:
LMDB gives up the old map first, and a process without any is lost.
"""

from __future__ import annotations

import os
import resource
from typing import Final

MAP_BYTES_MIN: Final = 64 << 20


def free_address_bytes() -> int | None:
    """Addresses that this process may still take; None: there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    with open("/proc/self/statm", encoding="ascii") as file:
        used_pages = int(file.read().split()[0])
    return max(0, soft - used_pages * os.sysconf("SC_PAGE_SIZE"))


def fitting_map_bytes(wanted_bytes: int, file_bytes: int) -> int:
    """A size for the map of a file: as wanted, or less, but more than it has; 0: no room for it."""
    left = free_address_bytes()
    if left is None:
        return wanted_bytes
    size, least = wanted_bytes, max(MAP_BYTES_MIN, file_bytes + 1)
    while size > left // 2 and size // 2 >= least:
        size //= 2
    return size if size <= left else 0


def may_grow(now_bytes: int, to_bytes: int) -> bool:
    """Whether a map of so many bytes may be given up for one of so many."""
    left = free_address_bytes()
    return left is None or to_bytes - now_bytes <= left


def limit_text() -> str:
    """The limit, for people."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return "no limit" if soft == resource.RLIM_INFINITY else f"{soft >> 20:,} MiB"
