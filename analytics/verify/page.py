"""The page of `myq spark verify`: the facts of a report come in, HTML goes out. Pure."""

from __future__ import annotations

from html import escape
from typing import Any

from myqueue.analytics.html.page import Alarm, Size, human, page, table, tiles
from myqueue.analytics.log.catalog import MANAGERS_GROUP
from myqueue.analytics.verify.report import RULES

FINDINGS_SHOWN = 500
VERDICTS = (
    "corrupt: bytes are not what was written. wrong: bytes are whole, but can't be what happened. "
    "torn: the end of a write that a crash cut off, which nobody was promised. Position is the "
    "byte in the segment's file; index counts the entries of the partition's log."
)


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
