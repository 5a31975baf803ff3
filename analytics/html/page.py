"""The page of `myq spark verify`, and the frame of all pages: facts come in, HTML goes out. Pure.

A page is one file with style and plots inside; it loads nothing from elsewhere. All texts are
escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from myqueue.analytics.log.catalog import MANAGERS_GROUP
from myqueue.analytics.verify.report import RULES

FINDINGS_SHOWN = 500
VERDICTS = (
    "corrupt: bytes are not what was written. wrong: bytes are whole, but can't be what happened. "
    "torn: the end of a write that a crash cut off, which nobody was promised. Position is the "
    "byte in the segment's file; index counts the entries of the partition's log."
)
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


def _name(group: dict[str, Any]) -> str:
    """The group's name. A partition whose creation record no log has any more is not named."""
    if group["topic"]:
        gone = " (deleted)" if group["removed"] else ""
        return f"{group['topic']}/{group['partition']}{gone}"
    if int(group["group"], 16) == MANAGERS_GROUP:
        return "managers"
    return "deleted" if group["removed"] else "not named"


def _result(rule: str, count: int, was_checked: bool) -> str:
    if count:
        return f"{count:,} found" if rule == "tail" else Alarm(f"{count:,} found")
    return "ok" if was_checked else "not checked"


def _verdict(facts: dict[str, Any]) -> str:
    unchecked = facts["could_not_check"]
    good = "good" if facts["ok"] else "bad" if facts["wrong"] else "unsure"
    said = f"{facts['wrong']:,} findings." if facts["wrong"] else "All is well."
    if unchecked:
        said = f"{said if facts['wrong'] else ''} Not all could be checked.".strip()
    if facts["torn"]:
        said += f" {facts['torn']:,} torn ends of logs, which nobody was promised."
    why = (f"<p class='unsure'><b>Could not be checked:</b> {escape(one)}</p>" for one in unchecked)
    return f"<div class='verdict {good}'>{escape(said)}</div>{''.join(why)}"


def _logs_and_groups(facts: dict[str, Any]) -> list[str]:
    logs = [
        [log[name] for name in ("daemon", "kind", "disk", "segments", "sealed")]
        + [Size(log["capacity_bytes"])]
        for log in facts["logs"]
    ]
    groups = [
        [group["group"], _name(group)]
        + [group[name] for name in ("replicas", "voters", "commit_index", "committed_entries")]
        + [max(group["behind"].values(), default=0)]
        for group in facts["groups"]
    ]
    heads = ["group", "partition", "replicas", "voters", "committed up to", "entries"]
    return [
        "<h2>Logs</h2>",
        table(["daemon", "kind", "disk", "segments", "sealed", "size"], logs),
        "<h2>Groups</h2>",
        table([*heads, "most behind"], groups),
    ]


def verify_page(facts: dict[str, Any]) -> str:
    """The page of `myq spark verify`, from `Report.plain` with paths and duration."""
    looked = facts["looked_at"]
    body = [
        _verdict(facts),
        tiles([
            ("logs", f"{looked['logs']:,}"), ("segments", f"{looked['segments']:,}"),
            ("bytes of records", human(looked["bytes"])), ("records", f"{looked['records']:,}"),
            ("messages, all replicas", f"{looked['messages']:,}"),
            ("groups", f"{looked['groups']:,}"),
            ("rows of stores compared", f"{looked['state_rows']:,}"),
            ("acknowledgements", f"{looked['acks']:,}"),
        ]),
    ]  # fmt: skip
    if facts["findings"]:
        shown = facts["findings"][:FINDINGS_SHOWN]
        body.append(f"<h2>Findings ({len(facts['findings']) + facts['findings_left_out']:,})</h2>")
        body.append(f"<p class='sub'>{escape(VERDICTS)}</p>")
        heads = ["verdict", "rule", "where", "position", "partition", "index", "what"]
        names = {one["group"]: _name(one) for one in facts["groups"]}
        rows = [
            [
                one["verdict"],
                one["rule"],
                f"{one['daemon']} {one['segment']}",
                one["position"],
                names.get(one["group"], one["group"]),
                one["index"],
                one["what"],
            ]
            for one in shown
        ]
        body.append(table(heads, rows))
    body.append("<h2>What was checked</h2>")
    body.append(
        table(
            ["rule", "what has to hold", "result"],
            [
                [rule, RULES[rule], _result(rule, count, facts["checked"][rule])]
                for rule, count in facts["rules"].items()
            ],
        )
    )
    if facts["notes"]:
        body.append("<h2>Not looked at</h2><ul>")
        body += [f"<li>{escape(note)}</li>" for note in facts["notes"]]
        body.append("</ul>")
    body += _logs_and_groups(facts)
    return page("myq spark verify", f"{', '.join(facts['paths'])} · {facts['took_s']:.1f} s", body)
