"""Looking at LMDB's file before LMDB does.

LMDB maps its file and trusts what it reads: a file that is shorter than its own meta page says
ends the process with SIGBUS, not with an exception. So the two meta pages are read first, with
plain reads (no environment is open yet, so closing the file drops nobody's locks, L5).
"""

from __future__ import annotations

import os
from struct import Struct

from myqueue.errors import StoreBroken

_META = Struct("<16xIIQQI")  # page header, then magic, version, address, map size, page size
_TAIL = Struct("<QQ")  # last page in use, transaction id
_TAIL_AT = 136
_MAGIC = 0xBEEFC0DE


def check_file(directory: str) -> None:
    """Raise StoreBroken if the data file is there and cannot be what LMDB left."""
    path = os.path.join(directory, "data.mdb")
    try:
        size = os.path.getsize(path)
    except FileNotFoundError:
        return
    with open(path, "rb") as file:
        head = file.read(_TAIL_AT + _TAIL.size)
        page = _page_size(head, path)
        file.seek(page)
        second = file.read(_TAIL_AT + _TAIL.size)
    metas = [meta for meta in (head, second) if _page_size(meta, path) == page]
    newest = max(metas, key=lambda meta: _TAIL.unpack_from(meta, _TAIL_AT)[1])
    last_page, _ = _TAIL.unpack_from(newest, _TAIL_AT)
    if size < (last_page + 1) * page and last_page > 1:
        raise StoreBroken(f"{path} has {size} bytes, its meta page names {(last_page + 1) * page}")


def _page_size(meta: bytes, path: str) -> int:
    if len(meta) < _TAIL_AT + _TAIL.size:
        raise StoreBroken(f"{path} is cut short")
    magic, _, _, _, page = _META.unpack_from(meta)
    page = int(page)
    if magic != _MAGIC or page not in (4096, 8192, 16384, 32768, 65536):
        raise StoreBroken(f"{path} is damaged: a meta page is not LMDB's")
    return page


def boot_id() -> bytes:
    """Changes when the machine starts anew; constant where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()
    except OSError:
        return b"unknown"
