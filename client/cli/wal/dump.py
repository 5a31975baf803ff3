"""`myq wal dump`: print records of a log, as a table or as one JSON object per line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import click

from myqueue.cli.shared import output
from myqueue.cli.shared.output import when
from myqueue.cli.shared.streams import quiet_pipe
from myqueue.cli.wal.commands import group_uid, opened, path_argument, span
from myqueue.cli.wal.lines import as_line
from myqueue.cli.wal.payload import decoded
from myqueue.wal import format as f
from myqueue.wal.check.segments import Finding
from myqueue.wal.files import RealFiles
from myqueue.wal.tools.dump import Dump, DumpedRecord, RecordFilter
from myqueue.wal.tools.locate import LogLocation

POLL_S = 0.1
SETTLE_S = 0.02
BUFFERED_LINES = 512
PAYLOAD_BYTES = 256
_KINDS = {name: kind for kind, name in f.KIND_NAMES.items()}
_LINE = "{:>7} {:>10} {:<13} {:<16} {:>10} {:>6} {:>10} {:>6} {:>9}  {}"
_HEAD = _LINE.format(
    *("SEGMENT", "POSITION", "KIND", "GROUP", "INDEX", "TERM", "OFFSET", "COUNT", "BYTES"), "TIME"
)


@click.command()
@path_argument
@click.option(
    "--group", callback=group_uid, help="Only this Raft group: 16 hex digits, or decimal."
)
@click.option(
    "--index",
    "indices",
    callback=span,
    metavar="A..B",
    help="Only records with these Raft indices.",
)
@click.option(
    "--offset", "offsets", callback=span, metavar="A..B", help="Only entries with these messages."
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([*_KINDS], case_sensitive=False),
    help="Only this kind; may be repeated.",
)
@click.option("--segment", type=click.IntRange(min=0), help="Only this segment.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--follow", is_flag=True, help="Wait for new records, until Ctrl-C.")
@click.option(
    "--payload", is_flag=True, help="Show payloads: messages, commands or text, else hex."
)
@click.option(
    "--payload-bytes",
    type=click.IntRange(min=1),
    default=PAYLOAD_BYTES,
    show_default=True,
    help="Show no more than this of each payload.",
)
@output.json_option
def dump(
    path: str,
    group: int | None,
    indices: tuple[int, int] | None,
    offsets: tuple[int, int] | None,
    kinds: tuple[str, ...],
    segment: int | None,
    limit: int | None,
    follow: bool,
    payload: bool,
    payload_bytes: int,
    as_json: bool,
) -> None:
    """Print records of the logs at PATH, oldest first.

    With --json each line is an object of the shape "myq.wal.record/1". Damaged places are reported
    on stderr, reading continues after them, and the exit code is 1. The last records of a running
    daemon may not be on its disk yet.
    """
    wanted = RecordFilter(
        group, frozenset(_KINDS[kind.upper()] for kind in kinds) or None, indices, offsets, segment
    )
    shown = payload_bytes if payload else 0
    with opened(path) as places:
        printer = _Printer(len(places) > 1, shown, as_json)
        try:
            with quiet_pipe():
                _run(places, wanted, printer, limit, follow)
        finally:
            with quiet_pipe():
                printer.flush()
    if printer.damaged:
        raise click.ClickException(
            f"{printer.damaged:,} damaged places; run 'myq wal verify {path}' for all of them"
        )


def _run(
    places: list[LogLocation],
    wanted: RecordFilter,
    printer: _Printer,
    limit: int | None,
    follow: bool,
) -> None:
    """Read all logs, one after another; with `follow`, again and again."""
    opened_files: list[RealFiles] = [place.open() for place in places]
    dumps = [Dump(files, wanted, _settle) for files in opened_files]
    try:
        while True:
            for place, log_dump in zip(places, dumps, strict=True):
                for record_or_finding in log_dump.records():
                    printer.show(place, record_or_finding)
                    if limit is not None and printer.records >= limit:
                        return
            if not follow:
                return
            printer.flush()
            time.sleep(POLL_S)
    finally:
        for files in opened_files:
            files.close()


def _settle() -> None:
    """Let a running daemon finish the record that it is writing."""
    time.sleep(SETTLE_S)


class _Printer:
    """Print lines in batches: a system call for each would cost more than formatting it."""

    def __init__(self, many: bool, shown_bytes: int, as_json: bool) -> None:
        self._many, self._shown, self._as_json = many, shown_bytes, as_json
        self._lines: list[str] = []
        self._place: LogLocation | None = None
        self.records = self.damaged = 0

    def show(self, place: LogLocation, event: DumpedRecord | Finding) -> None:
        if isinstance(event, Finding):
            self.damaged += 1
            self.flush()
            click.echo(str(event), err=True)
            return
        self.records += 1
        if self._as_json:
            self._lines.append(json.dumps(self._object(place, event), ensure_ascii=False))
        else:
            self._lines.extend(self._text(place, event))
        if len(self._lines) >= BUFFERED_LINES:
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            click.echo("\n".join(lines))

    def _object(self, place: LogLocation, dumped: DumpedRecord) -> dict[str, Any]:
        record = dumped.record
        out = {
            "schema": "myq.wal.record/1",
            "log": place.directory,
            "segment": dumped.segment.number,
            "position": record.position,
            "kind": f.KIND_NAMES[record.kind],
            "flags": _flags(record),
            "entry_type": record.entry_type,
            "group": f"{record.group:016x}" if record.group else None,
            "index": record.index,
            "term": record.term,
            "offset": record.offset,
            "count": record.count,
            "bytes": record.length,
            "time_ms": record.time_ms or None,
            "chain": f"{record.chain:016x}",
        }
        if self._shown:
            out["payload"] = decoded(record, bytes(dumped.payload), self._shown)
        return out

    def _text(self, place: LogLocation, dumped: DumpedRecord) -> Iterator[str]:
        if place is not self._place:
            self._place = place
            if self._many:
                yield f"== {place.directory}"
            yield _HEAD
        record = dumped.record
        group = f"{record.group:016x}" if record.group else "-"
        kind = f.KIND_NAMES[record.kind] + ("+" if _flags(record) else "")
        yield _LINE.format(
            *(dumped.segment.number, record.position, kind, group, record.index, record.term),
            *(record.offset, record.count, record.length, when(record.time_ms) or "-"),
        )
        if self._shown and record.length:
            value = decoded(record, bytes(dumped.payload), self._shown)
            more = f" … {record.length:,} bytes in all" if value["cut"] else ""
            yield f"        {as_line(value)}{more}"


def _flags(record: f.Record) -> list[str]:
    names = ((f.RELOCATED, "RELOCATED"), (f.LAST, "LAST"), (f.RESET, "RESET"), (f.CLEAN, "CLEAN"))
    return [name for flag, name in names if record.flags & flag]
