"""List the problems of a cluster in sentences. Comes in: rows of the managers' leader.

A cluster is healthy if the managers have a leader that a majority follows, every daemon sends
heartbeats and has room on its disk, every partition has a leader and all its replicas, and no
broker keeps replicas that no topic has. A kind of problem that only a newer manager knows is shown
as it came, and counts as a problem.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from myqueue.admin.client import Admin
from myqueue.daemons.agent import cluster_folder
from myqueue.daemons.agent.cluster_folder import LocalCluster
from myqueue.errors import MyQueueError

NAMED_MAX = 3  # partitions in one sentence
OF_DAEMONS = {
    "managers-leaderless": (True, "no manager leads"),
    "manager-silent": (False, "manager {node} is silent"),
    "broker-silent": (False, "broker {node} is silent"),
    "disk-low": (True, "broker {node} has no room on its disk"),
    "unreached": (False, "other brokers do not reach broker {node}: check its address for peers"),
}
KNOWN = {*OF_DAEMONS, "rival", "damaged", "closed", "leaderless", "under-replicated", "stray-group"}


class Problem(NamedTuple):
    """One problem. `critical`: something can't be read or written now."""

    critical: bool
    text: str


def problems(
    address: str, cluster: LocalCluster | None, timeout_s: float, *, lasting: bool = True
) -> list[Problem]:
    """Ask the managers' leader for all problems.

    `cluster` names the brokers that should exist. Without `lasting`, leave out problems that do not
    end by waiting.
    """
    with Admin(address, timeout=timeout_s) as admin:
        try:
            # Only a leader that a majority has just confirmed answers this.
            rows, brokers = admin.problems(), admin.brokers()
        except MyQueueError as error:
            return [Problem(True, f"no manager leads: {error}")]
    expected = (
        {daemon.id for daemon in cluster.of_kind(cluster_folder.BROKER)} if cluster else set()
    )
    missing = sorted(expected - {row["node"] for row in brokers})
    return [
        *(Problem(False, f"broker {node} is not registered") for node in missing),
        *of_daemons(rows),
        *of_partitions(rows),
        *(of_others(rows) if lasting else ()),
    ]


def of(rows: list[dict[str, Any]]) -> list[Problem]:
    """Return all problems of the managers' rows."""
    return [*of_daemons(rows), *of_partitions(rows), *of_others(rows)]


def of_daemons(rows: list[dict[str, Any]]) -> list[Problem]:
    """Return the problems of daemons, in the order of the rows."""
    problems = []
    for row in rows:
        if row["problem"] in OF_DAEMONS:
            critical, text = OF_DAEMONS[row["problem"]]
            problems.append(Problem(critical, text.format(node=row.get("node"))))
        elif row["problem"] == "rival":
            problems.append(Problem(False, rival(row)))
        elif row["problem"] == "damaged":
            problems.append(Problem(False, damage(row)))
    return problems


def rival(row: dict[str, Any]) -> str:
    """Describe two processes that use one node number."""
    who = f"{row['kind']} {row['node']}"
    return (
        f"another process says that it is {who}, at {row['address']}, and is refused while {who} is"
        f" connected from {row['connected']}: stop the one that should not be, and remove its"
        " folder if that is a copy"
    )


def damage(row: dict[str, Any]) -> str:
    """Describe damage in a segment, and the state of its repair."""
    at = ", ".join(row["partitions"][:NAMED_MAX])
    return (
        f"{row['kind']} {row['node']}: damage in {row['segment']} at position {row['position']}"
        f"{f' ({at})' if at else ''}: {row['state']}"
    )


def closed(row: dict[str, Any]) -> str:
    """Describe a replica that was closed because it contradicts others, or the log kept of one."""
    who = f"{row['kind']} {row['node']}"
    if row["kept"]:
        return (
            f"{who} keeps the log of a closed replica of {row['partition']} in {row['kept']}: see"
            " with 'myq wal dump' what the others lack, then remove that folder"
        )
    if row["kind"] == "manager":
        return (
            f"{who} takes no part: {row['why']}. Look for a disk or a folder of a manager that was"
            " set back to an older copy. Leave this one as it is, and keep its folder. The others"
            " go on without it as long as they are a majority. Nothing replaces a manager yet:"
            " with an empty folder it is refused, and without its note it is closed again. Put no"
            " other files under managers that went on. To have all managers again, found a new"
            " cluster and copy the messages into it"
        )
    return (
        f"{who} closed its replica of {row['partition']}: {row['why']}. Look for a disk or a folder"
        " of a broker that was set back to an older copy. Its files are kept, and another replica"
        " takes its place when the others have a leader"
    )


def of_partitions(rows: list[dict[str, Any]]) -> list[Problem]:
    """Return the problems of partitions, all of a kind in one sentence."""
    problems = []
    for kind, critical, text in (
        ("leaderless", True, "no leader"),
        ("under-replicated", False, "replicas are missing"),
    ):
        at = [f"{row['topic']}/{row['partition']}" for row in rows if row["problem"] == kind]
        if at:
            more = f" and {len(at) - NAMED_MAX:,} more" if len(at) > NAMED_MAX else ""
            problems.append(Problem(critical, f"{text}: {', '.join(at[:NAMED_MAX])}{more}"))
    voteless = [row for row in rows if row["problem"] == "leaderless" and row.get("voteless")]
    return problems + [Problem(True, without_vote(row)) for row in voteless[:NAMED_MAX]]


def without_vote(row: dict[str, Any]) -> str:
    """Describe a partition that can't elect a leader although its brokers are connected."""
    brokers = ", ".join(map(str, row["voteless"]))
    return (
        f"{row['topic']}/{row['partition']}: its replica on broker {brokers} lost entries, and does"
        " not vote before a leader has filled it. Start the brokers of its other replicas. If all"
        " of them run, too few of its copies are whole: restore one, or delete the topic"
    )


def of_others(rows: list[dict[str, Any]]) -> list[Problem]:
    """Return stray replicas by broker, closed replicas, and problems of unknown kinds."""
    strays = Counter(row["node"] for row in rows if row["problem"] == "stray-group")
    problems = [
        Problem(False, f"broker {node} keeps {count:,} {_replicas(count)} that no topic has")
        for node, count in sorted(strays.items())
    ]
    problems += [Problem(False, closed(row)) for row in rows if row["problem"] == "closed"]
    for row in rows:
        if row["problem"] not in KNOWN:
            rest = ", ".join(f"{key} {value}" for key, value in row.items() if key != "problem")
            problems.append(Problem(False, f"{row['problem']}: {rest}" if rest else row["problem"]))
    return problems


def _replicas(count: int) -> str:
    return "replica" if count == 1 else "replicas"
