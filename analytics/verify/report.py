"""The report of a verification: counts of what was checked, findings with their places, notes.

The counts matter as much as the findings: a check that looked at nothing finds nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from myqueue.analytics.log.discovery import Log
from myqueue.analytics.verify.inspection_rows import TORN, Finding, Range
from myqueue.analytics.verify.replica_agreement import GroupSummary
from myqueue.wal import format as f

FINDINGS_MAX = 10_000
RULES = {
    "file": "headers, numbers and owners of segments",
    "seal": "trailers and footers are there",
    "footer": "footers against a recount",
    "header": "checksums of record headers; nothing between records",
    "payload": "checksums of payloads",
    "batch": "producers' checksums of batches",
    "format": "only records of known kinds",
    "lost": "everything that was synced is there",
    "tail": "ends of logs that a crash cut off",
    "mark": "batches and flushes in order",
    "created": "what a group was created with",
    "config": "configurations can be read",
    "vote": "terms never fall; one vote in a term",
    "term": "terms never fall along a log",
    "gap": "indices rise by one",
    "offset": "offsets rise without a gap",
    "cut": "what was committed is never cut off",
    "hint": "what is said to be committed is there",
    "unknown": "records belong to a group that was created",
    "prefix": "replicas agree about what is committed",
    "bytes": "same group, index and term: same bytes",
    "majority": "committed entries are on a majority",
    "sequence": "producers' sequences without gap or double",
    "command": "commands can be read",
    "store": "stores can be read",
    "ahead": "stores know no more than their logs",
    "behind": "states reach to where their logs begin",
    "state": "state rebuilt from the log equals the store",
    "ack": "acknowledged messages are there once, with their bytes",
}

# Rules about records of these kinds. If there is no such record, there was nothing to check.
NEEDS_KIND = {
    "created": (f.GROUP_CREATED,),
    "config": (f.ENTRY, f.SNAPSHOT),
    "vote": (f.HARD_STATE,),
    "term": (f.ENTRY,),
    "gap": (f.ENTRY,),
    "offset": (f.ENTRY,),
    "hint": (f.COMMIT,),
}


@dataclass
class Report:
    """Counts, findings and notes, as they come in; `plain` is the result as JSON."""

    logs: list[dict[str, Any]] = field(default_factory=list)
    groups: list[GroupSummary] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    torn: int = 0
    segments: int = 0
    bytes: int = 0
    records: int = 0
    entries: int = 0
    messages: int = 0
    stores: int = 0
    state_rows: int = 0
    acks: int = 0
    segments_sealed: int = 0
    kinds: int = 0  # of records that were looked at, a bit each
    places: int = 0  # groups in stores that were held against their logs
    replayed: int = 0  # partitions on disks whose state was rebuilt
    unchecked: list[str] = field(default_factory=list)  # what had to be checked and could not be

    def add(self, finding: Finding) -> None:
        """Count a finding; keep it unless FINDINGS_MAX are kept already."""
        if finding.verdict == TORN:
            self.torn += 1
        self.rules[finding.rule] += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.left_out += 1

    def sort(self) -> None:
        """Sort findings by place: they came in the order in which executors were done."""
        self.findings.sort(key=lambda one: (one.daemon, one.segment, one.position, one))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def cannot(self, text: str) -> None:
        """Note a check that could not be made, and without which the result is not "ok"."""
        self.unchecked.append(text)

    def count_log(self, log: Log) -> None:
        used = [one for one in log.segments if one.used]
        self.segments += len(used)
        self.logs.append(
            {
                "daemon": log.daemon,
                "kind": log.kind,
                "disk": log.disk,
                "cluster": log.cluster,
                "segments": len(used),
                "sealed": sum(one.sealed for one in used),
                "capacity_bytes": sum(one.capacity for one in used),
            }
        )

    def count_range(self, row: Range) -> None:
        self.bytes += max(0, row.end - row.begin)
        self.records += row.records
        self.entries += row.entries
        self.messages += row.messages
        for sums in row.sums.values():
            self.kinds |= sums.kinds

    def count_group(self, one: GroupSummary) -> None:
        self.groups.append(one)

    def count_state(self, rows: int) -> None:
        self.state_rows += rows

    def count_acks(self, acks: int) -> None:
        self.acks += acks

    @property
    def wrong(self) -> int:
        """How many findings break a promise. A torn tail breaks none: it was not acknowledged."""
        return sum(self.rules.values()) - self.torn

    @property
    def ok(self) -> bool:
        return not self.wrong and not self.unchecked

    def was_checked(self, rule: str) -> bool:
        """Whether there was anything to check by this rule."""
        if rule in NEEDS_KIND:
            return any(self.kinds >> kind & 1 for kind in NEEDS_KIND[rule])
        committed = [one for one in self.groups if one.commit and not one.removed]
        looked: dict[str, object] = {
            "seal": self.segments_sealed,
            "footer": self.segments_sealed,
            "batch": self.messages,
            "sequence": self.replayed,
            "command": self.replayed,
            "cut": committed,
            "prefix": any(one.replicas > 1 for one in committed),
            "majority": any(one.voters for one in committed),
            "bytes": any(one.replicas > 1 and _has_entries(one) for one in self.groups),
            "store": self.stores,
            "ahead": self.places,
            "behind": self.places,
            "state": self.state_rows,
            "ack": self.acks,
        }
        return bool(looked.get(rule, self.records))

    def plain(self) -> dict[str, Any]:
        """The report as a dict that JSON can hold."""
        return {
            "ok": self.ok,
            "could_not_check": self.unchecked,
            "wrong": self.wrong,
            "torn": self.torn,
            "looked_at": {
                "logs": len(self.logs),
                "segments": self.segments,
                "bytes": self.bytes,
                "records": self.records,
                "entries": self.entries,
                "messages": self.messages,
                "groups": len(self.groups),
                "state_rows": self.state_rows,
                "acks": self.acks,
            },
            "checked": {rule: self.was_checked(rule) for rule in RULES},
            "rules": {rule: self.rules.get(rule, 0) for rule in RULES},
            "findings": [plain_finding(one) for one in self.findings],
            "findings_left_out": self.left_out,
            "notes": self.notes,
            "logs": self.logs,
            "groups": [plain_group(one) for one in sorted(self.groups)],
        }


def _has_entries(group: GroupSummary) -> bool:
    return any(last >= first for _, last, _, first in group.ends)


def plain_finding(one: Finding) -> dict[str, Any]:
    """A finding as a dict that JSON can hold."""
    fields = one._asdict()
    fields["group"] = f"{one.group:016x}" if one.group else None
    fields["index"] = one.index or None
    return fields


def plain_group(one: GroupSummary) -> dict[str, Any]:
    """A group as a dict that JSON can hold; its commit is null where nothing tells it."""
    is_known = one.removed or bool(one.commit) or not _has_entries(one)
    return {
        "group": f"{one.group:016x}",
        "topic": one.topic,
        "partition": one.partition,
        "replicas": one.replicas,
        "voters": one.voters,
        "voters_not_given": one.missing,
        "first_index": one.first,
        "commit_index": one.commit if is_known else None,
        "committed_entries": one.entries if is_known else None,
        "behind": dict(one.lags),
        "removed": one.removed,
    }


def told(one: Finding) -> str:
    """A finding as one line for people."""
    whose = f" (group {one.group:016x}, index {one.index})" if one.group else ""
    place = " ".join(word for word in (one.daemon, one.segment) if word)
    at = f" at position {one.position}" if one.segment and one.segment != "store" else ""
    return f"{one.verdict}: {one.rule}: {place}{at}: {one.what}{whose}".replace(" : ", " ")
