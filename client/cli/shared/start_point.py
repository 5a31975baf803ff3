"""Parse `--from`, and find the offset that it means in each partition."""

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
    """A partition's first offset, the offset after its last message, and the one at a time."""

    start: int
    end: int
    at_time: int | None


def ranges(session: Session, topic: str, time_ms: int | None = None) -> dict[int, Range]:
    """Ask the leader of each partition for its range; wait for leaders that are being elected."""
    [routes] = session.wait(session.ensure_topics([topic]))
    groups = {partition.group: partition.number for partition in routes.partitions}
    rows = read_offsets(session, groups, time_ms=time_ms)
    return {
        groups[group]: Range(row.start, row.end, row.at_time)
        for group, row in sorted(rows.items(), key=lambda item: groups[item[0]])
    }


class From(NamedTuple):
    """A point to read from: the start, the end, an offset, or a time."""

    kind: str  # "earliest", "latest", "offset", "before_end", "time"
    number: int = 0

    def offset(self, of: Range) -> int:
        """Return the offset that this point means in a partition with this range."""
        match self.kind:
            case "latest":
                return of.end
            case "offset":
                return min(max(self.number, of.start), of.end)
            case "before_end":
                return max(of.start, of.end - self.number)
            case "time":
                return of.end if of.at_time is None else of.at_time
        return of.start

    def missed(self, known: dict[int, Range]) -> dict[int, str]:
        """Return a sentence for each partition in which the chosen offset does not exist.

        That is one before the start, or after the end of every partition.
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
    """Parse the value of --from (a click callback)."""
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
