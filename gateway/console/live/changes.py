"""What changed from one look at the cluster to the next, in sentences. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from myqueue.gateway.cluster_snapshot import ClusterSnapshot, Facts
from myqueue.problems import partitions_of, shortened

# States of a broker that an operator causes.
DONE_TO: Final = {
    "active": "may hold partitions again",
    "draining": "is being drained",
    "drained": "is drained",
}


class Change(NamedTuple):
    """One change. `is_bad`: something worked before and does not now."""

    is_bad: bool
    text: str


def changes(before: ClusterSnapshot, now: ClusterSnapshot) -> list[Change]:
    """Return events: daemons that joined, were removed, fell silent or answer again, leaders that
    changed, damage that was found.
    """
    out = []
    for kind, old, new in (
        ("manager", before.managers, now.managers),
        ("broker", before.brokers, now.brokers),
    ):
        was = {row["node"]: row["alive"] for row in old}
        for row in new:
            node, alive = row["node"], row["alive"]
            if node not in was:
                if was:
                    out.append(Change(False, f"{kind} {node} joined"))
            elif was[node] != alive:
                text = "is alive again" if alive else "fell silent"
                out.append(Change(not alive, f"{kind} {node} {text}"))
    if before.is_reachable and now.is_reachable:
        out += _moods(before.brokers, now.brokers)
    if before.is_reachable != now.is_reachable:
        text = "managers answer again" if now.is_reachable else "no manager answers any more"
        out.append(Change(not now.is_reachable, text))
    if now.leader and now.leader != before.leader and before.is_reachable:
        out.append(Change(False, f"manager {now.leader} leads the managers (term {now.term})"))
    if before.is_reachable and now.is_reachable:
        led, leads = before.problems is not None, now.problems is not None
        if led != leads:
            text = "a manager leads again" if leads else "no manager leads any more"
            out.append(Change(not leads, text))
    for kind, text in (("leaderless", "a leader"), ("under-replicated", "all replicas")):
        if before.problems is None or now.problems is None:
            continue
        old_, new_ = (set(partitions_of(one.problems, kind)) for one in (before, now))
        if new_ - old_:
            out.append(
                Change(kind == "leaderless", f"{shortened(sorted(new_ - old_))} without {text}")
            )
        if old_ - new_:
            out.append(Change(False, f"{shortened(sorted(old_ - new_))} with {text} again"))
    if before.problems is not None and now.problems is not None:
        out += _damages(before.problems, now.problems)
    return out


def _moods(before: list[Facts], now: list[Facts]) -> list[Change]:
    """Return changes of brokers that an operator caused."""
    was = {row["node"]: row.get("state") for row in before}
    out = [
        Change(False, f"broker {row['node']} {DONE_TO[row['state']]}")
        for row in now
        if was.get(row["node"]) in DONE_TO
        and row.get("state") in DONE_TO
        and was[row["node"]] != row["state"]
    ]
    gone = sorted(was.keys() - {row["node"] for row in now})
    return out + [Change(False, f"broker {node} was removed") for node in gone if now]


def _damages(before: list[Facts], now: list[Facts]) -> list[Change]:
    old, new = (
        {
            f"{row['kind']} {row['node']}: {row['segment']} at position {row['position']}"
            for row in problems
            if row["problem"] == "damaged"
        }
        for problems in (before, now)
    )
    events = [Change(False, f"damage was found, {one}") for one in sorted(new - old)]
    return events + [Change(False, f"damage was repaired, {one}") for one in sorted(old - new)]
