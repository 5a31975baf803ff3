"""Takes: those of a moment leave together, and each is answered, refused and repeated by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from support.fake_cluster.peer import Answer, EchoCluster, EchoDaemon, refuse

from myqueue import errors
from myqueue.cluster.session import Session
from myqueue.taker.take_walk import TakeResult
from myqueue.taker.taker import Taker
from myqueue.wire import batch
from myqueue.wire import protocol as words

BATCH = batch.make(([b"a", b"b", b"c"], None, None, None), 7)
Script = Callable[[EchoDaemon, int, list[list[Any]]], list[Answer]]


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(2) as cluster:
        cluster.topic("t", 1)  # led by the first daemon
        yield cluster


@pytest.fixture
def session(cluster: EchoCluster) -> Iterator[Session]:
    with Session(cluster.address, name="test", request_timeout_ms=5_000) as session:
        session.ensure_topics(["t"]).result(10)
        yield session


class Broker:
    """Gives each consumer the first message, and keeps what was asked."""

    def __init__(self, cluster: EchoCluster, script: Script | None = None) -> None:
        self.asked: list[tuple[int, list[list[Any]]]] = []  # (daemon, takes)
        self.script = script
        for daemon in cluster.daemons:
            daemon.script = self._for(daemon)

    def _for(self, daemon: EchoDaemon) -> Any:
        def answer(envelope: words.Envelope, frames: list[bytes]) -> list[Answer] | None:
            if envelope[words.KIND] != words.TAKE:
                return None
            _, _, request, takes = envelope
            self.asked.append((daemon.node, takes))
            if self.script is not None:
                return self.script(daemon, request, takes)
            return [given(request, len(takes))]

        return answer


def given(request: int, count: int, begin: int = 0) -> Answer:
    rows = [[request + at, 0, 0, 1, [[0, 0]], None] for at in range(begin, count)]
    return [words.encode(words.TAKEN, 0, rows), BATCH]


def at_once(session: Session, count: int) -> list[Future[TakeResult]]:
    """So many takes of one moment: the I/O thread gets them together."""
    taker = Taker(session)
    topic = session.routes.topic("t")
    assert topic is not None
    begun: Future[list[Future[TakeResult]]] = Future()
    session.on_io(
        lambda: begun.set_result([taker.begin(topic, 1 + number) for number in range(count)])
    )
    return begun.result(10)


def test_takes_of_a_moment_share_a_message(cluster: EchoCluster, session: Session) -> None:
    broker = Broker(cluster)
    at_once(session, 1)[0].result(10)  # connected by now
    broker.asked.clear()
    found = [one.result(10) for one in at_once(session, 300)]
    assert [[m.value for m in one.messages] for one in found] == [[b"a"]] * 300
    assert [(node, len(takes)) for node, takes in broker.asked] == [(1, 256), (1, 44)]
    rows = [row for _, takes in broker.asked for row in takes]
    assert [row[1] for row in rows] == [str(1 + number) for number in range(300)]
    assert len({row[2] for row in rows}) == 300


def test_each_is_repeated_where_the_leader_is_with_its_key(
    cluster: EchoCluster, session: Session
) -> None:
    """C11: half of them are done; the others are refused, and done by the next leader."""

    def half(daemon: EchoDaemon, request: int, takes: list[list[Any]]) -> list[Answer]:
        if daemon.node == 2:
            return [given(request, len(takes))]
        (group,) = cluster.topics["t"]
        cluster.lead(group, 2)
        middle = len(takes) // 2
        told = {"leader": 2, "address": cluster.daemons[1].address}
        code = errors.NotLeader.code
        refused = [[request + at, code, 0, 0, [], told] for at in range(middle)]
        return [given(request, len(takes), middle), [words.encode(words.TAKEN, 0, refused)]]

    broker = Broker(cluster, half)
    futures = at_once(session, 10)
    assert all(one.result(10).messages for one in futures)
    keys = {
        node: [row[2] for _, takes in broker.asked if _ == node for row in takes] for node in (1, 2)
    }
    assert sorted(keys[2]) == sorted(keys[1][:5])


def test_what_is_wrong_with_a_message_is_told_of_each(
    cluster: EchoCluster, session: Session
) -> None:
    Broker(cluster, lambda daemon, request, takes: refuse(request, errors.InvalidRequest, "no"))
    for one in at_once(session, 5):
        with pytest.raises(errors.InvalidRequest, match="no"):
            one.result(10)


def test_an_answer_that_lies_ends_only_those_that_it_is_about(
    cluster: EchoCluster, session: Session
) -> None:
    def lies(daemon: EchoDaemon, request: int, takes: list[list[Any]]) -> list[Answer]:
        rows = [[request, 0, 0, 1, [[0, 7]], None], [request + 1, 0, 0, 1, [[0, 0]], None]]
        return [[words.encode(words.TAKEN, 0, rows), BATCH]]

    Broker(cluster, lies)
    wrong, right = at_once(session, 2)
    with pytest.raises(errors.CorruptData):
        wrong.result(10)
    assert [m.value for m in right.result(10).messages] == [b"a"]


TORN = BATCH[:-1] + bytes([BATCH[-1] ^ 1])


@pytest.mark.parametrize("torn_copies", [1, 2, 3])
def test_a_batch_that_came_damaged_is_fetched_again(cluster: EchoCluster, torn_copies: int) -> None:
    """It is taken already, so nobody else gets it; three damaged copies are an error."""
    sent: list[bytes] = []

    def copy() -> bytes:
        sent.append(TORN if len(sent) < torn_copies else BATCH)
        return sent[-1]

    def answer(envelope: words.Envelope, frames: list[bytes]) -> list[Answer] | None:
        kind, request = envelope[words.KIND], envelope[words.REQUEST]
        if kind == words.TAKE:
            return [[words.encode(words.TAKEN, 0, [[request, 0, 0, 2, [[0, 0]], None]]), copy()]]
        if kind == words.FETCH:
            rows = [[envelope[words.FIELDS + 3][0][0], 0, 0, 3, [[0, 1]], None]]
            return [[words.encode(words.FETCHED, request, rows), copy()]]
        return None

    cluster.daemons[0].script = answer
    with Session(cluster.address, name="test", request_timeout_ms=5_000) as session:
        if torn_copies < 3:
            assert [m.value for m in Taker(session).take("t", 1, max_messages=2)] == [b"a", b"b"]
        else:
            with pytest.raises(errors.CorruptData) as caught:
                Taker(session).take("t", 1, max_messages=2)
            assert caught.value.outcome == errors.UNKNOWN, "they are taken"
    assert len(sent) == min(3, torn_copies + 1)


def test_what_was_not_sent_is_certainly_not_done(cluster: EchoCluster) -> None:
    """C1: no leader listens, so all of the message wait; each ends in time, with outcome none."""
    with Session(cluster.address, name="test", request_timeout_ms=400) as session:
        session.ensure_topics(["t"]).result(10)
        (group,) = cluster.topics["t"]
        cluster.leaders[group] = (1, 2)
        cluster.daemons[0].stop()
        for one in at_once(session, 5):
            with pytest.raises(errors.MyQueueError) as caught:
                one.result(20)
            assert caught.value.outcome == errors.NONE


def test_closing_a_session_ends_takes_that_wait(cluster: EchoCluster) -> None:
    Broker(cluster, lambda daemon, request, takes: [])
    session = Session(cluster.address, name="test", request_timeout_ms=60_000)
    session.ensure_topics(["t"]).result(10)
    waiting = at_once(session, 3)
    session.close()
    for one in waiting:
        with pytest.raises(errors.MyQueueError):
            one.result(10)


def test_closing_a_session_ends_takes_between_two_attempts(cluster: EchoCluster) -> None:
    """Their timers never fire any more; they were refused, so nothing was done."""

    def refused(daemon: EchoDaemon, request: int, takes: list[list[Any]]) -> list[Answer]:
        code = errors.DiskFull.code
        rows = [[request + at, code, 0, 0, [], {"retry_ms": 500}] for at in range(len(takes))]
        return [[words.encode(words.TAKEN, 0, rows)]]

    broker = Broker(cluster, refused)
    session = Session(cluster.address, name="test", request_timeout_ms=60_000)
    session.ensure_topics(["t"]).result(10)
    waiting = at_once(session, 3)

    def end_between_two_attempts() -> None:
        if broker.asked and all(request._at is None for request in session.requests):
            session.end()
        else:
            session.after(1, end_between_two_attempts)

    session.on_io(end_between_two_attempts)
    for one in waiting:
        with pytest.raises(errors.Closed) as caught:
            one.result(10)
        assert caught.value.outcome == errors.NONE
