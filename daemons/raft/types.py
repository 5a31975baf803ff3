"""The words of the protocol: entries, messages, configurations, effects. No behaviour.

An *entry* is the tuple that the journal takes, so that it travels from proposal to disk to
follower without being made again: (index, term, offset, count, time_ms, type, chain, payload).
The core looks at index, term and type, and computes offset and chain; payload is a reference,
never copied.

A *replica* is one incarnation of one member of one group: its id holds the number of its node
(daemon) in the upper bits, so `node_of(replica)` tells where its messages go. A wiped disk comes
back with a new replica id. Every message names the group's incarnation, its sender and its
receiver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

# Places in an entry.
INDEX: Final = 0
TERM: Final = 1
OFFSET: Final = 2
COUNT: Final = 3
TIME: Final = 4
TYPE: Final = 5
CHAIN: Final = 6
PAYLOAD: Final = 7
Entry = tuple[int, int, int, int, int, int, int, Any]

# Types of entries. The group's state machine sees DATA and COMMAND only.
DATA, NOOP, CONFIG, COMMAND = 0, 1, 2, 3

NOBODY = 0  # no replica, no vote
NEVER = 2**63 - 1  # a time that does not come
NODE_SHIFT = 32
INCARNATION_MASK = (1 << NODE_SHIFT) - 1


def replica_id(node: int, incarnation: int) -> int:
    return node << NODE_SHIFT | incarnation


def node_of(replica: int) -> int:
    return replica >> NODE_SHIFT


def incarnation_of(replica: int) -> int:
    return replica & INCARNATION_MASK


class Role(IntEnum):
    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class Proposal(NamedTuple):
    """One proposal: what becomes an entry."""

    messages: int  # how many offsets it takes
    time_ms: int  # the leader's stamp; followers never look at a clock of their own
    type: int
    payload: Any


class Config(NamedTuple):
    """The members of a group. Learners receive everything and decide nothing."""

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        return self.voters + self.learners


class Snapshot(NamedTuple):
    """The state of a group at `index`, and where the log that goes with it starts.

    `start_*` describe the entry before the first one that is kept: the receiver's log is emptied
    and goes on there. Entries from the start to `index` are stored again but not applied again.
    """

    index: int  # type: ignore[assignment]
    term: int
    config: Config
    start_index: int  # first index of the log that goes with it, at most index + 1
    start_term: int
    start_offset: int
    start_chain: int
    state: Any  # the state machine's; opaque


# -- messages -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Message:
    group: int
    source: int  # replica
    target: int  # replica
    term: int


@dataclass(slots=True)
class VoteRequest(Message):
    last_index: int
    last_term: int
    pre: bool
    transfer: bool = False  # the leader itself asked for this election


@dataclass(slots=True)
class VoteReply(Message):
    granted: bool
    pre: bool


@dataclass(slots=True)
class Append(Message):
    prev_index: int
    prev_term: int
    prev_chain: int  # 0: not known
    entries: list[Entry]
    commit: int
    context: int = 0  # of the read round this message belongs to; unique, never used twice


@dataclass(slots=True)
class AppendReply(Message):
    ok: bool
    index: int  # ok: the last index that matches and is on disk; else where to try next
    hint_term: int = 0  # not ok: the term at `index`; ok: the term of its start if it is recovering
    context: int = 0
    is_unhealthy: bool = False  # it does not count


@dataclass(slots=True)
class InstallSnapshot(Message):
    snapshot: Snapshot


@dataclass(slots=True)
class TimeoutNow(Message):
    """The leader transfers leadership: start an election at once."""


# -- effects --------------------------------------------------------------------------------------


class PersistEntries(NamedTuple):
    group: int
    entries: list[Entry]


class PersistHardState(NamedTuple):
    group: int
    term: int
    vote: int
    may_miss_entries: bool = False  # acknowledged ones; survives a restart (R2)
    has_unreadable_entries: bool = False  # committed ones that are known; so does this


class PersistTruncate(NamedTuple):
    group: int
    index: int  # type: ignore[assignment]  # first index removed
    term: int  # of the entry before
    offset: int
    chain: int


class PersistSnapshot(NamedTuple):
    group: int
    snapshot: Snapshot


Persist = PersistEntries | PersistHardState | PersistTruncate | PersistSnapshot


class Apply(NamedTuple):
    """Committed entries first..last, to be applied in order; None: read them from the log."""

    group: int
    first: int
    last: int
    entries: list[Entry] | None


class Fetch(NamedTuple):
    """The leader needs entries that are no longer in memory; answer with `fetched`."""

    group: int
    follower: int
    first: int
    last: int


class NeedSnapshot(NamedTuple):
    """A follower needs entries before the log's start; answer with `snapshot_made`."""

    group: int
    follower: int


class ReadReady(NamedTuple):
    """Reads of this context may be answered once `index` is applied."""

    group: int
    context: int
    index: int  # type: ignore[assignment]


class Dropped(NamedTuple):
    """Proposals from `first` on lost their leader; their outcome is not known."""

    group: int
    first: int
    term: int


class Changed(NamedTuple):
    """Role, term or leader of a replica is another one."""

    group: int
    role: Role
    term: int
    leader: int


@dataclass(slots=True)
class Effects:
    """What the caller has to do, in this order: hand `persist` to the journal in its order, send,
    apply, tell. Nothing in `send` claims durability that the journal did not report before."""

    persist: list[Persist] = field(default_factory=list)
    send: list[Message] = field(default_factory=list)
    apply: list[Apply] = field(default_factory=list)
    fetch: list[Fetch | NeedSnapshot] = field(default_factory=list)
    reads: list[ReadReady] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)


# -- settings and errors --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Times in milliseconds of a monotonic clock."""

    heartbeat_ms: int = 100
    election_timeout_ms_min: int = 500
    election_timeout_ms_max: int = 1000
    retry_ms: int = 300  # a message to a follower that stays unanswered is sent again
    snapshot_retry_ms: int = 10_000
    inflight_bytes_max: int = 8 << 20  # to one follower
    inflight_messages_max: int = 64
    append_bytes_max: int = 1 << 20  # entries in one message
    append_entries_max: int = 4096
    memory_bytes_max: int = 16 << 20  # entries kept in memory for followers that lag a little


class RaftError(Exception):
    """A call that this replica can't serve now; nothing was done."""


class NotLeader(RaftError):
    def __init__(self, leader: int) -> None:
        super().__init__(f"not the leader; the leader is {leader or 'not known'}")
        self.leader = leader


class NotPossibleNow(RaftError):
    """Right place, wrong moment: a transfer or another change is under way, or the term is new."""


class InvariantBroken(Exception):
    """An invariant of Raft does not hold: the group must be closed before it harms data (R7).

    `index`: entries before it are not in question; 0: any entry may be.
    """

    def __init__(self, what: str, index: int = 0) -> None:
        super().__init__(what)
        self.index = index


def require(condition: bool, what: str, index: int = 0) -> None:
    """An invariant; stays on in production and under -O. On the way of each message the check is
    written out instead, so that a text with numbers in it is made on failure only.
    """
    if not condition:
        raise InvariantBroken(what, index)
