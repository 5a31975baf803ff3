"""Problems in sentences, the worst first; and what changed from one look to the next.

The facts are the `problems` of the managers' leader, as `myq health` has them. Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from myqueue.errors import MyQueueError
from myqueue.gateway.api.failures import HINTS
from myqueue.gateway.cluster_snapshot import ClusterSnapshot, Facts

NAMED_MAX: Final = 5  # partitions in one sentence
UNREACHED: Final = "other brokers can't reach broker {node}: check its address for peers"
# States of a broker that an operator causes.
DONE_TO: Final = {
    "active": "may hold partitions again",
    "draining": "is being drained",
    "drained": "is drained",
}


class ShownProblem(NamedTuple):
    """One problem, or one event. `is_critical`: some messages can't be read or written now."""

    is_critical: bool
    text: str


def list_problems(look: ClusterSnapshot) -> list[ShownProblem]:
    """Return all problems that a look found; empty if there are none."""
    if not look.is_reachable:
        why = one_line(look.errors[0]) if look.errors else "waiting for the first answer"
        return [ShownProblem(True, f"no manager answers: {why}")]
    if look.problems is None:
        missing = ", ".join(str(row["node"]) for row in look.managers if not row["alive"])
        silent = f" (silent: manager {missing})" if missing else ""
        return [
            ShownProblem(True, f"no manager leads{silent}, so nothing can be changed"),
            *_of_brokers(look.brokers),
        ]
    return of_problems(look.problems)


def _of_brokers(brokers: list[Facts]) -> list[ShownProblem]:
    """Without a leader: what any manager knows by its own heartbeats."""
    return [
        ShownProblem(False, f"broker {row['node']} is silent")
        for row in brokers
        if not row["alive"]
    ]


def of_problems(problems: list[Facts]) -> list[ShownProblem]:
    out = []
    for kind, critical, text in (
        ("managers-leaderless", True, "no manager leads"),
        ("disk-low", True, "the disk of broker {node} is full; it refuses writes"),
        ("manager-silent", False, "manager {node} is silent"),
        ("broker-silent", False, "broker {node} is silent"),
        ("unreached", False, UNREACHED),
    ):
        rows = [row for row in problems if row["problem"] == kind]
        out += [ShownProblem(critical, text.format(node=row.get("node"))) for row in rows]
    for kind, critical, text in (
        ("leaderless", True, "{count} without a leader: {names}"),
        ("under-replicated", False, "{count} with replicas missing: {names}"),
    ):
        at = partitions_of(problems, kind)
        if at:
            more = f" and {len(at) - NAMED_MAX:,} more" if len(at) > NAMED_MAX else ""
            count = f"{len(at):,} partition{'s' * (len(at) != 1)}"
            names = ", ".join(at[:NAMED_MAX]) + more
            out.append(ShownProblem(critical, text.format(count=count, names=names)))
    out += [ShownProblem(False, _rival(row)) for row in problems if row["problem"] == "rival"]
    out += [
        ShownProblem(True, _without_vote(row))
        for row in problems
        if row["problem"] == "leaderless" and row.get("voteless")
    ][:NAMED_MAX]
    out += [ShownProblem(False, _damage(row)) for row in problems if row["problem"] == "damaged"]
    out += [ShownProblem(False, _closed(row)) for row in problems if row["problem"] == "closed"]
    worded = {
        "rival",
        "damaged",
        "closed",
        "managers-leaderless",
        "disk-low",
        "manager-silent",
        "broker-silent",
    }
    worded |= {"leaderless", "under-replicated", "unreached"}
    others = [row for row in problems if row["problem"] not in worded]
    out += [ShownProblem(False, _plainly(row)) for row in others[:NAMED_MAX]]
    return sorted(out, key=lambda one: not one.is_critical)


def _rival(row: Facts) -> str:
    daemon = f"{row['kind']} {row['node']}"
    return (
        f"another process claims to be {daemon}, at {row['address']}; {daemon} is connected from"
        f" {row['connected']}: stop the wrong one"
    )


def _damage(row: Facts) -> str:
    at = ", ".join(row["partitions"][:NAMED_MAX])
    return (
        f"{row['kind']} {row['node']}: damage in {row['segment']} at position {row['position']}"
        f"{f' ({at})' if at else ''}: {row['state']}"
    )


def _closed(row: Facts) -> str:
    daemon = f"{row['kind']} {row['node']}"
    if row["kept"]:
        return (
            f"{daemon} keeps the log of a closed replica of {row['partition']} in {row['kept']}:"
            " check what the other replicas lack, then remove that folder"
        )
    if row["kind"] == "manager":
        return (
            f"{daemon} takes no part: {row['why']}. The other managers continue without it while"
            " they are a majority; 'myq health' says what to do and what not"
        )
    return (
        f"{daemon} closed its replica of {row['partition']}: {row['why']}. Its files are kept, and"
        " a new replica replaces it when the other replicas have a leader"
    )


def _without_vote(row: Facts) -> str:
    brokers = ", ".join(map(str, row["voteless"]))
    return (
        f"{row['topic']}/{row['partition']}: its replica on broker {brokers} lost entries, and does"
        " not vote until a leader has restored them: start the brokers of the other replicas"
    )


def _plainly(row: Facts) -> str:
    rest = ", ".join(f"{key} {value}" for key, value in row.items() if key != "problem")
    return f"{row['problem']}: {rest}" if rest else str(row["problem"])


def partitions_of(problems: list[Facts] | None, kind: str) -> list[str]:
    return [
        f"{row['topic']}/{row['partition']}" for row in problems or () if row["problem"] == kind
    ]


def one_line(error: MyQueueError) -> str:
    """Return the text of an error with its code and component, for people."""
    at = f", {error.component}" if error.component else ""
    return f"{' '.join(str(error).split())} ({error.name} {error.code}{at})"


def with_hint(error: MyQueueError) -> str:
    """Return the same with the hint. Where the hint names a command line flag, the page says it
    itself.
    """
    hint = error.own_hint if type(error) in HINTS else error.hint
    return f"{one_line(error)}. {hint}".rstrip()


# -- what happened --------------------------------------------------------------------------------


def changes(before: ClusterSnapshot, now: ClusterSnapshot) -> list[ShownProblem]:
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
                    out.append(ShownProblem(False, f"{kind} {node} joined"))
            elif was[node] != alive:
                text = "is alive again" if alive else "fell silent"
                out.append(ShownProblem(not alive, f"{kind} {node} {text}"))
    if before.is_reachable and now.is_reachable:
        out += _moods(before.brokers, now.brokers)
    if before.is_reachable != now.is_reachable:
        text = "managers answer again" if now.is_reachable else "no manager answers any more"
        out.append(ShownProblem(not now.is_reachable, text))
    if now.leader and now.leader != before.leader and before.is_reachable:
        out.append(
            ShownProblem(False, f"manager {now.leader} leads the managers (term {now.term})")
        )
    if before.is_reachable and now.is_reachable:
        led, leads = before.problems is not None, now.problems is not None
        if led != leads:
            text = "a manager leads again" if leads else "no manager leads any more"
            out.append(ShownProblem(not leads, text))
    for kind, text in (("leaderless", "a leader"), ("under-replicated", "all replicas")):
        if before.problems is None or now.problems is None:
            continue
        old_, new_ = (set(partitions_of(one.problems, kind)) for one in (before, now))
        if new_ - old_:
            out.append(ShownProblem(kind == "leaderless", f"{_some(new_ - old_)} without {text}"))
        if old_ - new_:
            out.append(ShownProblem(False, f"{_some(old_ - new_)} with {text} again"))
    if before.problems is not None and now.problems is not None:
        out += _damages(before.problems, now.problems)
    return out


def _moods(before: list[Facts], now: list[Facts]) -> list[ShownProblem]:
    """Return changes of brokers that an operator caused."""
    was = {row["node"]: row.get("state") for row in before}
    out = [
        ShownProblem(False, f"broker {row['node']} {DONE_TO[row['state']]}")
        for row in now
        if was.get(row["node"]) in DONE_TO
        and row.get("state") in DONE_TO
        and was[row["node"]] != row["state"]
    ]
    gone = sorted(was.keys() - {row["node"] for row in now})
    return out + [ShownProblem(False, f"broker {node} was removed") for node in gone if now]


def _damages(before: list[Facts], now: list[Facts]) -> list[ShownProblem]:
    old, new = (
        {
            f"{row['kind']} {row['node']}: {row['segment']} at position {row['position']}"
            for row in problems
            if row["problem"] == "damaged"
        }
        for problems in (before, now)
    )
    events = [ShownProblem(False, f"damage was found, {one}") for one in sorted(new - old)]
    return events + [
        ShownProblem(False, f"damage was repaired, {one}") for one in sorted(old - new)
    ]


def _some(names: set[str]) -> str:
    first = sorted(names)[:3]
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(first) + more
