"""What managers tell each other, and what they do not listen to."""

from __future__ import annotations

import pytest
from support.manager_rig import FakeBroker, ManagerCluster

from myqueue import errors
from myqueue.daemons.manager.cluster_view import client_url
from myqueue.daemons.metadata.machine import pack_command
from myqueue.wire import protocol

_WHEREABOUTS = ("disk", "address", "peer", "host")


def test_managers_know_each_other_and_their_disks() -> None:
    cluster = ManagerCluster()
    cluster.manager_beat(2)
    cluster.turn()
    assert {n: row.disk for n, row in cluster.tables.managers.items()} == {
        1: "manager-disk-1",
        2: "manager-disk-2",
    }
    rows = {row["node"]: row for row in cluster.read("managers")["managers"]}
    assert [rows[n]["alive"] for n in (1, 2, 3)] == [True, True, False]
    assert rows[1]["leader"] and not rows[2]["leader"]
    assert rows[2]["address"] == "tcp://127.0.0.1:9093"
    assert cluster.manager.greeted("manager", 2, "manager-disk-2") == ""
    assert "manager-disk-2" in cluster.manager.greeted("manager", 2, "wiped")
    assert "configuration" in cluster.manager.greeted("manager", 9, "disk")
    assert cluster.manager.greeted("manager", 3, "whatever") == ""
    with pytest.raises(errors.IdentityMismatch):
        cluster.manager_beat(2, disk="wiped")


def test_b7_a_follower_tells_the_leader_which_clients_it_heard() -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.update("register_producer", topic="orders")
    cluster.update("register_consumer", topic="orders")
    cluster.follow(2)
    cluster.ask(protocol.ALIVE, [1, 99], [1])
    assert cluster.answer()[0] == protocol.ALIVE_OK
    at = cluster.engine.wall_ms()
    cluster.engine.sent.clear()
    cluster.turn(1000)
    told = {peer: envelope[3] for peer, envelope in cluster.engine.sent}
    assert told["manager", 2]["producers"] == [[1, at]]
    assert told["manager", 2]["consumers"] == [[1, at]]
    assert told["manager", 3]["producers"] == []
    cluster.engine.sent.clear()
    cluster.turn(1000)
    assert all(envelope[3]["producers"] == [] for _, envelope in cluster.engine.sent)


def test_b7_the_leader_logs_what_it_is_told() -> None:
    cluster = ManagerCluster(brokers=1)
    cluster.update("register_producer", topic="orders")
    cluster.update("register_consumer", topic="orders")
    at = cluster.engine.wall_ms() + 20_000
    cluster.manager_beat(2, producers=[[1, at], [55, at]])
    cluster.beat(1, consumers=[1])
    heard = cluster.engine.wall_ms()
    cluster.live(5100)
    assert cluster.tables.producers[1].seen_ms == at
    assert cluster.tables.consumers[1].seen_ms == heard
    before = cluster.replica.machine.applied_index
    cluster.live(12_000)  # nothing new, so nothing is logged
    assert cluster.replica.machine.applied_index == before


def test_peers_that_make_no_sense() -> None:
    cluster = ManagerCluster()
    peer = cluster.peer("broker", 1)
    with pytest.raises(errors.Unsupported):
        cluster.manager.handle_peer_request(peer, [1, protocol.ORDERS, 1, {}], [])
    for state in ({}, {"disk": 5}, {"disk": "x", "groups": [[1]]}):
        with pytest.raises(errors.InvalidRequest):
            cluster.manager.handle_peer_request(peer, [1, protocol.BEAT, 1, state], [])
    with pytest.raises(errors.Unsupported):
        cluster.manager.handle_peer_request(
            cluster.peer("gateway", 1), [1, protocol.BEAT, 1, {}], []
        )
    cluster.manager.handle_peer_reply(("manager", 2), [1, protocol.ERROR, 0, 1131, "", "", {}])
    assert cluster.engine.counts["beats_refused_total"] == 1


@pytest.mark.parametrize(
    ("where", "flag"),
    [({"address": "0.0.0.0:9292"}, "--advertise"), ({"peer": "[::]:1"}, "--peer")],
)
def test_who_can_be_reached_nowhere_is_not_registered(where: dict[str, str], flag: str) -> None:
    """A daemon of before that listens on every address; but one that has replicas stays heard."""
    cluster = ManagerCluster()
    cluster.brokers[1] = FakeBroker(1)
    with pytest.raises(errors.InvalidRequest, match=flag):
        cluster.beat(1, **where)
    with pytest.raises(errors.InvalidRequest, match=flag):
        cluster.manager_beat(2, **where)
    cluster.turn()
    assert not cluster.tables.brokers
    state = cluster.brokers[1].state(**where)
    row = {"node": 1, "life": 1001} | {name: state[name] for name in _WHEREABOUTS}
    row["address"] = client_url(row["address"])
    cluster.manager._propose(cluster.replica, pack_command(b"", "register_broker", row))
    cluster.commit()
    assert cluster.beat(1, **where)["life"] == 1001
