"""`myq spark verify`: check logs, replicas, stores and acknowledgements against each other."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import click

from myqueue.cli import FAILED, UNREACHABLE
from myqueue.cli.shared import output
from myqueue.cli.spark.commands import given, options, session_on, write_html

FINDINGS_SHOWN = 50


@click.command()
@options
@click.option(
    "--acks", multiple=True, metavar="FILE", help="File that 'myq bench produce --acks' wrote."
)
@click.option("--stores/--no-stores", default=True, help="Compare the stores of stopped daemons.")
@click.option(
    "--store-state",
    multiple=True,
    metavar="FILE",
    help="State of a store on another machine: python -m myqueue.wal.store.dump FOLDER.",
)
@click.option("--html", metavar="FILE", help="Also write the report as a page.")
@output.json_option
def verify(
    paths: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
    acks: tuple[str, ...],
    stores: bool,
    store_state: tuple[str, ...],
    html: str | None,
    as_json: bool,
) -> None:
    """Check the logs at PATHS as a whole.

    Each log: framing, checksums, footers, marks. Each replica: indices without a gap, terms that
    never fall, one vote per term, no committed entry truncated. Between replicas: same index and
    term, same bytes; the same committed prefix; every committed entry on a majority. Stores: equal
    to the state rebuilt from the log. --acks: every acknowledged message is stored once, with its
    bytes.

    A torn end of a log was never acknowledged and is no failure. Exit codes: 0 no finding, 1
    findings, 2 wrong usage, 3 could not be checked.
    """
    from myqueue.analytics.spark.job import SparkSpreader, progress
    from myqueue.analytics.verify.page import verify_page
    from myqueue.analytics.verify.verify import Asked
    from myqueue.analytics.verify.verify import verify as verified
    from myqueue.cli.spark.managers_state import rebuild

    asked = Asked(given(paths), list(acks), list(store_state), with_stores=stores, metadata=rebuild)
    with (
        session_on(master, conf, "myq spark verify", quick=True) as session,
        tempfile.TemporaryDirectory() as scratch,
    ):
        begin = time.monotonic()
        report = verified(
            asked, SparkSpreader(session), Path(scratch), lambda label: progress(session, label)
        )
        took_s = time.monotonic() - begin
    facts = {**report.plain(), "paths": asked.paths, "took_s": round(took_s, 3)}
    write_html(html, verify_page(facts))
    if as_json:
        output.write_json("myq.spark.verify/1", facts)
    else:
        _print(facts, report.findings)
    if not report.ok:
        click.get_current_context().exit(FAILED if report.wrong else UNREACHABLE)


def _print(facts: dict[str, Any], findings: list[Any]) -> None:
    from myqueue.analytics.verify.report import RULES, told

    for finding in findings[:FINDINGS_SHOWN]:
        click.echo(told(finding))
    if len(findings) > FINDINGS_SHOWN:
        click.echo(f"… and {len(findings) - FINDINGS_SHOWN:,} more; --json has them")
    for text in facts["could_not_check"]:
        click.echo(f"could not be checked: {text}")
    for note in facts["notes"]:
        click.echo(f"note: {note}")
    looked, seconds = facts["looked_at"], max(facts["took_s"], 1e-9)
    rows = [
        [RULES[rule], _result(count, facts["checked"][rule])]
        for rule, count in facts["rules"].items()
    ]
    output.write_table(["checked", "result"], rows)
    click.echo(
        f"{looked['logs']:,} logs, {looked['segments']:,} segments, {looked['records']:,} records, "
        f"{looked['entries']:,} entries, {looked['messages']:,} messages, {looked['groups']:,} "
        f"groups, {output.human_bytes(looked['bytes'])} in {seconds:.1f} s "
        f"({looked['bytes'] / seconds / 1e6:,.0f} MB/s)"
    )
    click.echo(
        f"{looked['state_rows']:,} rows of stores compared; {looked['acks']:,} acknowledgements"
    )
    torn = f"; {facts['torn']:,} torn ends, which nobody was promised" if facts["torn"] else ""
    verdict = f"{facts['wrong']:,} findings" if facts["wrong"] else "All is well"
    if facts["could_not_check"]:
        start = f"{verdict}; n" if facts["wrong"] else "N"
        verdict = f"{start}ot all could be checked"
    click.echo(f"{verdict}{torn}.")


def _result(count: int, was_checked: bool) -> str:
    if count:
        return f"{count:,} found"
    return "ok" if was_checked else "not checked"
