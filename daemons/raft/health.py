"""Health of a replica: nine states, and the transitions between them.

Each layer refines the state, none overrides it: the core knows the first, third and fourth
(`RaftNode.health`), a replica adds those that are stalled (`Replica.health`), the engine those that
are not open (`Engine.not_open`), and a broker the missing ones (`broker/rebuilds`). The
values are the words of heartbeats, STATUS, metrics and logs; `daemons/GLOSSARY.md` explains them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class ReplicaHealth(StrEnum):
    """What a replica can do, and why not more."""

    HEALTHY = "healthy"  # it has all that it acknowledged, and can read it
    REPAIRING = "repairing"  # it knows which committed entries it can't read, and requests them
    REPAIR_STALLED = "repair-stalled"  # the same, and no replica that answers has them
    RECOVERING = "recovering"  # it may miss entries that it acknowledged, and not know which (R2)
    RECOVERY_STALLED = "recovery-stalled"  # the same, and no newer term comes that would end it
    VOTE_LOST = "vote-lost"  # any record of it may be missing, its newest vote too
    UNREADABLE = "unreadable"  # what it needs to open can't be read, or does not fit together
    CLOSED = "closed"  # its data contradict other replicas, or themselves
    MISSING = "missing"  # it should be on this disk and is not; it may have been in a hole

    @property
    def votes(self) -> bool:
        """False: it must not vote, campaign or count toward a quorum (R2)."""
        return self is ReplicaHealth.HEALTHY

    @property
    def needs_rebuild(self) -> bool:
        """Whether only a replica with another id can take part in its place."""
        return self in NOT_OPEN or self is ReplicaHealth.RECOVERY_STALLED


NOT_OPEN: Final = frozenset(
    {
        ReplicaHealth.VOTE_LOST,
        ReplicaHealth.UNREADABLE,
        ReplicaHealth.CLOSED,
        ReplicaHealth.MISSING,
    }
)


class Unhealthy(NamedTuple):
    """The health of a replica that is not HEALTHY, for people."""

    health: ReplicaHealth
    reason: str


START: Final = "start"  # of the process, or of a replica under a new id
# From each state the states that may follow; any other is a bug. A state that is not open has no
# successor: managers put a replica with another id in its place.
TRANSITIONS: Final[dict[str, str]] = {
    START: "healthy repairing recovering vote-lost unreadable closed missing",
    "healthy": "repairing closed",  # an entry can't be read; its data contradict others
    "repairing": "healthy repair-stalled closed",  # all can be read again; no entry comes
    "repair-stalled": "healthy closed",
    # A newer term is committed here, and entries may be unreadable then; or no newer term comes.
    "recovering": "healthy repairing repair-stalled recovery-stalled closed",
    "recovery-stalled": "healthy repairing repair-stalled recovering closed",  # or members changed
}


def may_follow(before: str, after: ReplicaHealth) -> bool:
    return after in TRANSITIONS.get(before, "").split()
