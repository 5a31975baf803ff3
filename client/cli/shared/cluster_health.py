"""Is a cluster well? Asked of the managers' leader, who has heard of every broker lately.

Well means: the managers have a leader that a majority follows, every daemon is heard, every broker
has its replicas and nothing that nobody knows, and every partition has a leader. What a newer
manager tells beside that is shown as it is told: what it does not call well, we do not.
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
    """Critical: something can't be read or written now."""

    critical: bool
    text: str


def problems(
    address: str, cluster: LocalCluster | None, timeout_s: float, *, lasting: bool = True
) -> list[Problem]:
    """What is not well. `cluster` says which brokers there ought to be. Without `lasting`, only
    what is worth waiting for.
    """
    with Admin(address, timeout=timeout_s) as admin:
        try:
            # Only a leader whose followers have just confirmed it may answer this.
            told, brokers = admin.problems(), admin.brokers()
        except MyQueueError as error:
            return [Problem(True, f"no manager leads: {error}")]
    expected = (
        {daemon.id for daemon in cluster.of_kind(cluster_folder.BROKER)} if cluster else set()
    )
    missing = sorted(expected - {row["node"] for row in brokers})
    return [
        *(Problem(False, f"broker {node} is not registered") for node in missing),
        *of_daemons(told),
        *of_partitions(told),
        *(of_others(told) if lasting else ()),
    ]


def of(told: list[dict[str, Any]]) -> list[Problem]:
    """All of it, in words."""
    return [*of_daemons(told), *of_partitions(told), *of_others(told)]


def of_daemons(told: list[dict[str, Any]]) -> list[Problem]:
    """In the order in which they were told."""
    found = []
    for row in told:
        if row["problem"] in OF_DAEMONS:
            critical, text = OF_DAEMONS[row["problem"]]
            found.append(Problem(critical, text.format(node=row.get("node"))))
        elif row["problem"] == "rival":
            found.append(Problem(False, rival(row)))
        elif row["problem"] == "damaged":
            found.append(Problem(False, damage(row)))
    return found


def rival(row: dict[str, Any]) -> str:
    """Two processes with one number."""
    who = f"{row['kind']} {row['node']}"
    return (
        f"another process says that it is {who}, at {row['address']}, and is refused while {who} is"
        f" connected from {row['connected']}: stop the one that should not be, and remove its"
        " folder if that is a copy"
    )


def damage(row: dict[str, Any]) -> str:
    """What can't be read somewhere, and how far its repair is."""
    at = ", ".join(row["partitions"][:NAMED_MAX])
    return (
        f"{row['kind']} {row['node']}: damage in {row['segment']} at position {row['position']}"
        f"{f' ({at})' if at else ''}: {row['state']}"
    )


def closed(row: dict[str, Any]) -> str:
    """A replica that contradicts the others of its group; or what its daemon keeps of one."""
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


def of_partitions(told: list[dict[str, Any]]) -> list[Problem]:
    """Those of a kind in one sentence."""
    found = []
    for kind, critical, text in (
        ("leaderless", True, "no leader"),
        ("under-replicated", False, "replicas are missing"),
    ):
        at = [f"{row['topic']}/{row['partition']}" for row in told if row["problem"] == kind]
        if at:
            more = f" and {len(at) - NAMED_MAX:,} more" if len(at) > NAMED_MAX else ""
            found.append(Problem(critical, f"{text}: {', '.join(at[:NAMED_MAX])}{more}"))
    return found + [
        Problem(True, without_vote(row)) for row in told
        if row["problem"] == "leaderless" and row.get("voteless")
    ][:NAMED_MAX]  # fmt: skip


def without_vote(row: dict[str, Any]) -> str:
    """Why a partition can't elect a leader, though its brokers are there."""
    brokers = ", ".join(map(str, row["voteless"]))
    return (
        f"{row['topic']}/{row['partition']}: its replica on broker {brokers} lost entries, and does"
        " not vote before a leader has filled it. Start the brokers of its other replicas. If all"
        " of them run, too few of its copies are whole: restore one, or delete the topic"
    )


def of_others(told: list[dict[str, Any]]) -> list[Problem]:
    """Replicas that no topic has, by broker; what is closed; and what this client does not know."""
    strays = Counter(row["node"] for row in told if row["problem"] == "stray-group")
    found = [
        Problem(False, f"broker {node} keeps {count:,} {_replicas(count)} that no topic has")
        for node, count in sorted(strays.items())
    ]
    found += [Problem(False, closed(row)) for row in told if row["problem"] == "closed"]
    for row in told:
        if row["problem"] not in KNOWN:
            rest = ", ".join(f"{key} {value}" for key, value in row.items() if key != "problem")
            found.append(Problem(False, f"{row['problem']}: {rest}" if rest else row["problem"]))
    return found


def _replicas(count: int) -> str:
    return "replica" if count == 1 else "replicas"
