"""The group `myq wal`, and what its commands (`ls`, `dump`, `verify`, `archive`) share.

It finds the logs at a path, parses options, and turns errors of the system into one line that says
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
    "verify": ("myqueue.cli.wal.verify:verify", "Check every checksum, gap and footer."),
    "archive": ("myqueue.cli.wal.archive:archive", "Copy sealed segments to another folder."),
}

path_argument = click.argument("path", type=click.Path())


@click.group(cls=LazyGroup, lazy=COMMANDS)
def wal() -> None:
    """Inspect write-ahead logs: list, print, check and archive them.

    PATH is a daemon's folder, its wal/ folder, an archive, or a data directory with the folders
    of several daemons. No command changes a log or locks it; the daemon may be running.

    With --json, numbers are plain, times are ms since 1970, and uids of Raft groups, segments and
    disks are strings of hex digits. wal/TOOLS.md describes the shapes.
    """


@contextmanager
def opened(path: str) -> Iterator[list[LogLocation]]:
    """Find the logs at a path; errors of the system name the path."""
    try:
        yield find_logs(path)
    except OSError as error:
        if error.filename is None and not isinstance(error, BrokenPipeError):
            raise OSError(error.errno, error.strerror, path) from error
        raise


def title(place: LogLocation, many: bool) -> None:
    """Print a heading before the table of one of several logs."""
    if many:
        click.echo(f"\n== {place.directory}")


def line(text: str, err: bool = False) -> None:
    """Print a line, and clear a progress bar that may be on the terminal's last line."""
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
    click.echo(text, err=err)


def group_uid(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parse a group (a click callback): 16 hex digits, as tables show it, 0x…, or decimal."""
    if value is None:
        return None
    is_hex = re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}|[0-9a-fA-F]{16}", value)
    if is_hex or re.fullmatch(r"(?=.*[a-fA-F])[0-9a-fA-F]{1,16}", value):
        return int(value, 16)
    if re.fullmatch(r"[0-9]{1,20}", value) and int(value) < 2**64:
        return int(value)
    raise click.BadParameter(f"{value!r} is not a group: give its 16 hex digits, or a decimal.")


def span(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Parse a range (a click callback): A..B with both ends, A.., ..B, or a number."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d*)\.\.(\d*)|(\d+)", value)
    if match is None or value == "..":
        raise click.BadParameter(f"{value!r} is not a range: write A..B, A.., ..B or a number.")
    first, last, single = match.groups()
    if single is not None:
        return int(single), int(single)
    low, high = int(first or 0), int(last) if last else 2**64 - 1
    if low > high:
        raise click.BadParameter(f"{value!r} is empty: {low} is greater than {high}.")
    return low, high
