"""A consumer in a group against real sockets: what its application hears, and how it ends."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from support.fake_cluster.groups import Groups, serve_groups
from support.fake_cluster.peer import EchoCluster
from support.fake_cluster.reads import fill, serve_reads

from myqueue import errors
from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import TopicPartition
from myqueue.wire import protocol as words


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(2) as cluster:
        serve_reads(cluster)
        yield cluster


@pytest.fixture
def groups(cluster: EchoCluster) -> Groups:
    return serve_groups(cluster)


def member(cluster: EchoCluster, **settings: Any) -> Consumer:
    return Consumer(cluster.address, ["t"], group="g", **settings)


def poll_until(consumer: Consumer, count: int) -> None:
    found, end = 0, time.monotonic() + 5
    while found < count and time.monotonic() < end:
        found += len(consumer.poll(timeout=0.1))
    assert found == count


def test_who_closes_leaves_though_its_last_commit_is_not_answered(cluster, groups):
    """Else its partitions are nobody's for a whole session."""
    fill(cluster.topic("t")[0], 10)
    groups.give("t", (0, 7, False))
    consumer = member(cluster, auto_commit=True)
    poll_until(consumer, 10)
    groups.loses_commits = True
    consumer.poll(timeout=0)  # they are handled
    begin = time.monotonic()
    consumer.close(timeout=1.0)
    assert time.monotonic() - begin < 1.5
    assert groups.done == ["join_group", "leave_group"]


def test_a_callback_that_raises_keeps_no_other_from_being_called(cluster, groups):
    """Who seeks in on_assign would read from elsewhere, and never know."""
    heard: list[tuple[str, int]] = []

    def on_lost(names: list[TopicPartition]) -> None:
        heard.append(("lost", names[0].partition))
        raise ValueError("in on_lost")

    fill(cluster.topic("t")[0], 10)
    groups.give("t", (0, 7, False))
    consumer = member(
        cluster, on_assign=lambda names: heard.append(("has", names[0].partition)), on_lost=on_lost
    )
    poll_until(consumer, 10)
    groups.give("t", (0, 9, False))  # it was lost, and came back
    while consumer._subscription.partitions[cluster.topics["t"][0]].epoch == 7:
        time.sleep(0.01)
    with pytest.raises(ValueError, match="in on_lost"):
        consumer.poll()
    poll_until(consumer, 10)
    assert heard == [("has", 0), ("lost", 0), ("has", 0)]
    consumer.close()


def test_what_is_lost_while_it_is_let_go_is_not_revoked_as_well(cluster, groups):
    """on_revoke is for what can still be committed; on_lost comes next, by default the same."""
    heard: list[tuple[str, int]] = []
    fill(cluster.topic("t")[0], 10)
    groups.give("t", (0, 7, False))
    consumer = member(
        cluster, auto_commit=True, on_revoke=lambda names: heard.append(("revoked", len(names)))
    )
    poll_until(consumer, 10)
    groups.loses_commits = True
    groups.give("t", (0, 7, True))
    while not consumer._subscription.has_withdrawals:
        time.sleep(0.01)
    later = threading.Timer(0.2, groups.give, ("t",))  # others have it, before the commit is done
    later.start()
    begin = time.monotonic()
    while not heard and time.monotonic() - begin < 10:
        consumer.poll(timeout=0.1)
    consumer.poll(timeout=0.1)
    assert heard == [("revoked", 1)]
    consumer.close(0)


def test_what_was_handled_is_committed_then_revoked_then_released(cluster, groups):
    """C8: the next owner begins where this one stopped, and not before it has stopped."""
    heard: list[Any] = []
    fill(cluster.topic("t")[0], 10)
    (group,) = cluster.topics["t"]
    groups.give("t", (0, 7, False))

    def on_revoke(names: list[TopicPartition]) -> None:
        heard.append((names, consumer.committed(5), list(groups.released)))

    with member(cluster, auto_commit=True, on_revoke=on_revoke) as consumer:
        poll_until(consumer, 10)
        groups.give("t", (0, 7, True))
        while not heard:
            consumer.poll(timeout=0.1)
        assert heard == [([("t", 0)], {("t", 0): 10}, [])]
        end = time.monotonic() + 10
        while [group, 7] not in groups.released:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_c7_commit_raises_for_messages_of_a_partition_that_was_lost(cluster, groups, monkeypatch):
    fill(cluster.topic("t")[0], 10)
    groups.give("t", (0, 7, False))

    def lose(epoch: int) -> None:
        groups.give("t", (0, epoch, False))
        while any(one.epoch < epoch for one in consumer._subscription.partitions.copy().values()):
            time.sleep(0.001)

    def refused(*_: object) -> list[Future[errors.MyQueueError]]:
        monkeypatch.undo()
        lose(11)
        future: Future[errors.MyQueueError] = Future()
        future.set_result(errors.NotLeader("it moved"))
        return [future]

    with member(cluster) as consumer:
        poll_until(consumer, 10)
        lose(9)  # before commit is called
        with pytest.raises(errors.Fenced, match="lost before this could be committed: t/0"):
            consumer.commit(timeout=5)
        poll_until(consumer, 10)
        monkeypatch.setattr(consumer._fetcher, "commit", refused)  # while it is repeated
        with pytest.raises(errors.Fenced, match="lost before this could be committed: t/0"):
            consumer.commit(timeout=5)


def test_a_commit_under_way_ends_when_somebody_closes_the_consumer(cluster, groups):
    """Its future is resolved though the session can't ask for new routes any more."""
    fill(cluster.topic("t")[0], 10)
    groups.give("t", (0, 7, False))
    consumer = member(cluster)
    poll_until(consumer, 10)
    groups.loses_commits = True
    ended: list[BaseException] = []

    def commit() -> None:
        try:
            consumer.commit()
        except errors.MyQueueError as error:
            ended.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    time.sleep(0.2)
    consumer.close(timeout=0.5)
    thread.join(1.0)
    assert not thread.is_alive() and isinstance(ended[0], errors.Closed), ended


def test_what_was_handled_after_the_session_ended_is_not_committed(cluster, groups, monkeypatch):
    """C7: who was away for too long looks whether it is still a member before it commits."""
    fill(cluster.topic("t")[0], 10)
    groups.give("t", (0, 7, False))
    with member(cluster, auto_commit=True) as consumer:
        commits: list[object] = []
        shares = consumer._subscription.assignment
        assert shares is not None and next(iter(consumer)).offset == 0
        monkeypatch.setattr(consumer._fetcher, "commit", lambda *of: commits.append(of) or [])
        with consumer._changed:
            shares.ends_at = 0  # as after a SIGSTOP, before the I/O thread looks
            consumer._handover.commit_due_at = 0
            consumer._handover.commit_if_due()
        assert not commits and not consumer._subscription.partitions


def end_session(consumer: Consumer) -> None:
    """As after a SIGSTOP; the I/O thread does not look before the lock is released."""
    assignment = consumer._subscription.assignment
    assert assignment is not None
    consumer._changed.acquire()
    assignment.ends_at = 0


def test_c8_poll_returns_nothing_of_a_session_that_ended_while_it_ran(cluster, groups):
    """In this time others may have got the partition, and its messages."""

    def on_assign(names: list[TopicPartition]) -> None:
        (partition,) = consumer._subscription.partitions.copy().values()
        while not partition.buffer.packed:
            time.sleep(0.001)
        end_session(consumer)

    fill(cluster.topic("t")[0], 10)
    groups.give("t", (0, 7, False))
    lost: list[TopicPartition] = []
    with member(cluster, on_assign=on_assign, on_lost=lost.extend) as consumer:
        while not consumer._subscription.changes:
            time.sleep(0.001)
        try:
            assert consumer.poll(timeout=0) == []
            assert consumer._subscription.lost_partitions == [("t", 0)]
        finally:
            consumer._changed.release()


def test_c8_a_loop_gets_nothing_of_a_session_that_ended_while_a_message_was_handled(
    cluster, groups
):
    heard: list[Any] = []
    fill(cluster.topic("t")[0], 10)
    groups.give("t", (0, 7, False))
    with member(cluster, on_lost=lambda names: heard.append("lost")) as consumer:
        for message in consumer:
            heard.append(message.offset)
            if len(heard) > 1:
                break
            end_session(consumer)
        consumer._changed.release()
    assert heard[:2] == [0, "lost"]


def test_a_loop_lets_go_of_a_partition_before_it_ends_the_batch_of_another_one(cluster, groups):
    """The next owner waits for the release, not for a batch that takes its time."""
    heard: list[Any] = []
    fill(cluster.topic("t", 2)[0], 10)
    groups.give("t", (0, 7, False), (1, 7, False))
    with member(cluster, on_revoke=heard.extend) as consumer:
        for message in consumer:
            heard.append(message.offset)
            if message.offset == 2:
                groups.give("t", (0, 7, False), (1, 7, True))
                while not consumer._subscription.has_withdrawals:
                    time.sleep(0.001)
            if message.offset == 9:
                break
    assert heard == [0, 1, 2, ("t", 1), *range(3, 10)]


def test_close_takes_back_a_join_whose_answer_was_lost(cluster):
    """It asks again with the same key, hears as whom it joined, and leaves."""
    members: dict[bytes, int] = {}
    answers = threading.Event()

    def script(envelope: words.Envelope, frames: list[bytes]) -> list[list[bytes]] | None:
        _, kind, request, *fields = envelope
        if kind != words.UPDATE or fields[1] not in ("join_group", "leave_group"):
            return None
        if fields[1] == "join_group":
            members.setdefault(fields[0], 50 + len(members))
        else:
            [key] = [key for key, member in members.items() if member == fields[2]["member"]]
            del members[key]
        result = {"member": members.get(fields[0], 0), "session_ms": 10_000}
        answer = words.encode(words.UPDATED, request, 1, result)
        return [[answer]] if answers.is_set() else []

    for daemon in cluster.daemons:
        before = daemon.script
        daemon.script = lambda envelope, frames, before=before: (
            before(envelope, frames) if (found := script(envelope, frames)) is None else found
        )
    cluster.topic("t")
    consumer = member(cluster, request_timeout_ms=300)
    membership = consumer._membership
    end = time.monotonic() + 10
    while not (members and membership._may_be_in and membership._state == "out"):
        assert time.monotonic() < end
        time.sleep(0.001)
    answers.set()
    consumer.close()
    assert members == {}
