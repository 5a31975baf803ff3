"""Every parameter of the API, once: its name, its aliases (`also`), its limits, its description.

The descriptions are shown in the OpenAPI document and in errors.
"""

from __future__ import annotations

from typing import Any, Final

from myqueue.errors import InvalidRequest
from myqueue.gateway.api import parameters as kinds
from myqueue.gateway.api.parameters import INT_MAX, Parameter, Schema

PARTITIONS_MAX, REPLICATION_MAX = 1000, 9
MESSAGES_MAX: Final = 1000  # of one consume
_ANY_NUMBER: Final = kinds.number()
NAME_PATTERN: Final = "^[A-Za-z0-9._-]{1,200}$"

# -- schemas of answers ---------------------------------------------------------------------------

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer"}
NUMBERS: Final[Schema] = {"type": "array", "items": {"type": "integer"}}
TEXTS: Final[Schema] = {"type": "array", "items": {"type": "string"}}
FLAG: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}
ROWS: Final[Schema] = {"type": "array", "items": {"type": "object"}}


def nullable(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"]}


def rows(properties: dict[str, Schema]) -> Schema:
    """The schema of a list of objects with these properties."""
    return {"type": "array", "items": OBJECT | {"properties": properties}}


def _whole(low: int, high: int = INT_MAX) -> Schema:
    """The schema of a whole number; in the query string its digits mean the same."""
    limits: Schema = {"minimum": low} | ({"maximum": high} if high < INT_MAX else {})
    return {"type": "integer", **limits}


def _number(name: str, about: str, low: int = 0, high: int = INT_MAX, **more: Any) -> Parameter:
    return Parameter(
        name=name, read=kinds.number(low, high), schema=_whole(low, high), about=about, **more
    )


def _partition(about: str, **more: Any) -> Parameter:
    return Parameter(
        name="partition",
        read=_partition_number,
        schema=_whole(0),
        about=about,
        also=PARTITION_NAMES,
        **more,
    )


def _partition_number(name: str, value: Any) -> int:
    try:
        return _ANY_NUMBER(name, value)  # type: ignore[no-any-return]
    except InvalidRequest as error:
        if name != "partition_key":
            raise
        hint = "It is another name of partition. Messages with the same key=… share a partition."
        raise InvalidRequest(str(error), hint=hint) from None


def _flag(name: str, about: str, **more: Any) -> Parameter:
    return Parameter(
        name=name, read=kinds.flag, schema={"type": "boolean"}, default=False, about=about, **more
    )


def _choice(name: str, about: str, *known: str, **more: Any) -> Parameter:
    return Parameter(
        name=name, read=kinds.choice(*known), schema={"enum": list(known)}, about=about, **more
    )


def _name(name: str, also: str, about: str, **more: Any) -> Parameter:
    """The name of a topic or a group."""
    return Parameter(
        name=name,
        also=tuple(also.split()),
        read=kinds.topic_name,
        schema={"type": "string", "pattern": NAME_PATTERN},
        about=about,
        **more,
    )


def _topic(about: str, **more: Any) -> Parameter:
    return _name("topic", "topic_name name", about, example="orders", **more)


def _settings(about: str, example: dict[str, int]) -> Parameter:
    return Parameter(
        name="settings", read=kinds.mapping, schema={"type": "object"}, default={}, about=about,
        example=example,
    )  # fmt: skip


# The facts of a batch that can't be unpacked: where it is, and what else was taken with it.
UNREADABLE: Final[dict[str, Schema]] = {
    "topic": TEXT,
    "partition": NUMBER,
    "offset": NUMBER,
    "next_offset": NUMBER,
    "messages": ROWS,
}
SKIPPED: Final = rows({"topic": TEXT, "partition": NUMBER, "offset": NUMBER, "count": NUMBER})

# -- parameters -----------------------------------------------------------------------------------

TOPIC: Final = _topic("Name of the topic: 1 to 200 of A-Z a-z 0-9 . _ -", required=True)
TOPIC_OF_ID: Final = _topic(
    "Name of the topic; without it, the one that the id was registered for."
)
ANY_TOPIC: Final = _topic("Name of the topic; without it, all topics.")
PARTITIONS: Final = _number(
    "partitions",
    "Number of partitions.",
    1,
    PARTITIONS_MAX,
    default=1,
    example=3,
    also=(
        *("number_of_partitions", "num_partitions", "no_of_partitions", "partition_count"),
        *("partitions_count", "n_partitions"),
    ),
)
REPLICATION: Final = _number(
    "replication",
    "Brokers that keep each partition; 0: three, or all brokers if there are fewer.",
    0,
    REPLICATION_MAX,
    default=0,
    example=3,
    also=("replication_factor", "replicas", "num_replicas", "number_of_replicas"),
)
SETTINGS: Final = _settings(
    "Settings of the topic; 'myq config show topic' lists them.", {"retention_ms": 86_400_000}
)
CLUSTER_SETTINGS: Final = _settings(
    "Settings of the cluster; 'myq config show cluster' lists them.", {"replace_after_ms": 600_000}
)
DETAIL: Final = _flag("detail", "Give all facts about each of them.", example=True)
UTF8, BASE64 = kinds.UTF8, kinds.BASE64
ENCODINGS: Final = (UTF8, BASE64)
MESSAGES_PRODUCED_MAX: Final = 10_000
PRODUCER_ID: Final = _number(
    "producer_id",
    "The producer's id, from /producer/register.",
    also=("id",),
    required=True,
    example=1,
)
CONSUMER_ID: Final = _number(
    "consumer_id",
    "The consumer's id, from /consumer/register.",
    also=("id",),
    required=True,
    example=1,
)
ANY_PRODUCER_ID, ANY_CONSUMER_ID = PRODUCER_ID, CONSUMER_ID
PARTITION_NAMES: Final = (
    *("partition_id", "partition_index", "partition_number", "partition_no", "partition_num"),
    *("partition_key", "part"),
)
PARTITION: Final = _partition("Number of the partition.")
NAMED_PARTITION: Final = _partition("Number of the partition.", required=True, example=0)
LOG_PARTITION: Final = _partition(
    "Number of the partition; needed unless the id was registered with one.", example=0
)
OWN_PARTITION: Final = _partition(
    "Partition for its requests that name none; without it, all partitions in turn."
)
NEW_PARTITION: Final = _partition(
    "Number of the new partition: the next one; 409 if it already exists."
)
MESSAGE: Final = Parameter(
    name="message",
    also=("log_message",),
    read=kinds.text,
    schema=TEXT,
    example="17 apples",
    about="The message, a text; bytes as base64 with encoding=base64.",
)
MESSAGES: Final = Parameter(
    name="messages",
    read=kinds.sequence,
    example=["17 apples", {"message": "1 pear", "key": "k"}],
    schema={
        "type": "array",
        "minItems": 1,
        "maxItems": MESSAGES_PRODUCED_MAX,
        "items": {
            "oneOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "required": ["message"],
                    "properties": {
                        "message": TEXT,
                        "key": TEXT,
                        "encoding": {"enum": list(ENCODINGS)},
                    },
                },
            ]
        },
    },
    about="Several messages instead of one: texts, or objects of message, key, encoding.",
)
KEY: Final = Parameter(
    name="key",
    read=kinds.text,
    schema=TEXT,
    about="Messages with the same key go to the same partition.",
)
ENCODING: Final = _choice(
    "encoding", "How messages and keys are written: utf-8 or base64.", *ENCODINGS, default=UTF8
)
EMPTY: Final = _choice(
    "empty",
    "Status of the answer if no message is left; without it, as the gateway is set.",
    *("failure", "success"),
)
ON_DAMAGED: Final = _choice(
    "on_damaged",
    "What to do about a batch that can't be unpacked: raise the error BATCH_UNREADABLE, or"
    " skip exactly its messages.",
    *("raise", "skip"),
    default="raise",
)
MAX: Final = _number("max", "Messages to take at most.", 1, MESSAGES_MAX, default=1)
WAIT_MS: Final = _number(
    "wait_ms", "How long to wait for a message if there is none.", 0, 3_600_000, default=0
)
COUNT: Final = _number("count", "Partitions to add.", 1, PARTITIONS_MAX, default=1)
OFFSET: Final = _number(
    "offset", "Number of the message in its partition.", required=True, example=0
)
SOME_PRODUCER_ID: Final = _number("producer_id", "The producer that asks for it, if it is one.")
GROUP: Final = Parameter(
    name="group",
    read=kinds.text,
    schema=TEXT,
    default="",
    example="orders/0",
    about="A partition as TOPIC/NUMBER; without it, the managers' group.",
)
ADDRESS: Final = Parameter(
    name="address",
    read=kinds.text,
    schema=TEXT,
    example="127.0.0.1:9294",
    also=(
        *("broker_address", "broker_addr", "addr", "broker", "host", "hostname", "ip"),
        *("broker_host", "broker_ip", "url", "broker_url"),
    ),
    about="host or host:port of a running broker, perhaps with tcp:// or http:// in front.",
)
PORT: Final = _number(
    "port", "Port of the broker, if the address has none.", 1, 65_535, also=("broker_port",)
)
BROKER: Final = _number("broker_id", "Number of the broker.", required=True, example=3)
DRAIN: Final = _flag("drain", "Move its partitions to others first.")
FORCE_REMOVAL: Final = _flag(
    "force", "Remove it even if it holds partitions; messages that only it has are lost."
)
COMING_MS: Final = _number(
    "wait_ms",
    "How long to wait until the broker is part of the cluster.",
    0,
    3_600_000,
    default=10_000,
)
GOING_MS: Final = _number(
    "wait_ms", "How long to wait until its partitions have moved.", 0, 3_600_000, default=0
)
RAFT_TOPIC: Final = _topic("Topic of the partition; without it, the managers' group.")
# -- of consumer groups --

NAMED_GROUP: Final = _name(
    "group", "name", "Name of the consumer group.", required=True, example="billing"
)
SOME_TOPIC: Final = _name(
    "topic", "topic_name", "Only this topic; without it, all topics of the group.", example="orders"
)
TO: Final = _choice(
    "to",
    "To the first message that is kept, or after the last one.",
    *("earliest", "latest"),
    example="earliest",
)
TO_OFFSET: Final = _number("offset", "To this offset, or the nearest one that exists.")
TO_TIME: Final = _number("time_ms", "To the first message of this time, in ms since 1970.")
SHIFT: Final = Parameter(
    name="shift",
    read=kinds.signed,
    schema={"type": "integer"},
    about="By this many messages; a negative number goes back.",
)
FORCE_RESET: Final = _flag(
    "force", "Reset even if it has members; they continue from the new positions."
)
DRY_RUN: Final = _flag("dry_run", "Report what would be done, and do nothing.")
CHECK: Final = _choice(
    "check",
    "quorum-critical: also fail if the loss of one more member would stop a group.",
    "quorum-critical",
)
