"""A daemon's store as lines of JSON, group by group, for a program that compares stores.

    python -m myqueue.wal.store.dump FOLDER [--groups]

The daemon must be stopped: this takes its lock, and writes nothing. LMDB may end a process that
reads a damaged page, so callers run this as a process of its own. Lines come in the order of groups
and keys, so two such lists can be merged without holding either in memory:

    {"schema": "myq.store.state/1", "disk", "daemon", "watermark": [segment, position]}
    {"group": hex, "applied", "first_index", "last_index", "term", "vote"}
    {"key": hex, "value": hex}                 a row of the group above; not with --groups
    {"groups": count, "rows": count}           the last line; without it, the list was cut short
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from myqueue.errors import MyQueueError, StoreBroken
from myqueue.wal.files import lock_directory, unlock_directory
from myqueue.wal.identity import identity_of
from myqueue.wal.store.guard import check_file
from myqueue.wal.store.store import Store

SCHEMA = "myq.store.state/1"
NAME = "store"
REFUSED, BROKEN = 3, 4  # exit codes: the daemon runs or has no store; the store can't be read


def lines(folder: str, *, rows: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the lines; each value is checked. StoreBroken if one cannot be read."""
    directory = os.path.join(folder, NAME)
    lock = lock_directory(folder)
    try:
        if not os.path.exists(os.path.join(directory, "data.mdb")):
            raise FileNotFoundError(f"{directory}: there is no store; a start rebuilds it")
        check_file(directory)
        store = Store(directory, read_only=True)
        try:
            identity = identity_of(folder)
            disk, daemon = (identity.disk, identity.daemon) if identity else ("", "")
            head = {"schema": SCHEMA, "disk": disk, "daemon": daemon}
            yield head | {"watermark": list(store.watermark)}
            yield from _groups(store, rows)
        finally:
            store.close()
    finally:
        unlock_directory(lock)


def _groups(store: Store, with_rows: bool) -> Iterator[dict[str, Any]]:
    with store.view() as view:
        groups, rows = view.groups().by_uid, 0
        for uid in sorted(groups):
            group = groups[uid]
            yield {
                "group": f"{uid:016x}",
                "applied": view.applied_index(uid),
                "first_index": group.first_index,
                "last_index": group.last_index,
                "term": group.term,
                "vote": group.vote,
            }
            for key, value in view.states(uid) if with_rows else ():
                rows += 1
                yield {"key": key.hex(), "value": value.hex()}
        yield {"groups": len(groups), "rows": rows}


def main(folder: str, *flags: str) -> int:
    """Print the lines; return the exit code."""
    out = sys.stdout
    try:
        for line in lines(folder, rows="--groups" not in flags):
            out.write(json.dumps(line) + "\n")
        out.flush()
    except StoreBroken as error:
        sys.stderr.write(f"{error}\n")
        return BROKEN
    except (MyQueueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
