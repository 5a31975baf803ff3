"""Settings of topics and of the cluster: two tables, from which every program takes what it needs.

The managers keep the values in the metadata; brokers and clients get them with each topic. The
managers take defaults and ranges from a row, `myq config show` the meaning, the console its unit
and its words, the gateway the names, to advise about misspelt ones. Pure.

A new setting is a row here, its name in `PROTOCOL.md`, and the code that obeys it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_JSON_INT_END: Final = 1 << 53  # numbers that every JSON reader holds exactly


class NumberSetting(NamedTuple):
    """A whole number with a range. `unit` is "bytes", "ms", "" for a plain count, or the singular
    of what is counted.
    """

    default: int
    unit: str
    meaning: str  # as `myq config show` prints it
    console_text: str  # the meaning, as the console's pages show it
    zero_text: str = ""  # what the console shows for 0; "": the number, as for any other
    low: int = 0
    high: int = _JSON_INT_END


TOPIC_SETTINGS: Final[dict[str, NumberSetting]] = {
    "message_bytes_max": NumberSetting(
        default=8 << 20,
        unit="bytes",
        meaning="largest batch that is accepted, in bytes",
        console_text="The largest batch that the topic takes",
        low=1,
        high=15 << 20,
    ),
    "partition_growth": NumberSetting(
        default=0,
        unit="message",
        meaning="messages per partition after which one is added; 0: never",
        console_text="One more partition is added each time the topic has this many messages per"
        " partition",
        zero_text="off",
    ),
    "retention_bytes": NumberSetting(
        default=0,
        unit="bytes",
        meaning="of a partition, so many bytes of batches stay at least, and at most an eighth"
        " or half a segment more; the oldest go; 0: all stay",
        console_text="The oldest messages of a partition larger than this are deleted",
        zero_text="all are kept",
    ),
    "retention_ms": NumberSetting(
        default=0,
        unit="ms",
        meaning="batches older than so many ms go, at most a minute or an eighth of it late;"
        " 0: they stay",
        console_text="Messages older than this are deleted",
        zero_text="kept forever",
    ),
}
CLUSTER_SETTINGS: Final[dict[str, NumberSetting]] = {
    "consumers_max": NumberSetting(
        default=100_000,
        unit="",
        meaning="registered consumers",
        console_text="Consumers that may be registered",
        low=1,
    ),
    "groups_max": NumberSetting(
        default=10_000,
        unit="",
        meaning="consumer groups that are known",
        console_text="Consumer groups that may exist",
        low=1,
    ),
    "inactive_ms": NumberSetting(
        default=30_000,
        unit="ms",
        meaning="a client silent for so long counts as inactive",
        console_text="A producer or consumer that is silent for this long counts as inactive",
        low=1000,
    ),
    "moves_per_broker": NumberSetting(
        default=4,
        unit="replica",
        meaning="replicas that one broker takes or gives away at a time; 0: none are moved",
        console_text="Replicas that one broker copies or hands over at a time",
        zero_text="none are moved",
        high=1000,
    ),
    "partitions_max": NumberSetting(
        default=10_000,
        unit="",
        meaning="partitions of all topics together",
        console_text="Partitions that all topics may have together",
        low=1,
        high=1_000_000,
    ),
    "producers_max": NumberSetting(
        default=100_000,
        unit="",
        meaning="producers known, registered or opened",
        console_text="Producers that may be registered",
        low=1,
    ),
    "replace_after_ms": NumberSetting(
        default=300_000,
        unit="ms",
        meaning="a broker silent for so long is dead: its replicas are replaced",
        console_text="A broker that is silent for this long counts as dead: others get new copies",
        low=2000,
    ),
    # A broker's full heartbeat has to fit into one envelope.
    "replicas_per_broker_max": NumberSetting(
        default=2500,
        unit="",
        meaning="replicas that one broker holds",
        console_text="Replicas that one broker may hold",
        low=1,
        high=10_000,
    ),
}
