"""The command line and a real cluster: `up`, all that asks or changes it, `demo`, `down`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myqueue.daemons.agent.cluster_folder import ClusterFolder

pytestmark = pytest.mark.slow


class Myq:
    """Runs `myq` in a folder of its own, where its cluster is ./myq-data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = ClusterFolder(folder / "myq-data")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MYQ_")}
        self.environment = {**kept, "XDG_CONFIG_HOME": str(folder / "config")}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "myqueue.cli", *words],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, stdin: str = "", code: int = 0) -> str:
        with self.start(*words) as process:
            out, err = process.communicate(stdin, timeout=120)
        assert process.returncode == code, (words, out, err)
        return out if code == 0 else out + err

    def ask(self, *words: str, stdin: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(*words, "--json", stdin=stdin))
        return found

    def pids(self) -> list[int]:
        cluster = self.data.load()
        assert cluster is not None
        return [pid for pid in (cluster.pid, *(d.pid for d in cluster.daemons)) if pid]


def are_gone(pids: list[int], within_s: float = 5.0) -> bool:
    """Ended, within a moment. One that waits to be reaped by whoever inherited it has ended."""
    end = time.monotonic() + within_s
    while any(is_running(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture(scope="module")
def myq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Myq]:
    made = Myq(tmp_path_factory.mktemp("cluster"))
    said = made.run("up", "--port-base", "0", "--detach")
    assert "is healthy" in said
    made.environment["EXAMPLE"] = said
    yield made
    pids = made.pids()
    made.run("down")
    assert len(pids) == 8
    assert are_gone(pids)


def test_the_example_that_up_prints_works(myq: Myq) -> None:
    found = re.search(r"^from myqueue.*?^print.*?$", myq.environment["EXAMPLE"], re.M | re.S)
    assert found is not None
    done = subprocess.run(
        [sys.executable, "-P", "-c", found[0]],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=myq.folder,
    )
    assert done.stdout == "b'world'\n"


def test_status_names_all_daemons(myq: Myq) -> None:
    found = myq.ask("status")
    assert found["healthy"] is True, found
    names = [(row["kind"], row["id"]) for row in found["daemons"]]
    three = [(kind, number) for kind in ("manager", "broker") for number in (1, 2, 3)]
    assert names == [*three, ("gateway", 1)]
    assert found["gateway"] == found["daemons"][-1]["address"]
    for row in found["daemons"]:
        assert row["state"] == "running"
        kind = "http" if row["kind"] == "gateway" else "tcp"
        assert row["address"].startswith(f"{kind}://127.0.0.1:")
        assert Path(f"/proc/{row['pid']}").exists()
    assert "healthy" in myq.run("status")


def test_the_gateway_speaks_for_the_cluster(myq: Myq) -> None:
    gateway = myq.ask("status")["gateway"]
    assert gateway in myq.environment["EXAMPLE"]
    with urllib.request.urlopen(f"{gateway}/readyz", timeout=30) as answer:
        assert json.load(answer)["status"] == "success"


def test_a_second_up_is_refused_with_the_pid(myq: Myq) -> None:
    assert f"already running on {myq.data.data} (pid {myq.pids()[0]})" in myq.run("up", code=1)


def test_topics(myq: Myq) -> None:
    myq.run("topic", "create", "t", "--partitions", "2", "--set", "retention_ms=1_000_000")
    assert "exists" in myq.run("topic", "create", "t", code=1)
    assert myq.ask("topic", "alter", "t", "--set", "retention_ms=")["settings"]["retention_ms"] == 0
    assert myq.ask("topic", "grow", "t", "--to", "4")["partitions"] == [2, 3]
    found = myq.ask("topic", "describe", "t")
    assert [row["partition"] for row in found["partitions"]] == [0, 1, 2, 3]
    assert all(re.fullmatch("[0-9a-f]{16}", row["group"]) for row in found["partitions"])
    assert "t" in [row["topic"] for row in myq.ask("topic", "list")["topics"]]
    assert "--yes" in myq.run("topic", "delete", "t", code=2)
    myq.run("topic", "delete", "t", "--yes")
    assert "UNKNOWN_TOPIC" in myq.run("topic", "describe", "t", code=1)


def test_settings_of_the_cluster(myq: Myq) -> None:
    before = myq.ask("config", "cluster")["settings"]
    assert (before["inactive_ms"], before["moves_per_broker"]) == (30_000, 4)
    words = ("--set", "inactive_ms=45_000", "--set", "moves_per_broker=2")
    changed = myq.ask("config", "cluster", *words)["settings"]
    assert changed == before | {"inactive_ms": 45_000, "moves_per_broker": 2}
    assert "45000" in myq.run("config", "cluster")
    for wrong in ("colour=1", "moves_per_broker=1001"):
        assert "INVALID_SETTING" in myq.run("config", "cluster", "--set", wrong, code=1)
    assert "NAME=NUMBER" in myq.run("config", "cluster", "--set", "inactive_ms", code=2)
    assert myq.ask("config", "cluster")["settings"] == changed
    reset = ("--set", "inactive_ms=", "--set", "moves_per_broker=")
    assert myq.ask("config", "cluster", *reset)["settings"] == before


def test_messages_go_in_and_come_out(myq: Myq) -> None:
    lines = "".join(f"k{number % 7}:v{number}\n" for number in range(5000))
    sent = myq.ask("produce", "m", "--create", "--key-separator", ":", stdin=lines)
    assert (sent["sent"], sent["delivered"], sent["failed"]) == (5000, 5000, 0)
    assert myq.run("consume", "m", "-f", r"%k:%v\n") == lines
    assert myq.run("consume", "m", "--from", "-2") == "v4998\nv4999\n"
    assert myq.run("consume", "m", "--from", "10", "-n", "1", "-f", "%t/%p/%o") == "m/0/10"
    assert myq.run("consume", "m", "--from", "latest") == ""
    one = json.loads(myq.run("consume", "m", "-n", "1", "--json"))
    assert (one["offset"], one["key"], one["value"]) == (0, "k0", "v0")
    assert "UNKNOWN_TOPIC" in myq.run("produce", "nope", stdin="x\n", code=1)
    assert "UNKNOWN_PARTITION" in myq.run("consume", "m", "--partition", "7", code=1)


def test_lines_that_are_too_large_are_named_and_the_others_sent(myq: Myq) -> None:
    myq.run("topic", "create", "small", "--set", "message_bytes_max=1000")
    text = "1\n2\n" + "x" * 2000 + "\n4\n" + "y" * 20_000_000 + "\n6"
    with myq.start("produce", "small", "--json") as process:
        out, err = process.communicate(text, timeout=120)
    assert process.returncode == 1 and "line 3 is not sent: 2000 bytes" in err, err
    assert "line 5 is not sent" in err and "2 of 6 lines were not sent" in err, err
    answer = json.loads(out)
    assert (answer["sent"], answer["delivered"], answer["refused"]) == (4, 4, 2)
    assert [row["line"] for row in answer["refused_lines"]] == [3, 5]
    assert sorted(myq.run("consume", "small").split()) == ["1", "2", "4", "6"]


def test_follow_waits_for_more_until_ctrl_c(myq: Myq) -> None:
    myq.run("produce", "f", "--create", stdin="one\n")
    with myq.start("consume", "f", "--follow") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        myq.run("produce", "f", stdin="two\n")
        assert process.stdout.readline() == "two\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    assert process.returncode == 130


def test_where_and_raft_agree_about_the_leader(myq: Myq) -> None:
    myq.run("produce", "w", "--create", stdin="x\n")
    found = myq.ask("where", "w", "0", "0")
    assert len(found["replicas"]) == 3
    leader = next(row for row in found["replicas"] if row["node"] == found["leader"])
    assert leader["segment"].endswith(".seg")
    assert (leader["batch_count"], leader["offset"]) == (1, 0)
    group = myq.ask("raft", "status", "w", "0")
    assert group["leader"] == found["leader"]
    assert {row["role"] for row in group["members"]} == {"leader", "follower"}
    assert myq.ask("raft", "status")["group"] == "0000000000000001"
    assert "leader" in myq.run("raft", "status")
    assert "OFFSET_OUT_OF_RANGE" in myq.run("where", "w", "0", "5", code=1)


def test_lists_of_daemons(myq: Myq) -> None:
    assert [row["node"] for row in myq.ask("broker", "list")["brokers"]] == [1, 2, 3]
    assert sum(row["leader"] for row in myq.ask("manager", "list")["managers"]) == 1
    assert myq.run("broker", "list").count("active") == 3


def test_a_killed_daemon_is_told_and_comes_back(myq: Myq) -> None:
    assert myq.run("check").startswith("MYQ OK")
    victim = next(row for row in myq.ask("status")["daemons"] if row["kind"] == "broker")
    os.kill(victim["pid"], signal.SIGKILL)
    end = time.monotonic() + 20
    while True:
        found = myq.ask("status")
        [now] = [r for r in found["daemons"] if (r["kind"], r["id"]) == ("broker", victim["id"])]
        if found["healthy"] and now["pid"] not in (None, victim["pid"]):
            break
        assert time.monotonic() < end, found
    assert myq.run("health", "--exit-when-healthy", "--timeout", "10").splitlines()
    log = (myq.data.node / "node.log").read_text()
    assert f"broker-{victim['id']} was ended by SIGKILL; again in 0.5 s" in log


def test_the_demo_keeps_the_promise(myq: Myq) -> None:
    found = myq.ask("demo")
    assert found["ok"], found
    assert found["sent"] == found["acknowledged"] > 1000
    end = time.monotonic() + 10  # another manager may apply the deletion a moment later
    while any(row["topic"].startswith("demo-") for row in myq.ask("topic", "list")["topics"]):
        assert time.monotonic() < end, "the demo's topic was not deleted"


def test_a_bench_with_a_ledger_keeps_what_the_ledger_tells_of(myq: Myq) -> None:
    """D2: else 'spark verify --acks' would miss every message."""
    words = ("bench", "produce", "--seconds", "0.3", "--warmup", "0")
    before = benches(myq)
    myq.run(*words)
    assert benches(myq) == before
    myq.run(*words, "--acks", "acks.jsonl")
    [name] = benches(myq) - before
    lines = (myq.folder / "acks.jsonl").read_text().splitlines()[1:]
    assert {json.loads(line)["topic"] for line in lines} == {name}


def test_latency_and_e2e_over_partitions_at_a_rate(myq: Myq) -> None:
    before = benches(myq)
    words = ("--partitions", "2", "--rate", "100", "--keep")
    found = myq.ask("bench", "latency", "--messages", "30", *words)
    assert (found["partitions"], found["ack_n"]) == (2, 30) and 0 < found["ack_rate"] < 120
    found = myq.ask("bench", "e2e", "--seconds", "0.5", *words)
    assert (found["partitions"], found["e2e_n"]) == (2, 45), "the first tenth is left out"
    for name in benches(myq) - before:
        assert len(myq.ask("topic", "describe", name)["partitions"]) == 2
        myq.run("topic", "delete", name, "--yes")


def test_bench_scale_measures_each_size_and_deletes_what_it_made(myq: Myq) -> None:
    before = benches(myq)
    sizes = ("--partitions", "4,6", "--per-topic", "2", "--clients", "3", "--seconds", "60")
    found = myq.ask("bench", "scale", *sizes)
    assert [(row["size"], row.get("topics")) for row in found["partitions"]] == [
        *((0, None), (4, 2), (6, 3)),
    ]
    for row in found["partitions"][1:]:
        assert {"create_s", "first_s", "next_s", "delete_s", "idle_cpu_percent"} <= set(row)
        assert row["heartbeat_bytes_s"] > 0 and "restart_s" not in row and "error" not in row
    assert [row["size"] for row in found["clients"]] == [3] and not found["skipped"]
    assert benches(myq) == before
    late = myq.ask("bench", "scale", "--partitions", "4", "--clients", "0", "--seconds", "0")
    assert late["skipped"] == ["4 partitions: no time was left"]
    assert "--yes" in myq.run("bench", "scale", "--faults", code=2)


def benches(myq: Myq) -> set[str]:
    return set(re.findall(r"bench-\w+", myq.run("topic", "list")))


def test_up_in_the_foreground_continues_and_stops_at_ctrl_c(tmp_path: Path) -> None:
    myq = Myq(tmp_path)
    words = ("up", "--managers", "1", "--brokers", "1", "--no-gateway")
    found = []
    for more in (("--port-base", "0"), ()):
        with myq.start(*words, *more) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert "is healthy" in first
            assert myq.run("produce", "kept", "--create", stdin="x\n") == ""
            found.append((first, myq.ask("status")["daemons"][0]["address"]))
            pids = myq.pids()
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
            assert time.monotonic() - begin < 15
        assert process.returncode == 0
        assert are_gone(pids)
        assert myq.run("status", code=3)
    assert found[0] == found[1]
    left = {path.name for path in myq.data.data.iterdir()}
    assert left == {"node", "manager-1", "broker-1"}


def test_an_up_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    myq = Myq(tmp_path)
    with myq.start("up", "--managers", "1", "--brokers", "1", "--port-base", "0") as process:
        assert process.stdout is not None
        assert "is healthy" in process.stdout.readline()
        pids = myq.pids()
        process.kill()
        process.communicate(timeout=10)
    assert are_gone(pids, 15)


def test_k8_bench_under_the_nemesis(myq: Myq) -> None:
    """Daemons are killed, frozen, restarted, those of this cluster alone; the ledger is whole."""
    before = myq.pids()
    words = ("bench", "e2e", "--rate", "100", "--seconds", "8", "--nemesis")
    assert "--yes" in myq.run(*words, code=2)
    assert "--data" in myq.run(*words, "--yes", "--cluster", "127.0.0.1:1", code=1)
    assert myq.pids() == before
    found = myq.ask(*words, "--yes")
    felt = found["nemesis"]
    assert felt["faults"] and {how for _, how, _ in felt["faults"]} == set(felt["kinds"]), felt
    assert felt["whole"] and not felt["failed"], felt
    assert felt["acknowledged"] == felt["sent"] > 1000
    assert found["e2e_n"] > 0 and "server_cores" not in found
    assert myq.pids()[0] == before[0], "the agent was left alone"
    frozen = [pid for pid in myq.pids() if state_of(pid) == "T"]
    assert not frozen, "all that was frozen goes on"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
