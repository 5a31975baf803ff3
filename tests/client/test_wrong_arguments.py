"""Wrong types and values, in every public method: an error of ours that says what was expected.

Nothing of a wrong call stays behind: the client works afterwards as it did before.
"""

import asyncio
import doctest
import inspect
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.fake_cluster.peer import EchoCluster, refuse
from support.fake_cluster.reads import fill, serve_reads

from myqueue import arguments as given
from myqueue import errors
from myqueue.admin.client import Admin
from myqueue.aio import AsyncConsumer, AsyncProducer
from myqueue.cluster.session import Session
from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import Message, TopicPartition
from myqueue.producer.producer import Producer
from myqueue.simple import MyConsumer, MyProducer
from myqueue.wire import protocol as words

TP = TopicPartition("t", 0)
NAN, INF = math.nan, math.inf


class Odd:
    """Nothing that anybody expects."""


ODD = Odd()
NO_TOPIC = (None, 5, b"t", ["t"], {"t": 1}, ODD)
NO_SECONDS = ("1", ODD, NAN, b"1", [1], True)
NO_OFFSET = (None, 1.5, "1", -1, 1 << 63, NAN, True, ODD)
NO_PARTITION = (None, 5, "t", ("t",), ("t", "0"), ("t", 0.0), (0, "t"), ("t", 0, 1), ODD)
NO_PARTITIONS = (b"t", [5], ["t"], [("t", 1.5)], ODD, {"t": 0})
NO_CALLBACK = (5, "f", ODD)
NO_CLUSTER = (None, 5, b"h:1", [5], [], "", ["a b"], {"h": 1}, ODD, "h:99999", "http://h:1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(1) as cluster:
        serve_reads(cluster)
        fill(cluster.topic("t")[0], 5)
        yield cluster


def refused(call: Callable[[], Any], what: object) -> None:
    try:
        found = call()
    except errors.MyQueueError as error:
        assert isinstance(error, errors.MisuseError), f"{what}: {error!r}"
        assert len(str(error)) > 10 and error.hint
    except Exception as error:
        pytest.fail(f"{what}: {error!r}")
    else:
        pytest.fail(f"{what}: was taken, {found!r}")


def check(table: dict[str, list[Any]], calls: dict[str, Callable[[Any], Any]]) -> None:
    for name, values in table.items():
        for value in values:
            refused(lambda name=name, value=value: calls[name](value), f"{name} {value!r}")


def test_examples() -> None:
    assert doctest.testmod(given).failed == 0


def test_consumer(cluster):
    make = lambda **more: Consumer(cluster.address, **{"topics": "t", **more})  # noqa: E731
    odd: dict[str, tuple[Any, ...]] = {
        "topics": (*NO_TOPIC[:3], {"t": 1}, ODD, [], [5], [""], ""), "group": (5, "", ["g"], ODD),
        "consumer_id": (0, -1, "7", 1.5, True, {"t": "7"}, {"x": 7}, ODD),
        "start": (5, "now", ODD), "auto_commit": (1, "yes"), "idle_timeout": NO_SECONDS,
        "on_out_of_range": (5, "skip"), "on_damaged": (5, "error", None),
        "on_assign": NO_CALLBACK, "on_revoke": NO_CALLBACK, "on_lost": NO_CALLBACK,
        "fetch_wait_ms": (1.5, "1", -1), "nonsense": (5,),
    }  # fmt: skip
    for name, values in odd.items():
        for value in values:
            refused(lambda name=name, value=value: make(**{name: value}), f"{name}={value!r}")
    for value in NO_CLUSTER:
        refused(lambda value=value: Consumer(value, "t"), f"cluster={value!r}")
    with make(consumer_id=7) as consumer:
        first = consumer.poll(1)[0]
        check(consumer_values(first), consumer_calls(consumer))
        assert consumer.assignment() == [TP] and consumer.position(TP) == 1
        assert [message.offset for message in consumer.poll()] == [1, 2, 3, 4]


def consumer_calls(consumer: Any) -> dict[str, Callable[[Any], Any]]:
    return {
        "poll": lambda x: consumer.poll(x),
        "timeout": lambda x: consumer.poll(timeout=x),
        "seek to": lambda x: consumer.seek(TP, x),
        "seek of": lambda x: consumer.seek(x, 1),
        "seek_to_time": lambda x: consumer.seek_to_time(x),
        "seek_to_time of": lambda x: consumer.seek_to_time(5, x),
        "seek_to_beginning": lambda x: consumer.seek_to_beginning(x),
        "seek_to_end": lambda x: consumer.seek_to_end(x),
        "seek_to_end in": lambda x: consumer.seek_to_end(timeout=x),
        "position": lambda x: consumer.position(x),
        "position in": lambda x: consumer.position(TP, timeout=x),
        "pause": lambda x: consumer.pause(x),
        "resume": lambda x: consumer.resume(x),
        "lag": lambda x: consumer.lag(x),
        "committed": lambda x: consumer.committed(x),
        "committed in": lambda x: consumer.committed(timeout=x),
        "commit": lambda x: consumer.commit(x),
        "commit in": lambda x: consumer.commit(timeout=x),
        "close": lambda x: consumer.close(x),
    }


def consumer_values(message: Message) -> dict[str, list[Any]]:
    return {
        "poll": [0, -1, 0.5, "1", True, ODD],
        "timeout": [*NO_SECONDS],
        "seek to": [*NO_OFFSET],
        "seek of": [*NO_PARTITION, ("x", 0), ("t", 9)],
        "seek_to_time": [None, time.time(), NAN, INF, -1, "now", True, 1 << 63, ODD],
        "seek_to_time of": [*NO_PARTITIONS, "x", ("t", 9)],
        "seek_to_beginning": [*NO_PARTITIONS],
        "seek_to_end": [*NO_PARTITIONS],
        "seek_to_end in": [*NO_SECONDS],
        "position": [*NO_PARTITION],
        "position in": [*NO_SECONDS],
        "pause": [*NO_PARTITIONS],
        "resume": [*NO_PARTITIONS],
        "lag": [b"t", [5], ODD, NAN],
        "committed": [b"t", [5], ODD, NAN],
        "committed in": [*NO_SECONDS],
        "commit in": [*NO_SECONDS],
        "commit": [
            5,
            "t",
            TP,
            [message],
            {"t": 5},
            {TP: 1.5},
            {TP: -1},
            {TP: "1"},
            {("t", 9): 1},
            ODD,
            message._replace(offset=1.5),
            message._replace(partition="0"),
        ],
        "close": [None, *NO_SECONDS],
    }


def test_what_can_only_mean_one_thing_is_understood(cluster):
    host = cluster.address.removeprefix("tcp://")
    with Consumer([host], ["t"], consumer_id=8) as consumer:
        consumer.seek("t", 0, 2)
        assert consumer.position("t", 0) == consumer.position(("t", 0), 5.0) == 2
        consumer.seek(["t", 0], offset=3)
        assert consumer.position(["t", 0]) == consumer.position("t", 0, timeout=5) == 3
        assert consumer.seek_to_end(TP) == consumer.seek_to_end("t") == {TP: 5}
        assert consumer.seek_to_time(time.time() * 1000) == {TP: 5}
        assert consumer.seek_to_beginning([("t", 0)]) == {TP: 0}
        assert consumer.committed(TP) == consumer.committed([TP]) == {TP: None}
        assert consumer.committed(5) == consumer.committed(timeout=5.0) == {TP: None}
        assert consumer.lag(TP) == consumer.lag(5.0) == {TP: 5}
        consumer.pause(TP)
        assert consumer.poll(timeout=0) == []
        consumer.resume(("t", 0))
        assert len(consumer.poll(timeout=INF)) == 5
        assert consumer.commit({("t", 0): 1}, timeout=INF) == {TP: 1}
    with Producer([host]) as producer:
        producer.send("t", b"x", headers=[("a", "b")]).result(5)
        producer.send("t", b"x", headers={}).result(5)
        producer.send_many("t", [b"x"], keys=iter(["k"])).result(5)
    with Session([host, host]), Admin([host], timeout=INF) as admin:
        assert admin.create_topic("made")["partitions"]


def test_producer(cluster):
    for value in NO_CLUSTER:
        refused(lambda value=value: Producer(value), f"cluster={value!r}")
    for name, value in (("linger_ms", "5"), ("batch_bytes", 1.5), ("compression", 5), ("x", 1)):
        refused(lambda n=name, v=value: Producer(cluster.address, **{n: v}), name)
    with Producer(cluster.address) as producer:
        send, many = producer.send, producer.send_many
        once = partial(producer.send_once, request_id=b"i" * 16)
        check(
            {
                "topic": [*NO_TOPIC], "topic of many": [*NO_TOPIC], "topic of once": [*NO_TOPIC],
                "value": [None, 5, "x", [b"x"], ODD], "key": [5, ["k"], "\ud800", ODD],
                "partition": [-1, 9, "0", 0.0, True, ODD],
                "headers": ["foo", b"foo", 5, ["a"], {"a": 5}, {5: b"a"}, {"\ud800": b""},
                            {"a": "\ud800"}, ODD],
                "timestamp_ms": [-1, 1.5, "1", 1 << 63, True, ODD],
                "values": [None, 5, b"x", "x", {b"x": 1}, [5], ["x"], ODD],
                "keys": [5, "k", [5], [], [b"a", b"b"], {"k": 1}, ODD],
                "request_id": [None, b"short", "x" * 16, 5],
                "partition of once": [-1, 9, "0", 0.0, True, ODD],
                "keys of once": [5, "k", [5], [], [b"a", b"b"], {"k": 1}, ODD],
                "values of once": [None, 5, b"x", "x", [], {b"x": 1}, [5], ["x"], ODD],
                "partitions_for": [*NO_TOPIC],
                "flush": [*NO_SECONDS], "close": [*NO_SECONDS],
            },
            {
                "topic": lambda x: send(x, b"v"), "topic of many": lambda x: many(x, [b"v"]),
                "topic of once": lambda x: producer.send_once(x, [b"v"], request_id=b"i" * 16),
                "value": lambda x: send("t", x), "key": lambda x: send("t", b"v", key=x),
                "partition": lambda x: send("t", b"v", partition=x),
                "headers": lambda x: send("t", b"v", headers=x),
                "timestamp_ms": lambda x: send("t", b"v", timestamp_ms=x),
                "values": lambda x: many("t", x), "keys": lambda x: many("t", [b"v"], keys=x),
                "request_id": lambda x: producer.send_once("t", [b"v"], request_id=x),
                "partition of once": lambda x: once("t", [b"v"], partition=x),
                "keys of once": lambda x: once("t", [b"v"], keys=x),
                "values of once": lambda x: once("t", x),
                "partitions_for": producer.partitions_for, "flush": producer.flush,
                "close": producer.close,
            },
        )  # fmt: skip
        assert send("t", b"v").result(5).topic == "t"


ADMIN: dict[str, tuple[dict[str, Any], ...]] = {
    "create_topic": ({"topic": 5}, {"topic": "x", "partitions": "3"}, {"topic": "x", "settings": 5},
                     {"topic": "x", "settings": {5: 5}}, {"topic": "x", "replication": 1.5}),
    "delete_topic": ({"topic": None}, {"topic": ["t"]}),
    "create_topics": ({"topics": 5}, {"topics": [5]}, {"topics": b"t"},
                      {"topics": ["t"], "partitions": "3"}, {"topics": ["t"], "settings": 5}),
    "delete_topics": ({"topics": 5}, {"topics": [None]}),
    "alter_topic": ({"topic": "t", "settings": "x"}, {"topic": "t", "settings": {"a": ODD}}),
    "grow_topic": ({"topic": "t", "count": "1"}, {"topic": "t", "to": 1.5}),
    "topics": ({"detail": "yes"},), "describe_topic": ({"topic": 5},),
    "drain_broker": ({"broker": "1"},), "undrain_broker": ({"broker": None},),
    "remove_broker": ({"broker": 1.5}, {"broker": 1, "force": 1}),
    "counting_on": ({"broker": ODD},),
    "daemon_at": ({"address": 5}, {"address": "nowhere at all"}),
    "alter_cluster": ({"settings": 5}, {"settings": None}),
    "raft_status": ({"topic": 5}, {"topic": "t", "partition": "0"}),
    "stats": ({"daemons": 5}, {"daemons": [5]}, {"daemons": "x"}), "statuses": ({"daemons": [5]},),
    "repairs": ({"daemons": {}},),
    "where": ({"topic": "t", "partition": "0", "offset": 0}, {"topic": "t", "partition": 0,
              "offset": 1.5}),
    "register_producer": ({"topic": 5}, {"topic": "t", "create": "no"}),
    "register_consumer": ({"topic": b"t"},), "producer": ({"producer_id": "1"},),
    "consumer": ({"consumer_id": 1.5},), "offsets": ({"topic": 5}, {"topic": "t", "time_ms": "x"}),
    "positions": ({"topic": "t"}, {"topic": "t", "consumer_id": "7"}, {"topic": "t", "group": 5}),
    "lag": ({"topic": 5, "group": "g"}, {"topic": "t", "group": "g", "consumer_id": 1}),
    "describe_group": ({"group": 5},), "delete_group": ({"group": ["g"]},),
    "reset_group": ({"group": "g"}, {"group": "g", "to": "x"}, {"group": "g", "offset": "1"},
                    {"group": "g", "offset": -1}, {"group": "g", "shift": 1.5},
                    {"group": "g", "time_ms": "x"}, {"group": "g", "to": 5},
                    {"group": "g", "to": "latest", "topics": 5},
                    {"group": "g", "to": "latest", "partitions": [5]},
                    {"group": "g", "to": "latest", "partitions": "t"}),
    "close": ({"timeout": "x"}, {"timeout": None}),
}  # fmt: skip
WITHOUT_ARGUMENTS = {"brokers", "managers", "health", "problems", "cluster", "daemons", "groups"}


def test_admin(cluster):
    for value in NO_CLUSTER:
        refused(lambda value=value: Admin(value), f"cluster={value!r}")
    for value in (None, *NO_SECONDS):
        refused(lambda value=value: Admin(cluster.address, timeout=value), f"timeout={value!r}")
    with Admin(cluster.address) as admin:
        for name, rows in ADMIN.items():
            for row in rows:
                refused(lambda name=name, row=row: getattr(admin, name)(**row), f"{name} {row}")


def test_the_table_has_every_method_of_admin():
    public = {name for name, _ in inspect.getmembers(Admin, callable) if not name.startswith("_")}
    assert public == set(ADMIN) | WITHOUT_ARGUMENTS


def test_my_producer_and_my_consumer(cluster):
    for value in (None, 5, b"h:1", [5], [], "", ODD):
        refused(lambda value=value: MyProducer(["t"], value), f"broker={value!r}")
        refused(lambda value=value: MyConsumer(["t"], value), f"broker={value!r}")
    for value in (None, 5, b"t", [5], {"t": 1}, ODD):
        refused(lambda value=value: MyProducer(value, cluster.address), f"topics={value!r}")
        refused(lambda value=value: MyConsumer(value, cluster.address), f"topics={value!r}")
    for more in (
        *({"idle_timeout": value} for value in NO_SECONDS),
        *({"consumer_ids": value} for value in (5, {"t": "1"}, {5: 1}, {"t": 0}, ODD)),
        *({"on_out_of_range": value} for value in (5, "skip", None)),
        *({"on_damaged": value} for value in (5, "error", None)),
    ):
        refused(lambda more=more: MyConsumer(["t"], cluster.address, **more), more)
    with MyProducer(["t"], [cluster.address]) as producer:
        for value in NO_TOPIC:
            refused(lambda value=value: producer.send(value, b"x"), f"topic={value!r}")
        for value in (None, 5, [b"x"], ODD):
            refused(lambda value=value: producer.send("t", value), f"value={value!r}")
        producer.send("t", b"x").result(5)


def test_async(cluster):
    for value in NO_CLUSTER:
        refused(lambda value=value: AsyncProducer(value), f"cluster={value!r}")

    async def main() -> None:
        loop = asyncio.get_running_loop()

        class Blocking:
            """The calls of an async client, each waited for in another thread than the loop's."""

            def __init__(self, client: Any) -> None:
                self.client = client

            def __getattr__(self, name: str) -> Callable[..., Any]:
                def call(*arguments: Any, **named: Any) -> Any:
                    made = getattr(self.client, name)(*arguments, **named)
                    return asyncio.run_coroutine_threadsafe(made, loop).result(10)

                return call

        async with AsyncConsumer([cluster.address], "t", consumer_id=9) as consumer:
            [first] = await consumer.poll(1)
            calls, values = consumer_calls(Blocking(consumer)), consumer_values(first)
            await asyncio.to_thread(check, values, calls)
            await consumer.seek("t", 0, 2)
            assert await consumer.position("t", 0) == 2
        async with AsyncProducer([cluster.address]) as producer:
            some = Blocking(producer)
            values = {
                "topic": [*NO_TOPIC],
                "value": [None, 5, "x", ODD],
                "headers": ["foo", 5],
                "values": [None, 5, b"x", [5], ODD],
                "flush": [*NO_SECONDS],
                "close": [*NO_SECONDS],
            }
            calls = {
                "topic": lambda x: some.send(x, b"v"),
                "value": lambda x: some.send("t", x),
                "headers": lambda x: some.send("t", b"v", headers=x),
                "values": lambda x: some.send_many("t", x),
                "flush": some.flush,
                "close": some.close,
            }
            await asyncio.to_thread(check, values, calls)
            assert (await producer.send("t", b"v")).topic == "t"
        for more in ({"max_poll_ms": "5"}, {"idle_timeout": "5"}, {"group": 5}, {"topics": 5}):
            with pytest.raises(errors.MisuseError):
                async with AsyncConsumer(cluster.address, **{"topics": "t", **more}):
                    pass

    asyncio.run(main())


@pytest.mark.parametrize("kind", [words.FETCH, words.OFFSETS])
def test_what_a_broker_refuses_of_one_partition_does_not_stop_the_others(kind):
    with EchoCluster(1) as cluster:
        serve_reads(cluster)
        logs = cluster.topic("several", 3)
        for log in logs:
            fill(log, 4)
        bad, daemon = cluster.topics["several"][1], cluster.daemons[0]
        usual, refusals = daemon.script, [True]

        def script(envelope: words.Envelope, frames: list[bytes]) -> Any:
            parts = envelope[-1] if envelope[words.KIND] == kind else []
            named = [part[0] if kind == words.FETCH else part for part in parts]
            if bad in named and refusals:
                return refuse(envelope[words.REQUEST], errors.InvalidRequest, "not this one")
            return usual(envelope, frames)

        daemon.script = script
        with Consumer(cluster.address, "several") as consumer:
            found: list[Message] = []
            failed: list[errors.MyQueueError] = []

            def read_until(messages: int, refused: int) -> None:
                end = time.monotonic() + 5
                while len(found) < messages or len(failed) < refused:
                    assert time.monotonic() < end, (found, failed)
                    try:
                        found.extend(consumer.poll(timeout=0.1))
                    except errors.InvalidRequest as error:
                        failed.append(error)

            read_until(8, 2)
            assert {message.partition for message in found} == {0, 2}
            fill(logs[0], 1)  # and they go on
            read_until(9, 2)
            assert len(failed) <= 4  # one a second
            refusals.clear()
            read_until(13, 2)
            assert sorted(m.offset for m in found if m.partition == 1) == [0, 1, 2, 3]
