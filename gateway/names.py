"""Every parameter of the API, once: the words that requests use, and what they mean."""

from __future__ import annotations

from typing import Any, Final

from myqueue.gateway import parameters as kinds
from myqueue.gateway.parameters import INT_MAX, Parameter, Schema

PARTITIONS_MAX, REPLICATION_MAX = 1000, 9
MESSAGES_MAX: Final = 1000  # of one consume
NAME_PATTERN: Final = "^[A-Za-z0-9._-]{1,200}$"

# -- schemas of what is answered ------------------------------------------------------------------

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer"}
NUMBERS: Final[Schema] = {"type": "array", "items": {"type": "integer"}}
FLAG: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}
ROWS: Final[Schema] = {"type": "array", "items": {"type": "object"}}


def nullable(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"]}


def _whole(low: int, high: int = INT_MAX) -> Schema:
    """A number in JSON; in the query string its digits are the same thing."""
    limits: Schema = {"minimum": low} | ({"maximum": high} if high < INT_MAX else {})
    return {"type": "integer", **limits}


def _number(
    name: str, about: str, low: int = 0, high: int = INT_MAX, **more: Any
) -> Parameter:  # fmt: skip
    return Parameter(
        name=name, read=kinds.number(low, high), schema=_whole(low, high), about=about, **more
    )


# -- parameters -----------------------------------------------------------------------------------

TOPIC: Final = Parameter(
    name="topic", also=("topic_name", "name"), read=kinds.text, required=True,
    schema={"type": "string", "pattern": NAME_PATTERN}, example="orders",
    about="Name of the topic: 1 to 200 of A-Z a-z 0-9 . _ -",
)  # fmt: skip
PARTITIONS: Final = _number(
    "partitions", "How many partitions.", 1, PARTITIONS_MAX, default=1, example=3
)
REPLICATION: Final = _number(
    "replication", "On how many brokers each partition is kept; 0: three, or all that there are.",
    0, REPLICATION_MAX, default=0, example=3,
)  # fmt: skip
SETTINGS: Final = Parameter(
    name="settings", read=kinds.mapping, schema={"type": "object"}, default={},
    about="Settings of the topic; 'myq config show topic' lists them.",
    example={"retention_ms": 86_400_000},
)  # fmt: skip
DETAIL: Final = Parameter(
    name="detail", read=kinds.flag, schema={"type": "boolean"}, default=False, example=True,
    about="Tell all about each of them.",
)  # fmt: skip
