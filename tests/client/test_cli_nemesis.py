"""`myq bench --nemesis`: what it says about a witness's notes, and whom it may send a signal."""

import os
import signal
import subprocess
import sys

from myqueue.cli.bench_nemesis import (
    Acknowledged,
    Hurt,
    interruption_s,
    lines,
    missing_and_doubled,
    send_signal,
)
from myqueue.daemons.local import Daemon

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
        daemon = Daemon("broker", 1, "127.0.0.1:1", "127.0.0.1:2", pid=child.pid)
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
        "faults": [["broker-1", "kill", 0.4]], "kills": 1, "freezes": 0, "sent": 10,
        "acknowledged": 10, "failed": 0, "lost": 1, "doubled": 0, "whole": False,
        "interruption_p50_s": 0.4, "interruption_p99_s": 0.4, "interruption_max_s": 0.4,
        "kept_topic": "witness-1",
    }  # fmt: skip
    text = "\n".join(lines(report))
    assert "BROKEN: 1 lost" in text and "witness-1" in text
    assert "Kept:" in "\n".join(lines({**report, "lost": 0, "whole": True}))
