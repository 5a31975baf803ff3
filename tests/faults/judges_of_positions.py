"""What must hold of positions: takes, commits, members of groups; and of topics that come and go.

TAKEN_TWICE     one consumer took a message in two calls
TAKEN_SKIPPED   a consumer took what stands behind a message that it never took
TAKEN_BACK      a call got what stands before what a finished call had got
POSITION_BACK   a position was told, or read on from, that is lower than one known before
POSITION_AHEAD  a position was told, or read on from, that nobody had committed
TWO_OWNERS      two members got messages of a partition in one epoch, or an older one later
SKIPPED, BACK   a group left messages out; a member went back within an epoch
STALE_TOPICS    a topic was told of that is gone for certain, or not told of that is there
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from faults.judges import Found, Messages, Peaks

Owned = tuple[str, str, int]  # who, topic, partition


class Takes:
    """One consumer may be many threads, which take one after the other or at once."""

    def __init__(self, found: Found, messages: Messages) -> None:
        self.found, self.messages = found, messages
        self.taken: dict[Owned, dict[int, str]] = defaultdict(dict)  # offset -> call
        self.count = 0
        self._begun: dict[str, float] = {}
        self._peaks: dict[Owned, Peaks] = defaultdict(Peaks)

    def on_take(self, at: float, _client: str, _who: str, _topic: str, call: str) -> None:
        self._begun[call] = at

    def on_taken(
        self, at: float, client: str, who: str, topic: str, call: str, rows: list[list[Any]]
    ) -> None:
        lowest: dict[int, int] = {}
        for partition, offset, name in rows:
            self.count += 1
            lowest[partition] = min(offset, lowest.get(partition, offset))
            self.messages.seen(at, client, (topic, partition, offset), name)
            of = self.taken[who, topic, partition]
            before = of.setdefault(offset, call)
            if before != call:
                self.found("TAKEN_TWICE", f"{topic}/{partition}/{offset} by {before} and {call}")
        for partition, offset in lowest.items():
            peak = self._peaks[who, topic, partition].before(self._begun.get(call, at))
            if offset < peak:
                what = f"{call} got {topic}/{partition}/{offset}, and {peak} had been taken"
                self.found("TAKEN_BACK", f"{what} before it began")
        for partition, offset, _ in rows:
            self._peaks[who, topic, partition].add(at, offset)

    def judge(self) -> None:
        for (who, topic, partition), of in self.taken.items():
            missing = set(range(max(of) + 1)) - set(of)
            if missing:
                first = f"{len(missing)} messages, the first at {min(missing)}"
                self.found("TAKEN_SKIPPED", f"{who} left out of {topic}/{partition} {first}")


class Positions:
    """Committed positions of consumers and groups."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.committed = 0
        self._asked: dict[Owned, int] = defaultdict(int)  # the highest that anybody committed
        self._known: dict[Owned, Peaks] = defaultdict(Peaks)
        self._resumed: dict[tuple[str, str], tuple[str, float]] = {}  # (client, topic)
        self._begun: set[tuple[str, str, int]] = set()

    def on_commit(self, _at: float, who: str, topic: str, partition: int, position: int) -> None:
        asked = self._asked
        asked[who, topic, partition] = max(position, asked[who, topic, partition])

    def on_committed(self, at: float, who: str, topic: str, partition: int, position: int) -> None:
        self.committed += 1
        self._known[who, topic, partition].add(at, position)

    def on_position(
        self, at: float, who: str, topic: str, partition: int, position: int, asked: float
    ) -> None:
        self._told((who, topic, partition), position, asked, "was told")
        self._known[who, topic, partition].add(at, position)

    def _told(self, owned: Owned, position: int, asked: float, how: str) -> None:
        peak = self._known[owned].before(asked)
        if position < peak:
            self.found("POSITION_BACK", f"{owned}: {position} {how}, {peak} was known before")
        if position > self._asked[owned]:
            self.found("POSITION_AHEAD", f"{owned}: {position} {how}, and nobody committed that")

    def on_resume(self, at: float, client: str, who: str, topic: str) -> None:
        self._resumed[client, topic] = who, at
        self._begun -= {key for key in self._begun if key[:2] == (client, topic)}

    def on_read(
        self, _at: float, client: str, topic: str, partition: int, first: int, _names: list[str]
    ) -> None:
        resumed = self._resumed.get((client, topic))
        if resumed is not None and (client, topic, partition) not in self._begun:
            self._begun.add((client, topic, partition))
            who, at = resumed
            self._told((who, topic, partition), first, at, "was read on from")

    def judge(self) -> None:
        """All was judged as it came."""


class Members:
    """Groups: who got what, in which epoch."""

    def __init__(self, found: Found, messages: Messages) -> None:
        self.found, self.messages = found, messages
        self.got: dict[Owned, dict[int, list[tuple[str, float, float, int, int]]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def on_got(
        self,
        at: float,
        member: str,
        group: str,
        topic: str,
        partition: int,
        epoch: int,
        asked: float,
        first: int,
        names: list[str],
    ) -> None:
        row = member, asked, at, first, first + len(names)
        self.got[group, topic, partition][epoch].append(row)
        for step, name in enumerate(names):
            self.messages.seen(at, member, (topic, partition, first + step), name)

    def judge(self) -> None:
        for (group, topic, partition), epochs in self.got.items():
            where, reached = f"{group} in {topic}/{partition}", 0
            newest: tuple[str, float, int] | None = None  # who began the newest epoch, and when
            for epoch, rows in sorted(epochs.items()):
                if len({member for member, *_ in rows}) > 1:
                    self.found("TWO_OWNERS", f"{where}: two members in epoch {epoch}")
                self._dense(f"{where}, epoch {epoch}", rows)
                if rows[0][3] > reached:
                    left = f"epoch {epoch} begins at {rows[0][3]}"
                    self.found("SKIPPED", f"{where}: {left}, others had come to {reached}")
                reached = max(reached, rows[-1][4])
            for epoch, rows in sorted(epochs.items(), reverse=True):
                if newest is not None and max(asked for _, asked, *_ in rows) > newest[1]:
                    later = f"{rows[0][0]} asked in epoch {epoch} and got messages"
                    self.found("TWO_OWNERS", f"{where}: {later}, after epoch {newest[2]} had begun")
                if newest is None or rows[0][2] < newest[1]:
                    newest = rows[0][0], rows[0][2], epoch

    def _dense(self, where: str, rows: list[tuple[str, float, float, int, int]]) -> None:
        due = rows[0][3]
        for _, _, _, first, end in rows:
            if first != due:
                rule = "SKIPPED" if first > due else "BACK"
                self.found(rule, f"{where}: {first} came, {due} was due")
            due = end


class Topics:
    """Names that one client makes and drops, one call after the other."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self._there: dict[str, tuple[bool, float]] = {}  # name -> since when for certain

    def on_make(self, _at: float, name: str, _topic: str) -> None:
        self._there.pop(name, None)

    on_drop = on_make

    def on_made(self, at: float, name: str, _topic: str) -> None:
        self._there[name] = True, at

    def on_dropped(self, at: float, name: str, _topic: str) -> None:
        self._there[name] = False, at

    def on_listed(self, _at: float, asked: float, names: list[str]) -> None:
        for name, (there, since) in self._there.items():
            if since < asked and (name in names) != there:
                what = f"made at {since} and not listed" if there else f"dropped at {since}, listed"
                self.found("STALE_TOPICS", f"{name} was {what}; asked for at {asked}")

    def judge(self) -> None:
        """All was judged as it came."""
