"""The producer against real sockets: outcomes, order, limits, ends. The peer keeps C2's rules."""

import asyncio
import concurrent.futures
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from support.fake_cluster.peer import EchoCluster, refuse

from myqueue import errors
from myqueue.producer.batch import COUNT_MAX, HEADER_OVERHEAD_BYTES, MESSAGE_OVERHEAD_BYTES
from myqueue.producer.producer import Producer
from myqueue.settings import ProducerSettings, rows
from myqueue.wire import batch as batches
from myqueue.wire import protocol as words


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(2) as cluster:
        cluster.topic("t")
        cluster.topic("wide", 3)
        yield cluster


@pytest.fixture
def producer(cluster: EchoCluster) -> Iterator[Producer]:
    with Producer(cluster.address, request_timeout_ms=2_000, delivery_timeout_ms=8_000) as producer:
        yield producer


def log_of(cluster, topic="t", partition=0):
    return cluster.logs[cluster.topics[topic][partition]]


def numbers(count, begin=0):
    return [b"%06d" % number for number in range(begin, begin + count)]


def test_a_message_is_stored_with_all_that_belongs_to_it(cluster, producer):
    sent = producer.send("t", b"v", key="k", headers={"h": "1"}, timestamp_ms=12345)
    where = sent.result(5)
    assert (where.topic, where.partition, where.offset) == ("t", 0, 0) and where.timestamp > 0
    header, columns = batches.open_batch(log_of(cluster).batches[0][1])
    assert columns == ([b"v"], [b"k"], [{"h": b"1"}], [0]) and header.time_ms == 12345
    assert header.producer == producer.producer_id > 0


def test_many_are_stored_in_order_and_each_knows_its_offset(cluster, producer):
    sent = [producer.send("t", value) for value in numbers(5_000)]
    producer.flush(10)
    assert log_of(cluster).values() == numbers(5_000)
    assert [delivery.result(0).offset for delivery in sent] == list(range(5_000))
    assert producer.buffered_bytes == 0


def test_lists_are_stored_in_order_and_tell_where(cluster, producer):
    values = [b"x" * (number % 300) for number in range(5_000)]
    where = producer.send_many("t", values).result(10)
    assert log_of(cluster).values() == values
    assert sum(run.messages for run in where) == 5_000 and len(where) > 3
    assert [run.offset for run in where] == sorted(run.offset for run in where)
    assert producer.send_many("t", []).result(1) == []


def test_single_messages_go_round_the_partitions(producer):
    places = [producer.send("wide", b"x").result(5).partition for _ in range(6)]
    assert sorted(places[:3]) == sorted(places[3:]) == [0, 1, 2]


def test_lists_spread_evenly(cluster, producer):
    producer.send_many("wide", [b"x" * 100] * 60_000).result(20)
    ends = [log_of(cluster, "wide", at).end for at in range(3)]
    assert sum(ends) == 60_000 and max(ends) - min(ends) < 2_000


def test_a_key_has_one_place_and_its_order(cluster, producer):
    keys = [b"%d" % (number % 7) for number in range(700)]
    producer.send_many("wide", numbers(700), keys=keys)
    one = producer.send("wide", b"last", key=b"3")
    producer.flush(5)
    found = {}
    for partition in range(3):
        for _, data in log_of(cluster, "wide", partition).batches:
            columns = batches.open_batch(data)[1]
            for key, value in zip(columns.keys, columns.values, strict=True):
                found.setdefault(key, []).append((partition, value))
    assert {len({partition for partition, _ in some}) for some in found.values()} == {1}
    assert [v for _, v in found[b"3"]] == [*numbers(700)[3::7], b"last"]
    assert one.result(0).partition == found[b"3"][0][0]


def test_a_partition_may_be_named(cluster, producer):
    assert producer.send("wide", b"x", partition=2).result(5).partition == 2
    producer.send_many("wide", [b"y"] * 10, partition=1, keys=[None] * 10).result(5)
    assert log_of(cluster, "wide", 1).end == 10
    with pytest.raises(errors.InvalidRequest, match="partitions 0 to 2"):
        producer.send("wide", b"x", partition=3)


def test_compressed_batches_hold_the_same(cluster):
    with Producer(cluster.address, compression="zlib") as producer:
        producer.send_many("t", [b"a" * 1000] * 100)
    header, columns = batches.open_batch(log_of(cluster).batches[0][1])
    assert header.codec == batches.ZLIB and columns.values[0] == b"a" * 1000


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.send("t", "text"),
        lambda p: p.send("t", None),
        lambda p: p.send("t", b"", key=7),
        lambda p: p.send("t", b"", headers={1: b""}),
        lambda p: p.send("t", b"", timestamp_ms=-1),
        lambda p: p.send_many("t", b"bytes"),
        lambda p: p.send_many("t", [b"a"], keys=[b"a", b"b"]),
        lambda p: p.send("t", bytes(17 << 20)),
        lambda p: p.send_many("t", [b"", bytes(17 << 20)]),
        lambda p: p.send("nowhere", b""),
    ],
)
def test_misuse_is_said_at_once(producer, call):
    with pytest.raises(errors.MisuseError):
        call(producer)


def test_settings_are_checked_and_explained():
    for wrong in ({"linger_ms": -1}, {"compression": "lz5"}, {"linger": 5}, {"batch_bytes": "1"}):
        with pytest.raises(errors.InvalidSetting):
            Producer("127.0.0.1:1", **wrong)
    assert all(row.help for row in rows(ProducerSettings))
    for wrong in ("", "http://x:1", "a:b", "a:99999"):
        with pytest.raises(errors.InvalidSetting):
            Producer(wrong)


def test_topics_are_made_if_asked_for(cluster):
    with Producer(cluster.address, create_topics=True) as producer:
        assert producer.send("fresh", b"x").result(5).offset == 0


def test_a_future_is_a_future(producer):
    sent = [producer.send("t", b"x") for _ in range(5)]
    done, left = concurrent.futures.wait(sent, timeout=5)
    assert done == set(sent) and not left
    assert {f.result().offset for f in concurrent.futures.as_completed(sent)} == set(range(5))
    called = threading.Event()
    producer.send("t", b"x").add_done_callback(lambda delivery: called.set())
    assert called.wait(5)

    async def waiter():
        return await asyncio.wrap_future(producer.send("t", b"x"))

    assert asyncio.run(waiter()).offset == 6
    assert not sent[0].cancel() and sent[0].done() and sent[0].exception() is None


def test_a_leader_that_moves_is_followed_and_nothing_is_doubled_or_lost(cluster, producer):
    group, stop, sent = cluster.topics["t"][0], threading.Event(), []

    def move():
        while not stop.wait(0.02):
            cluster.lead(group, 3 - cluster.leaders[group][0])

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for value in numbers(3_000):
            sent.append(producer.send("t", value))
            if len(sent) % 100 == 0:
                time.sleep(0.01)
        producer.flush(20)
    finally:
        stop.set()
        mover.join()
    assert log_of(cluster).values() == numbers(3_000)
    assert [delivery.result(0).offset for delivery in sent] == list(range(3_000))


def test_lost_answers_and_lost_connections_double_nothing(cluster, producer):
    """The peer stores, then crashes before it answers: the repeat gets the first offset."""
    daemon = cluster.daemons[0]
    swallowed = []

    def swallow(envelope, frames):
        if envelope[words.KIND] == words.PRODUCE:
            pairs = zip(envelope[3], frames, strict=True)
            swallowed.append([daemon.produce(group, frame) for group, frame in pairs])
            return []
        return None

    producer.send("t", b"warm").result(5)
    daemon.script = swallow
    sent = [producer.send("t", value) for value in numbers(50)]
    while not swallowed:
        time.sleep(0.001)
    daemon.stop()
    daemon.script = lambda envelope, frames: None
    daemon.start()
    producer.flush(10)
    assert log_of(cluster).values() == [b"warm", *numbers(50)]
    assert [delivery.result(0).offset for delivery in sent] == list(range(1, 51))


@pytest.mark.parametrize("error", [errors.Busy, errors.NoQuorum, errors.NotReady])
def test_refusals_for_now_are_repeated_in_order(cluster, producer, error):
    refused = []

    def refuse(envelope, frames):
        if envelope[words.KIND] != words.PRODUCE or len(refused) >= 3:
            return None
        refused.append(1)
        return [[words.encode(words.PRODUCED, 0, [[envelope[2], error.code, 0, 0, None]])]]

    cluster.daemons[0].script = refuse
    for value in numbers(200):
        producer.send("t", value)
        if len(refused) < 3:
            time.sleep(0.001)
    producer.flush(10)
    assert log_of(cluster).values() == numbers(200)


def test_failures_are_in_the_future_in_flush_and_in_the_log(cluster, caplog):
    with Producer(cluster.address, delivery_timeout_ms=300) as producer:
        producer.send("t", b"warm").result(5)
        for daemon in cluster.daemons:
            daemon.stop()
        sent = producer.send("t", b"v", key=b"k")
        with pytest.raises(errors.DeliveryFailed) as caught:
            producer.flush(5)
        (failed,) = caught.value.failed
        assert (failed.value, failed.key, failed.topic) == (b"v", b"k", "t")
        with pytest.raises(errors.TimedOut, match=r"refused|lost|silent"):
            sent.result(0)
        assert sent.exception() is failed.error
        producer.flush(5)  # told once
        deadline = time.monotonic() + 5
        while f"1 messages were not delivered; first: {failed.error}" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_what_was_never_sent_is_certainly_not_stored():
    with EchoCluster(1) as cluster:
        cluster.topic("t")
        producer = Producer(cluster.address, delivery_timeout_ms=300)
        producer.send("t", b"warm").result(5)
    time.sleep(0.05)
    sent = producer.send("t", b"v")
    with pytest.raises(errors.DeliveryFailed):
        producer.close(5)
    assert sent.exception(0).outcome == errors.NONE


def swallow_doomed(swallowed):
    def script(envelope, frames):
        if not any(b"doomed" in frame for frame in frames):
            return None
        swallowed.append(frames)
        return []

    return script


def test_what_may_be_stored_says_so_and_a_new_epoch_goes_on(cluster):
    """C1, C3: a batch that was sent and never answered is unknown; what was certainly refused
    behind it is stored under a new epoch."""
    swallowed = []
    with Producer(cluster.address, delivery_timeout_ms=900, linger_ms=0) as producer:
        producer.send("t", b"warm").result(5)
        cluster.daemons[0].script = swallow_doomed(swallowed)
        doomed = producer.send("t", b"doomed")
        while not swallowed:
            time.sleep(0.001)
        time.sleep(0.4)
        after = [producer.send("t", value) for value in numbers(3)]
        error = doomed.exception(5)
        assert error.outcome == errors.UNKNOWN and error.code == errors.TimedOut.code
        assert [delivery.result(5).offset for delivery in after] == [1, 2, 3]
        assert cluster.epochs == {producer.producer_id: 1}
        with pytest.raises(errors.DeliveryFailed):
            producer.flush(5)
    assert log_of(cluster).values() == [b"warm", *numbers(3)]


def test_what_shared_its_fate_is_unknown_too(cluster):
    """An attempt without an answer may still be under way when a new epoch begins: never again."""
    swallowed = []
    with Producer(
        cluster.address, delivery_timeout_ms=600, request_timeout_ms=150, linger_ms=0
    ) as producer:
        producer.send("t", b"warm").result(5)
        cluster.daemons[0].script = swallow_doomed(swallowed)
        sent = [producer.send("t", b"doomed")]
        while not swallowed:
            time.sleep(0.001)
        sent.append(producer.send("t", b"behind it"))
        while not any(len(frames) > 1 for frames in swallowed):
            time.sleep(0.001)
        assert [delivery.exception(5).outcome for delivery in sent] == [errors.UNKNOWN] * 2
        assert producer.send("t", b"new").result(5).offset == 1
        with pytest.raises(errors.DeliveryFailed):
            producer.flush(5)
    assert log_of(cluster).values() == [b"warm", b"new"]


def test_an_error_after_a_gap_names_the_gap_and_no_time_limit(cluster, monkeypatch):
    """The batch behind the gap has most of its own time left when it must fail."""
    monkeypatch.setattr("myqueue.producer.lane.PAUSE_MS_MAX", 20)  # no pause outlasts that time
    swallowed = []
    with Producer(
        cluster.address, delivery_timeout_ms=1500, request_timeout_ms=200, linger_ms=0
    ) as producer:
        producer.send("t", b"warm").result(5)
        cluster.daemons[0].script = swallow_doomed(swallowed)
        doomed = producer.send("t", b"doomed")
        while len(swallowed) < 3:
            time.sleep(0.001)
        behind = producer.send("t", b"behind it")
        while not any(len(frames) > 1 for frames in swallowed):
            time.sleep(0.001)
        assert isinstance(doomed.exception(5), errors.TimedOut)
        error = behind.exception(5)
        assert isinstance(error, errors.OutcomeUnknown) and error.outcome == errors.UNKNOWN
        assert "an earlier batch of this partition was given up" in str(error)
        with pytest.raises(errors.DeliveryFailed):
            producer.flush(5)


def test_a_batch_that_is_refused_for_good_fails_alone(cluster, producer):
    def refuse(envelope, frames):
        if envelope[words.KIND] == words.PRODUCE and any(b"bad" in frame for frame in frames):
            code = errors.MessageTooLarge.code
            return [[words.encode(words.PRODUCED, 0, [[envelope[2], code, 0, 0, None]])]]
        return None

    cluster.daemons[0].script = refuse
    bad = producer.send("t", b"bad")
    assert isinstance(bad.exception(5), errors.MessageTooLarge)
    assert bad.exception().outcome == errors.NONE
    assert producer.send("t", b"good").result(5).offset == 0
    with pytest.raises(errors.DeliveryFailed):
        producer.flush(5)


def test_a_fenced_producer_stops(cluster, producer):
    producer.send("t", b"a").result(5)
    log_of(cluster).producers[producer.producer_id][0] += 1
    sent = producer.send("t", b"b")
    assert isinstance(sent.exception(5), errors.Fenced)
    with pytest.raises(errors.Fenced):
        producer.send("t", b"c")
    with pytest.raises(errors.DeliveryFailed):
        producer.flush(5)


def test_if_something_acknowledged_is_missing_it_stops(cluster, producer):
    producer.send("t", b"a").result(5)
    log_of(cluster).producers[producer.producer_id][1] = 0  # the broker forgot
    log_of(cluster).producers[producer.producer_id][2].clear()
    assert isinstance(producer.send("t", b"b").exception(5), errors.OutOfSequence)
    with pytest.raises(errors.OutOfSequence):
        producer.send("t", b"c")
    with pytest.raises(errors.DeliveryFailed):
        producer.close(5)


def test_a_deleted_topic_fails_what_waits_for_it(cluster, producer):
    producer.send("t", b"a").result(5)
    cluster.delete("t")
    assert isinstance(producer.send("t", b"b").exception(5), errors.UnknownTopic)
    with pytest.raises(errors.UnknownTopic):
        producer.send("t", b"c")
    cluster.topic("t")
    assert producer.send("t", b"d").result(5).offset == 0
    with pytest.raises(errors.DeliveryFailed):
        producer.flush(5)


def test_partitions_that_are_added_are_used(cluster, producer):
    producer.send("t", b"a").result(5)
    cluster.topic("t", 2)
    producer.session.refresh()
    deadline = time.monotonic() + 5
    while producer.send("t", b"b").result(5).partition != 1:
        assert time.monotonic() < deadline


def answer_again(cluster):
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: None


@contextmanager
def gathering(cluster, **settings):
    """A producer whose messages gather, because the one before them is answered at the end."""
    with Producer(cluster.address, linger_ms=60_000, request_timeout_ms=200, **settings) as made:
        made.send("t", b"warm").result(5)
        for daemon in cluster.daemons:
            daemon.script = lambda envelope, frames: []
        made.send("t", b"unanswered")
        while not made._topics["t"].lanes[0].flight:
            time.sleep(0.001)
        try:
            yield made
        finally:
            answer_again(cluster)


def test_every_message_counts_with_its_key_and_headers(cluster):
    with gathering(cluster) as producer:
        for _ in range(3):
            before = producer.buffered_bytes
            producer.send("t", b"value", key=b"key")
            assert producer.buffered_bytes - before == MESSAGE_OVERHEAD_BYTES + 8
            producer.send("t", b"value", key="key", headers={"h": "1"})
            added = 2 * MESSAGE_OVERHEAD_BYTES + 2 * 8 + HEADER_OVERHEAD_BYTES + 2
            assert producer.buffered_bytes - before == added


def test_no_batch_has_more_messages_than_it_may_however_small_they_are(cluster):
    with gathering(cluster, batch_bytes=1 << 20) as producer:
        for _ in range(COUNT_MAX + 2):
            producer.send("t", b"")
    counts = [batches.header(data).count for _, data in log_of(cluster).batches]
    assert max(counts) <= COUNT_MAX and sum(counts) == COUNT_MAX + 4


def test_an_error_for_a_whole_message_answers_each_of_its_batches(cluster, producer):
    """Else the second batch waits for `request_timeout_ms` (2 s)."""
    producer.send("wide", b"warm").result(5)
    refused = []

    def script(envelope, frames):
        if words.name_of(envelope[words.KIND]) != "PRODUCE" or refused:
            return None
        refused.append(len(frames))
        return refuse(envelope[words.REQUEST], errors.Busy)

    for daemon in cluster.daemons:
        daemon.script = script
    go_on = threading.Event()
    producer.session.on_io(lambda: go_on.wait(5))  # so that both go in one message
    sent = [producer.send("wide", b"x", partition=partition) for partition in (0, 2)]
    begin = time.monotonic()
    go_on.set()
    assert {delivery.result(5).partition for delivery in sent} == {0, 2} and refused == [2]
    assert time.monotonic() - begin < 1.5


def test_a_broker_that_is_busy_gets_the_pause_that_it_asks_for(cluster, producer):
    asked = []

    def refuse_once(envelope, frames):
        if envelope[words.KIND] != words.PRODUCE:
            return None
        asked.append(time.monotonic())
        row = [envelope[2], errors.Busy.code, 0, 0, {"retry_ms": 400}]
        return [[words.encode(words.PRODUCED, 0, [row])]] if len(asked) == 1 else None

    cluster.daemons[0].script = refuse_once
    producer.send("t", b"x").result(5)
    assert len(asked) == 2 and asked[1] - asked[0] >= 0.27


def test_headers_count_the_bytes_of_their_names(cluster):
    with gathering(cluster) as producer:
        before = producer.buffered_bytes
        producer.send("t", b"", headers={"€" * 1000: b""})
        added = MESSAGE_OVERHEAD_BYTES + 3000 + HEADER_OVERHEAD_BYTES
        assert producer.buffered_bytes - before == added


def test_who_waits_for_room_is_notified(cluster):
    with gathering(cluster, max_buffered_bytes=100) as producer:
        answer = threading.Timer(0.2, answer_again, [cluster])
        answer.start()
        assert producer.send("t", b"x" * 60).result(20).offset == 2
        answer.join()


def test_who_waits_for_room_is_refused_as_soon_as_the_producer_is_closed(cluster):
    with gathering(cluster, max_buffered_bytes=100) as producer, ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(producer.send, "t", b"x" * 60)
        while not producer._room._waiters:
            time.sleep(0.001)
        closing = threads.submit(producer.close, 8)
        with pytest.raises(errors.Closed):
            waiting.result(5)
        assert not closing.done(), "it still delivers what it took"
        answer_again(cluster)
        closing.result(10)


@pytest.fixture
def small_turns():
    """Let Python change threads after almost every instruction."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("key", [None, b"k"])
def test_threads_that_share_a_producer_lose_and_mix_nothing(cluster, key, small_turns):
    """Small batches and turns, so that threads race for places while batches are sealed."""
    with Producer(cluster.address, batch_bytes=2_000, max_buffered_bytes=20_000) as producer:
        begin, sent = threading.Barrier(4), [[] for _ in range(4)]

        def send(name):
            begin.wait(5)
            for number in range(2_000):
                value = b"%d %d" % (name, number)
                sent[name].append((value, producer.send("wide", value, key=key)))

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        producer.flush(30)
    logs = [log_of(cluster, "wide", partition).values() for partition in range(3)]
    assert sum(map(len, logs)) == 8_000
    for messages in sent:
        places = [delivery.result(0) for _, delivery in messages]
        for (value, _), place in zip(messages, places, strict=True):
            assert logs[place.partition][place.offset] == value
        for partition in range(3):
            offsets = [place.offset for place in places if place.partition == partition]
            assert offsets == sorted(offsets)
