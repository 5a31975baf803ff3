"""R21: what every message does in every role, whether its term is older, the same or newer.

The replica is in term 5 with three entries (terms 1 1 2), two of them committed. As a follower it
follows 2, which is alive, or nobody. A cell says, in this order: the role it changes to (F, P, C,
L), `t` if its term rises, `w` if it writes, and what it answers: `yes` `no` to a vote, `ok` `not`
to a leader, `ask` for votes, `feed` to a follower. A dot: nothing at all. `BROKEN`: two leaders in
one term, which stops the process.
"""

from collections.abc import Callable

import pytest
from raft.replicas import GROUP, ME, THREE, TWO, Solo, make_entries

from myqueue.daemons.raft.types import (
    Append,
    AppendReply,
    InstallSnapshot,
    InvariantBroken,
    Message,
    Role,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

TABLE = """
message, term               | follower   | no leader  | pre-cand.  | candidate  | leader
vote?, older                | no         | no         | no         | no         | no
vote?, same                 | no         | w yes      | F w yes    | no         | no
vote?, newer                | .          | t w yes    | F t w yes  | F t w yes  | .
vote? (handover), older     | no         | no         | no         | no         | no
vote? (handover), same      | no         | w yes      | F w yes    | no         | no
vote? (handover), newer     | t w yes    | t w yes    | F t w yes  | F t w yes  | F t w no
would you vote?, older      | no         | no         | no         | no         | no
would you vote?, same       | no         | no         | no         | no         | no
would you vote?, newer      | no         | yes        | yes        | yes        | no
vote? (shorter log), older  | no         | no         | no         | no         | no
vote? (shorter log), same   | no         | no         | no         | no         | no
vote? (shorter log), newer  | .          | t w no     | F t w no   | F t w no   | .
vote: yes, older            | .          | .          | .          | .          | .
vote: yes, same             | .          | .          | .          | L w feed   | .
vote: yes, newer            | t w        | t w        | F t w      | F t w      | F t w
vote: no, older             | .          | .          | .          | .          | .
vote: no, same              | .          | .          | .          | .          | .
vote: no, newer             | t w        | t w        | F t w      | F t w      | F t w
would vote: yes, older      | .          | .          | .          | .          | .
would vote: yes, same       | .          | .          | .          | .          | .
would vote: yes, newer      | .          | .          | C t w ask  | .          | .
would vote: no, older       | .          | .          | .          | .          | .
would vote: no, same        | .          | .          | .          | .          | .
would vote: no, newer       | t w        | t w        | F t w      | F t w      | F t w
append, fits, older         | not        | not        | not        | not        | not
append, fits, same          | w ok       | w ok       | F w ok     | F w ok     | BROKEN
append, fits, newer         | t w ok     | t w ok     | F t w ok   | F t w ok   | F t w ok
append, does not fit, older | not        | not        | not        | not        | not
append, does not fit, same  | not        | not        | F not      | F not      | BROKEN
append, does not fit, newer | t w not    | t w not    | F t w not  | F t w not  | F t w not
append ok, older            | .          | .          | .          | .          | .
append ok, same             | .          | .          | .          | .          | feed
append ok, newer            | t w        | t w        | F t w      | F t w      | F t w
append not ok, older        | .          | .          | .          | .          | .
append not ok, same         | .          | .          | .          | .          | feed
append not ok, newer        | t w        | t w        | F t w      | F t w      | F t w
snapshot, older             | not        | not        | not        | not        | not
snapshot, same              | w ok       | w ok       | F w ok     | F w ok     | BROKEN
snapshot, newer             | t w ok     | t w ok     | F t w ok   | F t w ok   | F t w ok
your turn, older            | .          | .          | .          | .          | .
your turn, same             | C t w ask  | C t w ask  | .          | .          | .
your turn, newer            | C t w ask  | C t w ask  | C t w ask  | t w ask    | C t w ask
"""
ROLES: dict[str, Callable[[Solo], object]] = {
    "follower": lambda solo: solo.as_follower(TWO),
    "no leader": lambda solo: solo,
    "pre-cand.": Solo.as_pre_candidate,
    "candidate": Solo.as_candidate,
    "leader": Solo.as_leader,
}


def make(kind: str, solo: Solo, term: int) -> Message:
    """Requests of votes come from 3, all else from 2, which a leader follows or leads."""
    head, asking = (GROUP, TWO, ME, term), (GROUP, THREE, ME, term)
    new = make_entries([1, 1, 2, term])[2:]
    match kind:
        case "vote?":
            return VoteRequest(*asking, 9, 4, False)
        case "vote? (handover)":
            return VoteRequest(*asking, 9, 4, False, True)
        case "would you vote?":
            return VoteRequest(*asking, 9, 4, True)
        case "vote? (shorter log)":
            return VoteRequest(*asking, 2, 1, False)
        case "vote: yes":
            return VoteReply(*head, True, False)
        case "vote: no":
            return VoteReply(*head, False, False)
        case "would vote: yes":
            return VoteReply(*head, True, True)
        case "would vote: no":
            return VoteReply(*head, False, True)
        case "append, fits":
            return Append(*head, 2, 1, 0, new, 2)
        case "append, does not fit":
            return Append(*head, 5, 4, 0, [], 2)
        case "append ok":
            return AppendReply(*head, True, 3)
        case "append not ok":
            return AppendReply(*head, False, 2, 1)
        case "snapshot":
            return InstallSnapshot(*head, solo.snapshot(9, 4, 8, 4))
    return TimeoutNow(*head)


KINDS = (
    *("vote?", "vote? (handover)", "would you vote?", "vote? (shorter log)"),
    *("vote: yes", "vote: no", "would vote: yes", "would vote: no"),
    *("append, fits", "append, does not fit", "append ok", "append not ok"),
    *("snapshot", "your turn"),
)
AGES = {"older": 4, "same": 5, "newer": 6}


def reaction(role: str, kind: str, term: int) -> str:
    solo = Solo([1, 1, 2], 5, commit=2)
    ROLES[role](solo)
    before = solo.node.role
    try:
        out = solo.step(make(kind, solo, term))
    except InvariantBroken:
        return "BROKEN"
    words = [] if solo.node.role == before else ["FPCL"[solo.node.role]]
    words += ["t"] if solo.node.term > 5 else []
    words += ["w"] if out.persist else []
    for message in out.send:
        if isinstance(message, VoteReply):
            word = "yes" if message.granted else "no"
        elif isinstance(message, AppendReply):
            word = "ok" if message.ok else "not"
        elif isinstance(message, VoteRequest):
            word = "ask"
        else:
            word = "feed"
        if word not in words:
            words.append(word)
    assert solo.node.term >= 5 and solo.node.commit_index >= 2, "R4"
    return " ".join(words) or "."


ROWS = [line.split("|") for line in TABLE.strip().splitlines()[1:]]


def row(kind: str, age: str) -> str:
    cells = [f"{reaction(role, kind, AGES[age]):<10}" for role in ROLES]
    return " | ".join([f"{kind + ', ' + age:<27}", *cells]).rstrip()


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("kind", KINDS)
def test_r21_every_message_has_a_defined_reaction(kind: str, age: str) -> None:
    assert row(kind, age) in [line.rstrip() for line in TABLE.splitlines()]


def test_the_table_is_complete() -> None:
    assert len(ROWS) == len(KINDS) * len(AGES)
    assert set(Role) == {Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER}
    assert {kind.__name__ for kind in Message.__subclasses__()} == {
        *("VoteRequest", "VoteReply", "Append", "AppendReply", "InstallSnapshot", "TimeoutNow")
    }
