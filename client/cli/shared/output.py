"""Print for commands: tables for people, JSON for programs, and progress on a terminal.

Numbers get separators and units in tables only; JSON has plain numbers and a schema name with a
version. Nothing is cut or drawn unless a terminal is on the other side.
"""

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from myqueue.cli.shared.streams import printable

Cell = str | int | float | bool | None

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for programs instead of a table."
)


def write_json(schema: str, value: dict[str, Any]) -> None:
    """Print one JSON object that begins with its schema, as "myq.noun.verb/1"."""
    click.echo(json.dumps({"schema": schema, **value}, ensure_ascii=False))


def write_table(heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print columns under their heads; align columns of numbers to the right."""
    cells = [list(row) for row in rows]
    right = [
        bool(cells) and all(row[at] is None or is_number(row[at]) for row in cells)
        for at in range(len(heads))
    ]
    lines = [[head.upper() for head in heads], *([text(cell) for cell in row] for row in cells)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in lines:
        padded = [
            word.rjust(width) if is_right else word.ljust(width)
            for word, width, is_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(padded).rstrip()[:limit])


def plain(value: Any) -> Any:
    """Return what the client returned as dicts, lists and texts that JSON can hold."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    match value:
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case bytes():
            return value.decode("utf-8", "backslashreplace")
    return value


def is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def text(cell: Cell) -> str:
    """Return one value as a table shows it."""
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:,.2f}"
    # Names that clients gave themselves are shown too: none of them may move the cursor.
    return printable(cell)


def human_bytes(count: int) -> str:
    """Return a size as text: 1023 -> "1,023 B", 1536 -> "1.5 KiB"."""
    if count < 1024:
        return f"{count:,} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1023.95 or unit == "TiB":
            break
    return f"{size:,.1f} {unit}"


def progress(length: int, label: str) -> Any:
    """Return a bar for work of `length` steps, drawn on stderr if that is a terminal.

    with progress(len(files), "Verifying") as bar:
        bar.update(1)
    """
    hidden = not sys.stderr.isatty()
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=hidden)


def when(time_ms: int | None) -> str | None:
    """Return a time as tables show it: UTC, with milliseconds; 0 means that there is none."""
    if not time_ms:
        return None
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"
