"""One look at the cluster: what `/metrics` and the console show, by one set of questions.

Who looks decides nothing here: each question goes to the public `Admin`, as the command line's do,
so that all of them tell the same numbers. A look never fails and has a deadline: what could not be
learned stands as an error beside what could. Managers without a majority still tell what they
know; when none of them answers, the daemons that were known before are asked all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from myqueue import Admin, Session
from myqueue.errors import MyQueueError, UnknownTopic

T = TypeVar("T")
K = TypeVar("K")
Facts = dict[str, Any]
QUESTION_S: Final = 1.0  # for one question to managers or daemons
LAGS_S: Final = 1.5  # for the lags of all consumers, or groups, together
LAGS_AT_ONCE: Final = 8
TOPICS_S: Final = 1.0  # for asking topic by topic, where there are too many for one answer
TOPICS_AT_ONCE: Final = 16


@dataclass(slots=True)
class ClusterSnapshot:
    """What was learned. `errors`: of questions that nobody answered, the first one leading."""

    took_s: float = 0.0
    brokers: list[Facts] = field(default_factory=list)
    managers: list[Facts] = field(default_factory=list)
    leader: int = 0  # of the managers, as those know it that were asked
    term: int = 0
    cluster: Facts = field(default_factory=dict)  # name, version, settings, counts
    problems: list[Facts] | None = None  # None: no manager leads, so nobody may say
    stats: list[Facts] = field(default_factory=list)
    errors: list[MyQueueError] = field(default_factory=list)

    @property
    def is_reachable(self) -> bool:
        return bool(self.managers)

    @property
    def now_ms(self) -> int:
        """The time by the clock of the manager that answered: it sees itself at that moment."""
        return max((int(row["last_seen_ms"]) for row in self.managers), default=0)

    @property
    def is_healthy(self) -> bool:
        return self.problems == []


class SnapshotReader:
    """Asks again and again, with one session; remembers which daemons there are."""

    def __init__(self, session: Session) -> None:
        self.admin = Admin(session, timeout=QUESTION_S)
        self._daemons: list[Facts] = []

    def look(self) -> ClusterSnapshot:
        begin = time.monotonic()
        out = ClusterSnapshot()
        found = attempt(out.errors, lambda: (self.admin.managers(), self.admin.brokers()))
        if found is not None:
            out.managers, out.brokers = found
            self._daemons = [
                {"daemon": kind, "node": row["node"], "address": row["address"]}
                for kind, rows in (("manager", out.managers), ("broker", out.brokers))
                for row in rows
                if row["address"]
            ]
            out.cluster = attempt(out.errors, self.admin.cluster) or {}
            # Of this nobody's word counts but the leader's.
            out.problems = attempt(out.errors, self.admin.problems)
        out.stats = attempt(out.errors, lambda: self.admin.stats(self._daemons)) or []
        out.leader = next((row["node"] for row in out.managers if row["leader"]), 0)
        out.term = out.cluster.get("term", 0)
        out.took_s = time.monotonic() - begin
        return out

    def statuses(self, look: ClusterSnapshot) -> list[Facts]:
        """How Raft stands at those that have just answered; the others would only be waited for."""
        silent = {(row["daemon"], row["node"]) for row in look.stats if "error" in row}
        return self.admin.statuses(
            row for row in self._daemons if (row["daemon"], row["node"]) not in silent
        )

    def topics(self, partitions_max: int, known: int) -> list[Facts]:
        """All about the topics: all of them if they have so many partitions at most, as `known`
        says; else as many, in the order of names, as have so many together and answer in time.
        """
        if known <= partitions_max:
            return list(self.admin.topics(detail=True))
        names, out, total = self.admin.topics(), [], 0
        end_s = time.monotonic() + TOPICS_S
        for first in range(0, len(names), TOPICS_AT_ONCE):
            some = names[first : first + TOPICS_AT_ONCE]
            with ThreadPoolExecutor(TOPICS_AT_ONCE, "myqueue-topics") as pool:
                found = list(pool.map(self._describe, some))
            out += [one for one in found if one is not None]
            total = sum(len(one["partitions"]) for one in out)
            if total >= partitions_max or time.monotonic() > end_s:
                break
        return out

    def _describe(self, name: str) -> Facts | None:
        return attempt([], lambda: self.admin.describe_topic(name))

    def lags(self, consumers: Iterable[Facts]) -> dict[int, int | MyQueueError]:
        """How many messages are left for each of these, by id; those not known in time are not in.

        `consumers` are rows of `Admin.health`: `{"id", "topic"}`.
        """
        return _at_once(
            {
                row["id"]: partial(self._left, row["topic"], consumer_id=row["id"])
                for row in consumers
                if row["topic"]
            }
        )

    def group_lags(self, groups: Iterable[Facts]) -> dict[str, dict[str, int]]:
        """The same of consumer groups, by name and topic. One of which not all topics were known in
        time is not in. `groups` are rows of `Admin.groups`.
        """
        rows = list(groups)
        found = _at_once(
            {
                (row["group"], topic): partial(self._left, topic, group=row["group"])
                for row in rows
                for topic in row["topics"]
            }
        )
        out: dict[str, dict[str, int]] = {}
        for row in rows:
            of = {topic: found.get((row["group"], topic)) for topic in row["topics"]}
            # A member may name a topic that is not there yet: nothing of it is left.
            known = {t: lag for t, lag in of.items() if not isinstance(lag, UnknownTopic)}
            numbers = {t: lag for t, lag in known.items() if isinstance(lag, int)}
            if len(numbers) == len(known):
                out[row["group"]] = numbers
        return out

    def _left(self, topic: str, **whose: Any) -> int:
        return sum(self.admin.lag(topic, **whose).values())


def _at_once(questions: dict[K, Callable[[], int]]) -> dict[K, int | MyQueueError]:
    """The answers that came in time, and errors."""
    out: dict[K, int | MyQueueError] = {}

    def ask(key: K, question: Callable[[], int]) -> None:
        try:
            out[key] = question()
        except MyQueueError as error:
            out[key] = error

    if not questions:
        return {}
    pool = ThreadPoolExecutor(min(LAGS_AT_ONCE, len(questions)), "myqueue-lags")
    wait([pool.submit(ask, *one) for one in questions.items()], LAGS_S)
    pool.shutdown(wait=False, cancel_futures=True)
    return dict(out)


def attempt(errors: list[MyQueueError], ask: Callable[[], T]) -> T | None:
    """The answer; or None, and the error is kept."""
    try:
        return ask()
    except MyQueueError as error:
        errors.append(error)
        return None
