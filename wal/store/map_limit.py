"""How large LMDB's map of its file may be, where the system limits address space (`ulimit -v`).

LMDB maps its whole file and needs the maximum size in advance; a large map costs nothing but
addresses. Where these are limited, a map takes at most half of the free ones, so that threads,
buffers and the next larger map have room too. `may_grow` is asked before a map grows: LMDB unmaps
the old map first, and a store without a map cannot go on.
"""

from __future__ import annotations

import os
import resource
from typing import Final

MAP_BYTES_MIN: Final = 64 << 20


def free_address_bytes() -> int | None:
    """Return how many bytes of addresses this process may still map; None: there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    with open("/proc/self/statm", encoding="ascii") as file:
        used_pages = int(file.read().split()[0])
    return max(0, soft - used_pages * os.sysconf("SC_PAGE_SIZE"))


def fitting_map_bytes(wanted_bytes: int, file_bytes: int) -> int:
    """Return a size for the map of a file: as wanted or less, but above its size; 0: none fits."""
    free = free_address_bytes()
    if free is None:
        return wanted_bytes
    size, least = wanted_bytes, max(MAP_BYTES_MIN, file_bytes + 1)
    while size > free // 2 and size // 2 >= least:
        size //= 2
    return size if size <= free else 0


def may_grow(now_bytes: int, to_bytes: int) -> bool:
    """Whether a map of `now_bytes` may be replaced by one of `to_bytes`."""
    free = free_address_bytes()
    return free is None or to_bytes - now_bytes <= free


def limit_text() -> str:
    """Return the limit as a text for error messages."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return "no limit" if soft == resource.RLIM_INFINITY else f"{soft >> 20:,} MiB"
