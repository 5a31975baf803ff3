"""`myq explain`: what an error means, what is known about its outcome, and what to do."""

from __future__ import annotations

import click

from myqueue import errors
from myqueue.cli.shared import output

OUTCOMES = {
    errors.NONE: "certainly nothing was done",
    errors.UNKNOWN: "it may have been done",
}


@click.command()
@click.argument("code", required=False)
@output.json_option
def explain(code: str | None, as_json: bool) -> None:
    """Explain the error CODE (its number or its name); all of them without one."""
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
    found = facts(find(code))
    if as_json:
        output.write_json("myq.explain/1", found)
        return
    click.echo(f"{found['code']} {found['name']} (HTTP {found['http_status']})")
    click.echo(f"  {found['text']}")
    click.echo(f"  Outcome: {OUTCOMES[str(found['outcome'])]}.")
    again = "may succeed later" if found["retriable"] else "fails again until something is changed"
    click.echo(f"  The same call {again}.")
    click.echo(f"  What to do: {found['hint']}")


def facts(row: type[errors.MyQueueError]) -> dict[str, output.Cell]:
    return {
        "code": row.code,
        "name": row.name,
        "retriable": row.retriable,
        "outcome": row.outcome,
        "http_status": row.http_status,
        "text": " ".join((row.__doc__ or "").split()),
        "hint": row.hint,
    }


def find(code: str) -> type[errors.MyQueueError]:
    """By number, by name as it is printed, or by the name of its class."""
    for row in errors.TABLE.values():
        if code.upper().replace("-", "_") in (str(row.code), row.name, row.__name__.upper()):
            return row
    raise click.ClickException(f"no error is called {code!r}: 'myq explain' lists all of them.")
