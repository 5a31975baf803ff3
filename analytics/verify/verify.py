"""`myq spark verify`: a second opinion about all logs at once, with the stores and a ledger.

    logs ─▶ catalog ─▶ orders ─▶ inspect (executors) ─┬─ ranges ─▶ log_ranges.judge_ranges
                                                      ├─ runs, events ─▶ judge_group
                                                      ├─ blocks ─▶ comparisons.judge_block
    stores ─▶ which states are wanted ────────────────┴─ steps ─▶ replay ─▶ stores.judge_rows
    ledger ─▶ pieces ─┬─▶ comparisons.judge_acks
    messages ─────────┘

Each byte is read once (messages that the ledger names, twice), and all of the upper half is one
job. Judges are plain Python. Spark reads, sorts the rows that belong together to their judge, and
returns only findings, a row for each range and a row for each group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from myqueue.analytics.log.catalog import ALL, MANAGERS_GROUP, Catalog, Group, make_catalog
from myqueue.analytics.log.discovery import Log, Segment, SegmentGone, find_logs, looked
from myqueue.analytics.log.plan import SPLIT_BYTES, Task, Wanted
from myqueue.analytics.spread import Judge, Spreader
from myqueue.analytics.verify import stores
from myqueue.analytics.verify.ack_check import check_acks
from myqueue.analytics.verify.commit_point import CommitJudge, absent, named, take_applied
from myqueue.analytics.verify.comparisons import judge_block
from myqueue.analytics.verify.inspect_range import inspect
from myqueue.analytics.verify.inspection_rows import (
    CORRUPT,
    Block,
    Event,
    Finding,
    Gone,
    Inspection,
    Range,
    Replayed,
    Run,
    Step,
)
from myqueue.analytics.verify.log_ranges import judge_files, judge_ranges
from myqueue.analytics.verify.partition_state import Rebuilt, replay
from myqueue.analytics.verify.replica_agreement import judge_group
from myqueue.analytics.verify.replica_history import Names
from myqueue.analytics.verify.report import Report
from myqueue.errors import CorruptData
from myqueue.wal import format as f

# (log, its part of the managers' group, upto) → the rows that its store should hold, in order
Metadata = Callable[[Log, Group, Catalog, int], Iterator[tuple[bytes, bytes]]]


@dataclass
class Asked:
    """The logs to verify, and what they are compared with.

    `metadata` rebuilds the managers' tables from a log; without it they are not compared.
    """

    paths: list[str]
    ledgers: list[str] = field(default_factory=list)
    store_files: list[str] = field(default_factory=list)
    with_stores: bool = True
    split_bytes: int = SPLIT_BYTES
    metadata: Metadata | None = None


def quiet(_label: str) -> AbstractContextManager[Any]:
    """A progress display that shows nothing."""
    return nullcontext()


def verify(
    asked: Asked,
    spread: Spreader,
    scratch: Path,
    progress: Callable[[str], AbstractContextManager[Any]] = quiet,
) -> Report:
    """Verify all logs at `asked.paths`, and return the report.

    `scratch` is a folder for dumps of the stores. The logs are judged as they were at one time: if
    a daemon reclaims a segment before it is read, all is read again.
    """
    return looked(lambda: _verified(asked, spread, scratch, progress))


def _verified(
    asked: Asked,
    spread: Spreader,
    scratch: Path,
    progress: Callable[[str], AbstractContextManager[Any]],
) -> Report:
    report = Report()
    logs = find_logs(asked.paths)
    with progress("Looking at footers"):
        catalog = make_catalog(logs)
    states = _store_states(asked, logs, report, scratch)
    _settle(asked, catalog, states, report)
    names = Names(
        {log.disk: log.name for log in logs},
        {(log.disk, one.number): one.name for log in logs for one in log.segments},
    )
    report.stores = len(states)
    report.segments_sealed = sum(one.sealed for log in logs for one in log.segments if one.used)
    replays = {log.disk: _replays(catalog, log, states.get(log.disk)) for log in logs}
    report.replayed = sum(
        order.upto > order.after for its in replays.values() for order in its.values()
    )
    orders = _orders(catalog, replays, asked.split_bytes)
    seen = _Seen()
    with progress("Reading and comparing"):
        known = {uid: one.commit_index for uid, one in catalog.groups.items() if not one.removed}
        rows = spread.judged(orders, inspect, _judges(names, replays, known))
        _check_states(catalog, seen.rest(rows, report), states, replays, names, report)
    _check_logs(logs, seen, report)
    _check_places(states, seen, report)
    if asked.metadata is not None:
        _check_metadata(catalog, states, asked.metadata, report)
    if asked.ledgers:
        with progress("Looking for acknowledged messages"):
            check_acks(asked.ledgers, asked.split_bytes, logs, spread, report)
    if not report.records:
        report.cannot("there are no records in these logs")
    report.sort()
    return report


def _settle(
    asked: Asked, catalog: Catalog, states: dict[str, stores.StoreState], report: Report
) -> None:
    """Find how far groups are committed; report those of which nothing tells it."""
    for disk, state in states.items():
        for uid, stored in state.groups.items():
            if uid in catalog.groups:
                take_applied(catalog.groups[uid], disk, stored.applied)
    judge = CommitJudge(ask_stores=asked.with_stores)
    judgement = judge.judge(catalog, Wanted(), with_managers=True)
    if old := [one for one in judgement.unknown if not one.is_new]:
        report.cannot(
            f"nothing in these logs tells what is committed of {named(old)}: give the logs of all "
            "replicas"
        )
    if new := [one for one in judgement.unknown if one.is_new]:
        report.note(f"nothing tells yet what is committed of {named(new)}, made a moment ago")
    if judgement.absent:
        report.note(absent(judgement))


# -- stores ---------------------------------------------------------------------------------------


def _store_states(
    asked: Asked, logs: list[Log], report: Report, scratch: Path
) -> dict[str, stores.StoreState]:
    """The stores that can be read, by disk: of given files, else of stopped daemons' folders."""
    states: dict[str, stores.StoreState] = {}
    for path in asked.store_files:
        state = stores.load(Path(path))
        states[state.disk] = state
    for log in logs:
        if not asked.with_stores or log.disk in states:
            continue
        loaded, finding, why = stores.dump(log, scratch / f"{log.disk}.jsonl")
        if finding is not None:
            report.add(finding)
        elif loaded is None:
            report.note(f"the store of {log.name} was not compared: {why}")
        else:
            states[log.disk] = loaded
    return states


# -- reading --------------------------------------------------------------------------------------


def _orders(
    catalog: Catalog, replays: dict[str, dict[int, Replayed]], split_bytes: int
) -> list[Inspection]:
    out = []
    for log in catalog.logs:
        for segment in log.segments:
            if segment.used:
                out += list(_ranges(catalog, log, segment, split_bytes, replays[log.disk]))
    return out


def _ranges(
    catalog: Catalog, log: Log, segment: Segment, split_bytes: int, replays: dict[int, Replayed]
) -> Iterator[Inspection]:
    """Cut a segment into ranges of at most `split_bytes`."""
    capacity = segment.capacity
    synced = log.synced_to(segment)
    proven = synced or catalog.certain.get((log.disk, segment.number), 0)
    if segment.sealed:  # zeros follow the footer
        rows = len(segment.rows) * f.FOOTER_ROW_BYTES if segment.rows is not None else 0
        proven = segment.footer_at + f.RECORD_HEADER_BYTES + rows
    end = capacity - f.RECORD_HEADER_BYTES
    if segment.rows is not None:
        here = {row.group for row in segment.rows}
        replays = {group: one for group, one in replays.items() if group in here}
    count = max(1, -(-end // split_bytes))
    step = -(-end // count)
    for at in range(0, end, step):
        range_end = min(at + step, end)
        task = Task(
            segment.location,
            log.disk,
            log.name,
            segment.number,
            segment.uid,
            capacity,
            at,
            range_end,
            bool(synced),
        )
        yield Inspection(task, proven, range_end == end, replays)


def _replays(catalog: Catalog, log: Log, state: stores.StoreState | None) -> dict[int, Replayed]:
    """The entries of each partition on this disk to replay: up to what is committed, or what the
    store says it applied. Left out is a partition whose log lacks its beginning and a snapshot.
    """
    out = {}
    for uid, group in catalog.groups.items():
        part = group.parts.get(log.disk)
        if part is None or part.removed or uid == MANAGERS_GROUP or not group.topic:
            continue
        stored = state.groups.get(uid) if state is not None else None
        split = stored.applied if stored is not None else 0
        upto = max(split, min(group.commit_index, group.right_to(log.disk)))
        after, snapshot = 0, None
        if part.first_index > 1:
            fitting = [
                (index, term)
                for index, term in part.snapshots
                if part.first_index - 1 <= index <= (split or ALL)
            ]
            if not fitting:
                continue
            after, _ = snapshot = min(fitting)
        out[uid] = Replayed(after, upto, split, snapshot, tuple(part.cuts))
    return out


# -- judging --------------------------------------------------------------------------------------


def _judges(
    names: Names, replays: dict[str, dict[int, Replayed]], known: dict[int, int]
) -> list[Judge]:
    """Which rows belong together, in which order, and which judge gets them; run by executors."""

    def group(part: tuple[Any, ...], rows: Iterator[Any]) -> Iterator[Any]:
        (uid,) = part
        return judge_group(uid, rows, names, known.get(uid, 0))

    def block(part: tuple[Any, ...], rows: Iterator[Any]) -> Iterator[Any]:
        uid, _ = part
        return judge_block(uid, rows, names)

    def steps(part: tuple[Any, ...], rows: Iterator[Any]) -> Iterator[Any]:
        disk, uid = part
        order = replays[disk][uid]
        return replay(
            disk,
            uid,
            rows,
            names,
            after=order.after,
            split=order.split,
            wants_state=order.split > 0,
        )

    return [
        Judge((Run, Event), lambda row: (row.group, row.disk, row.number, row.position), 1, group),
        Judge((Block,), lambda row: (row.group, row.block, row.disk, row.number), 2, block),
        Judge((Step,), _place_of_step, 2, steps),
    ]


def _place_of_step(row: Step) -> tuple[Any, ...]:
    return row.disk, row.group, row.part is None, row.first, row.number, row.position


@dataclass
class _Seen:
    """Rows from executors that are judged when all of them are here."""

    ranges: dict[tuple[str, int], list[Range]] = field(default_factory=dict)  # by segment
    damaged: set[tuple[str, str]] = field(default_factory=set)  # (daemon, segment)
    ends: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)

    def rest(self, rows: Iterator[Any], report: Report) -> Iterator[Rebuilt]:
        """Take all rows but rebuilt ones, which are too many to be kept; yield these.

        Raises SegmentGone if a segment was reclaimed before it was read.
        """
        for row in rows:
            if isinstance(row, Rebuilt):
                yield row
            elif isinstance(row, Gone):
                raise SegmentGone(f"{row.location} was removed while the logs were read")
            elif isinstance(row, Finding):
                report.add(row)
                if row.verdict == CORRUPT:
                    self.damaged.add((row.daemon, row.segment))
            elif isinstance(row, Range):
                report.count_range(row)
                self.ranges.setdefault((row.disk, row.number), []).append(row)
            else:
                report.count_group(row)
                for disk, last, term, first in row.ends:
                    self.ends[disk, row.group] = last, term, first


def _check_logs(logs: list[Log], seen: _Seen, report: Report) -> None:
    for log in logs:
        report.count_log(log)
        for finding in judge_files(log):
            report.add(finding)
        for segment in log.segments:
            ranges = sorted(seen.ranges.get((log.disk, segment.number), ()), key=_begin_of)
            clean = (log.name, segment.name) not in seen.damaged
            for finding in judge_ranges(log, segment, ranges, clean) if ranges else ():
                report.add(finding)


def _begin_of(row: Range) -> int:
    return row.begin


# -- stores against what was rebuilt ---------------------------------------------------------------


def _check_states(
    catalog: Catalog,
    rebuilt: Iterator[Rebuilt],
    states: dict[str, stores.StoreState],
    replays: dict[str, dict[int, Replayed]],
    names: Names,
    report: Report,
) -> None:
    """Compare rebuilt state with the stores, group by group as rows come."""
    compared: set[tuple[str, int]] = set()
    for disk, group, its in stores.by_group(rebuilt):
        compared.add((disk, group))
        _compare_state(states[disk], group, its, catalog.groups[group], report)
    for disk, its_replays in replays.items():
        for group, order in its_replays.items():
            if order.split and (disk, group) not in compared:
                where = f"{catalog.groups[group].topic}/{catalog.groups[group].partition}"
                report.note(f"the state of {where} on {names.daemons[disk]} could not be rebuilt")


def _check_places(states: dict[str, stores.StoreState], seen: _Seen, report: Report) -> None:
    """Check that no store knows more than its log."""
    for disk, state in states.items():
        for uid in state.groups:
            if (disk, uid) not in seen.ends:
                report.add(stores.stranger(state, uid))
                continue
            report.places += 1
            for finding in stores.judge_place(state, uid, *seen.ends[disk, uid]):
                report.add(finding)


def _compare_state(
    state: stores.StoreState, group: int, its: list[Rebuilt], known: Group, report: Report
) -> None:
    name = f"{known.topic}/{known.partition}"
    if len(its) == 1 and not its[0].key:
        report.note(f"the state of {name} on {state.daemon}: {its[0].value.decode()}")
        return
    rows = sorted((one.key, one.value) for one in its)
    for judged in stores.judge_rows(state, group, rows, name):
        if isinstance(judged, Finding):
            report.add(judged)
        else:
            report.count_state(judged)


def _check_metadata(
    catalog: Catalog, states: dict[str, stores.StoreState], rebuild: Metadata, report: Report
) -> None:
    group = catalog.groups.get(MANAGERS_GROUP)
    for disk, state in states.items():
        if group is None or disk not in group.parts or MANAGERS_GROUP not in state.groups:
            continue
        applied = state.groups[MANAGERS_GROUP].applied
        if not applied:
            continue
        rows = rebuild(catalog.log(disk), group, catalog, applied)
        try:
            for judged in stores.judge_rows(state, MANAGERS_GROUP, rows, "metadata"):
                if isinstance(judged, Finding):
                    report.add(judged)
                else:
                    report.count_state(judged)
        except (CorruptData, ValueError) as error:  # the damage there is a finding of its own
            report.note(
                f"{catalog.log(disk).name}: its tables were not compared with its log: {error}"
            )
