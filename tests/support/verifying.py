"""`verify` without a JVM, the partitions of the cluster that its tests look at, and ledgers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

from support.plain_spread import PlainSpread
from support.queue_logs import Topic

from myqueue.analytics.verify.report import Report
from myqueue.analytics.verify.verify import Asked, verify
from myqueue.daemons.raft import types as t
from myqueue.wire import batch

A, B, C = 100, 101, 102  # groups of `some_topics`: a/0, a/1, b/0


def verified(cluster: Path, scratch: Path, *, stores: bool = False, **asked: Any) -> Report:
    wanted = Asked([str(cluster)], with_stores=stores, **asked)
    return verify(wanted, PlainSpread(), scratch)


def ledger(to: Path, rows: list[tuple[str, int, int, list[int]]]) -> str:
    told = [{"schema": "myq.acks/1"}]
    told += [  # type: ignore[misc]
        {"topic": topic, "partition": partition, "offset": offset, "crcs": crcs}
        for topic, partition, offset, crcs in rows
    ]
    to.write_text("".join(json.dumps(line) + "\n" for line in told))
    return str(to)


def everything(topics: list[Topic]) -> list[tuple[str, int, int, list[int]]]:
    out = []
    for topic in topics:
        for one in topic.entries:
            if one[t.TYPE] == t.DATA:
                values = batch.open_batch(one[t.PAYLOAD])[1].values
                crcs = [crc32(value) for value in values]
                out.append((topic.name, topic.partition, one[t.OFFSET], crcs))
    return out
