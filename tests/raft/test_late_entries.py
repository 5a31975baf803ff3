"""What a leader says of commits may come before the entries that it says it of."""

from __future__ import annotations

from random import Random

from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.membership import ConfigHistory
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.types import NOOP, Append, Config, Effects, RaftSettings, replica_id

OWN, LEADER, GROUP = replica_id(1, 1), replica_id(2, 1), 7


def test_a_hint_that_came_before_its_entries_is_not_forgotten() -> None:
    """It is answered, and so not said again; a quiet group would stand still behind it."""
    node, out = (
        RaftNode(
            GROUP,
            OWN,
            ConfigHistory(0, Config((OWN, LEADER))),
            RaftLog(),
            term=0,
            vote=0,
            applied_index=0,
            commit_index=0,
            settings=RaftSettings(),
            random=Random(1),
            alive_until={},
            now=0,
        ),
        Effects(),
    )
    first, second = ((index, 1, 0, 0, 0, NOOP, index, b"") for index in (1, 2))
    node.step(Append(GROUP, LEADER, OWN, 1, 0, 0, 0, [first], 0), 10, out)
    node.commit_hint(LEADER, 1, 2, out)
    assert node.commit_index == 1
    node.step(Append(GROUP, LEADER, OWN, 1, 1, 1, 1, [second], 1), 20, out)
    assert node.commit_index == 2
    node.step(Append(GROUP, replica_id(3, 1), OWN, 2, 2, 1, 2, [], 0), 30, out)
    node.commit_hint(LEADER, 1, 9, out)  # of a leader that leads no more
    assert node.commit_index == 2
