"""Settings of sessions, producers and consumers: name, default, unit, range and meaning.

These classes are the only source of the defaults: constructors, `help()` (`constructors.py`) and
`myq config show` (`rows`) take them from here. A settings object is frozen and checks itself, so a
wrong value is an `InvalidSetting` in the constructor of a client, never later. Names end with their
units: `_ms`, `_bytes`. Below: the addresses of a cluster, and the ids and names of consumers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, Self

from myqueue.arguments import text, texts, whole
from myqueue.errors import InvalidRequest, InvalidSetting, MisuseError
from myqueue.wire.batch import CODECS
from myqueue.wire.protocol import FRAME_BYTES_MAX

DEFAULT_PORT: Final = 9092
DAY_MS: Final = 24 * 3600 * 1000
DAMAGED: Final = ("raise", "skip")  # for on_damaged
KINDS: Final[dict[str, type]] = {"bool": bool, "float": float, "int": int, "str": str}
STARTS: Final = ("earliest", "latest", "committed")


def setting(
    default: Any,
    unit: str,
    about: str,
    *,
    low: int | None = None,
    high: int | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Make a field with its default, unit, meaning and range."""
    facts = {"unit": unit, "help": about, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=facts)


class Row(NamedTuple):
    """A setting in a table for people."""

    name: str
    default: Any
    unit: str
    help: str


def rows(settings: type[Settings]) -> list[Row]:
    """List the settings of a class."""
    return [
        Row(f.name, f.default, f.metadata["unit"], f.metadata["help"]) for f in fields(settings)
    ]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of settings: checks the kind and range of each value when it is made."""

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise InvalidSetting(f"{type(self).__name__}: {problem}")

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Take the settings from the arguments of a constructor, which have the same names."""
        return cls(**{f.name: arguments[f.name] for f in fields(cls)})

    def _problems(self) -> Iterator[str]:
        for f in fields(self):
            value, about = getattr(self, f.name), f.metadata
            wanted = KINDS[str(f.type).removesuffix(" | None")]
            if value is None and f.default is None:
                continue
            if type(value) is not wanted:
                yield f"{f.name} must be {wanted.__name__}, not {value!r}"
            elif about["choices"] and value not in about["choices"]:
                yield f"{f.name} must be one of {', '.join(about['choices'])}; not {value!r}"
            elif about["low"] is not None and value < about["low"]:
                yield f"{f.name} must be at least {about['low']} {about['unit']}, not {value!r}"
            elif about["high"] is not None and value > about["high"]:
                yield f"{f.name} may be at most {about['high']} {about['unit']}, not {value!r}"


@dataclass(frozen=True, kw_only=True)
class SessionSettings(Settings):
    """How a session speaks with the daemons."""

    name: str = setting("", "", "name of this client in the logs and statistics of daemons")
    request_timeout_ms: int = setting(
        10_000, "ms", "how long one request may take with all its repeats", low=1, high=DAY_MS
    )
    routes_max_age_ms: int = setting(
        5_000, "ms", "how old the cached leaders and partitions of topics may become", low=100
    )
    connect_timeout_ms: int = setting(
        3_000, "ms", "how long a connection and its greeting may take", low=10
    )
    key_file: str | None = setting(
        None,
        "path",
        "this client's key, if the cluster has keys; none: the file that MYQ_KEY"
        " names; empty: no key",
    )
    backoff_ms_max: int = setting(1_000, "ms", "the longest pause between two attempts", low=1)


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(Settings):
    """How a producer gathers, sends and gives up."""

    linger_ms: int = setting(
        5,
        "ms",
        "how long messages may wait for others while a batch is under way; a partition"
        " with no batch under way sends at once",
        low=0,
        high=60_000,
    )
    batch_bytes: int = setting(
        64 << 10,
        "bytes",
        "a batch of this size is sent without waiting longer",
        low=1,
        high=FRAME_BYTES_MAX >> 1,
    )
    compression: str = setting(
        "none", "", f"codec of batches: {', '.join(CODECS)}", choices=tuple(CODECS)
    )
    idempotent: bool = setting(
        True,
        "",
        "brokers recognise a repeated batch; without it a repeat may store a message twice",
    )
    delivery_timeout_ms: int = setting(
        120_000, "ms", "how long a message is tried before its delivery fails", low=1, high=DAY_MS
    )
    request_timeout_ms: int = setting(
        10_000,
        "ms",
        "how long one attempt to send a batch waits for its answer",
        low=1,
        high=DAY_MS,
    )
    max_buffered_bytes: int = setting(
        64 << 20, "bytes", "how much memory undelivered messages may take; then send waits", low=1
    )
    max_block_ms: int = setting(
        60_000,
        "ms",
        "how long send waits for room in the buffer, or for a topic's partitions",
        low=0,
        high=DAY_MS,
    )
    max_in_flight: int = setting(
        16, "batches", "how many batches of one partition may be unanswered", low=1, high=64
    )
    retry_backoff_ms: int = setting(
        20, "ms", "first pause before a repeat; it doubles up to a second", low=1, high=60_000
    )
    create_topics: bool = setting(
        False, "", "create a topic that does not exist, instead of raising UnknownTopic"
    )
    name: str = setting(
        "", "", "a name that outlives the process: a new producer of this name fences the older one"
    )


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(Settings):
    """How a consumer fetches, and where it keeps its positions."""

    group: str | None = setting(None, "", "consumers of one group share its partitions")
    start: str | None = setting(
        None,
        "",
        "where to begin without a position: earliest, latest, or committed (then"
        " earliest); none: committed with a group or an id, else earliest",
        choices=STARTS,
    )
    auto_commit: bool = setting(
        False, "", "commit messages once the application has asked for the ones after them"
    )
    auto_commit_interval_ms: int = setting(
        5_000, "ms", "how often auto_commit commits", low=10, high=DAY_MS
    )
    on_out_of_range: str = setting(
        "error",
        "",
        "when the position is outside of the log: raise OffsetOutOfRange, or go on at"
        " its start (earliest) or end (latest)",
        choices=("error", "earliest", "latest"),
    )
    on_damaged: str = setting(
        "raise",
        "",
        "when a batch cannot be unpacked: raise BatchUnreadable until the application"
        " seeks past it, or skip it, count its messages and log its place",
        choices=DAMAGED,
    )
    session_timeout_ms: int = setting(
        10_000,
        "ms",
        "a group member that sends no heartbeat for so long loses its partitions",
        low=1_000,
        high=3_600_000,
    )
    max_poll_ms: int = setting(
        300_000,
        "ms",
        "a group member that asks for no messages for so long leaves the group",
        low=100,
        high=DAY_MS,
    )
    max_poll_messages: int = setting(
        1_000, "messages", "how many messages one poll may return", low=1
    )
    fetch_wait_ms: int = setting(
        500,
        "ms",
        "how long a broker may hold a request while it has no messages",
        low=0,
        high=60_000,
    )
    fetch_min_bytes: int = setting(1, "bytes", "a broker answers as soon as it has so many", low=0)
    fetch_max_bytes: int = setting(
        4 << 20, "bytes", "how much one answer may carry (at least one batch)", low=1
    )
    max_buffered_bytes: int = setting(
        32 << 20,
        "bytes",
        "how much memory fetched messages may take until the application asks for them",
        low=1,
    )
    request_timeout_ms: int = setting(
        10_000, "ms", "how long one request may take with all its repeats", low=1, high=DAY_MS
    )
    idle_timeout: float | None = setting(
        None, "s", "iteration ends after so long without a message; none: never"
    )
    name: str = setting("", "", "name of this client in the logs and statistics of daemons")


def ids_by_topic(names: list[str], consumer_id: int | Mapping[str, int] | None) -> dict[str, int]:
    """Map each topic to its consumer id: one id for all topics, or one for each."""
    if not names or not all(names):
        raise MisuseError(f"topics={names!r}: name at least one")
    if consumer_id is None:
        return {}
    if not isinstance(consumer_id, Mapping):
        return dict.fromkeys(names, whole(consumer_id, "consumer_id", 1))
    if set(consumer_id) != set(names):
        raise MisuseError("consumer_id= needs an id for each of the topics")
    return {name: whole(id_, f"consumer_id[{name!r}]", 1) for name, id_ in consumer_id.items()}


def who_commits(names: list[str], group: str | None, ids: dict[str, int]) -> dict[str, str]:
    """Map each topic to the name under which its positions are committed; "": none.

    The name is what COMMIT sends: "group/NAME" or a consumer id.
    """
    if group is not None:
        text(group, "group")
    if group is not None and ids:
        raise MisuseError("group= or consumer_id=, not both")
    if group == "":
        raise MisuseError("group='': a group has a name")
    return {n: f"group/{group}" if group else str(ids[n]) if ids else "" for n in names}


def joined(cluster: Any) -> str:
    """Join addresses, given as one text or a list, to `host:port[,…]`."""
    try:
        return ",".join(texts(cluster, "cluster"))
    except InvalidRequest:
        raise InvalidSetting(
            f"a cluster is named by its managers: host:port[,host:port…], not by {cluster!r}",
            hint="Give one text, or a list of them.",
        ) from None


def addresses(cluster: str) -> tuple[str, ...]:
    """Split `host:port[,…]`, with or without tcp://, into addresses for ZeroMQ, each once.

    >>> addresses("127.0.0.1:9092, tcp://b:9093,[::1]")
    ('tcp://127.0.0.1:9092', 'tcp://b:9093', 'tcp://[::1]:9092')
    """
    unique = dict.fromkeys(address(part) for part in cluster.split(",") if part.strip())
    if not unique:
        raise InvalidSetting("a cluster is named by its managers: host:port[,host:port…]")
    return tuple(unique)


def address(given: str) -> str:
    """Make `tcp://host:port` of one address; without a port it is 9092."""
    plain = text(given, "an address").strip().removeprefix("tcp://").rstrip("/")
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+)(?::(\d{1,5}))?", plain)
    port = int(match[2]) if match and match[2] else DEFAULT_PORT
    if not match or not 0 < port < 65536 or not plain.isprintable():
        raise InvalidSetting(f"not an address: {given.strip()!r}; write host:port")
    return f"tcp://{match[1]}:{port}"
