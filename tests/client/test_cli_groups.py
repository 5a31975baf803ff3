"""`myq consume --group`: nothing is skipped, and nothing fails, without a word."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.fake_cluster.groups import serve_groups
from support.fake_cluster.peer import EchoCluster, refuse
from support.fake_cluster.reads import Reads, serve_reads

from myqueue import errors
from myqueue.simple import MyProducer
from myqueue.wire import protocol as words


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(2) as cluster:
        yield cluster


@pytest.fixture
def reads(cluster: EchoCluster) -> Reads:
    return serve_reads(cluster)


def consume(cluster: EchoCluster, *more: str) -> subprocess.CompletedProcess[str]:
    command = ("consume", "a", "--group", "g", "--cluster", cluster.address, *more)
    return subprocess.run(
        [sys.executable, "-P", "-m", "myqueue.cli", *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("begin", "found"), [("earliest", "new\n"), ("latest", "")])
def test_a_position_that_retention_took(cluster, reads, begin, found):
    """C6: it is not the end of the group, and it is said."""
    cluster.topic("a")
    groups = serve_groups(cluster)
    groups.give("a", (0, 1, False))
    for value in (b"read", b"gone", b"new"):
        with MyProducer(["a"], cluster.address) as producer:
            producer.send("a", value)
    [group] = cluster.topics["a"]
    reads.positions["group/g", group], reads.starts[group] = 1, 2
    done = consume(cluster, "--from", begin, "-n", "1")
    assert (done.stdout, done.returncode) == (found, 0), done.stderr
    assert f"offset 1 is not between 2 and 3; going on from the {begin} one" in done.stderr


def test_a_group_that_cannot_be_joined(cluster, reads):
    """B1: no messages and no failure would look like a group that has read all."""
    cluster.topic("a")
    serve_groups(cluster)
    for daemon in cluster.daemons:
        before = daemon.script

        def answer(envelope, frames, before=before):
            if envelope[1] == words.UPDATE and envelope[4] == "join_group":
                return refuse(envelope[2], errors.NotReady, "it is starting")
            return before(envelope, frames)

        daemon.script = answer
    done = consume(cluster)
    assert done.returncode == 1 and done.stdout == ""
    assert "group g can't be joined now" in done.stderr and "NOT_READY" in done.stderr
