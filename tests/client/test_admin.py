"""Admin: each call asks what the protocol says, and what daemons tell comes back as plain data."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.fake_cluster.peer import EchoCluster, refuse
from support.fake_cluster.reads import Reads, fill, serve_reads

from myqueue import errors
from myqueue.admin.client import Admin
from myqueue.cluster.session import Session
from myqueue.consumer.message import TopicPartition
from myqueue.wire import protocol as words


class Told:
    """Answers reads and updates as managers do, from what a test puts here."""

    def __init__(self, cluster: EchoCluster, reads: Reads) -> None:
        self.cluster = cluster
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, dict[str, Any]] = {}
        self.has_no_majority = self.is_large = False
        self.newest: dict[str, bool] = {}  # of a query: how the last one answered was asked for
        for daemon, rest in zip(cluster.daemons, map(reads.script, cluster.daemons), strict=True):
            daemon.script = lambda envelope, frames, d=daemon, r=rest: (
                self.answer(d, envelope) or r(envelope, frames)
            )

    def answer(self, daemon: Any, envelope: words.Envelope) -> Any:
        _, kind, request, *fields = envelope
        if kind == words.READ and fields[-1] and self.has_no_majority:
            self.asked.append(("newest", fields[0]))
            return refuse(request, errors.NotLeader, "who leads is not known")
        if kind == words.READ and fields[0] == "topics" and fields[1]["detail"] and self.is_large:
            return refuse(request, errors.InvalidRequest, "the answer has 1048577 bytes")
        if kind == words.READ and fields[0] in self.answers:
            self.asked.append((fields[0], fields[1]))
            self.newest[fields[0]] = fields[-1]
            return [[words.encode(words.ANSWER, request, 1, self.answers[fields[0]])]]
        if kind == words.UPDATE and fields[1] in self.answers:
            self.asked.append((fields[1], fields[2]))
            return [[words.encode(words.UPDATED, request, 1, self.answers[fields[1]])]]
        if kind in (words.STATUS, words.STATS, words.WHERE):
            if daemon.node == 2:
                return refuse(request, errors.UnknownPartition, "not here")
            told = {"asked": fields, "term": 5, "leader": [1, 9]}
            return [[words.encode(words.INFO, request, told)]]
        return None


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(2) as cluster:
        yield cluster


@pytest.fixture
def told(cluster: EchoCluster) -> Told:
    told = Told(cluster, serve_reads(cluster))
    rows = [{"node": d.node, "address": d.address} for d in cluster.daemons]
    told.answers = {"brokers": {"brokers": rows}, "managers": {"managers": rows}}
    return told


@pytest.fixture
def admin(cluster: EchoCluster, told: Told) -> Iterator[Admin]:
    with Admin(cluster.address, timeout=5) as admin:
        yield admin


def describe(cluster: EchoCluster, topic: str) -> dict[str, Any]:
    return {
        "topic": topic,
        "partitions": [
            {"partition": n, "group": g, "leader": 1, "replicas": [1, 2]}
            for n, g in enumerate(cluster.topics[topic])
        ],
    }


@pytest.mark.parametrize(
    ("call", "operation", "arguments"),
    [
        (
            lambda a: a.create_topic("t", partitions=3),
            "create_topic",
            {"topic": "t", "partitions": 3, "replication": 0, "settings": {}},
        ),
        (lambda a: a.delete_topic("t"), "delete_topic", {"topic": "t"}),
        (
            lambda a: a.alter_topic("t", {"retention_ms": None}),
            "alter_topic",
            {"topic": "t", "settings": {"retention_ms": None}},
        ),
        (lambda a: a.register_producer("t"), "register_producer", {"topic": "t", "create": True}),
        (lambda a: a.register_consumer("t"), "register_consumer", {"topic": "t"}),
        (lambda a: a.describe_topic("t"), "topic", {"topic": "t"}),
        (lambda a: a.health(), "health", {}),
        (lambda a: a.cluster(), "cluster", {}),
        (lambda a: a.producer(3), "producer", {"producer_id": 3}),
        (lambda a: a.consumer(4), "consumer", {"consumer_id": 4}),
        (
            lambda a: a.alter_cluster({"inactive_ms": 9}),
            "alter_cluster",
            {"settings": {"inactive_ms": 9}},
        ),
    ],
)
def test_each_call_asks_what_the_protocol_says(admin, told, call, operation, arguments):
    told.answers[operation] = {"answer": 1}
    assert call(admin) == {"answer": 1}
    assert (operation, arguments) in told.asked


def test_lists_come_as_lists(admin, told):
    told.answers |= {"topics": {"topics": ["a", "b"]}, "problems": {"problems": [{"x": 1}]}}
    told.answers["grow_topic"] = {"partitions": [1, 2]}
    assert admin.topics() == ["a", "b"]
    assert admin.problems() == [{"x": 1}]
    assert [row["node"] for row in admin.brokers()] == [1, 2]
    assert admin.grow_topic("a", 2) == [1, 2]
    assert admin.grow_topic("a", to=3) == [1, 2]
    assert [row for row in told.asked if row[0] == "grow_topic"] == [
        ("grow_topic", {"topic": "a", "count": 2}),
        ("grow_topic", {"topic": "a", "to": 3}),
    ]


def test_errors_come_as_their_classes(admin, told, cluster):
    cluster.topic("t")
    with pytest.raises(errors.TopicExists):
        admin.create_topic("t")
    with pytest.raises(errors.UnknownTopic):
        admin.describe_topic("none")


def test_reads_are_the_newest_there_is_and_without_a_majority_what_is_known(admin, told):
    assert len(admin.brokers()) == 2 and told.newest["brokers"]
    told.asked.clear()
    told.has_no_majority = True
    assert len(admin.brokers()) == 2 and not told.newest["brokers"]
    assert ("newest", "brokers") in told.asked
    told.asked.clear()
    assert len(admin.managers()) == 2  # the next ones do not wait for a leader again
    assert ("newest", "managers") not in told.asked


def test_what_each_daemon_says_of_a_group_and_of_a_message(admin, told, cluster):
    found = admin.raft_status()
    assert (found["group"], found["term"], found["leader"]) == (1, 5, 1)
    first, second = found["members"]
    assert first["asked"] == [1] and second["code"] == "UNKNOWN_PARTITION"
    cluster.topic("t", 2)
    told.answers["topic"] = describe(cluster, "t")
    where = admin.where("t", 1, 7)
    assert where["replicas"][0]["asked"] == [101, 7] and where["leader"] == 1
    assert admin.raft_status("t", 1)["group"] == 101
    with pytest.raises(errors.UnknownPartition):
        admin.where("t", 2, 0)


@pytest.mark.parametrize("is_large", [False, True])
def test_who_counts_on_a_broker_is_told_of_clusters_of_any_size(admin, told, is_large: bool):
    """All topics may be too much for one answer."""
    told.is_large = is_large
    topic = {"topic": "t", "partitions": [{"leaving": [3]}, {"leaving": []}, {"leaving": [3, 4]}]}
    told.answers["topics"] = {"topics": ["t"] if is_large else [topic]}
    told.answers["topic"] = topic
    assert admin.counting_on(3) == 2 and admin.counting_on(9) == 0


def test_offsets_positions_and_lag(admin, told, cluster):
    for log in cluster.topic("t", 2):
        fill(log, 10)
    told.answers["topic"] = describe(cluster, "t")
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    found = admin.offsets("t", time_ms=0)
    assert {name: (row.start, row.end, row.at_time) for name, row in found.items()} == {
        zero: (0, 10, 0),
        one: (0, 10, 0),
    }
    assert admin.positions("t", consumer_id=3) == {zero: None, one: None}
    assert admin.lag("t", group="g") == {zero: 10, one: 10}
    with pytest.raises(errors.MisuseError):
        admin.lag("t")


def test_a_leader_that_moved_is_found(admin, told, cluster):
    fill(cluster.topic("t")[0], 3)
    told.answers["topic"] = describe(cluster, "t")
    assert admin.offsets("t")["t", 0].end == 3
    cluster.lead(100, 2)
    assert admin.offsets("t")["t", 0].end == 3
    cluster.delete("t")
    with Admin(cluster.address, timeout=0.3) as hasty, pytest.raises(errors.MyQueueError):
        hasty.offsets("t")


def test_a_session_may_be_shared(cluster, told):
    with Session(cluster.address) as session:
        with Admin(session) as admin:
            admin.brokers()
        assert not session.closed


def test_every_daemon_is_asked_and_one_that_fails_keeps_its_place(admin, told):
    daemons = admin.daemons()
    assert [(row["daemon"], row["node"]) for row in daemons] == [
        *(("manager", 1), ("manager", 2)),
        *(("broker", 1), ("broker", 2)),
    ]
    for rows in (admin.stats(), admin.stats(daemons), admin.statuses(daemons)):
        assert [(row["daemon"], row["node"]) for row in rows] == [
            (row["daemon"], row["node"]) for row in daemons
        ]
        assert [row.get("code") for row in rows] == [None, "UNKNOWN_PARTITION"] * 2
        assert rows[0]["term"] == 5
