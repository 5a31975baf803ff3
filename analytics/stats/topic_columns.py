"""The columns of the table of topics, which `myq spark stats` prints and its page shows.

Comes in: nothing. Goes out: for each column the key of a topic's facts, and how it is shown. A
column that stands here is in both tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from myqueue.analytics.html.page import Size


class TopicColumn(NamedTuple):
    """A column of the table of topics."""

    key: str  # of a topic's facts, and the heading on a terminal
    heading: str  # on the page
    cell: Callable[[Any], Any] = lambda value: value  # makes the page's cell of the fact


TOPIC_COLUMNS = (
    TopicColumn("topic", "topic"),
    TopicColumn("partitions", "partitions"),
    TopicColumn("messages", "messages"),
    TopicColumn("entries", "batches"),
    TopicColumn("bytes", "stored", Size),
    TopicColumn("skew", "skew"),
    TopicColumn("p50_bytes", "p50 B", round),
    TopicColumn("p99_bytes", "p99 B", round),
    TopicColumn("largest_bytes", "max B"),
)
