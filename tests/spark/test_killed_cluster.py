"""D2, P12: a real cluster, killed with SIGKILL as a whole, twice, is verified from what it left.

Three managers and three brokers; writers send and note what is acknowledged, readers commit, all
through the first outage. What the daemons left on their disks is judged as it lies there, and again
after all of them recovered, went on, and were killed once more: by Spark, with all stores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.plain_spread import PlainSpread
from support.processes import Cluster, wait_for
from support.traffic import Reader, Writer

from myqueue.acks import AckLedger
from myqueue.analytics.verify.report import Report
from myqueue.analytics.verify.verify import Asked, verify
from myqueue.cli.spark.managers_state import rebuild
from myqueue.producer.producer import Producer

PARTITIONS = 3
WRITERS = 2
RATE = 250.0
ACKED_AT_LEAST = 400  # by each writer, in each of the two lives
BULK, BULK_BYTES = 6_000, 1_000  # more than a segment of each broker holds
LIMITS = {"segment_bytes": 4 << 20, "soft_limit_bytes": 0, "log_entries": 200}


def verified(folder: Path, ledger: AckLedger, spread: Any, scratch: Path) -> Report:
    asked = Asked([str(folder)], [ledger.path], metadata=rebuild)
    report = verify(asked, spread, scratch)
    assert report.ok, report.findings
    assert len(report.logs) == 6 and report.segments > 6
    assert report.notes == []
    assert {one.partition for one in report.groups if one.topic == "t"} == set(range(PARTITIONS))
    assert report.state_rows > 6
    return report


def test_what_a_killed_cluster_leaves(spark: Any, tmp_path: Path) -> None:
    from myqueue.analytics.spark.job import SparkSpreader

    folder = tmp_path / "cluster"
    with (
        Cluster(folder, **LIMITS) as cluster,
        AckLedger(tmp_path / "acks.jsonl") as ledger,
    ):
        cluster.admin.create_topic("t", partitions=PARTITIONS)
        _send_bulk(cluster, ledger)
        writers = [
            Writer(cluster.address, "t", f"w{n}", RATE, ledger, delivery_timeout_ms=300_000)
            for n in range(WRITERS)
        ]
        reader = Reader(cluster.address, "t", "r", group="readers")
        for one in (*writers, reader):
            one.start()
        _wait_acked(writers, reader, ACKED_AT_LEAST)
        cluster.kill(*cluster.names)
        before = ledger.count
        first = verified(folder, ledger, PlainSpread(), tmp_path)
        assert first.acks == before > 0

        cluster.start()
        cluster.wait_healthy(60)
        _wait_acked(writers, reader, 2 * ACKED_AT_LEAST)
        cluster.kill(*cluster.names)
        second = verified(folder, ledger, SparkSpreader(spark), tmp_path)
        assert second.acks == ledger.count > before
        assert second.messages > first.messages
        for one in (*writers, reader):
            one.abandon()


def _send_bulk(cluster: Cluster, ledger: AckLedger) -> None:
    values = [b"%d" % one * (BULK_BYTES // 5) for one in range(10_000, 10_000 + BULK)]
    with Producer(cluster.address) as producer:
        for at in range(0, BULK, 500):
            part = values[at : at + 500]
            ledger.follow_many(producer.send_many("t", part), part)
        producer.flush(60)


def _wait_acked(writers: list[Writer], reader: Reader, count: int) -> None:
    def have() -> bool:
        assert reader.error is None, reader.error
        for one in writers:
            assert one.error is None and not one.failed, (one.error, one.failed)
        return all(len(one.acked) >= count for one in writers) and bool(reader.committed)

    wait_for(f"{count} acknowledgements for each writer", have, 60)
