"""`myq wal archive`: copy sealed segments to another disk or another site."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from myqueue.cli.shared import output
from myqueue.cli.wal.commands import line, opened, path_argument
from myqueue.errors import DirectoryLocked, MisuseError
from myqueue.wal import format as f
from myqueue.wal.check.check_segment import Progress
from myqueue.wal.check.segments import CORRUPT, Finding, survey
from myqueue.wal.files import RealFiles, lock_directory
from myqueue.wal.tools.archive import Archived
from myqueue.wal.tools.archive import archive as archived
from myqueue.wal.tools.locate import LogLocation


@dataclass
class Result:
    """The segments of one log that were copied, skipped and refused."""

    path: str
    to: str
    copied: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    bytes: int = 0
    refused: list[Finding] = field(default_factory=list)


@click.command()
@path_argument
@click.option(
    "--to", required=True, type=click.Path(), help="Folder of the archive; created if missing."
)
@output.json_option
def archive(path: str, to: str, as_json: bool) -> None:
    """Copy the sealed segments of the logs at PATH into an archive.

    Each disk has its own folder in the archive, named by its uuid, with the segments and a
    manifest.json. Every segment is checked while it is copied; damaged ones are refused, and the
    exit code is 1. Segments in the archive that match the manifest are skipped, so the command can
    be repeated at any time.
    """
    with opened(path) as places:
        _refuse_target(to, path)
        results = [_one(place, to, as_json) for place in places]
    if as_json:
        output.write_json("myq.wal.archive/1", {"logs": [_json(result) for result in results]})
    refused = sum(len(result.refused) for result in results)
    if refused:
        raise click.ClickException(
            f"{refused} findings; the damaged segments were not archived. Another replica of "
            "their partitions, or an older archive, has the data."
        )


def _refuse_target(to: str, path: str) -> None:
    target, source = os.path.realpath(to), os.path.realpath(path)
    if os.path.commonpath([target, source]) == source:
        raise click.UsageError(f"--to {to} is inside of {path}; give a folder outside of it")
    names = os.listdir(target) if os.path.isdir(target) else []
    if "wal" in names or "identity" in names or any(f.parse_segment_name(n) for n in names):
        raise click.UsageError(
            f"--to {to} is a log's or a daemon's folder, or one disk's part of an archive; "
            "give a folder of its own"
        )


def _one(place: LogLocation, to: str, as_json: bool) -> Result:
    files = place.open()
    try:
        owner = place.owner() or _owner_of_segments(files, place)
        result = Result(place.directory, os.path.join(to, owner.hex()))
        with _target(result.to) as target, output.progress(1, "Archiving") as bar:
            identity = place.identity()
            for event in archived(files, target, owner, identity):
                if isinstance(event, Progress):
                    bar.length = event.total
                    bar.update(event.done - bar.pos)
                elif isinstance(event, Finding):
                    _refused(result, event, as_json)
                else:
                    _archived(result, event)
    finally:
        files.close()
    if not as_json:
        click.echo(
            f"{result.path} -> {result.to}: {len(result.copied)} segments copied "
            f"({output.human_bytes(result.bytes)}), {len(result.skipped)} there already"
        )
    return result


def _owner_of_segments(files: RealFiles, place: LogLocation) -> bytes:
    owners = {segment.owner for segment in survey(files) if segment.owner}
    if len(owners) != 1:
        raise MisuseError(
            f"{place.directory} has segments of {len(owners)} disks",
            hint="Give the daemon's folder, whose identity says which disk is meant.",
        )
    return owners.pop()


def _refused(result: Result, finding: Finding, as_json: bool) -> None:
    if finding.verdict == CORRUPT:
        result.refused.append(finding)
        if not as_json:
            line(str(finding), err=True)


def _archived(result: Result, event: Archived) -> None:
    if event.copied:
        result.copied.append(event.name)
        result.bytes += event.bytes
    else:
        result.skipped.append(event.name)


@contextmanager
def _target(directory: str) -> Iterator[RealFiles]:
    """Open one disk's folder in the archive; where locks work, only one run can hold it."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    lock = -1
    try:
        lock = lock_directory(directory)
    except DirectoryLocked as error:
        raise DirectoryLocked(str(error), hint="Wait until the other run has ended.") from None
    except OSError:  # not every shared storage has locks
        pass
    files = RealFiles(directory)
    try:
        yield files
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror, directory) from error
        raise
    finally:
        files.close()
        if lock >= 0:
            with suppress(OSError):
                os.close(lock)


def _json(result: Result) -> dict[str, Any]:
    return {
        "path": result.path,
        "to": result.to,
        "copied": result.copied,
        "skipped": result.skipped,
        "bytes": result.bytes,
        "refused": [
            {**asdict(finding), "group": f"{finding.group:016x}" if finding.group else None}
            for finding in result.refused
        ],
    }
