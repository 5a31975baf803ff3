"""Costs of consuming that decide how fast it is: garbage collections, and memory from the kernel.

They are counted, not timed, so other work on the machine does not change them.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support.fake_cluster.peer import EchoCluster
from support.fake_cluster.reads import fill, serve_reads

from myqueue.consumer.consumer import Consumer
from myqueue.consumer.message import Message

COUNT = 100_000


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    """Reads a topic whose messages are all in its buffer already."""
    with EchoCluster(1) as cluster:
        reads = serve_reads(cluster)
        log = cluster.topic("t")[0]
        for _ in range(COUNT // 2_500):
            fill(log, 2_500)
        size = sum(len(data) for _, data in log.batches)
        with Consumer(cluster.address, "t", idle_timeout=0.1) as consumer:
            end = time.monotonic() + 20
            while reads.fetched_bytes < size and time.monotonic() < end:
                time.sleep(0.01)
            yield consumer


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def test_polls_make_no_work_for_the_garbage_collector(consumer: Consumer) -> None:
    polls, found, before = 0, 0, collections()
    while found < COUNT:
        messages = consumer.poll(1_000, timeout=5)
        found += len(messages)
        polls += 1
    assert collections() - before < polls // 2, "each poll made one at least"


def test_a_poll_leaves_the_garbage_collector_as_it_was(consumer: Consumer) -> None:
    consumer.poll()
    assert gc.isenabled()
    gc.disable()
    try:
        consumer.poll()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_loop_makes_each_message_when_it_is_due(consumer: Consumer) -> None:
    made = set[int]()
    for at, message in zip(range(10), consumer, strict=False):
        assert message.offset == at
        made.add(sum(type(one) is Message for one in gc.get_objects()))
    assert max(made) <= 2, "the other 2,490 of the batch are not made"


FRAMES = """
import resource, sys
if sys.argv[1] == "kept":
    from myqueue.consumer.fetcher import keep_freed_memory
    keep_freed_memory()
for turn in range(20):
    if turn == 4:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    frames = [bytearray(b"x") * (256 << 10) for _ in range(16)]
    del frames
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="about glibc")
def test_freed_frames_serve_the_next_ones() -> None:
    def faults(how: str) -> int:
        return int(subprocess.check_output([sys.executable, "-c", FRAMES, how]))

    kept = faults("kept")
    assert kept < 1_000
    assert faults("as it is") > 4 * kept, "there is something to save"
