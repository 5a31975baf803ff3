"""`myq bench`: its options, and latency at a rate, against a peer whose answers are slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from support.fake_cluster.peer import EchoCluster

from myqueue.cli.bench import measurements
from myqueue.cli.bench.commands import bench
from myqueue.wire import protocol as words

ANSWER_S = 0.03
RATE = 200.0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[EchoCluster]:
    monkeypatch.setattr(measurements, "WARM", 2)

    def slow(envelope: Any, frames: list[bytes]) -> None:
        if envelope[words.KIND] == words.PRODUCE:
            time.sleep(ANSWER_S)  # what the disk of a real one does

    with EchoCluster(1) as cluster:
        cluster.topic("t", 2)
        cluster.daemons[0].script = slow
        yield cluster


def test_latency_at_a_rate_does_not_wait_for_answers(cluster: EchoCluster) -> None:
    found = measurements.latency(cluster.address, "t", 100, 60, RATE)
    assert found["ack_n"] == 60
    assert 2 / ANSWER_S < found["ack_rate"] <= RATE * 1.1, "33 a second, one after the other"
    assert found["ack_p50_us"] >= ANSWER_S * 1e6


def test_latency_without_a_rate_waits_for_each_answer(cluster: EchoCluster) -> None:
    begin = time.monotonic()
    found = measurements.latency(cluster.address, "t", 100, 5)
    assert time.monotonic() - begin >= 5 * ANSWER_S
    assert found["ack_n"] == 5 and "ack_rate" not in found


@pytest.mark.parametrize("name", ["latency", "e2e"])
def test_rate_and_partitions_are_options(name: str) -> None:
    options = {option for one in bench.commands[name].params for option in one.opts}
    assert {"--rate", "--partitions", "--size"} <= options
    for wrong in ("0", "-1", "many"):
        assert CliRunner().invoke(bench, [name, "--rate", wrong]).exit_code == 2
