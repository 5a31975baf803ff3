"""A log as a whole, judged from its ranges: whether ranges meet, footers count what is there, and
no segment is missing. Pure: segments and ranges come in, findings go out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from myqueue.analytics.log.discovery import Log, Segment
from myqueue.analytics.verify.inspection_rows import CORRUPT, Finding, GroupSums, Range
from myqueue.wal import format as f

OWNER_AT = 48


def _finding(log: Log, segment: Segment, rule: str, what: str, position: int) -> Finding:
    return Finding(CORRUPT, rule, what, log.name, segment.name, position)


def judge_files(log: Log) -> Iterator[Finding]:
    """Check headers, numbers, owners and seals of a log's segments."""
    owners = Counter(one.disk for one in log.segments if one.disk)
    expected = log.disk or (owners.most_common(1)[0][0] if owners else "")
    numbers = Counter(one.number for one in log.segments)
    before: Segment | None = None
    for segment in log.segments:
        if segment.problem and segment.used:
            yield _finding(log, segment, "file", segment.problem, 0)
        if segment.disk and segment.disk != expected:
            what = f"written by the daemon of another disk, {segment.disk}"
            yield _finding(log, segment, "file", what, OWNER_AT)
        if numbers[segment.number] > 1 and before and before.number == segment.number:
            what = f"segment number {segment.number} is there twice"
            yield _finding(log, segment, "file", what, 0)
        if segment.used and before is not None and not before.sealed:
            if segment.number > before.number + 1:
                what = f"segments {before.number + 1} to {segment.number - 1} before it are missing"
                yield _finding(log, segment, "file", what, 0)
            elif segment.number == before.number + 1 and not segment.left_before:
                what = "the trailer is missing or damaged, but the log went on in a later segment"
                place = before.capacity - f.RECORD_HEADER_BYTES
                yield _finding(log, before, "seal", what, place)
        if segment.sealed and segment.rows is None:
            what = "the footer is damaged or not where the trailer says"
            yield _finding(log, segment, "seal", what, segment.footer_at)
        if segment.used:
            before = segment


def judge_ranges(
    log: Log, segment: Segment, ranges: Iterable[Range], clean: bool
) -> Iterator[Finding]:
    """Check that each range of a segment begins where the one before ended, and the footer.

    Ranges are sorted by position. If damage was found (not `clean`), the footer is not checked: it
    would only report the same damage once more.
    """
    sums: dict[int, GroupSums] = {}
    before: Range | None = None
    for one in ranges:
        # Ranges after the end of an open segment hold no records, and that is right.
        if before is not None and before.end < one.begin and one.records:
            what = f"no valid record from here up to position {one.begin}"
            yield _finding(log, segment, "header", what, before.end)
        for group, its_sums in one.sums.items():
            sums[group] = sums.get(group, GroupSums()).plus(its_sums)
        before = one
    if segment.rows is not None and clean:
        yield from _footer(log, segment, sums)


def _footer(log: Log, segment: Segment, sums: dict[int, GroupSums]) -> Iterator[Finding]:
    """Compare what the footer counted at the time of writing with what is there now."""
    for row in segment.rows or ():
        entries, size, kinds = sums.pop(row.group, GroupSums())
        if (entries, size, kinds) != (row.entries, row.entry_bytes, row.kinds):
            what = (
                f"the footer counts {row.entries} entries of {row.entry_bytes} bytes, kinds "
                f"{row.kinds:x}; there are {entries} of {size}, kinds {kinds:x}"
            )
            finding = _finding(log, segment, "footer", what, segment.footer_at)
            yield finding._replace(group=row.group)
    for group, (entries, size, _) in sums.items():
        what = f"the footer does not know this group; there are {entries} entries of {size} bytes"
        finding = _finding(log, segment, "footer", what, segment.footer_at)
        yield finding._replace(group=group)
