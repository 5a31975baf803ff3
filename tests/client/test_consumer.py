"""Consumer against real sockets: messages, positions, leader changes, threads, forks, ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.fake_cluster.peer import EchoCluster
from support.fake_cluster.reads import Reads, fill, serve_reads

from myqueue import errors
from myqueue.cluster.session import Session
from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import Message, TopicPartition
from myqueue.wire import protocol as words


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(2) as cluster:
        yield cluster


@pytest.fixture
def reads(cluster: EchoCluster) -> Reads:
    return serve_reads(cluster)


def offsets(messages: list[Message], number: int = 0) -> list[int]:
    assert all(int(message.value) == message.offset for message in messages)
    return [message.offset for message in messages if message.partition == number]


def poll_until(consumer: Consumer, count: int, timeout: float = 5.0) -> list[Message]:
    found: list[Message] = []
    end = time.monotonic() + timeout
    while len(found) < count and time.monotonic() < end:
        found += consumer.poll(timeout=0.1)
    return found


def test_poll_returns_all_of_all_partitions_and_then_nothing(cluster, reads):
    for log in cluster.topic("t", 3):
        fill(log, 500)
        fill(log, 500)
    with Consumer(cluster.address, ["t"]) as consumer:
        assert consumer.assignment() == [TopicPartition("t", number) for number in range(3)]
        found = poll_until(consumer, 3_000)
        assert [offsets(found, number) for number in range(3)] == [list(range(1000))] * 3
        assert consumer.poll(timeout=0.05) == []
        assert consumer.poll(timeout=0) == []
        fill(cluster.topic("t")[1], 2)
        assert offsets(poll_until(consumer, 2), 1) == [1000, 1001]


def test_iteration_and_poll_take_from_one_place(cluster, reads):
    fill(cluster.topic("t")[0], 100)
    with Consumer(cluster.address, "t", idle_timeout=0.2) as consumer:
        found = [next(iter(consumer)) for _ in range(3)]
        found += consumer.poll(max_messages=10)
        for message in consumer:
            found.append(message)
            assert consumer.position(("t", 0)) == message.offset + 1
            if message.offset == 50:
                break
        found += consumer  # ends by itself
        assert offsets(found) == list(range(100))


def test_a_topic_that_is_not_there(cluster, reads):
    with pytest.raises(errors.UnknownTopic):
        Consumer(cluster.address, ["nothing"])
    cluster.topic("t")
    with Consumer(cluster.address, ["t"]) as consumer:
        consumer.poll(timeout=0.1)
        cluster.delete("t")
        consumer._session.refresh()
        with pytest.raises(errors.UnknownTopic):
            poll_until(consumer, 1)


def test_arguments_are_checked(cluster):
    cluster.topic("t")
    wrong: list[dict[str, Any]] = [
        {"start": "now"},
        {"auto_commit": True},
        {"on_out_of_range": "ignore"},
        {"limit": 3},
        {"group": "g", "consumer_id": 1},
        {"group": ""},
        {"consumer_id": {"x": 1}},
        {"start": "committed"},
        {"fetch_wait_ms": -1},
    ]
    for arguments in wrong:
        with pytest.raises(errors.MisuseError):
            Consumer(cluster.address, ["t"], **arguments)
    with pytest.raises(errors.MisuseError):
        Consumer(cluster.address, [])
    with pytest.raises(errors.MisuseError):
        Consumer("http://127.0.0.1:8080", ["t"])


def test_leaders_move_and_nothing_is_lost_or_doubled(cluster, reads):
    logs = cluster.topic("t", 2)
    found: list[Message] = []
    with Consumer(cluster.address, ["t"]) as consumer:
        for turn in range(10):
            for log, group in zip(logs, cluster.topics["t"], strict=True):
                fill(log, 100)
                cluster.lead(group, 1 + turn % 2)
            found += poll_until(consumer, 100)
        found += poll_until(consumer, 2_000 - len(found))
        assert [offsets(found, number) for number in range(2)] == [list(range(1000))] * 2
        assert consumer.lag() == {("t", 0): 0, ("t", 1): 0}


def test_a_broker_that_dies_and_comes_back(cluster, reads):
    log = cluster.topic("t")[0]
    with Consumer(cluster.address, ["t"]) as consumer:
        fill(log, 10)
        assert len(poll_until(consumer, 10)) == 10
        cluster.daemons[0].stop()
        fill(log, 10)
        assert consumer.poll(timeout=0.3) == []
        cluster.daemons[0].start()
        assert offsets(poll_until(consumer, 10)) == list(range(10, 20))


def test_a_leader_that_is_frozen_is_left_as_soon_as_another_one_leads(cluster, reads):
    log = cluster.topic("t")[0]
    fill(log, 10)
    with Consumer(cluster.address, ["t"]) as consumer:
        assert len(poll_until(consumer, 10)) == 10
        serve = cluster.daemons[0].script
        cluster.daemons[0].script = lambda envelope, frames: (
            [] if envelope[words.KIND] == words.FETCH else serve(envelope, frames)
        )
        consumer.poll(timeout=0.1)
        cluster.lead(100, 2)
        fill(log, 10)
        begin = time.monotonic()
        assert offsets(poll_until(consumer, 10)) == list(range(10, 20))
        assert time.monotonic() - begin < 3  # an attempt may take 10 s


def test_seek_pause_and_time(cluster, reads):
    logs = cluster.topic("t", 2)
    for log in logs:
        fill(log, 10, time_ms=1_000)
        fill(log, 10, time_ms=2_000)
    with Consumer(cluster.address, ["t"]) as consumer:
        assert len(poll_until(consumer, 40)) == 40
        assert consumer.position(("t", 1)) == 20
        consumer.seek(("t", 1), 15)
        assert offsets(poll_until(consumer, 5), 1) == [15, 16, 17, 18, 19]
        assert consumer.seek_to_time(2_000) == {("t", 0): 10, ("t", 1): 10}
        consumer.pause([TopicPartition("t", 0)])
        assert offsets(poll_until(consumer, 10), 1) == list(range(10, 20))
        assert consumer.poll(timeout=0.1) == []
        assert consumer.lag() == {("t", 0): 10, ("t", 1): 0}
        reads.starts[cluster.topics["t"][0]] = 18  # what retention took does not come any more
        assert consumer.lag() == {("t", 0): 2, ("t", 1): 0}
        reads.starts.clear()
        consumer.resume("t")
        assert offsets(poll_until(consumer, 10), 0) == list(range(10, 20))
        assert consumer.seek_to_beginning("t") == {("t", 0): 0, ("t", 1): 0}
        assert consumer.seek_to_end() == {("t", 0): 20, ("t", 1): 20}
        with pytest.raises(errors.MisuseError):
            consumer.seek(("x", 0), 0)


def test_out_of_range_is_told_and_a_seek_mends_it(cluster, reads):
    log = cluster.topic("t")[0]
    fill(log, 5)
    with Consumer(cluster.address, ["t"]) as consumer:
        assert len(poll_until(consumer, 5)) == 5
        consumer.seek(("t", 0), 77)
        with pytest.raises(errors.OffsetOutOfRange):
            poll_until(consumer, 1)
        consumer.seek(("t", 0), 3)
        assert offsets(poll_until(consumer, 2)) == [3, 4]


def test_messages_before_an_error_are_returned_first(cluster, reads):
    logs = cluster.topic("t", 2)
    fill(logs[1], 5)
    with Consumer(cluster.address, ["t"]) as consumer:
        consumer.seek(("t", 0), 77)
        time.sleep(0.2)
        found, failures = [], 0
        for _ in range(3):
            try:
                found += consumer.poll(timeout=0.1)
            except errors.OffsetOutOfRange:
                failures += 1
        assert offsets(found, 1) == [0, 1, 2, 3, 4] and failures == 2


def test_a_partition_added_later_is_told_and_read_from_its_beginning(cluster, reads):
    assigned: list[Any] = []
    cluster.topic("t")
    with Consumer(
        cluster.address, ["t"], start="latest", on_assign=assigned.append, on_revoke=assigned.append
    ) as consumer:
        consumer.poll(timeout=0.1)
        fill(cluster.topic("t", 2)[1], 4)
        consumer._session.refresh()
        assert offsets(poll_until(consumer, 4), 1) == [0, 1, 2, 3]
    assert assigned == [[("t", 0)], [("t", 1)]]


# -- committing -----------------------------------------------------------------------------------


def test_commit_and_go_on_from_there(cluster, reads):
    fill(cluster.topic("t")[0], 10)
    with Consumer(cluster.address, ["t"], consumer_id=7) as consumer:
        assert consumer.committed() == {("t", 0): None}
        consumer.poll(max_messages=4)
        assert consumer.commit() == {("t", 0): 4}
    with Consumer(cluster.address, ["t"], consumer_id=7) as consumer:
        [fourth, fifth, *_] = poll_until(consumer, 6)
        assert fourth.offset == 4
        assert consumer.commit(fifth) == {("t", 0): 6}
        assert consumer.commit({TopicPartition("t", 0): 7}) == {("t", 0): 7}
        assert consumer.committed() == {("t", 0): 7}
    assert reads.positions == {("7", 100): 7}
    with Consumer(cluster.address, ["t"]) as consumer, pytest.raises(errors.MisuseError):
        consumer.commit()


def test_a_commit_follows_the_leader(cluster, reads):
    fill(cluster.topic("t")[0], 10)
    with Consumer(cluster.address, ["t"], consumer_id=7) as consumer:
        assert len(poll_until(consumer, 10)) == 10
        cluster.lead(100, 2)
        assert consumer.commit() == {("t", 0): 10}
        cluster.daemons[1].stop()
        consumer.seek(("t", 0), 5)
        poll_until(consumer, 1, timeout=0.2)
        with pytest.raises(errors.TroubleError) as caught:
            consumer.commit({TopicPartition("t", 0): 11}, timeout=0.5)
        assert caught.value.retriable
    assert reads.positions == {("7", 100): 10}
    assert ([], [7]) in cluster.alive


def test_auto_commit_is_one_poll_behind(cluster, reads):
    """C9: only what the poll before returned is handled."""
    fill(cluster.topic("t")[0], 10)
    arguments: dict[str, Any] = {
        "consumer_id": 7,
        "auto_commit": True,
        "auto_commit_interval_ms": 10,
    }
    with Consumer(cluster.address, ["t"], **arguments) as consumer:
        consumer.poll(max_messages=4)
        time.sleep(0.05)
        consumer.poll(max_messages=3)
    assert reads.positions == {("7", 100): 4}
    with Consumer(cluster.address, ["t"], **arguments, idle_timeout=0.2) as consumer:
        for message in consumer:
            time.sleep(0.03)
            position = reads.positions["7", 100]
            assert position <= message.offset
    assert reads.positions == {("7", 100): 10}  # asked for more, so the last was handled


# -- threads, forks, ends -------------------------------------------------------------------------


def test_a_second_thread_is_refused(cluster, reads):
    cluster.topic("t")
    with Consumer(cluster.address, ["t"]) as consumer:
        thread = threading.Thread(target=consumer.poll, kwargs={"timeout": 0.5})
        thread.start()
        time.sleep(0.1)
        with pytest.raises(errors.ConcurrentUse):
            consumer.poll(timeout=0)
        with pytest.raises(errors.ConcurrentUse):
            consumer.seek(("t", 0), 0)
        thread.join()
        assert consumer.poll(timeout=0) == []


def test_close_lets_go_who_waits_in_another_thread(cluster, reads):
    cluster.topic("t")
    for use in (lambda consumer: list(consumer), lambda consumer: consumer.poll(timeout=None)):
        consumer = Consumer(cluster.address, ["t"])
        results: list[Any] = []

        def run(consumer=consumer, use=use, results=results):
            results.append(use(consumer))

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.1)
        consumer.close()
        thread.join(2)
        assert results == [[]]
        with pytest.raises(errors.Closed):
            consumer.poll()
        consumer.close()


def test_close_in_a_loop_ends_it(cluster, reads):
    fill(cluster.topic("t")[0], 100)
    consumer = Consumer(cluster.address, ["t"])
    found = []
    for message in consumer:
        found.append(message)
        if len(found) == 5:
            consumer.close()
    assert offsets(found) == [0, 1, 2, 3, 4]


def test_close_without_a_cluster_takes_no_longer_than_it_may(cluster, reads):
    fill(cluster.topic("t")[0], 10)
    consumer = Consumer(cluster.address, ["t"], consumer_id=7, auto_commit=True)
    assert len(poll_until(consumer, 10)) == 10
    consumer.poll(timeout=0)
    cluster.close()
    begin = time.monotonic()
    consumer.close(timeout=0.5)
    assert time.monotonic() - begin < 1.5


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_refused_in_the_child(cluster, reads):
    cluster.topic("t")
    with Consumer(cluster.address, ["t"]) as consumer:
        child = os.fork()
        if not child:
            code = 1
            try:
                consumer.poll(timeout=0)
            except errors.Forked:
                consumer.close()
                code = 0
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert consumer.poll(timeout=0) == []


def test_ctrl_c_ends_a_poll_that_waits(cluster, reads):
    cluster.topic("t")
    code = (
        "import sys\nfrom myqueue.consumer.consumer import Consumer\n"
        "consumer = Consumer(sys.argv[1], ['t'])\n"
        "sys.__stdout__.write('ready\\n'); sys.__stdout__.flush()\n"
        "try:\n    consumer.poll(timeout=None)\n"
        "except KeyboardInterrupt:\n    consumer.close(); sys.exit(7)\n"
    )
    command = [sys.executable, "-c", code, cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 7
        assert time.monotonic() - begin < 1


def test_a_session_may_be_shared(cluster, reads):
    fill(cluster.topic("t")[0], 3)
    with Session(cluster.address) as session:
        for _ in range(2):
            with Consumer(session, ["t"]) as consumer:
                assert len(poll_until(consumer, 3)) == 3
        assert not session.closed


def test_buffers_are_bounded(cluster, reads):
    log = cluster.topic("t")[0]
    for _ in range(400):
        fill(log, 1_000)
    with Consumer(
        cluster.address, ["t"], max_buffered_bytes=200_000, fetch_max_bytes=50_000
    ) as consumer:
        consumer.poll(timeout=5)
        time.sleep(0.3)
        assert reads.fetched_bytes < 400_000
        found = poll_until(consumer, 399_000)
        assert len(found) == 399_000 and offsets(found) == list(range(1_000, 400_000))
