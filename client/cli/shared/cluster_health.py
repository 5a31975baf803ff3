"""Ask the managers' leader for the problems of a cluster, and describe them with `problems.py`."""

from __future__ import annotations

from myqueue.admin.client import Admin
from myqueue.daemons.agent.cluster_folder import BROKER, LocalCluster
from myqueue.errors import MyQueueError
from myqueue.problems import LEADERLESS, UNREGISTERED, Problem, describe


def problems(address: str, cluster: LocalCluster | None, timeout_s: float) -> list[Problem]:
    """Return all problems. `cluster` names the brokers that should be registered."""
    with Admin(address, timeout=timeout_s) as admin:
        return ask(admin, {daemon.id for daemon in cluster.of_kind(BROKER)} if cluster else set())


def ask(admin: Admin, expected: set[int] | None = None) -> list[Problem]:
    """Return all problems; of `expected` brokers also that they are not registered."""
    try:
        # Only a leader that a majority has just confirmed answers this.
        rows = admin.problems()
        missing = expected - {row["node"] for row in admin.brokers()} if expected else set()
    except MyQueueError as error:
        return describe([{"problem": LEADERLESS, "why": str(error)}])
    return describe([*rows, *({"problem": UNREGISTERED, "node": one} for one in sorted(missing))])
