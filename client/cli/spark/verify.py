"""`myq spark verify`: logs, replicas, stores and a ledger of acknowledgements, all against all."""

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
@click.option("--acks", multiple=True, metavar="FILE", help="A ledger; see 'bench produce --acks'.")
@click.option("--stores/--no-stores", default=True, help="Compare stores of daemons that are down.")
@click.option(
    "--store-state", multiple=True, metavar="FILE",
    help="A store's state, made elsewhere by python -m myqueue.wal.store.dump FOLDER.",
)  # fmt: skip
@click.option("--html", metavar="FILE", help="Write the report as a page, too.")
@output.json_option
def verify(
    paths: tuple[str, ...], master: str, conf: tuple[str, ...], acks: tuple[str, ...],
    stores: bool, store_state: tuple[str, ...], html: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Check the logs at PATHS as a whole.

    Each log by itself: framing, checksums, footers, marks. Each replica: indices without a gap,
    terms that never fall, one vote in a term, nothing committed that was cut off. Over the
    replicas: same index and term, same bytes; the same committed prefix; every committed entry on a
    majority. Against the stores: state rebuilt from the log. Against a ledger: every acknowledged
    message is there once, with its bytes.

    A torn end of a log was promised to nobody and is no failure. Exit codes: 0 all is well, 1
    something is wrong, 2 wrong usage, 3 it could not be checked.
    """
    from myqueue.analytics.html.page import verify_page
    from myqueue.analytics.spark.job import Spread, progress
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
            asked, Spread(session), Path(scratch), lambda label: progress(session, label)
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

    for one in findings[:FINDINGS_SHOWN]:
        click.echo(told(one))
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
    said = f"{facts['wrong']:,} findings" if facts["wrong"] else "All is well"
    if facts["could_not_check"]:
        known = f"{said}; n" if facts["wrong"] else "N"
        said = f"{known}ot all could be checked"
    click.echo(f"{said}{torn}.")


def _result(count: int, was_checked: bool) -> str:
    if count:
        return f"{count:,} found"
    return "ok" if was_checked else "not checked"
