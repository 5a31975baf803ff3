"""`myq wal verify`: check that a log is as it was written, and name each damaged place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from myqueue.cli.shared import output
from myqueue.cli.wal.commands import line, opened, path_argument, title
from myqueue.wal.check.check_segment import Progress
from myqueue.wal.check.segments import CORRUPT, Finding
from myqueue.wal.tools.archive import load_manifest, missing_from
from myqueue.wal.tools.locate import LogLocation
from myqueue.wal.tools.verify import Summary
from myqueue.wal.tools.verify import verify as verified

SETTLE_S = 0.05
FINDINGS_MAX = 10_000


@click.command()
@path_argument
@click.option(
    "--store", is_flag=True, help="Also compare the store with the log; the daemon must be stopped."
)
@click.option(
    "--limit-rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MB/S",
    help="Read no faster than this, to spare the disk.",
)
@output.json_option
def verify(path: str, store: bool, limit_rate: float | None, as_json: bool) -> None:
    """Check the logs at PATH: every checksum, every gap, every footer against a recount.

    Each finding names segment and position, and Raft group and index if known. A torn tail (from a
    crash, or a write in progress) is reported but is no failure. The exit code is 1 if anything is
    corrupt.
    """
    corrupt = 0
    logs: list[dict[str, Any]] = []
    with opened(path) as places:
        for place in places:
            if not as_json:
                title(place, len(places) > 1)
            report = _Report(place, as_json)
            with _Paced(place, limit_rate) as paced:
                for finding in paced.findings(report, store):
                    report.add(finding)
            corrupt += report.corrupt
            logs.append(report.end())
    if as_json:
        output.write_json("myq.wal.verify/1", {"ok": not corrupt, "logs": logs})
    if corrupt:
        raise click.exceptions.Exit(1)


class _Report:
    """Print the findings of one log at once, or keep them for one JSON object."""

    def __init__(self, place: LogLocation, as_json: bool) -> None:
        self._place, self._as_json = place, as_json
        self.findings: list[dict[str, Any]] = []
        self.corrupt = self.torn = 0
        self.summary = Summary()
        self.store_entries: int | None = None
        self._began = time.monotonic()

    def add(self, finding: Finding) -> None:
        self.corrupt += finding.verdict == CORRUPT
        self.torn += finding.verdict != CORRUPT
        if not self._as_json:
            line(str(finding))
        elif len(self.findings) < FINDINGS_MAX:
            self.findings.append(_finding(finding))

    def end(self) -> dict[str, Any]:
        took_s = max(time.monotonic() - self._began, 1e-9)
        if not self._as_json:
            self._print(took_s)
        summary = asdict(self.summary)
        summary.update(corrupt=self.corrupt, torn=self.torn)
        return {
            "path": self._place.directory,
            "ok": not self.corrupt,
            "findings": self.findings,
            "findings_left_out": self.corrupt + self.torn - len(self.findings),
            **summary,
            "store_entries": self.store_entries,
            "took_s": round(took_s, 3),
        }

    def _print(self, took_s: float) -> None:
        total = self.summary
        more = f", {total.unused} unused" if total.unused else ""
        more += f", {total.reclaimed} reclaimed meanwhile" if total.reclaimed else ""
        click.echo(
            f"{total.segments:,} segments ({total.sealed:,} sealed{more}), "
            f"{total.records:,} records, {total.entries:,} entries of {total.groups:,} groups, "
            f"{output.human_bytes(total.bytes)} in {took_s:.1f} s "
            f"({total.bytes / took_s / 1e6:,.0f} MB/s)"
        )
        if self.store_entries is not None:
            click.echo(f"store: {self.store_entries:,} rows of the index compared with the log")
        torn = f"; torn: {self.torn:,}, which nobody was promised" if self.torn else ""
        verdict = f"corrupt: {self.corrupt:,}" if self.corrupt else "no corruption"
        click.echo(f"{verdict}{torn}")


def _finding(finding: Finding) -> dict[str, Any]:
    fields = asdict(finding)
    fields["group"] = f"{finding.group:016x}" if finding.group else None
    fields["index"] = finding.index if finding.group else None
    fields["byte"] = finding.byte if finding.byte >= 0 else None
    fields["bit"] = finding.bit if finding.bit >= 0 else None
    return fields


class _Paced:
    """One pass over a log: open it, show progress on a terminal, keep to the rate."""

    def __init__(self, place: LogLocation, megabytes_per_s: float | None) -> None:
        self._place = place
        self._bytes_per_s = megabytes_per_s * 1e6 if megabytes_per_s else None

    def __enter__(self) -> _Paced:
        self._files = self._place.open()
        self._bar = output.progress(1, "Verifying")
        self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)
        self._files.close()

    def findings(self, report: _Report, store: bool) -> Iterator[Finding]:
        place, files = self._place, self._files
        if store:
            from myqueue.wal.tools.check_store import compare

            rows = yield from compare(place, self._progress)
            report.store_entries = rows
        manifest = load_manifest(files) if place.archive else None
        if manifest is not None:
            yield from missing_from(files, manifest)
        self._began = time.monotonic()
        for event in verified(files, place.owner(), lambda: time.sleep(SETTLE_S)):
            if isinstance(event, Finding):
                yield event
            elif isinstance(event, Progress):
                self._progress(event)
                self._keep_to_rate(event.done)
            else:
                report.summary = event

    def _progress(self, event: Progress) -> None:
        self._bar.length = event.total
        self._bar.update(event.done - self._bar.pos)

    def _keep_to_rate(self, done: int) -> None:
        if self._bytes_per_s is not None:
            early_s = done / self._bytes_per_s - (time.monotonic() - self._began)
            if early_s > 0:
                time.sleep(early_s)
