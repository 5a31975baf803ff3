"""All that can be wrong with a cluster: one table, and the sentences made from it. Pure.

Comes in: rows of `Admin.problems`, as the managers' leader found them, and the rows below that a
program adds when it gets no such answer. Goes out: problems, the critical ones first, each with one
sentence and what to do. The commands, the console, the gateway's probes and its metrics use this
table, so all of them say the same. A problem of a kind that only a newer manager knows is written
as it came, and counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

Facts = dict[str, Any]
NAMED_MAX: Final = 5  # partitions in one sentence

# Problems that no manager reports: nobody answers, nobody leads, a broker never registered.
UNREACHABLE: Final = "managers-unreachable"
LEADERLESS: Final = "managers-leaderless"
UNREGISTERED: Final = "broker-unregistered"


class Problem(NamedTuple):
    """One problem. `critical`: something can't be read or written now."""

    kind: str
    critical: bool
    text: str
    action: str  # "" if there is nothing to do

    @property
    def advice(self) -> str:
        """The sentence, and what to do."""
        return f"{self.text}. {self.action}" if self.action else self.text


def _each(rows: list[Facts]) -> list[Facts]:
    return [row | {"daemon": f"{row.get('kind')} {row.get('node')}"} for row in rows]


def _together(rows: list[Facts]) -> list[Facts]:
    """All partitions in one sentence."""
    if not rows:
        return []
    names = [f"{row['topic']}/{row['partition']}" for row in rows]
    return [{"partitions": _counted(len(rows), "partition"), "names": shortened(names)}]


def _by_broker(rows: list[Facts]) -> list[Facts]:
    counts = Counter(row["node"] for row in rows)
    return [
        {"node": node, "replicas": _counted(count, "replica")}
        for node, count in sorted(counts.items())
    ]


def _damage(rows: list[Facts]) -> list[Facts]:
    return [
        row | {"at": f" ({shortened(row['partitions'])})" if row["partitions"] else ""}
        for row in _each(rows)
    ]


def _without_vote(rows: list[Facts]) -> list[Facts]:
    return [row | {"voteless": ", ".join(_with_health(row))} for row in rows[:NAMED_MAX]]


def _with_health(row: Facts) -> list[str]:
    """Name brokers, each with the health of its replica; an older manager does not report that."""
    health = row.get("health", {})
    return [f"{node} ({health[str(node)]})" if health.get(str(node)) else f"{node}"
            for node in row["voteless"]]  # fmt: skip


def _unled(rows: list[Facts]) -> list[Facts]:
    return [{"why": f": {row['why']}" if row.get("why") else ""} for row in rows[:1]]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


class Kind(NamedTuple):
    """One row of the table. `name` is the word in the managers' rows; `is_case` chooses among them.

    `facts` turns these rows into the values of the sentence and of the action, one of each problem.
    """

    name: str
    critical: bool
    text: str
    action: str = ""
    ends_alone: bool = True  # it may end by waiting
    facts: Callable[[list[Facts]], list[Facts]] = _each
    is_case: Callable[[Facts], Any] = bool


START: Final = "Start it. If it runs, look into its log and at its network"

KINDS: Final = (
    Kind(UNREACHABLE, True, "no manager answers: {why}"),
    Kind(
        LEADERLESS, True, "no manager leads{why}",
        "Nothing can be changed until a majority of the managers is alive: start the silent ones",
        facts=_unled,
    ),
    Kind(
        "disk-low", True, "broker {node} has no room on its disk, and refuses messages",
        "Make room on it, or add a broker and drain this one",
    ),
    Kind(
        "leaderless", True, "{partitions} without a leader: {names}",
        "Start the silent brokers: a majority of the replicas of a partition elects its leader",
        facts=_together,
    ),
    Kind(
        "leaderless", True,
        "{topic}/{partition}: its replica on broker {voteless} does not vote until a leader has"
        " restored its lost entries",
        "Start the brokers of its other replicas. If all of them run, too few of its copies are"
        " whole: restore one, or delete the topic",
        facts=_without_vote, is_case=lambda row: row.get("voteless"),
    ),
    Kind("manager-silent", False, "manager {node} is silent", START),
    Kind("broker-silent", False, "broker {node} is silent", START),
    Kind(UNREGISTERED, False, "broker {node} is not registered", START),
    Kind(
        "unreached", False, "other brokers can't reach broker {node}",
        "Check its address for peers",
    ),
    Kind(
        "rival", False,
        "another process claims to be {daemon}, at {address}, and is refused while {daemon} is"
        " connected from {connected}",
        "Stop the one that should not be, and remove its folder if that is a copy",
    ),
    Kind(
        "damaged", False, "{daemon}: damage in {segment} at position {position}{at}: {state}",
        facts=_damage,
    ),
    Kind(
        "under-replicated", False, "{partitions} with replicas missing: {names}",
        "Start the silent brokers. Other brokers copy what is missing by themselves",
        facts=_together,
    ),
    Kind(
        "stray-group", False, "broker {node} keeps {replicas} that no topic has",
        "No broker deletes these by itself: see with 'myq wal ls' what they hold",
        ends_alone=False, facts=_by_broker,
    ),
    Kind(
        "closed", False,
        "{daemon} keeps the log of a closed replica of {partition} in {kept}",
        "See with 'myq wal dump' what the others lack, then remove that folder",
        ends_alone=False, is_case=lambda row: row["kept"],
    ),
    Kind(
        "closed", False, "{daemon} takes no part: {why}",
        "Look for a disk or a folder of a manager that was set back to an older copy. Leave this"
        " one as it is, and keep its folder. The others go on without it as long as they are a"
        " majority. Nothing replaces a manager yet: with an empty folder it is refused, and without"
        " its note it is closed again. Put no other files under managers that went on. To have all"
        " managers again, found a new cluster and copy the messages into it",
        ends_alone=False, is_case=lambda row: not row["kept"] and row["kind"] == "manager",
    ),
    Kind(
        "closed", False, "{daemon} closed its replica of {partition}: {why}",
        "Look for a disk or a folder of a broker that was set back to an older copy. Its files are"
        " kept, and another replica takes its place when the others have a leader",
        ends_alone=False, is_case=lambda row: not row["kept"] and row["kind"] != "manager",
    ),
)  # fmt: skip
CRITICAL: Final = frozenset(kind.name for kind in KINDS if kind.critical)
ENDS_ALONE: Final = frozenset(kind.name for kind in KINDS if kind.ends_alone)
REPORTED: Final = tuple(
    dict.fromkeys(kind.name for kind in KINDS if kind.name not in (UNREACHABLE, UNREGISTERED))
)


def describe(rows: Iterable[Facts]) -> list[Problem]:
    """Return the problems in the order of the table, the critical ones first.

    >>> [problem.text for problem in describe([{"problem": "broker-silent", "node": 3}])]
    ['broker 3 is silent']
    """
    all_rows = list(rows)
    problems = [
        Problem(kind.name, kind.critical, kind.text.format(**facts), kind.action)
        for kind in KINDS
        for facts in kind.facts(
            [row for row in all_rows if row["problem"] == kind.name and kind.is_case(row)]
        )
    ]
    known = {kind.name for kind in KINDS}
    for row in all_rows:
        if row["problem"] not in known:
            rest = ", ".join(f"{key} {value}" for key, value in row.items() if key != "problem")
            text = f"{row['problem']}: {rest}" if rest else row["problem"]
            problems.append(Problem(row["problem"], False, text, ""))
    return problems


def partitions_of(rows: Iterable[Facts] | None, kind: str) -> list[str]:
    """Name the partitions that have one kind of problem."""
    return [f"{row['topic']}/{row['partition']}" for row in rows or () if row["problem"] == kind]


def shortened(names: list[str]) -> str:
    """Name the first of several partitions, and count the others."""
    more = f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
