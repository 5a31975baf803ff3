"""Every parameter of the API, once: the words that requests use, and what they mean."""

from __future__ import annotations

from typing import Any, Final

from myqueue.errors import InvalidRequest
from myqueue.gateway.api import parameters as kinds
from myqueue.gateway.api.parameters import INT_MAX, Parameter, Schema

PARTITIONS_MAX, REPLICATION_MAX = 1000, 9
MESSAGES_MAX: Final = 1000  # of one consume
_ANY_NUMBER: Final = kinds.number()
NAME_PATTERN: Final = "^[A-Za-z0-9._-]{1,200}$"

# -- schemas of what is answered ------------------------------------------------------------------

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
    """A list of objects of which more is known than that."""
    return {"type": "array", "items": OBJECT | {"properties": properties}}


def _whole(low: int, high: int = INT_MAX) -> Schema:
    """A number in JSON; in the query string its digits are the same thing."""
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


# Of a batch that nobody can unpack: where it is, and what else was taken with it.
UNREADABLE: Final[dict[str, Schema]] = {
    "topic": TEXT,
    "partition": NUMBER,
    "offset": NUMBER,
    "next_offset": NUMBER,
    "messages": ROWS,
}
SKIPPED: Final = rows({"topic": TEXT, "partition": NUMBER, "offset": NUMBER, "count": NUMBER})

# -- parameters -----------------------------------------------------------------------------------

TOPIC: Final = Parameter(
    name="topic",
    also=("topic_name", "name"),
    read=kinds.topic_name,
    required=True,
    schema={"type": "string", "pattern": NAME_PATTERN},
    example="orders",
    about="Name of the topic: 1 to 200 of A-Z a-z 0-9 . _ -",
)
TOPIC_OF_ID: Final = Parameter(
    name="topic",
    also=TOPIC.also,
    read=kinds.topic_name,
    schema=TOPIC.schema,
    example="orders",
    about="Name of the topic; without it, the one that the id was registered for.",
)
ANY_TOPIC: Final = Parameter(
    name="topic",
    also=TOPIC.also,
    read=kinds.topic_name,
    schema=TOPIC.schema,
    example="orders",
    about="Name of the topic; without it, all topics.",
)
PARTITIONS: Final = _number(
    "partitions",
    "How many partitions.",
    1,
    PARTITIONS_MAX,
    default=1,
    example=3,
    also=(
        "number_of_partitions",
        "num_partitions",
        "no_of_partitions",
        "partition_count",
        "partitions_count",
        "n_partitions",
    ),
)
REPLICATION: Final = _number(
    "replication",
    "On how many brokers each partition is kept; 0: three, or all that there are.",
    0,
    REPLICATION_MAX,
    default=0,
    example=3,
    also=("replication_factor", "replicas", "num_replicas", "number_of_replicas"),
)
# Of topics, as the managers know them; for advice only, since newer managers may know more.
TOPIC_SETTINGS: Final = ("message_bytes_max", "partition_growth", "retention_bytes", "retention_ms")
SETTINGS: Final = Parameter(
    name="settings",
    read=kinds.mapping,
    schema={"type": "object"},
    default={},
    about="Settings of the topic; 'myq config show topic' lists them.",
    example={"retention_ms": 86_400_000},
)
CLUSTER_SETTINGS: Final = Parameter(
    name="settings",
    read=kinds.mapping,
    schema={"type": "object"},
    default={},
    about="Settings of the cluster; 'myq config show cluster' lists them.",
    example={"replace_after_ms": 600_000},
)
DETAIL: Final = _flag("detail", "Tell all about each of them.", example=True)
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
    "partition_id",
    "partition_index",
    "partition_number",
    "partition_no",
    "partition_num",
    "partition_key",
    "part",
)
PARTITION: Final = _partition("Number of the partition.")
NAMED_PARTITION: Final = _partition("Number of the partition.", required=True, example=0)
LOG_PARTITION: Final = _partition(
    "Number of the partition; needed unless the id was registered with one.", example=0
)
OWN_PARTITION: Final = _partition(
    "Where its requests go that name no partition; without it, to all in turn."
)
NEW_PARTITION: Final = _partition(
    "The number that is added: the next one; 409 if it is there already."
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
ENCODING: Final = Parameter(
    name="encoding",
    read=kinds.choice(*ENCODINGS),
    schema={"enum": list(ENCODINGS)},
    default=UTF8,
    about="How messages and keys are written: utf-8 or base64.",
)
EMPTY: Final = Parameter(
    name="empty",
    read=kinds.choice("failure", "success"),
    schema={"enum": ["failure", "success"]},
    about="The status of the answer if nothing is left; the gateway's setting says it otherwise.",
)
ON_DAMAGED: Final = Parameter(
    name="on_damaged",
    read=kinds.choice("raise", "skip"),
    schema={"enum": ["raise", "skip"]},
    default="raise",
    about="A batch that nobody can unpack: raise is the error BATCH_UNREADABLE, skip passes exactly"
    " its messages over.",
)
MAX: Final = _number("max", "Most messages that are taken.", 1, MESSAGES_MAX, default=1)
WAIT_MS: Final = _number(
    "wait_ms", "How long to wait for a message if there is none.", 0, 3_600_000, default=0
)
COUNT: Final = _number("count", "How many partitions are added.", 1, PARTITIONS_MAX, default=1)
OFFSET: Final = _number(
    "offset", "Number of the message in its partition.", required=True, example=0
)
SOME_PRODUCER_ID: Final = _number("producer_id", "Whoever asks for it, if it is a producer.")
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
        "broker_address",
        "broker_addr",
        "addr",
        "broker",
        "host",
        "hostname",
        "ip",
        "broker_host",
        "broker_ip",
        "url",
        "broker_url",
    ),
    about="host or host:port of a running broker, perhaps behind tcp:// or http://.",
)
PORT: Final = _number(
    "port", "Its port, if the address has none.", 1, 65_535, also=("broker_port",)
)
BROKER: Final = _number("broker_id", "Number of the broker.", required=True, example=3)
DRAIN: Final = _flag("drain", "Move its partitions to others first.")
FORCE_REMOVAL: Final = _flag("force", "Even if it holds partitions; what it alone has is lost.")
COMING_MS: Final = _number(
    "wait_ms",
    "How long to wait until the broker is part of the cluster.",
    0,
    3_600_000,
    default=10_000,
)
GOING_MS: Final = _number(
    "wait_ms", "How long to wait until its partitions are elsewhere.", 0, 3_600_000, default=0
)
RAFT_TOPIC: Final = Parameter(
    name="topic",
    also=TOPIC.also,
    read=kinds.topic_name,
    schema=TOPIC.schema,
    example="orders",
    about="Topic of the partition that is asked about; without it, the managers' group.",
)
# -- of consumer groups --

NAMED_GROUP: Final = Parameter(
    name="group",
    also=("name",),
    read=kinds.topic_name,
    required=True,
    example="billing",
    schema={"type": "string", "pattern": NAME_PATTERN},
    about="Name of the consumer group.",
)
SOME_TOPIC: Final = Parameter(
    name="topic",
    also=("topic_name",),
    read=kinds.topic_name,
    example="orders",
    schema={"type": "string", "pattern": NAME_PATTERN},
    about="Only this topic; without it all that the group reads.",
)
TO: Final = Parameter(
    name="to",
    read=kinds.choice("earliest", "latest"),
    schema={"enum": ["earliest", "latest"]},
    about="To the first message that is kept, or behind the last one.",
    example="earliest",
)
TO_OFFSET: Final = _number("offset", "To this offset, as far as it is there.")
TO_TIME: Final = _number("time_ms", "To the first message of this time, in ms since 1970.")
SHIFT: Final = Parameter(
    name="shift",
    read=kinds.signed,
    schema={"type": "integer"},
    about="By so many messages; negative ones go back.",
)
FORCE_RESET: Final = _flag("force", "Even if it has members; they go on from the new positions.")
DRY_RUN: Final = _flag("dry_run", "Tell what would be done, and do nothing.")
CHECK: Final = Parameter(
    name="check",
    read=kinds.choice("quorum-critical"),
    schema={"enum": ["quorum-critical"]},
    about="quorum-critical: also fail if a group lost so many members that one more stops it.",
)
