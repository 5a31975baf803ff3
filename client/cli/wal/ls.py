"""`myq wal ls`: list the segments of a log, one line each."""

from __future__ import annotations

from typing import Any

import click

from myqueue.cli.shared import output
from myqueue.cli.shared.output import when
from myqueue.cli.shared.streams import quiet_pipe
from myqueue.cli.wal.commands import opened, path_argument, title
from myqueue.wal import format as f
from myqueue.wal.tools.listing import SegmentRow, overview
from myqueue.wal.tools.locate import LogLocation

HEADS = (
    *("segment", "state", "used", "capacity", "records", "entries", "groups"),
    *("first index", "last index", "first time", "last time"),
)
GROUP_HEADS = (
    *("segment", "group", "entries", "bytes", "first index", "last index"),
    *("first offset", "next offset", "last term", "first time", "last time"),
)


@click.command()
@path_argument
@click.option(
    "--groups", "by_group", is_flag=True, help="Print a row for each Raft group in each segment."
)
@output.json_option
def ls(path: str, by_group: bool, as_json: bool) -> None:
    """List the segments of the logs at PATH.

    States: sealed (full, never changes), open (being written), spare (prepared for later), new
    (being prepared), trash (reclaimed, about to be deleted), damaged. Ranges come from the footers;
    indices are the lowest and highest of any Raft group. Records are counted only
    in a segment that is read whole, such as the open one. This command finds no damaged payloads:
    use 'myq wal verify'.
    """
    with opened(path) as places, quiet_pipe():
        logs = [(place, _rows(place)) for place in places]
        if as_json:
            logs_json = [_log(place, rows, by_group) for place, rows in logs]
            output.write_json("myq.wal.ls/1", {"logs": logs_json})
            return
        for place, rows in logs:
            title(place, len(places) > 1)
            _table(rows, by_group)


def _rows(place: LogLocation) -> list[SegmentRow]:
    files = place.open()
    try:
        return overview(files, place.owner())
    finally:
        files.close()


def _table(rows: list[SegmentRow], by_group: bool) -> None:
    if by_group:
        output.write_table(
            GROUP_HEADS, [_group_cells(row, footer) for row, footer in _group_rows(rows)]
        )
    else:
        output.write_table(HEADS, [_cells(row) for row in rows])
    total = _totals(rows)
    click.echo(
        f"{total['segments']:,} segments, {total['entries']:,} entries of "
        f"{total['groups']:,} groups; {output.human_bytes(total['used_bytes'])} used of "
        f"{output.human_bytes(total['capacity_bytes'])}"
    )
    for row in rows:
        if row.problem:
            click.echo(f"damaged: {row.name}: {row.problem}")


def _group_rows(rows: list[SegmentRow]) -> list[tuple[SegmentRow, f.FooterRow]]:
    return [(row, footer) for row in rows for footer in row.groups or []]


def _cells(row: SegmentRow) -> list[output.Cell]:
    first_index, last_index, first_ms, last_ms = row.span()
    groups = None if row.groups is None else len(row.groups)
    return [
        *(row.number, row.state, row.used, row.capacity, row.records, row.entries, groups),
        *(first_index, last_index, when(first_ms), when(last_ms)),
    ]


def _group_cells(row: SegmentRow, footer: f.FooterRow) -> list[output.Cell]:
    times = (
        (when(footer.first_time_ms), when(footer.last_time_ms)) if footer.entries else (None, None)
    )
    return [
        *(
            row.number,
            f"{footer.group:016x}",
            footer.entries,
            footer.entry_bytes,
            footer.first_index,
        ),
        *(
            footer.last_index,
            footer.first_offset,
            footer.next_offset,
            footer.last_term,
            *times,
        ),
    ]


def _totals(rows: list[SegmentRow]) -> dict[str, int]:
    return {
        "segments": len(rows),
        "damaged": sum(1 for row in rows if row.problem),
        "used_bytes": sum(row.used for row in rows),
        "capacity_bytes": sum(row.capacity for row in rows),
        "entries": sum(row.entries or 0 for row in rows),
        "groups": len({footer.group for _, footer in _group_rows(rows)}),
    }


def _log(place: LogLocation, rows: list[SegmentRow], by_group: bool) -> dict[str, Any]:
    owner = place.owner()
    return {
        "path": place.directory,
        "disk": None if owner is None else owner.hex(),
        "segments": [_segment(row, by_group) for row in rows],
        "totals": _totals(rows),
    }


def _segment(row: SegmentRow, by_group: bool) -> dict[str, Any]:
    first_index, last_index, first_ms, last_ms = row.span()
    out: dict[str, Any] = {
        "number": row.number,
        "uid": f"{row.uid:016x}",
        "name": row.name,
        "state": row.state,
        "problem": row.problem or None,
        "used_bytes": row.used,
        "capacity_bytes": row.capacity,
        "file_bytes": row.size,
        "created_ms": row.created_ms or None,
        "records": row.records,
        "entries": row.entries,
        "groups": None if row.groups is None else len(row.groups),
        "first_index": first_index,
        "last_index": last_index,
        "first_time_ms": first_ms,
        "last_time_ms": last_ms,
    }
    if by_group:
        out["group_rows"] = [
            {
                **footer._asdict(),
                "first_time_ms": footer.first_time_ms or None,
                "last_time_ms": footer.last_time_ms or None,
                "group": f"{footer.group:016x}",
                "kinds": [name for kind, name in f.KIND_NAMES.items() if footer.kinds >> kind & 1],
            }
            for footer in row.groups or []
        ]
    return out
