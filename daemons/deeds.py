"""What was done to the cluster, for the log of the manager that led: by people (a topic deleted, a
broker drained, a group's positions reset) and by the managers themselves (replicas moved, members
whose session ended).

Who asks "why is that so since last night?" finds it there. Clients that come and go by themselves
are not told: there may be thousands. Pure: entries that were applied, and their results, come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from myqueue import protocol
from myqueue.daemons.raft.types import COMMAND, PAYLOAD, TYPE, Entry
from myqueue.daemons.tables import Tables
from myqueue.errors import MyQueueError

# Operation -> which of its arguments are worth a word.
TOLD: Final[Mapping[str, tuple[str, ...]]] = {
    "create_topic": ("topic", "partitions", "replication", "settings"),
    "delete_topic": ("topic",),
    "alter_topic": ("topic", "settings"),
    "grow_topic": ("topic", "count", "to"),
    "grow_by_threshold": ("topic_uid", "partitions"),
    "alter_cluster": ("settings",),
    "register_broker": ("node", "disk", "address"),
    "drain_broker": ("node",),
    "undrain_broker": ("node",),
    "remove_broker": ("node", "force"),
    "move_replicas": (),
    "begin_reset": ("group", "force"),
    "end_reset": ("group",),
    "remove_group": ("group",),
    "expire_members": ("group", "members"),
}
NAMED_MAX: Final = 10  # replicas in one line


def deeds(
    entries: Iterable[Entry], results: Iterable[Any], tables: Tables
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(event, fields) of what is worth a line. What was refused changed nothing."""
    for entry, result in zip(entries, results, strict=True):
        if entry[TYPE] != COMMAND or isinstance(result, MyQueueError):
            continue
        _, operation, arguments = protocol.unpack(entry[PAYLOAD])
        if operation not in TOLD:
            continue
        fields = {name: arguments[name] for name in TOLD[operation] if arguments.get(name)}
        if operation == "move_replicas":
            fields = _moves(arguments["moves"], tables)
        yield operation.replace("_", "-"), fields


def _moves(rows: list[list[int]], tables: Tables) -> dict[str, Any]:
    """From where to where; "made anew" is a move to the same broker, "more" one from nowhere."""
    told = []
    for group, node, _, to in rows[:NAMED_MAX]:
        topic, number = tables.groups.get(group, (None, 0))
        name = f"{topic.name}/{number}" if topic else f"group {group}"
        way = "anew on" if node == to else f"{node} to" if node else "one more on"
        told.append(f"{name} {way} {to}")
    more = {"more": len(rows) - NAMED_MAX} if len(rows) > NAMED_MAX else {}
    return {"replicas": "; ".join(told), **more}
