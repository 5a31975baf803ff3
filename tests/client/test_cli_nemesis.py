"""`myq bench --nemesis`: what it says about a witness's notes, and whom it may send a signal."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from support.agents import myq, one_of_each

from myqueue.admin.client import Admin
from myqueue.cli.bench.faults import DRAIN, TOPIC, WEIGHTS, Hurt, Nemesis, send_signal
from myqueue.cli.bench.nemesis import Acknowledged, interruption_s, lines, missing_and_doubled
from myqueue.daemons.agent.cluster_folder import ClusterFolder, LocalDaemon

ACKED = {number: Acknowledged(number % 2, number // 2, float(number)) for number in range(10)}
FOUND = [(one.partition, one.offset, number) for number, one in ACKED.items()]


def test_a_whole_ledger_is_called_whole() -> None:
    assert missing_and_doubled(ACKED, FOUND) == ([], [])
    unknown = (0, 5, 10)  # stored, and its answer was lost
    assert missing_and_doubled(ACKED, [*FOUND, unknown]) == ([], [])


def test_what_is_lost_or_doubled_is_found() -> None:
    assert missing_and_doubled(ACKED, FOUND[:-1]) == ([9], [])
    assert missing_and_doubled(ACKED, [*FOUND, (0, 5, 3)]) == ([], [3])
    moved = [(p, o + 1, n) for p, o, n in FOUND if p == 0] + FOUND[1::2]
    assert missing_and_doubled(ACKED, moved)[0] == [0, 2, 4, 6, 8]


def test_an_interruption_is_the_worst_partition_s() -> None:
    """While the fault lasts and some seconds behind it, not what went before."""
    calm = [0.0, *(n / 10 for n in range(1, 200))]
    hurt = Hurt("broker-1", "kill", 5.0, 6.0)
    waited = [at for at in calm if not 5.05 < at < 6.5]
    assert round(interruption_s([calm, waited], hurt), 3) == 1.5
    late = [at for at in calm if not 12.0 < at < 15.0]
    assert round(interruption_s([late], hurt), 3) == 0.1
    assert interruption_s([[]], hurt) == 0.0


def test_only_children_of_the_agent_are_hurt() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        daemon = LocalDaemon("broker", 1, "127.0.0.1:1", "127.0.0.1:2", pid=child.pid)
        assert not send_signal(daemon, os.getpid() + 1, signal.SIGKILL)
        assert child.poll() is None
        assert send_signal(daemon, os.getpid(), signal.SIGKILL)
        assert child.wait(20) == -signal.SIGKILL
        assert not send_signal(daemon, os.getpid(), signal.SIGKILL), "it is gone"
    finally:
        child.kill()
        child.communicate()


def test_a_broken_promise_is_said() -> None:
    report = {
        "faults": [["broker-1", "kill", 0.4]],
        "kinds": {"kill": 1},
        "sent": 10,
        "acknowledged": 10,
        "failed": 0,
        "lost": 1,
        "doubled": 0,
        "revenants": 0,
        "whole": False,
        "interruption_p50_s": 0.4,
        "interruption_p99_s": 0.4,
        "interruption_max_s": 0.4,
        "kept_topic": "witness-1",
    }
    text = "\n".join(lines(report))
    assert "BROKEN: 1 lost" in text and "witness-1" in text
    seen = {key: value for key, value in report.items() if key != "kept_topic"}
    text = "\n".join(lines({**seen, "lost": 0, "revenants": 2, "again": "again-1"}))
    assert "BROKEN: 0 lost, 0 twice, 2 of a deleted topic in again-1" in text and "kept" not in text
    assert "Kept:" in "\n".join(lines({**report, "lost": 0, "whole": True}))


@pytest.mark.slow
def test_every_kind_of_fault_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a topic of that name had before is told from what it has now."""
    with one_of_each(tmp_path) as home:
        folder = ClusterFolder(home / "myq-data")
        cluster = folder.load()
        assert cluster is not None
        with Admin(cluster.address) as admin:
            admin.create_topic("t", partitions=2, replication=1)
            nemesis = Nemesis(folder, admin, cluster.address, "t", Random(1))
            nemesis.round(DRAIN)
            assert not nemesis.hurts, "nobody could hold what the only broker has"
            myq(home, "broker", "add")
            for how in (*WEIGHTS, TOPIC):
                nemesis.round(how)
            assert [one.how for one in nemesis.hurts] == [*WEIGHTS, TOPIC]
            assert {row["state"] for row in admin.brokers()} == {"active"}
            assert not admin.problems() and nemesis.revenants == 0
            after = folder.load()
            assert after is not None and sum(one.restarts for one in after.daemons) == 2
            monkeypatch.setattr(admin, "delete_topic", lambda _: None)
            monkeypatch.setattr(admin, "create_topic", lambda *_, **__: None)
            nemesis.round(TOPIC)
            assert nemesis.revenants == 1, "it was never deleted"
