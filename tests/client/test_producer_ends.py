"""The producer's limits and ends: full buffers, callbacks, close, forks, Ctrl-C, forgotten ones."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from support.fake_cluster.peer import EchoCluster

from myqueue import errors
from myqueue.cluster.partitioner import Spread
from myqueue.cluster.session import Session
from myqueue.producer.batch import Batch
from myqueue.producer.lane import Lane
from myqueue.producer.producer import Producer
from myqueue.wire import batch as batches
from myqueue.wire import protocol as words


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(2) as cluster:
        cluster.topic("t")
        yield cluster


@pytest.fixture
def producer(cluster: EchoCluster) -> Iterator[Producer]:
    with Producer(cluster.address, request_timeout_ms=2_000, delivery_timeout_ms=8_000) as producer:
        yield producer


def log_of(cluster):
    return cluster.logs[cluster.topics["t"][0]]


def numbers(count, begin=0):
    return [b"%06d" % number for number in range(begin, begin + count)]


def test_a_full_buffer_blocks_then_raises(cluster):
    producer = Producer(
        cluster.address, max_buffered_bytes=10_000, max_block_ms=200, delivery_timeout_ms=1_000
    )
    producer.send("t", b"warm").result(5)
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: [] if envelope[1] == words.PRODUCE else None
    begin = time.monotonic()
    with pytest.raises(errors.BufferFull):
        for _ in range(200):
            producer.send("t", b"x" * 100)
    assert 0.15 < time.monotonic() - begin < 2
    with pytest.raises(errors.BufferFull):
        producer.send_many("t", [b"x" * 100] * 1000)
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: None
    with pytest.raises(errors.DeliveryFailed):
        producer.close(5)


def text_of_a_full_buffer(producer):
    with pytest.raises(errors.BufferFull) as caught:
        for _ in range(200):
            producer.send("t", b"x" * 100)
    return str(caught.value)


FASTER = "messages come faster than the cluster stores them"


def test_a_full_buffer_names_no_problem_that_ended(cluster):
    producer = Producer(
        cluster.address, max_buffered_bytes=10_000, max_block_ms=200, delivery_timeout_ms=1_000
    )
    refused = []

    def refuse_once(envelope, frames):
        if envelope[1] != words.PRODUCE or refused:
            return None
        refused.append(envelope)
        row = [envelope[2], errors.NotReady.code, 0, 0, None]
        return [[words.encode(words.PRODUCED, 0, [row])]]

    cluster.daemons[0].script = refuse_once
    producer.send("t", b"warm").result(5)
    assert refused
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: [] if envelope[1] == words.PRODUCE else None
    text = text_of_a_full_buffer(producer)
    assert FASTER in text and "no room came within 200 ms" in text
    with pytest.raises(errors.DeliveryFailed):
        producer.close(0)


def test_a_full_buffer_names_no_problem_from_before_the_epoch(cluster):
    producer = Producer(
        cluster.address, max_buffered_bytes=10_000, max_block_ms=200, delivery_timeout_ms=5_000
    )
    opening, go_on, produced = threading.Event(), threading.Event(), threading.Event()

    def script(envelope, frames):
        if envelope[1] == words.UPDATE:
            opening.set()
            assert go_on.wait(10)
        if envelope[1] == words.PRODUCE:
            produced.set()
            return []
        return None

    for daemon in cluster.daemons:
        daemon.script = script
    producer.send("t", b"first")
    assert opening.wait(5)
    producer._sender.last_problem = "no producer id so far"
    go_on.set()
    assert produced.wait(5)
    assert FASTER in text_of_a_full_buffer(producer)
    with pytest.raises(errors.DeliveryFailed):
        producer.close(0)


def test_a_list_larger_than_the_buffer_goes_through_it(cluster):
    with Producer(cluster.address, max_buffered_bytes=20_000) as producer:
        producer.send_many("t", numbers(5_000)).result(10)
    assert log_of(cluster).values() == numbers(5_000)


def test_callbacks_that_send_never_block_the_io_thread(cluster):
    with Producer(cluster.address, max_buffered_bytes=2_000, max_block_ms=60_000) as producer:
        caught, done = [], threading.Event()

        def fill(delivery):
            try:
                for _ in range(100):
                    producer.send("t", b"x" * 100)
            except errors.BufferFull as error:
                caught.append(error)
            done.set()

        producer.send("t", b"a").add_done_callback(fill)
        assert done.wait(5)
        producer.send("t", b"b").result(5)
    assert len(caught) <= 1


def test_several_threads_share_a_producer(cluster, producer):
    def work(letter):
        for number in range(500):
            producer.send("t", b"%c%04d" % (letter, number))

    threads = [threading.Thread(target=work, args=(letter,)) for letter in b"abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(10)
    values = log_of(cluster).values()
    assert len(values) == 2_000
    for letter in b"abcd":
        mine = [value for value in values if value[0] == letter]
        assert mine == [b"%c%04d" % (letter, number) for number in range(500)]


def test_producers_may_share_a_session(cluster):
    with Session(cluster.address) as session:
        with Producer(session) as one, Producer(session) as other:
            assert one.send("t", b"a").result(5) and other.send("t", b"b").result(5)
            assert one.producer_id != other.producer_id
        assert session.read("cluster").result(5)


def test_a_session_that_is_closed_too_early_leaves_nobody_waiting(cluster):
    session = Session(cluster.address)
    producer = Producer(session)
    producer.send("t", b"warm").result(5)
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: []
    sent = [producer.send("t", b"x" * 40_000) for _ in range(40)]
    session.close()
    for delivery in sent:
        assert isinstance(delivery.exception(5), errors.Closed)
    assert sent[-1].exception().outcome == errors.NONE, "it was never sent"
    with pytest.raises(errors.Closed):
        producer.send("t", b"y")
    with pytest.raises(errors.DeliveryFailed):
        producer.close()


def test_a_defect_while_the_producer_opens_fails_its_messages_at_once(cluster):
    producer = Producer(cluster.address)
    answer = concurrent.futures.Future()
    producer._sender._opening = True  # so no other answer comes
    sent = producer.send("t", b"a")
    answer.set_exception(ZeroDivisionError("a defect"))
    producer.session.on_io(lambda: producer._sender._opened(answer))
    assert isinstance(sent.exception(5), errors.Internal)
    with pytest.raises(errors.Internal, match="a defect"):
        producer.send("t", b"b")
    with pytest.raises(errors.DeliveryFailed):
        producer.close()


def test_closing_delivers_and_then_refuses(cluster):
    producer = Producer(cluster.address)
    sent = producer.send("t", b"a")
    producer.close()
    assert sent.result(0).offset == 0
    with pytest.raises(errors.Closed):
        producer.send("t", b"b")
    producer.close()


def test_closing_in_a_callback_is_refused_and_the_producer_stays_open(cluster):
    with Producer(cluster.address) as producer:
        caught, done = [], threading.Event()

        def close(delivery):
            for end in (producer.flush, producer.close):
                try:
                    end()
                except errors.ConcurrentUse as error:
                    caught.append(error)
            done.set()

        producer.send("t", b"a").add_done_callback(close)
        assert done.wait(5) and len(caught) == 2
        assert producer.send("t", b"b").result(5).offset == 1


def test_closing_never_hangs_and_names_what_is_left(cluster):
    producer = Producer(cluster.address)
    producer.send("t", b"warm").result(5)
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: []
    sent = producer.send("t", b"a")
    begin = time.monotonic()
    with pytest.raises(errors.DeliveryFailed) as caught:
        producer.close(0.3)
    assert time.monotonic() - begin < 3
    assert [record.value for record in caught.value.failed] == [b"a"]
    assert isinstance(sent.exception(0), errors.Closed)


def test_closing_reports_what_fails_after_its_flush_with_the_worst_outcome(cluster):
    """C1: "none" of the last message must not be said of the first."""
    producer = Producer(cluster.address)
    end = producer._end
    batches_failed = []
    for value, error in ((b"first", errors.TimedOut()), (b"last", errors.Busy())):
        batch = Batch(Lane("t", 0, 0, 1000, Spread(1)), 0, 0, 0)
        batch.values, batch.count, batch.error = [value], 1, error
        batches_failed.append(batch)
    producer._failures.add(batches_failed[0])

    def fail_then_end():
        producer._failures.add(batches_failed[1])
        end()

    producer._end = fail_then_end
    with pytest.raises(errors.DeliveryFailed) as caught:
        producer.close()
    assert [record.value for record in caught.value.failed] == [b"first", b"last"]
    assert caught.value.outcome == errors.UNKNOWN


def test_an_error_in_the_block_is_not_hidden(cluster):
    with (
        pytest.raises(ZeroDivisionError),
        Producer(cluster.address, delivery_timeout_ms=200) as producer,
    ):
        producer.send("t", b"warm").result(5)
        for daemon in cluster.daemons:
            daemon.script = lambda envelope, frames: []
        producer.send("t", b"a")
        raise ZeroDivisionError


def test_without_idempotence_there_is_no_producer_id(cluster):
    with Producer(cluster.address, idempotent=False) as producer:
        producer.send_many("t", numbers(10)).result(5)
        assert producer.producer_id == 0
    assert batches.header(log_of(cluster).batches[0][1]).producer == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused(cluster, producer):
    producer.send("t", b"a").result(5)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            producer.send("t", b"b")
        except errors.Forked:
            producer.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert producer.send("t", b"c").result(5).offset == 1


def test_ctrl_c_ends_every_wait(cluster):
    producer = Producer(cluster.address, max_buffered_bytes=1_000)
    producer.send("t", b"warm").result(5)
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: []
    for wait in (
        producer.send("t", b"x" * 900).result,
        producer.flush,
        lambda: producer.send("t", b"x" * 900),
    ):
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert time.monotonic() - begin < 2
    with pytest.raises(errors.DeliveryFailed):
        producer.close(0.1)


def test_a_program_that_forgets_to_close_still_delivers(cluster):
    program = (
        "import sys\nfrom myqueue.producer.producer import Producer\n"
        "producer = Producer(sys.argv[1])\nproducer.send('t', b'forgotten')\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, cluster.address], capture_output=True, timeout=30
    )
    assert done.returncode == 0 and done.stderr == b""
    assert log_of(cluster).values() == [b"forgotten"]


def test_a_program_that_cannot_deliver_warns_and_ends(cluster):
    program = (
        "import sys\nfrom myqueue.producer.producer import Producer\n"
        "import myqueue.producer.producer\nmyqueue.producer.AT_EXIT_S = 0.5\n"
        "producer = Producer(sys.argv[1])\nproducer.send('t', b'warm').result()\n"
        "producer.send('t', b'lost')\n"
    )
    cluster.daemons[0].script = lambda envelope, frames: (
        [] if frames and b"lost" in frames[0] else None
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, cluster.address], capture_output=True, timeout=30
    )
    assert done.returncode == 0 and b"1 messages waited" in done.stderr
