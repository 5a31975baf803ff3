"""Where partitions begin and end, and what `--from` means."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import NamedTuple

import click

from myqueue.cluster.offset_queries import read_offsets
from myqueue.cluster.session import Session

UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Range(NamedTuple):
    """A partition's first offset, the one behind its last message, and the one at a time."""

    start: int
    end: int
    at_time: int | None


def ranges(session: Session, topic: str, time_ms: int | None = None) -> dict[int, Range]:
    """Of each partition, as its leader knows it; waits for leaders that are being elected."""
    [found] = session.wait(session.ensure_topics([topic]))
    groups = {partition.group: partition.number for partition in found.partitions}
    rows = read_offsets(session, groups, time_ms=time_ms)
    return {
        groups[group]: Range(row.start, row.end, row.at_time)
        for group, row in sorted(rows.items(), key=lambda item: groups[item[0]])
    }


class From(NamedTuple):
    """A point to read from: of the start, of the end, an offset, or a time."""

    kind: str  # "earliest", "latest", "offset", "before_end", "time"
    number: int = 0

    def offset(self, of: Range) -> int:
        match self.kind:
            case "latest":
                return of.end
            case "offset":
                return min(
                    max(self.number, of.start), of.end
                )  # behind it is nothing to be asked for
            case "before_end":
                return max(of.start, of.end - self.number)
            case "time":
                return of.end if of.at_time is None else of.at_time
        return of.start

    def missed(self, known: dict[int, Range]) -> dict[int, str]:
        """Where the offset that was asked for is gone, or in no partition there so far; of each
        what to say about it.
        """
        if self.kind != "offset":
            return {}
        is_beyond = self.number > max((row.end for row in known.values()), default=0)
        return {
            number: f"offset {self.number} is not between {row.start} (start) and {row.end} (end)"
            for number, row in known.items()
            if self.number < row.start or is_beyond
        }


def read_from(ctx: click.Context, parameter: click.Parameter, value: str) -> From:
    """Callback of --from."""
    if value in ("earliest", "latest"):
        return From(value)
    if re.fullmatch(r"-?\d{1,19}", value):
        number = int(value)
        return From("offset", number) if value[0] != "-" else From("before_end", -number)
    ago = re.fullmatch(r"@-(\d{1,9})([smhd])", value)
    if ago:
        return From("time", int(time.time() * 1000) - int(ago[1]) * UNITS_MS[ago[2]])
    if re.fullmatch(r"@\d{9,19}", value):
        return From("time", int(value[1:]))
    if value.startswith("@"):
        try:
            return From("time", int(datetime.fromisoformat(value[1:]).timestamp() * 1000))
        except ValueError:
            pass
    raise click.BadParameter(
        f"{value!r}: say earliest, latest, an offset, -N (before the end), @-10m, @MS or @ISO-TIME."
    )
