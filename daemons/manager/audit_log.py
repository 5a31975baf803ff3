"""What was done to the cluster, for the log of the manager that led: by people (a topic deleted, a
broker drained, a group's positions reset) and by the managers themselves (replicas moved, members
whose session ended).

Who asks "why is that so since last night?" finds it there. Clients that come and go by themselves
are not told: there may be thousands. Pure: what was done comes in, lines go out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from myqueue.daemons.metadata.machine import AuditRecord
from myqueue.daemons.metadata.tables import Tables

Fields = dict[str, Any]

# Operation -> which of its arguments and results are worth a word.
TOLD: Final[Mapping[str, tuple[str, ...]]] = {
    "create_topic": ("topic", "replication", "settings"),
    "delete_topic": ("topic",),
    "alter_topic": ("topic", "settings"),
    "grow_topic": ("topic",),
    "grow_by_threshold": (),
    "alter_cluster": ("settings",),
    "register_producer": ("topic",),
    "register_broker": ("node", "disk", "address"),
    "drain_broker": ("node",),
    "undrain_broker": ("node",),
    "remove_broker": ("node", "force", "lost_partitions"),
    "move_replicas": (),
    "begin_reset": ("group", "force"),
    "end_reset": ("group",),
    "remove_group": ("group",),
    "expire_members": ("group", "gone"),
}
# What a result has to say, or nothing was done: others were quicker, or there was a topic already.
DID: Final[Mapping[str, str]] = {
    "grow_topic": "partitions", "grow_by_threshold": "partitions", "register_producer": "created",
    "move_replicas": "moved", "end_reset": "ended", "expire_members": "gone",
}  # fmt: skip
NAMED_MAX: Final = 10  # replicas in one line


def told_of(done: Iterable[AuditRecord], tables: Tables) -> Iterator[tuple[str, Fields]]:
    """(event, fields) of what is worth a line."""
    for deed in done:
        operation, arguments, result = deed
        if operation not in TOLD or (operation in DID and not result.get(DID[operation])):
            continue
        known = result | arguments
        fields = {name: known[name] for name in TOLD[operation] if known.get(name)}
        if operation == "register_producer":
            operation = "create_topic"  # its first producer came before it
        if "partitions" in result:
            fields["partitions"] = len(result["partitions"])
        if operation == "grow_by_threshold":
            topic = tables.by_uid.get(arguments["topic_uid"])
            fields = {"topic": topic.name if topic else "", **fields}
        if operation == "move_replicas":
            fields = _moves(arguments["moves"], tables)
            if result["moved"] < len(arguments["moves"]):  # others were not possible any more
                fields["done"] = result["moved"]
        yield operation.replace("_", "-"), fields


def _moves(rows: list[list[int]], tables: Tables) -> Fields:
    """From where to where; "anew" is a move to the same broker, "one more" one from nowhere."""
    told = []
    for group, node, _, to in rows[:NAMED_MAX]:
        topic, number = tables.groups.get(group, (None, 0))
        name = f"{topic.name}/{number}" if topic else f"group {group:x}"
        way = "anew on" if node == to else f"{node} to" if node else "one more on"
        told.append(f"{name} {way} {to}")
    more = {"more": len(rows) - NAMED_MAX} if len(rows) > NAMED_MAX else {}
    return {"replicas": "; ".join(told), **more}
