"""What people do to real daemons: topics that come and go under load, a log that is lost."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest
from support.processes import Cluster, wait_for
from support.traffic import Reader, Writer, judge, wait_until_read

from myqueue.errors import MyQueueError
from myqueue.producer.producer import Producer


class Churn(threading.Thread):
    """Writes to a topic of a name that is deleted and made again all the time."""

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        super().__init__(daemon=True)
        self.cluster, self.end = cluster, time.monotonic() + seconds
        self.rounds = self.acked = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        with Producer(self.cluster.address, delivery_timeout_ms=5000, create_topics=False) as p:
            while time.monotonic() < self.end:
                self.rounds += 1
                self.cluster.admin.create_topic("churn", partitions=6)
                sent = [self._send(p) for _ in range(400)]
                self.cluster.admin.delete_topic("churn")
                for one in sent:
                    error = one.exception(10) if one is not None else None
                    self.acked += one is not None and error is None
            try:
                p.flush(10)
            except MyQueueError:
                pass  # of deleted topics

    def _send(self, producer: Producer) -> object:
        try:
            time.sleep(0.0005)
            return producer.send("churn", b"c" * 1000)
        except MyQueueError as error:
            if error.name not in ("UNKNOWN_TOPIC", "BUFFER_FULL", "TIMED_OUT"):
                self.wrong.append(str(error))
            return None


@pytest.mark.slow
def test_topics_come_and_go_under_load_and_a_lost_log_stays_out(tmp_path: Path) -> None:
    """W6, W7, C10, R26: nobody stops, nothing is lost; a broker without its log does not start."""
    with Cluster(tmp_path) as cluster:
        cluster.admin.create_topic("t", partitions=4)
        cluster.wait_healthy()
        writer = Writer(cluster.address, "t", "w", 300.0)
        consumer = cluster.admin.register_consumer("t")["consumer_id"]
        reader = Reader(cluster.address, "t", "r", consumer_id=consumer)
        churn = Churn(cluster, 15.0)
        for one in (writer, reader, churn):
            one.start()
        churn.join(60)
        assert not churn.is_alive()
        assert not churn.wrong
        cluster.check_alive()
        victim = cluster.leader_of("t")
        cluster.kill(victim)
        for folder in ("wal", "store"):
            shutil.rmtree(cluster.data(victim) / folder)
        cluster.start(victim)
        process = cluster.processes[victim]
        wait_for("it refuses to start", lambda: process.poll() is not None)
        assert process.poll() == 1
        assert "the log is missing" in cluster.log(victim)
        del cluster.processes[victim]
        time.sleep(3)
        writer.finish(30)
        wait_until_read([reader], [writer], 30)
        reader.finish()
        counted = judge([reader], [writer])
        print(counted, churn.rounds, churn.acked)
        assert counted["failed"] == 0
        assert churn.rounds > 3 and churn.acked > 0
        assert not [name for name in cluster.names if "crashed" in cluster.log(name)]
        cluster.check_alive()
