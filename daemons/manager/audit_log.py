"""Log lines about changes of the cluster, written by the manager that leads.

They name what people did (a topic deleted, a broker drained, a group's positions reset) and what
the managers did by themselves (replicas moved, members expired), so that an operator finds out why
the cluster is as it is. Clients that come and go by themselves are not logged: there may be
thousands. Pure: operations that were applied come in, lines go out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from myqueue.daemons.metadata.machine import AuditRecord
from myqueue.daemons.metadata.tables import Tables

Fields = dict[str, Any]

# Operation -> those of its arguments and results that are logged.
AUDITED_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
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
# The result field that is empty if the operation changed nothing: another one was quicker, or the
# topic existed already.
EFFECT_FIELDS: Final[Mapping[str, str]] = {
    "grow_topic": "partitions",
    "grow_by_threshold": "partitions",
    "register_producer": "created",
    "move_replicas": "moved",
    "end_reset": "ended",
    "expire_members": "gone",
}
REPLICAS_SHOWN_MAX: Final = 10  # replicas in one line


def audit_lines(done: Iterable[AuditRecord], tables: Tables) -> Iterator[tuple[str, Fields]]:
    """Yield (event, fields) of each operation that is logged."""
    for deed in done:
        operation, arguments, result = deed
        if operation not in AUDITED_FIELDS or (
            operation in EFFECT_FIELDS and not result.get(EFFECT_FIELDS[operation])
        ):
            continue
        values = result | arguments
        fields = {name: values[name] for name in AUDITED_FIELDS[operation] if values.get(name)}
        if operation == "register_producer":
            operation = "create_topic"  # the topic's first producer created it
        if "partitions" in result:
            fields["partitions"] = len(result["partitions"])
        if operation == "grow_by_threshold":
            topic = tables.by_uid.get(arguments["topic_uid"])
            fields = {"topic": topic.name if topic else "", **fields}
        if operation == "move_replicas":
            fields = _move_fields(arguments["moves"], tables)
            if result["moved"] < len(arguments["moves"]):  # the others were no longer possible
                fields["done"] = result["moved"]
        yield operation.replace("_", "-"), fields


def _move_fields(rows: list[list[int]], tables: Tables) -> Fields:
    """Describe moves; "anew" rebuilds a replica on its broker, "one more" adds a replica."""
    texts = []
    for group, node, _, to in rows[:REPLICAS_SHOWN_MAX]:
        topic, number = tables.groups.get(group, (None, 0))
        name = f"{topic.name}/{number}" if topic else f"group {group:x}"
        way = "anew on" if node == to else f"{node} to" if node else "one more on"
        texts.append(f"{name} {way} {to}")
    more = {"more": len(rows) - REPLICAS_SHOWN_MAX} if len(rows) > REPLICAS_SHOWN_MAX else {}
    return {"replicas": "; ".join(texts), **more}
