"""The HTTP contract as a table: every request in every spelling, its status and its answer.

`ROWS` has each method and path with each of its parameters under all names, written by hand from
the documents. One runner sends each row in every way that clients use (query string, JSON, a form,
JSON under a wrong Content-Type), and once more for each other name of each parameter; a value that
was ignored would show in what is answered. `REFUSALS` are requests that may not be half understood.
A last test compares the table with `/openapi.json`, so neither can say what the other does not.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from support.gateways import Client, Gateway, bad, good
from support.processes import Cluster

pytestmark = pytest.mark.slow

TOPIC: Final = "topic topic_name name"
PARTITION: Final = (
    "partition partition_id partition_index partition_number partition_no partition_num"
    " partition_key part"
)
PARTITIONS: Final = (
    "partitions number_of_partitions num_partitions no_of_partitions partition_count"
    " partitions_count n_partitions"
)
REPLICATION: Final = "replication replication_factor replicas num_replicas number_of_replicas"
PRODUCER, CONSUMER = "producer_id id", "consumer_id id"
MESSAGE: Final = "message log_message"
ADDRESS: Final = (
    "address broker_address broker_addr addr broker host hostname ip broker_host broker_ip url"
    " broker_url"
)
PORT: Final = "port broker_port"
JSON, FORM, TEXT = "application/json", "application/x-www-form-urlencoded", "text/plain"


MIGRATING: Final = Path(__file__).resolve().parents[2] / "gateway" / "MIGRATING.md"


class World:
    """What the values of the table stand for: `@topic` is a topic of three partitions, and so on.
    A value with `*` is another one for each request.
    """

    def __init__(self, http: Client, cluster: Cluster) -> None:
        self.http, self._number = http, count()
        self.broker = f"127.0.0.1:{cluster.ports['broker', 3][0]}"
        self.broker_port = cluster.ports["broker", 3][0]
        self.topic = "contract"
        good(http.ask("POST", "/topics", {"topic": self.topic, "partitions": 3}))
        self.producer, self.consumer = self.ids(self.topic)
        self.offset = self.stored("a message that stays")  # at 0 of partition 2

    def ids(self, topic: str) -> tuple[int, int]:
        ask = self.http.ask
        producer = good(ask("POST", "/producer/register", {"topic": topic}))["producer_id"]
        return producer, good(ask("POST", "/consumer/register", {"topic": topic}))["consumer_id"]

    def stored(self, text: str = "17 apples") -> int:
        """A message in partition 2: there is always something left there."""
        body = {"topic": self.topic, "producer_id": self.producer, "partition": 2, "message": text}
        offset: int = good(self.http.ask("POST", "/producer/produce", body))["offset"]
        return offset

    def new_topic(self) -> str:
        return f"contract-{next(self._number)}"

    def made_topic(self, partitions: int = 1) -> str:
        topic = self.new_topic()
        good(self.http.ask("POST", "/topics", {"topic": topic, "partitions": partitions}))
        return topic

    def group(self) -> str:
        """One that has a position."""
        name = self.new_topic()
        body = {"to": "earliest", "topic": self.topic}
        good(self.http.ask("POST", f"/groups/{name}/reset", body))
        return name

    def value(self, word: Any) -> Any:
        match word:
            case "*new":
                return self.new_topic()
            case "*made":
                return self.made_topic()
            case "*group":
                return self.group()
            case "*stored":
                self.stored()
                return self.consumer
            case "@topic":
                return self.topic
            case "@producer" | "@consumer" | "@broker" | "@broker_port":
                return getattr(self, word[1:])
            case "@host":
                return "127.0.0.1"
            case "@group":
                return f"{self.topic}/2"
        return word


@dataclass(frozen=True, slots=True)
class Row:
    """One operation. `names` by value: each parameter under all of its names, first the plainest.

    `says` are members of the answer: a value, or a type. `odd`: parameters that are given alone in
    a further request, since they exclude each other.
    """

    request: str
    names: tuple[tuple[str, Any], ...] = ()
    says: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    also: str = ""  # other paths of the same
    odd: tuple[tuple[str, Any], ...] = ()
    key: bool = False

    @property
    def requests(self) -> list[tuple[str, str]]:
        method, path = self.request.split(" ")
        return [(method, one) for one in (path, *self.also.split())]


TAKEN: Final = {"message": str, "log_message": str, "partition": 2, "offset": int, "timestamp": int}
CONSUME: Final = (
    (TOPIC, "@topic"),
    (CONSUMER, "*stored"),
    (PARTITION, 2),
    ("max", 1),
    ("wait_ms", 0),
    ("encoding", "base64"),
    ("empty", "success"),
    ("on_damaged", "skip"),
)
PRODUCE: Final = (
    (TOPIC, "@topic"),
    (PRODUCER, "@producer"),
    (MESSAGE, "MTc="),
    (PARTITION, 2),
    ("key", "aw=="),
    ("encoding", "base64"),
)
STORED: Final = {"partition": 2, "offset": int}
PLACE: Final = {"topic": "contract", "partition": 2, "brokers": list, "leader": dict, "term": int}
NUMBER_OF_BROKER: Final = ("broker_id", 3)

ROWS: Final = (
    Row("POST /topics", ((TOPIC, "*new"), (PARTITIONS, 2), (REPLICATION, 1),
        ("settings", {"retention_ms": 5})), {"partitions": [0, 1], "topic": str, "message": str},
        key=True),
    Row("GET /topics", (("detail", True),), {"topics": list}),
    Row("GET /topics/{topic}", ((TOPIC, "@topic"),), {"topic": "contract", "partitions": list}),
    Row("POST /topics/{topic}/settings", ((TOPIC, "@topic"), ("settings", {"retention_bytes": 0})),
        {"settings": dict}, key=True),
    Row("DELETE /topics/{topic}", ((TOPIC, "*made"),), {"message": str}, key=True),
    Row("POST /producer/register", ((TOPIC, "@topic"), (PARTITION, 2)),
        {"producer_id": int, "partitions": [0, 1, 2], "topic": "contract", "partition": 2},
        also="/producers", key=True),
    Row("POST /consumer/register", ((TOPIC, "@topic"), (PARTITION, 2)),
        {"consumer_id": int, "partitions": [0, 1, 2], "topic": "contract", "partition": 2},
        also="/consumers", key=True),
    Row("POST /producer/produce", PRODUCE, STORED, key=True, odd=(("messages", ["MTc=", "MTg="]),)),
    Row("POST /logs", PRODUCE, STORED, also="/messages", key=True,
        odd=(("messages", ["MTc=", "MTg="]),)),
    Row("GET /consumer/consume", CONSUME, TAKEN, key=True),
    Row("POST /consumer/consume", CONSUME, TAKEN, key=True),
    Row("GET /logs", CONSUME, TAKEN, also="/messages", key=True),
    Row("GET /size", ((TOPIC, "@topic"), (CONSUMER, "*stored"), (PARTITION, 2)), {"size": int}),
    Row("POST /producer/heartbeat", ((PRODUCER, "@producer"),), {"producer_id": int}),
    Row("POST /consumer/heartbeat", ((CONSUMER, "@consumer"),), {"consumer_id": int}),
    Row("GET /partitions", ((TOPIC, "@topic"), (PARTITION, 2)), PLACE),
    Row("POST /partitions", ((TOPIC, "*made"), (PARTITION, 1)),
        {"partition": 1, "partitions": [1]}, key=True, odd=(("count", 1),)),
    Row("GET /brokers", (), {"brokers": list}, also="/broker"),
    Row("GET /brokers/{broker_id}", (NUMBER_OF_BROKER,), {"id": 3, "address": str, "state": str}),
    Row("POST /brokers", ((ADDRESS, "@host"), (PORT, "@broker_port"), ("wait_ms", 30_000)),
        {"broker_id": 3, "state": "active", "message": str}, also="/broker", key=True),
    Row("POST /brokers/{broker_id}/drain", (NUMBER_OF_BROKER, ("wait_ms", 0)), status=409,
        key=True),
    Row("POST /brokers/{broker_id}/undrain", (NUMBER_OF_BROKER,), {"broker_id": 3}, key=True),
    Row("DELETE /brokers/{broker_id}", (NUMBER_OF_BROKER, ("drain", False), ("force", False),
        ("wait_ms", 0)), status=409, key=True),
    Row("GET /groups", (("detail", 1),), {"groups": list}),
    Row("GET /groups/{group}", (("group name", "*group"),), {"state": "empty"}),
    Row("POST /groups/{group}/reset", (("group name", "*group"), ("to", "latest"),
        ("topic topic_name", "@topic"), (PARTITION, 2), ("force", False), ("dry_run", True)),
        {"executed": False, "partitions": list},
        odd=(("offset", 1), ("time_ms", 1), ("shift", -1))),
    Row("DELETE /groups/{group}", (("group name", "*group"),), {"message": str}),
    Row("GET /health", (), {"brokers": list, "producers": list, "consumers": list}),
    Row("GET /raft_status", ((TOPIC, "@topic"), (PARTITION, 2)),
        {"group": "contract/2", "leader": int, "members": list}, odd=(("group", "@group"),)),
    Row("GET /repairs", (), {"repairs": list}),
    Row("GET /where", ((TOPIC, "@topic"), (PARTITION, 2), ("offset", 0)), {"replicas": list}),
    Row("GET /settings", (), {"settings": dict}),
    Row("POST /settings", (("settings", {"replace_after_ms": None}),), {"settings": dict},
        key=True),
    Row("GET /livez", (), {"message": "alive"}, also="/ping"),
    Row("GET /", (), {"message": "alive"}),
    Row("GET /status", (), {"brokers": 3, "brokers_alive": 3, "managers": 3, "leader": int}),
    Row("GET /readyz", (("check", "quorum-critical"),), {"message": "ready"}),
    Row("GET /healthz", (), {"problems": list}),
    Row("GET /openapi.json", (), {"openapi": "3.1.0"}),
)  # fmt: skip


@pytest.fixture(scope="module")
def world(gateway: Gateway, cluster: Cluster) -> Iterator[World]:
    with Client([gateway.port]) as http:
        yield World(http, cluster)
        gateway.check()


Values = dict[str, Any]
Answer = tuple[int, Values]
Send = Callable[[Client, str, str, Values], Answer]


def _texts(values: Values) -> dict[str, str]:
    """As query strings and forms have them."""
    return {n: v if isinstance(v, str) else json.dumps(v) for n, v in values.items()}


def _in_query(http: Client, method: str, path: str, values: Values) -> Answer:
    return http.ask(method, f"{path}?{urllib.parse.urlencode(_texts(values))}")


def _in_form(http: Client, method: str, path: str, values: Values) -> Answer:
    body = urllib.parse.urlencode(_texts(values)).encode()
    return http.ask(method, path, body, headers={"Content-Type": FORM})


def _as(content_type: str) -> Send:
    def send(http: Client, method: str, path: str, values: Values) -> Answer:
        return http.ask(method, path, values, headers={"Content-Type": content_type})

    return send


WAYS: Final[tuple[Send, ...]] = (_as(JSON), _in_query, _in_form, _as(TEXT), _as(FORM))


def spelled(row: Row) -> Iterator[tuple[tuple[str, Any], ...]]:
    """The parameters of each request: under their plainest names, and each under each other one."""
    plain = tuple((names.split()[0], value) for names, value in row.names)
    yield plain
    for at, (names, value) in enumerate(row.names):
        for other in names.split()[1:]:
            yield (*plain[:at], (other, value), *plain[at + 1 :])
    for one in row.odd:
        excluded = {
            "offset": ("to",),
            "time_ms": ("to",),
            "shift": ("to",),
            "count": PARTITION,
            "messages": MESSAGE,
            "group": f"{TOPIC} {PARTITION}",
        }[one[0]]
        yield (*((name, value) for name, value in plain if name not in excluded), one)


def sent(world: World, way: Send, method: str, path: str, given: tuple[Any, ...]) -> Answer:
    values = {name: world.value(word) for name, word in given}
    for name in re.findall(r"{(\w+)}", path):
        path = path.replace(f"{{{name}}}", str(values.pop(name)))
    return way(world.http, method, path, values)


def check(row: Row, answer: Answer, way: str) -> None:
    status, said = answer
    assert status == row.status, (row.request, way, said)
    for name, value in row.says.items():
        is_kind = isinstance(value, type)
        fits = isinstance(said[name], value) if is_kind else said[name] == value
        assert fits, (row.request, way, name, said)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.request)
def test_every_request_in_every_spelling(world: World, row: Row) -> None:
    """B2. Parameters in the path have one name there, so other names of them are not sent."""
    in_path = re.findall(r"{(\w+)}", row.request)
    for method, path in row.requests:
        for number, given in enumerate(spelled(row)):
            names = [name for name, _ in given]
            if not set(in_path) <= set(names):
                continue
            odd = len(given) > 0 and given[-1] in row.odd
            for way in WAYS if not number else WAYS[:1]:
                if method == "GET" and path == "/" and way is not _in_query:
                    continue
                answer = sent(world, way, method, path, given)
                if odd:
                    assert answer[0] == 200, (path, given, answer)
                else:
                    check(row, answer, f"{path} {names}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is refused; `told` are words of its message or hint."""

    request: str
    body: dict[str, Any]
    status: int
    name: str
    told: str = ""


OURS: Final = {"topic": "@topic", "producer_id": "@producer", "message": "x"}
MINE: Final = {"topic": "@topic", "consumer_id": "@consumer"}
REFUSALS: Final = (
    # -- a partition that is none, wherever one may be named --
    Refusal("POST /producer/produce", OURS | {"partition_index": 7}, 404, "UNKNOWN_PARTITION"),
    Refusal("POST /producer/produce", OURS | {"part": "x"}, 400, "INVALID_REQUEST", "part is"),
    Refusal("GET /consumer/consume", MINE | {"partition_no": 7}, 404, "UNKNOWN_PARTITION"),
    Refusal("GET /size", MINE | {"partition_key": 7}, 404, "UNKNOWN_PARTITION"),
    Refusal("POST /producer/register", {"topic": "@topic", "partition": 7}, 404,
            "UNKNOWN_PARTITION", "0 to 2, not 7"),
    Refusal("POST /producer/register", {"topic": "*new", "partition": 1}, 404,
            "UNKNOWN_PARTITION", "0 to 0, not 1"),
    Refusal("POST /consumers", {"topic": "@topic", "partition_id": 3}, 404, "UNKNOWN_PARTITION"),
    Refusal("POST /partitions", {"topic": "@topic", "partition": 2}, 409, "PARTITION_EXISTS"),
    Refusal("POST /partitions", {"topic": "@topic", "partition": 9}, 400, "INVALID_REQUEST",
            "the next one is 3"),
    Refusal("POST /partitions", {"topic": "@topic", "partition": 3, "count": 2}, 400,
            "INVALID_REQUEST"),
    Refusal("GET /partitions", {"partition": 0}, 400, "INVALID_REQUEST", "without its topic"),
    Refusal("GET /raft_status", {"topic": "@topic", "partition": 7}, 404, "UNKNOWN_PARTITION"),
    Refusal("GET /raft_status", {"topic": "@topic"}, 400, "INVALID_REQUEST", "say which one"),
    Refusal("GET /raft_status", {"partition": 1}, 400, "INVALID_REQUEST", "without its topic"),
    Refusal("GET /raft_status", {"group": "@group", "partition": 1}, 400, "INVALID_REQUEST"),
    Refusal("GET /raft_status", {"group": "managers", "topic": "@topic"}, 400, "INVALID_REQUEST"),
    Refusal("GET /logs", MINE, 400, "INVALID_REQUEST", "partition is missing"),
    # -- an unknown parameter of what creates or removes, with the nearest known one --
    Refusal("POST /topics", {"topic": "*new", "partiton": 3}, 400, "INVALID_SETTING",
            "did you mean 'partition_count'|did you mean 'partitions'"),
    Refusal("POST /topics", {"topic": "*new", "retention_m": 3}, 400, "INVALID_SETTING",
            "did you mean 'retention_ms'"),
    Refusal("POST /topics", {"topic": "*new", "settings": {"partition_grow": 3}}, 400,
            "INVALID_SETTING", "did you mean 'partition_growth'"),
    Refusal("POST /producer/produce", OURS | {"partition_key": "customer 4"}, 400,
            "INVALID_REQUEST", "share a partition"),
    Refusal("POST /topics", {"topic": "*new", "colour": 3}, 400, "INVALID_SETTING"),
    Refusal("POST /producers", {"topic": "*new", "partitoin": 0}, 400, "INVALID_REQUEST",
            "did you mean 'partition'"),
    Refusal("POST /consumer/register", {"topic": "@topic", "colour": 0}, 400, "INVALID_REQUEST",
            "It takes topic, partition."),
    Refusal("POST /partitions", {"topic": "@topic", "cuont": 2}, 400, "INVALID_REQUEST",
            "did you mean 'count'"),
    Refusal("POST /brokers", {"adress": "@broker"}, 400, "INVALID_REQUEST",
            "did you mean 'address'"),
    Refusal("DELETE /brokers/99", {"forced": True}, 400, "INVALID_REQUEST",
            "did you mean 'force'"),
    Refusal("DELETE /topics/no-such", {"colour": 1}, 400, "INVALID_REQUEST"),
    # -- a slip of the pen, anywhere --
    Refusal("POST /producer/produce", OURS | {"partiton": 1}, 400, "INVALID_REQUEST",
            "did you mean 'partition'"),
    Refusal("GET /consumer/consume", MINE | {"wait_m": 1}, 400, "INVALID_REQUEST",
            "did you mean 'wait_ms'"),
    # -- names of topics and groups that lead elsewhere --
    Refusal("POST /topics", {"topic": "."}, 400, "INVALID_NAME", "can't be named '.'"),
    Refusal("POST /producer/register", {"topic": ".."}, 400, "INVALID_NAME", "named '..'"),
    Refusal("POST /groups/./reset", {"topic": "@topic", "to": "latest"}, 400, "INVALID_NAME",
            "a group can't be named '.'"),
    Refusal("POST /groups/../reset", {"topic": "@topic", "to": "latest"}, 400, "INVALID_NAME",
            "a group can't be named '..'"),
    # -- ids --
    Refusal("POST /producer/produce", {"producer_id": 999_999, "message": "x"}, 404,
            "UNKNOWN_CLIENT"),
    Refusal("GET /consumer/consume", {"topic": "@topic"}, 400, "INVALID_REQUEST",
            "consumer_id is missing"),
)  # fmt: skip


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.request} {list(row.body)[-1:]}")
def test_nothing_is_half_understood(world: World, row: Refusal) -> None:
    method, path = row.request.split(" ")
    values = {name: world.value(word) for name, word in row.body.items()}
    said = bad(world.http.ask(method, path, values), row.status, row.name)
    assert re.search(row.told, f"{said['message']}\n{said['hint']}"), said
    assert said["outcome"] == "none" and not said["retriable"], said
    if method == "POST" and "*new" in row.body.values():
        assert values["topic"] not in good(world.http.ask("GET", "/topics"))["topics"]


EMPTY: Final = {"status": "failure", "message": None, "empty": True}


@pytest.mark.parametrize("path", ["/consumer/consume", "/logs", "/messages"])
def test_nothing_left_is_a_failure_with_status_200(world: World, path: str) -> None:
    """P6: with this word reading loops written for the documents end; empty=success is the other
    one, and so is a gateway that was started with it.
    """
    topic = world.made_topic()
    _, consumer = world.ids(topic)
    asked: Values = {"topic": topic, "consumer_id": consumer, "partition": 0}
    assert world.http.ask("GET", path, asked) == (200, EMPTY)
    assert world.http.ask("GET", path, asked | {"wait_ms": 1}) == (200, EMPTY)
    success = {
        "status": "success",
        "message": None,
        "partition": None,
        "offset": None,
        "empty": True,
    }
    assert world.http.ask("GET", path, asked | {"empty": "success"}) == (200, success)
    many = good(world.http.ask("GET", path, asked | {"max": 5}))
    assert (many["status"], many["messages"]) == ("success", [])
    key = {"Idempotency-Key": "nothing"}
    for _ in range(2):
        assert world.http.ask("GET", path, asked, headers=key) == (200, EMPTY)


def test_a_gateway_may_say_success(world: World, folder: Path, cluster: Cluster) -> None:
    _, consumer = world.ids(topic := world.made_topic())
    with Gateway(folder, cluster.address, "success", empty="success") as other:
        with Client([other.port]) as http:
            found = good(http.ask("GET", "/consumer/consume", topic=topic, consumer_id=consumer))
            assert (found["status"], found["empty"]) == ("success", True)
            asked = {"topic": topic, "consumer_id": consumer, "empty": "failure"}
            assert http.ask("GET", "/consumer/consume", asked) == (200, EMPTY)
        other.check()


def test_the_partition_of_an_id_holds_at_every_gateway_and_after_restarts(
    world: World, folder: Path, cluster: Cluster
) -> None:
    """It is kept with the registration, which the managers replicate."""
    topic, ask = world.made_topic(3), world.http.ask
    asked = {"topic": topic, "partition_number": 2}
    producer = good(ask("POST", "/producer/register", asked))["producer_id"]
    consumer = good(ask("POST", "/consumers", asked))["consumer_id"]
    body = {"producer_id": producer, "message": "here"}
    assert [good(ask("POST", "/producer/produce", body))["partition"] for _ in range(4)] == [2] * 4
    assert good(ask("POST", "/producer/produce", body | {"partition": 1}))["partition"] == 1
    assert good(ask("POST", "/logs", body))["partition"] == 2
    for manager in (1, 2, 3):  # one after the other, so that a majority is always there
        cluster.kill(("manager", manager))
        cluster.start(("manager", manager))
        cluster.wait_healthy(60)
    with Gateway(folder, cluster.address, "after") as other, Client([other.port]) as http:
        assert good(http.ask("POST", "/producer/produce", body))["partition"] == 2
        assert good(http.ask("GET", "/size", {"consumer_id": consumer}))["size"] == 6
        for _ in range(6):
            found = good(http.ask("GET", "/logs", {"consumer_id": consumer}))
            assert (found["partition"], found["log_message"]) == (2, "here")
        assert http.ask("GET", "/consumer/consume", {"consumer_id": consumer})[1] == EMPTY
        found = good(http.ask("GET", "/consumer/consume", {"id": consumer, "partition": 1}))
        assert found["partition"] == 1
        other.check()


def test_an_id_tells_its_topic(world: World) -> None:
    topic, ask = world.made_topic(), world.http.ask
    producer, consumer = world.ids(topic)
    good(ask("POST", "/producer/produce", {"producer_id": producer, "message": "x"}))
    assert good(ask("GET", "/size", consumer_id=consumer))["size"] == 1
    assert good(ask("GET", "/consumer/consume", consumer_id=consumer))["message"] == "x"
    good(ask("DELETE", f"/topics/{topic}"))
    assert ask("GET", "/size", consumer_id=consumer)[0] == 404  # with its topic it is gone


def test_a_partition_is_added_once(world: World) -> None:
    topic, ask = world.made_topic(), world.http.ask
    first: Values = {"topic": topic, "partition": 1}
    for _ in range(2):  # with a key the repeat gets the first answer
        found = good(ask("POST", "/partitions", first, headers={"Idempotency-Key": "one"}))
        assert found["partitions"] == [1]
    bad(ask("POST", "/partitions", first), 409, "PARTITION_EXISTS")
    assert good(ask("POST", "/partitions", {"topic": topic, "count": 2}))["partitions"] == [2, 3]


def test_partitions_of_all_topics(world: World) -> None:
    other = world.made_topic()
    rows = good(world.http.ask("GET", "/partitions"))["partitions"]
    places = [(row["topic"], row["partition"]) for row in rows]
    assert {(world.topic, 0), (world.topic, 1), (world.topic, 2), (other, 0)} <= set(places)
    of_one = good(world.http.ask("GET", "/partitions", topic=world.topic))["partitions"]
    assert [row["partition"] for row in of_one] == [0, 1, 2]


@pytest.mark.parametrize("form", ["{}", "tcp://{}", "http://{}", "http://{}/", "https://{}/x"])
@pytest.mark.parametrize("path", ["/brokers", "/broker"])
def test_a_brokers_address_in_every_form(world: World, path: str, form: str) -> None:
    body = {"broker_address": form.format(world.broker)}
    assert good(world.http.ask("POST", path, body))["broker_id"] == 3


@pytest.mark.parametrize("name", ["topicName", "topic-name", "topicname", "Topic_Name", "TOPIC"])
def test_other_ways_to_join_words(world: World, name: str) -> None:
    body = {name: world.topic, "producerId": world.producer, "message": "x", "partitionIndex": 1}
    assert good(world.http.ask("POST", "/producer/produce", body))["partition"] == 1


def test_the_page_for_migrants_names_what_there_is() -> None:
    """Each method and path of its tables is one of the contract's, and so are their parameters."""
    known = {
        request: {name for names, _ in (*row.names, *row.odd) for name in names.split()}
        for row in ROWS
        for request in row.requests
    }
    page = MIGRATING.read_text("utf-8")
    named = set(re.findall(r"`(GET|POST|DELETE) (/[a-z_/]*)", page))
    assert len(named) > 15 and named <= known.keys() | {("DELETE", "/brokers/")}
    cells = re.findall(r"^\| `(GET|POST) (/[a-z_/]*)` (`.*?`) \|", page, re.MULTILINE)
    assert len(cells) >= 9
    for method, path, parameters in cells:
        assert set(re.findall(r"[a-z_]+", parameters)) <= known[method, path], (path, parameters)


def test_the_table_is_what_the_document_says(http: Client) -> None:
    """Every path and method, each parameter with all of its names, and where a key may be sent."""
    table = {
        (method, path): (
            {names.split()[0]: names.split() for names, _ in (*row.names, *row.odd)},
            row.key,
        )
        for row in ROWS
        for method, path in row.requests
    }
    for (method, path), (names, _) in table.items():
        if path == "/producer/produce" or (method == "POST" and path in ("/logs", "/messages")):
            names["messages"] = ["messages"]
        if path == "/partitions" and method == "POST":
            names["producer_id"] = ["producer_id"]  # of whoever asks; nothing depends on it
    said = {}
    for path, methods in good(http.ask("GET", "/openapi.json"))["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            assert sorted(content) in ([], [JSON, FORM]), path
            assert not content or content[JSON] == content[FORM], path
            rows = content.get(JSON, {}).get("schema", {}).get("properties", {})
            found = {name: [name, *one.get("x-also-named", ())] for name, one in rows.items()}
            parameters = operation.get("parameters", [])
            keyed = any(one["in"] == "header" for one in parameters)
            found |= {
                one["name"]: [one["name"], *one.get("x-also-named", ())]
                for one in parameters
                if one["in"] != "header"
            }
            said[method.upper(), path] = found, keyed
    assert said == table
