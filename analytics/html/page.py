"""The frame of all pages, and their tables and tiles: values come in, HTML goes out. Pure.

A page is one file with style and plots inside; it loads nothing from elsewhere. All texts are
escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_STYLE = """
:root { --ink: #1c2733; --soft: #5c6b7a; --line: #dde3ea; --good: #14804a; --bad: #b3261e;
        --warn: #8a5a00; --paper: #ffffff; --ground: #f4f6f9; --blue: #2563a8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf1; --soft: #9aa8b7; --line: #313c48; --good: #4cc38a; --bad: #ff8a80;
          --warn: #f0b849; --paper: #19212a; --ground: #10161d; --blue: #6fb1f5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
       font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 32px 0 10px; }
p.sub { color: var(--soft); margin: 0 0 20px; }
.verdict { border-radius: 8px; padding: 14px 18px; font-size: 18px; font-weight: 600;
           border: 1px solid currentColor; background: var(--paper); }
.good { color: var(--good); } .bad { color: var(--bad); } .unsure { color: var(--warn); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px;
         margin: 16px 0; }
.tile { background: var(--paper); border: 1px solid var(--line); border-radius: 8px;
        padding: 10px 14px; }
.tile b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; background: var(--paper); border: 1px solid var(--line);
          border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 12px; border-bottom: 1px solid var(--line);
         vertical-align: top; }
tr:last-child td { border-bottom: 0; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: 12.5px/1.4 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 14px; }
.plot { background: var(--paper); border: 1px solid var(--line); border-radius: 8px;
        padding: 12px 14px 6px; min-width: 0; }
.plot h3 { font-size: 14px; margin: 0 0 6px; } .plot p { color: var(--soft); margin: 0 0 4px;
        font-size: 12.5px; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg .axis { stroke: var(--line); } svg .grid { stroke: var(--line); stroke-dasharray: 2 3; }
@media (max-width: 520px) { .plots { grid-template-columns: 1fr; } }
"""


def page(title: str, sub: str, body: Iterable[str]) -> str:
    """A whole page; `body` is HTML, title and sub are plain text."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1><p class='sub'>{escape(sub)}</p>{''.join(body)}"
        "</main></body></html>\n"
    )


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """A row of tiles, from (name, value)."""
    inner = "".join(
        f"<div class='tile'><b>{escape(value)}</b><span>{escape(name)}</span></div>"
        for name, value in values
    )
    return f"<div class='tiles'>{inner}</div>"


class Size(int):
    """A number of bytes in a table; shown with its unit."""


class Alarm(str):
    """A text in a table that is shown as an alarm."""


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table. Columns of numbers, and their heads, are aligned to the right."""
    whole = [list(row) for row in rows]
    right = [
        bool(whole) and all(type(row[place]) in (int, float, Size) for row in whole)
        for place in range(len(heads))
    ]
    head = "".join(
        f"<th{' class=n' if is_right else ''}>{escape(one)}</th>"
        for one, is_right in zip(heads, right, strict=True)
    )
    body = "".join(f"<tr>{''.join(_cell(one) for one in row)}</tr>" for row in whole)
    return (
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, Size):
        return f"<td class='n'>{human(value)}</td>"
    if isinstance(value, Alarm):
        return f"<td class='bad'><b>{escape(value)}</b></td>"
    if isinstance(value, int):
        return f"<td class='n'>{value:,}</td>"
    if isinstance(value, float):
        return f"<td class='n'>{value:,.2f}</td>"
    if value is None:
        return "<td>–</td>"
    return f"<td>{escape(str(value))}</td>"


def human(count: float) -> str:
    """1536 → "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
