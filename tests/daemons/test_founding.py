"""A manager with an empty log founds the metadata only together with all managers, never again."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.manager_rig import ManagerCluster

from myqueue.daemons.manager.cluster_view import MANAGER_SILENT_AFTER_MS, ClusterView
from myqueue.daemons.manager.founding import (
    EMPTY_LOG_HEARTBEAT_INTERVAL_MS,
    LOG_AFTER_MS,
    MetadataFounding,
    is_log_empty,
)
from myqueue.daemons.raft.log import RaftLog
from myqueue.daemons.raft.membership import ConfigHistory
from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.types import (
    NOOP,
    Append,
    Config,
    Effects,
    Message,
    Proposal,
    RaftSettings,
    Role,
    VoteReply,
    VoteRequest,
    replica_id,
)

ONE, TWO, THREE = (replica_id(node, 1) for node in (1, 2, 3))
GROUP = 1


def node_of(replica: int = ONE) -> RaftNode:
    config = ConfigHistory(0, Config((ONE, TWO, THREE)))
    return RaftNode(
        GROUP,
        replica,
        config,
        RaftLog(),
        term=0,
        vote=0,
        applied_index=0,
        commit_index=0,
        settings=RaftSettings(),
        random=Random(1),
        alive_until={},
        now=0,
    )


# -- the core -------------------------------------------------------------------------------------


def asks(node: RaftNode, last: int, *, pre: bool) -> list[Message]:
    out = Effects()
    node.step(VoteRequest(GROUP, TWO, node.replica, node.term + 1, last, last, pre), 5000, out)
    if not pre and out.persist:
        node.hard_state_persisted(node.term, node.vote, 5000, out)
    return out.send


@pytest.mark.parametrize("pre", [True, False])
def test_nobody_with_an_empty_log_gets_a_vote_unless_it_may_found(pre: bool) -> None:
    node = node_of()
    node.may_found = False
    assert [cast(VoteReply, one).granted for one in asks(node, 0, pre=pre)] == [False]
    assert [cast(VoteReply, one).granted for one in asks(node, 1, pre=pre)] == [True]
    node = node_of()
    assert [cast(VoteReply, one).granted for one in asks(node, 0, pre=pre)] == [True]


def test_nobody_stands_with_an_empty_log_unless_it_may_found() -> None:
    node, out = node_of(), Effects()
    node.may_found = False
    for now in range(0, 20_000, 500):
        node.tick(now, out)
    assert not out.send and node.role == Role.FOLLOWER
    node.may_found = True
    node.tick(30_000, out)
    assert node.role == Role.PRE_CANDIDATE


def test_with_an_entry_all_is_as_ever() -> None:
    node, out = node_of(), Effects()
    node.may_found = False
    entry = (1, 1, 0, 0, 0, NOOP, 5, b"")
    node.step(Append(GROUP, TWO, ONE, 1, 0, 0, 0, [entry], 0), 100, out)
    assert node.log.last_index == 1 and node.leader == TWO
    node.leader_lost(5000, out)
    node.tick(20_000, out)
    assert node.role == Role.PRE_CANDIDATE


# -- who may --------------------------------------------------------------------------------------


def beat(cluster_view: ClusterView, node: int, now: int, **more: Any) -> None:
    state = {
        "disk": f"d{node}",
        "incarnation": 1,
        "address": "a:1",
        "peer": "a:2",
        "host": "h",
        "applied": 0,
        "producers": [],
        "consumers": [],
    }
    cluster_view.receive_manager_heartbeat(node, state | more, now, now)


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    yield []


def test_all_others_have_to_be_there_and_new(told: list[dict[str, Any]]) -> None:
    def tell(_: str, event: str, **about: Any) -> None:
        told.append({"event": event} | about)

    founding, cluster_view = MetadataFounding(1, [1, 2, 3], tell), ClusterView()
    replica = cast(Any, SimpleNamespace(raft=node_of()))
    assert is_log_empty(replica)

    def may(now: int) -> bool:
        founding.update(replica, cluster_view, now)
        return bool(replica.raft.may_found)

    assert not may(1000) and founding.missing_managers == [2, 3]
    beat(cluster_view, 2, 1100, blank=True)
    beat(cluster_view, 3, 1100)  # it has entries, or is of an older version
    assert not may(1200) and founding.missing_managers == [3] and not told
    assert not may(1000 + LOG_AFTER_MS)
    assert told[0]["event"] == "waits-for-managers" and "waits for 3" in told[0]["why"]
    beat(cluster_view, 2, 7000, blank=True)
    beat(cluster_view, 3, 7000, blank=True)
    assert may(7100)
    assert not may(7001 + MANAGER_SILENT_AFTER_MS), "what it was some time ago is no proof"
    replica.raft.log.make([Proposal(0, 0, NOOP, b"")], 1)
    assert may(60_000) and not founding.missing_managers and len(told) == 1


def test_one_manager_alone_founds_at_once() -> None:
    founding = MetadataFounding(1, [1], lambda *_, **__: None)
    replica = cast(Any, SimpleNamespace(raft=node_of()))
    founding.update(replica, ClusterView(), 10)
    assert replica.raft.may_found


def test_a_manager_without_entries_beats_quickly_and_says_so() -> None:
    cluster = ManagerCluster(managers=3, leads=False)
    cluster.replica.raft.log.last_index = 0
    cluster.engine.sent.clear()
    for _ in range(10):
        cluster.engine.now += EMPTY_LOG_HEARTBEAT_INTERVAL_MS
        cluster.manager.tick(cluster.engine.now)
    beats = [envelope[3]["blank"] for peer, envelope in cluster.engine.sent if peer[1] == 2]
    assert len(beats) >= 9 and all(beats[1:])
    assert not cluster.replica.raft.may_found
