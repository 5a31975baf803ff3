"""`myq explain`: print an error's meaning, the outcome of its operation, and what to do."""

from __future__ import annotations

import click

from myqueue import errors
from myqueue.cli.shared import output


@click.command()
@click.argument("code", required=False)
@output.json_option
def explain(code: str | None, as_json: bool) -> None:
    """Explain the error CODE, a number or a name; without CODE, list all errors."""
    if code is None:
        rows = [facts(row) for _, row in sorted(errors.TABLE.items())]
        if as_json:
            output.write_json("myq.explain.list/1", {"errors": rows})
        else:
            heads = ["code", "name", "retriable", "outcome", "http"]
            output.write_table(
                heads, [[str(row["code"]), *list(row.values())[1:5]] for row in rows]
            )
        return
    row = find(code)
    if as_json:
        output.write_json("myq.explain/1", facts(row))
        return
    click.echo(f"{row.code} {row.name} (HTTP {row.http_status})")
    for line in (row.meaning, *row.explained()[1:]):
        click.echo(f"  {line}")


def facts(row: type[errors.MyQueueError]) -> dict[str, output.Cell]:
    return {
        "code": row.code,
        "name": row.name,
        "retriable": row.retriable,
        "outcome": row.outcome,
        "http_status": row.http_status,
        "text": row.meaning,
        "hint": row.hint,
    }


def find(code: str) -> type[errors.MyQueueError]:
    """Return the error with this number, printed name or class name."""
    for row in errors.TABLE.values():
        if code.upper().replace("-", "_") in (str(row.code), row.name, row.__name__.upper()):
            return row
    raise click.ClickException(f"no error is called {code!r}: 'myq explain' lists all of them.")
