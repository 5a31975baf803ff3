"""Connect a command to its cluster, and print answers as people read them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from myqueue.admin.client import Admin
from myqueue.cli.shared import options, output
from myqueue.cli.shared.output import when
from myqueue.errors import TABLE, TroubleError

UIDS = ("group", "topic_uid")


@contextmanager
def admin(cluster: str | None, data: str | None) -> Iterator[Admin]:
    """Connect one command to the cluster that its options name."""
    with Admin(options.find(cluster, data)) as connected:
        yield connected


def confirm(question: str, *, yes: bool) -> None:
    """Ask the operator before a step that can't be undone; programs pass --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody is there to be asked: say --yes.")
    click.confirm(question, abort=True, err=True)


def facts_of(answer: Any) -> Any:
    """Return an answer as JSON shows it: uids are 16 hex digits, as `myq wal` prints them."""
    match output.plain(answer):
        case dict() as facts:
            return {
                name: f"{value:016x}"
                if name in UIDS and isinstance(value, int)
                else facts_of(value)
                for name, value in facts.items()
            }
        case list() as items:
            return [facts_of(item) for item in items]
        case value:
            return value


def somebody_answered(rows: list[dict[str, Any]]) -> None:
    """Raise the first error if every daemon that was asked refused."""
    if rows and all("error" in row for row in rows):
        by_name = {kind.name: kind for kind in TABLE.values()}
        first = rows[0]
        raise by_name.get(first["code"], TroubleError)(first["error"], component=first["address"])


def write_rows(rows: list[dict[str, Any]], heads: Sequence[str] = ()) -> None:
    """Print a table of maps, with a column for each key, or for these `heads`."""
    heads = heads or (list(dict.fromkeys(name for row in rows for name in row)))
    output.write_table(
        [head.removesuffix("_ms").replace("_", " ") for head in heads],
        [[cell(head, row.get(head)) for head in heads] for row in rows],
    )


def write_facts(facts: dict[str, Any], heads: Sequence[str]) -> None:
    """Print names and values, then a table for each list of maps among them.

    Tables show the columns of `heads`, and "error", that are not empty.
    """
    tables = {
        name: value
        for name, value in facts.items()
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
    }
    rest = [
        [name.replace("_", " "), words(value)]
        for name, value in facts.items()
        if name not in tables
    ]
    output.write_table(["what", "value"], rest)
    for name, rows in tables.items():
        click.echo(f"\n{name.replace('_', ' ')}:")
        shown = [h for h in (*heads, "error") if any(row.get(h) not in (None, "") for row in rows)]
        write_rows(rows, shown)


def cell(head: str, value: Any) -> output.Cell:
    """Return a table's cell, with times and sizes as people read them."""
    if isinstance(value, int) and not isinstance(value, bool):
        if head.endswith("_ms"):
            return when(value) if value else None
        if head == "bytes" or head.endswith("_bytes"):
            return output.human_bytes(value)
    return value if value is None or isinstance(value, str | int | float) else words(value)


def words(value: Any) -> str:
    """Return a value as text. Numbers have no separators: indexes and terms are not amounts."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case dict():
            return " ".join(f"{key}={words(item)}" for key, item in value.items())
        case list():
            return ",".join(map(words, value)) or "-"
    return str(value)
