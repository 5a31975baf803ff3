"""`myq wal`: looking at the write-ahead log, beside the daemon that writes it or without one.

The commands are in files of their own (`ls`, `dump`, `verify`, `archive`); here is
what they share: how a path becomes logs, and how errors of the system become one line that tells
what to do.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from myqueue.cli.lazy import LazyGroup
from myqueue.wal.tools.locate import LogLocation, find_logs

COMMANDS = {
    "ls": ("myqueue.cli.wal.ls:ls", "List the segments, with sizes, states and ranges."),
    "dump": ("myqueue.cli.wal.dump:dump", "Print records, as a table or as JSON lines."),
    "verify": ("myqueue.cli.wal.verify:verify", "Check every byte that was promised to be safe."),
    "archive": ("myqueue.cli.wal.archive:archive", "Copy sealed segments to another folder."),
}

path_argument = click.argument("path", type=click.Path())


@click.group(cls=LazyGroup, lazy=COMMANDS)
def wal() -> None:
    """Look at write-ahead logs: list, print, check and archive them.

    PATH is a daemon's folder, its wal/ folder, an archive, or a data directory with the folders
    of several daemons. No command changes a log or needs a lock; the daemon may be running.

    With --json, numbers are plain, times are ms since 1970, and uids of groups, segments and disks
    are strings of hex digits. wal/TOOLS.md describes the shapes.
    """


@contextmanager
def opened(path: str) -> Iterator[list[LogLocation]]:
    """The logs at a path; what the system refuses is named with the path."""
    try:
        yield find_logs(path)
    except OSError as error:
        if error.filename is None and not isinstance(error, BrokenPipeError):
            raise OSError(error.errno, error.strerror, path) from error
        raise


def title(place: LogLocation, many: bool) -> None:
    """A line between the tables of several logs."""
    if many:
        click.echo(f"\n== {place.directory}")


def line(text: str, err: bool = False) -> None:
    """A line of output while a progress bar may stand on the terminal's last one."""
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
    click.echo(text, err=err)


def group_uid(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Callback of an option: a group as tables show it, 16 hex digits; or 0x… ; or decimal."""
    if value is None:
        return None
    is_hex = re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}|[0-9a-fA-F]{16}", value)
    if is_hex or re.fullmatch(r"(?=.*[a-fA-F])[0-9a-fA-F]{1,16}", value):
        return int(value, 16)
    if re.fullmatch(r"[0-9]{1,20}", value) and int(value) < 2**64:
        return int(value)
    raise click.BadParameter(f"{value!r} is not a group: give its 16 hex digits, or a decimal.")


def span(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Callback of an option: A..B with both ends, A.., ..B, or a single number."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d*)\.\.(\d*)|(\d+)", value)
    if found is None or value == "..":
        raise click.BadParameter(f"{value!r} is not a range: write A..B, A.., ..B or a number.")
    first, last, single = found.groups()
    if single is not None:
        return int(single), int(single)
    low, high = int(first or 0), int(last) if last else 2**64 - 1
    if low > high:
        raise click.BadParameter(f"{value!r} is empty: {low} is greater than {high}.")
    return low, high
