"""Read the state of the cluster: what `/metrics` and the console show, by one set of requests.

Nothing is decided here: each request goes to the public `Admin`, as the command line's do, so that
all of them show the same numbers. Reading never fails and has a deadline: what could not be learned
is an error next to what could. Managers without a majority still report what they know; when none
of them answers, the daemons that were known before are asked all the same.
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
QUESTION_S: Final = 1.0  # for one request to managers or daemons
LAGS_S: Final = 1.5  # for the lags of all consumers, or groups, together
LAGS_AT_ONCE: Final = 8
TOPICS_S: Final = 1.0  # for asking topic by topic, where there are too many for one answer
TOPICS_AT_ONCE: Final = 16


@dataclass(slots=True)
class ClusterSnapshot:
    """Everything that one look found. `errors` has those of requests that nobody answered, in
    order.
    """

    took_s: float = 0.0
    brokers: list[Facts] = field(default_factory=list)
    managers: list[Facts] = field(default_factory=list)
    leader: int = 0  # of the managers, as the answering manager knows it
    term: int = 0
    cluster: Facts = field(default_factory=dict)  # name, version, settings, counts
    problems: list[Facts] | None = None  # None: no manager leads, so nobody can tell
    stats: list[Facts] = field(default_factory=list)
    errors: list[MyQueueError] = field(default_factory=list)

    @property
    def is_reachable(self) -> bool:
        return bool(self.managers)

    @property
    def now_ms(self) -> int:
        """The clock of the manager that answered: its own heartbeat is of that moment."""
        return max((int(row["last_seen_ms"]) for row in self.managers), default=0)

    @property
    def is_healthy(self) -> bool:
        return self.problems == []


class SnapshotReader:
    """Reads the state again and again over one session; remembers which daemons exist."""

    def __init__(self, session: Session) -> None:
        self.admin = Admin(session, timeout=QUESTION_S)
        self._daemons: list[Facts] = []

    def look(self) -> ClusterSnapshot:
        """Ask managers and daemons; return what they answered. Never raises for an error of the
        cluster.
        """
        begin = time.monotonic()
        snapshot = ClusterSnapshot()
        managers_and_brokers = attempt(
            snapshot.errors, lambda: (self.admin.managers(), self.admin.brokers())
        )
        if managers_and_brokers is not None:
            snapshot.managers, snapshot.brokers = managers_and_brokers
            self._daemons = [
                {"daemon": kind, "node": row["node"], "address": row["address"]}
                for kind, rows in (("manager", snapshot.managers), ("broker", snapshot.brokers))
                for row in rows
                if row["address"]
            ]
            snapshot.cluster = attempt(snapshot.errors, self.admin.cluster) or {}
            # Only the leader knows this for certain.
            snapshot.problems = attempt(snapshot.errors, self.admin.problems)
        snapshot.stats = attempt(snapshot.errors, lambda: self.admin.stats(self._daemons)) or []
        snapshot.leader = next((row["node"] for row in snapshot.managers if row["leader"]), 0)
        snapshot.term = snapshot.cluster.get("term", 0)
        snapshot.took_s = time.monotonic() - begin
        return snapshot

    def statuses(self, look: ClusterSnapshot) -> list[Facts]:
        """Return the state of Raft at the daemons that have just answered; the others would only
        time out.
        """
        silent = {(row["daemon"], row["node"]) for row in look.stats if "error" in row}
        return self.admin.statuses(
            row for row in self._daemons if (row["daemon"], row["node"]) not in silent
        )

    def topics(self, partitions_max: int, known: int) -> list[Facts]:
        """Return all facts about topics with `partitions_max` partitions together.

        `known` is the number of partitions in the cluster. If there are more, topics are read in
        the order of names, as many as fit and answer in time.
        """
        if known <= partitions_max:
            return list(self.admin.topics(detail=True))
        names, topics_read, total = self.admin.topics(), [], 0
        end_s = time.monotonic() + TOPICS_S
        for first in range(0, len(names), TOPICS_AT_ONCE):
            chunk = names[first : first + TOPICS_AT_ONCE]
            with ThreadPoolExecutor(TOPICS_AT_ONCE, "myqueue-topics") as pool:
                descriptions = list(pool.map(self._describe, chunk))
            topics_read += [topic for topic in descriptions if topic is not None]
            total = sum(len(topic["partitions"]) for topic in topics_read)
            if total >= partitions_max or time.monotonic() > end_s:
                break
        return topics_read

    def _describe(self, name: str) -> Facts | None:
        return attempt([], lambda: self.admin.describe_topic(name))

    def lags(self, consumers: Iterable[Facts]) -> dict[int, int | MyQueueError]:
        """Return how many messages are left for each consumer, by id; those not known in time are
        missing.

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
        """Return how many messages are left for each consumer group, by name and topic.

        A group is missing if one of its topics was not known in time. `groups` are rows of
        `Admin.groups`.
        """
        rows = list(groups)
        lags_by_topic = _at_once(
            {
                (row["group"], topic): partial(self._left, topic, group=row["group"])
                for row in rows
                for topic in row["topics"]
            }
        )
        out: dict[str, dict[str, int]] = {}
        for row in rows:
            lags = {topic: lags_by_topic.get((row["group"], topic)) for topic in row["topics"]}
            # A member may name a topic that does not exist yet: nothing of it is left.
            existing = {t: lag for t, lag in lags.items() if not isinstance(lag, UnknownTopic)}
            numbers = {t: lag for t, lag in existing.items() if isinstance(lag, int)}
            if len(numbers) == len(existing):
                out[row["group"]] = numbers
        return out

    def _left(self, topic: str, **whose: Any) -> int:
        return sum(self.admin.lag(topic, **whose).values())


def _at_once(questions: dict[K, Callable[[], int]]) -> dict[K, int | MyQueueError]:
    """Ask in parallel; return the answers that came in time, and the errors."""
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
    """Return the answer; or None, with the error appended to `errors`."""
    try:
        return ask()
    except MyQueueError as error:
        errors.append(error)
        return None
