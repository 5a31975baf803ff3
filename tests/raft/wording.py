"""How a cluster's acts read in a golden script: one line each, replicas by the number of a node."""

from __future__ import annotations

from myqueue.daemons.raft.groups import LeaderList, NodeHeartbeat, NodeHeartbeatReply
from myqueue.daemons.raft.health import ReplicaHealth
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.types import (
    CONFIG,
    INDEX,
    NOBODY,
    NODE_SHIFT,
    NOOP,
    PAYLOAD,
    TERM,
    TYPE,
    Append,
    AppendReply,
    Apply,
    Changed,
    Config,
    Dropped,
    Entry,
    Fetch,
    InstallSnapshot,
    Message,
    NeedSnapshot,
    PersistEntries,
    PersistHardState,
    PersistSnapshot,
    PersistTruncate,
    ReadReady,
    Role,
    Snapshot,
    VoteReply,
    VoteRequest,
    node_of,
)


def name(replica: int) -> str:
    """2, or 2'3 for the third incarnation of a replica on node 2."""
    if replica == NOBODY:
        return "nobody"
    incarnation = replica & ((1 << NODE_SHIFT) - 1)
    return f"{node_of(replica)}" + (f"'{incarnation}" if incarnation != 1 else "")


def members(config: Config) -> str:
    return " ".join(map(name, config.voters)) + "".join(f" +{name(r)}" for r in config.learners)


def entry(one: Entry) -> str:
    where = f"{one[INDEX]}@{one[TERM]}"
    if one[TYPE] == NOOP:
        return f"{where} noop"
    if one[TYPE] == CONFIG:
        return f"{where} members"
    return f"{where} {bytes(one[PAYLOAD]).decode()}"


def entries(some: list[Entry]) -> str:
    if len(some) > 4:
        return f"{entry(some[0])} ... {entry(some[-1])}"
    return ", ".join(map(entry, some)) or "nothing"


def snapshot(made: Snapshot) -> str:
    return (
        f"state at {made.index}@{made.term} of {members(made.config)}, "
        f"log from {made.start_index} after {made.start_term}"
    )


def message(said: Message) -> str:
    what = f"{name(said.source)}->{name(said.target)} t{said.term} "
    match said:
        case VoteRequest():
            kind = "would you vote" if said.pre else "vote"
            why = ", sent by the leader" if said.transfer else ""
            return f"{what}{kind}? log {said.last_index}@{said.last_term}{why}"
        case VoteReply():
            kind = "would vote" if said.pre else "vote"
            return f"{what}{kind}: {'yes' if said.granted else 'no'}"
        case Append():
            rounds = f", round {said.context}" if said.context else ""
            return (
                f"{what}after {said.prev_index}@{said.prev_term}: {entries(said.entries)}; "
                f"commit {said.commit}{rounds}"
            )
        case AppendReply():
            rounds = f", round {said.context}" if said.context else ""
            still = ", recovering" if said.is_unhealthy else ""
            if said.ok:
                return f"{what}ok up to {said.index}{rounds}{still}"
            return f"{what}no, try {said.index}@{said.hint_term}{rounds}{still}"
        case InstallSnapshot():
            return f"{what}{snapshot(said.snapshot)}"
    return f"{what}your turn"


def persist(node: int, op: object) -> str:
    what = f"{node} writes"
    match op:
        case PersistHardState():
            still = ", recovering" if op.may_miss_entries else ""
            return f"{what} term {op.term}, vote {name(op.vote)}{still}"
        case PersistEntries():
            return f"{what} {entries(op.entries)}"
        case PersistTruncate():
            return f"{what} that nothing follows {op.index - 1}@{op.term}"
        case PersistSnapshot():
            return f"{what} {snapshot(op.snapshot)}"
    return f"{what} {op}"


def effect(node: int, done: object) -> str:
    match done:
        case Changed():
            if done.role == Role.LEADER:
                return f"{node} leads in term {done.term}"
            if done.role == Role.FOLLOWER and done.leader:
                return f"{node} follows {name(done.leader)} in term {done.term}"
            role = done.role.name.lower().replace("_", "-")
            return f"{node} is {role} in term {done.term}, without a leader"
        case Apply():
            some = entries(done.entries) if done.entries is not None else "from its disk"
            return f"{node} applies {done.first}..{done.last}: {some}"
        case ReadReady():
            return f"{node} may answer read {done.context} at {done.index}"
        case Dropped():
            return f"{node} lost sight of {done.first}.. of term {done.term}"
        case Fetch():
            return f"{node} fetches {done.first}..{done.last} for {name(done.follower)}"
        case NeedSnapshot():
            return f"{node} needs a snapshot for {name(done.follower)}"
    return f"{node} {done}"


def beat(source: int, target: int, said: object) -> str:
    match said:
        case NodeHeartbeat():
            hints = "".join(f", {c} is committed" for _, _, _, c in said.commits)
            return f"{source}->{target} beat: I lead {said.leads}{hints}"
        case NodeHeartbeatReply():
            return f"{source}->{target} heard you" + (": which ones?" if said.ask else "")
        case LeaderList():
            rows = [f"{name(leader)} in term {term}" for _, leader, _, term in said.groups]
            return f"{source}->{target} these: {', '.join(rows) or 'none'}"
    return f"{source}->{target} {said}"


def status(node: RaftNode) -> str:
    role = node.role.name.lower().replace("_", "-")
    if node.role == Role.FOLLOWER and node.leader:
        role = f"follower of {name(node.leader)}"
    log = node.log
    parts = [
        f"{name(node.replica)} {role}, term {node.term}",
        f"log {log.first_index}..{log.last_index}@{log.last_term}",
        f"commit {node.commit_index}",
        f"members {members(node.config)}",
    ]
    return ", ".join(parts) + (", recovering" if node.health is ReplicaHealth.RECOVERING else "")
