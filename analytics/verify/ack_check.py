"""Compare a ledger of acknowledgements with the log: every acknowledged message must be there.

Comes in: ledgers, logs, and the findings so far. Goes out: findings, counts and notes in the
report.

Messages are read up to the last entry that a majority has, with or without a commit hint: brokers
write hints once a second, but acknowledge at once. At the end of a log they are read as far as
records are whole: the mark that proves a write to be synced stands in the next write, which a
killed daemon never made.

Acknowledgements of a partition that its logs say is deleted are counted, not looked for. If a topic
was created again under the same name, a ledger does not say which of the two it means: it is
compared with the newer one.

Each entry is read from one log in which it is not damaged. Damage is a finding of its own, and no
message is lost by it while there is another copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from zlib import crc32

from myqueue.analytics.log import ack_ledger, batch
from myqueue.analytics.log.catalog import DATA, Group, make_catalog
from myqueue.analytics.log.discovery import Log
from myqueue.analytics.log.plan import Wanted, entry_tasks
from myqueue.analytics.log.replica_choice import Damage
from myqueue.analytics.log.task_reader import chosen
from myqueue.analytics.spread import Judge, Spreader
from myqueue.analytics.verify.comparisons import LeftOut, Pieces, judge_acks, leave_out, pieces
from myqueue.analytics.verify.inspection_rows import CORRUPT, Finding
from myqueue.analytics.verify.report import Report


def check_acks(
    ledgers: list[str], split_bytes: int, logs: list[Log], spread: Spreader, report: Report
) -> None:
    """Look for all acknowledged messages; add findings and counts to the report."""
    catalog = make_catalog(logs, with_tails=True)
    ranges, starts, deleted = {}, {}, set[tuple[str, int]]()
    for uid, group in catalog.groups.items():
        if group.topic and not group.removed:
            ranges[uid] = (group.first_index, _on_a_majority(group) + 1)
            start = max((one.start_offset for one in group.parts.values()), default=0)
            starts[group.topic, group.partition] = start
        elif group.topic:
            deleted.add((group.topic, group.partition))
    deleted -= starts.keys()
    left_out = Counter[str]()
    tasks = entry_tasks(
        catalog,
        ranges,
        Wanted(),
        split_bytes,
        may_miss=True,
        newest_first=True,
        damages=list(_damages(logs, report.findings)),
    )

    def judge(part: tuple[Any, ...], rows: Iterator[Any]) -> Iterator[Any]:
        place = part[0], part[1]
        return leave_out(rows) if place in deleted else judge_acks(rows, starts.get(place, 0))

    judges = [Judge((Pieces,), _place_of, 3, judge)]
    for row in spread.judged([*ack_ledger.tasks(ledgers, split_bytes), *tasks], _pieces, judges):
        if isinstance(row, Finding):
            report.add(row)
        elif isinstance(row, LeftOut):
            left_out[row.topic] += row.acknowledgements
        else:
            report.count_acks(row)
    for topic, count in sorted(left_out.items()):
        report.note(f"{count} acknowledgements are of {topic}, which is deleted: not looked for")


def _damages(logs: list[Log], findings: list[Finding]) -> Iterator[Damage]:
    """The entries and segments that earlier checks found to be damaged."""
    numbers = {(log.name, one.name): (log.disk, one.number) for log in logs for one in log.segments}
    for finding in findings:
        segment = finding.daemon, finding.segment
        if finding.verdict == CORRUPT and segment in numbers:
            yield Damage(*numbers[segment], finding.group, finding.index)


def _place_of(row: Pieces) -> tuple[Any, ...]:
    return row.topic, row.partition, row.block, row.acknowledged


def _pieces(task: Any) -> Iterator[Pieces]:
    return _acknowledged(task) if isinstance(task, ack_ledger.AckTask) else _stored(task)


def _on_a_majority(group: Group) -> int:
    """The last index that a majority of the voters has, or that is known to be committed."""
    lasts = sorted(
        (max((one.last for one in part.in_force()), default=part.first_index - 1))
        for part in group.parts.values()
    )
    voters = next((len(one.about[1]) for one in group.parts.values() if one.about), len(lasts))
    needed = voters // 2 + 1
    return max(lasts[-needed] if len(lasts) >= needed else 0, group.commit_index)


def _acknowledged(task: Any) -> Iterator[Pieces]:
    for ack in ack_ledger.parsed(task):
        yield from pieces(ack.topic, ack.partition, ack.offset, ack.crcs, True, task.location)


def _stored(task: Any) -> Iterator[Pieces]:
    for record, payload in chosen(task, skip_damage=True):
        if record.entry_type != DATA:
            continue
        topic, partition = task.names[record.group]
        try:
            values = batch.columns(payload, batch.head(payload)).values
        except batch.BadBatch:
            continue  # a finding of its own
        crcs = list(map(crc32, values))
        yield from pieces(topic, partition, record.offset, crcs, False, task.name)
