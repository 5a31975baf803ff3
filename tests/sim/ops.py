"""Ops made by hand: what a journal tells the store, without a journal."""

from typing import Any

from myqueue.wal import format as f

GROUP = 7


def row(index: int, offset: int = 0, count: int = 0, group: int = GROUP, **other: int) -> Any:
    fields = {"segment": 1, "position": 512 + index, "length": 10, "term": 1} | other
    return (
        group,
        index,
        fields["segment"],
        fields["position"],
        fields["length"],
        count,
        offset,
        fields["term"],
        1000 + index,
        index * 3,
    )


def record(kind: int, group: int = GROUP, payload: bytes = b"", **fields: int) -> Any:
    position = fields.pop("position", 512)
    header = f.encode_record(0, kind, position, payload, group=group, **fields)
    made = f.record_at(header, 0, position, 0)
    assert made is not None
    return (made, fields.pop("segment", 1), payload)


def ten(group: int = GROUP) -> list[Any]:
    """Entries 1..10; the even ones have no message, the odd ones three."""
    return [row(i, i // 2 * 3, 3 if i % 2 else 0, group) for i in range(1, 11)]
