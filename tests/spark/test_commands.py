"""D2, D3, D4: verify, stats and export on a real Spark; the work on a standalone cluster."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forging import records_to_forge
from support.plain_reader import messages
from support.processes import free_ports, wait_for

from myqueue.wal import format as f


def test_verify_and_stats_on_spark_are_those_without(
    spark: Any, folder: Path, tmp_path: Path
) -> None:
    """The seam that the fast tests use gives what Spark gives."""
    from support.plain_spread import PlainSpread

    from myqueue.analytics.spark.job import SparkSpreader
    from myqueue.analytics.stats.stats import stats
    from myqueue.analytics.verify.verify import Asked, verify

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    healthy = verify(Asked([str(copy)], split_bytes=6000), SparkSpreader(spark), tmp_path)
    assert [*healthy.findings, *healthy.notes] == []
    assert healthy.state_rows == 36
    spot = records_to_forge(copy / "broker-2", f.ENTRY, 100)[20]
    spot.flip(f.RECORD_HEADER_BYTES + 5)
    records_to_forge(copy / "broker-1", f.ENTRY, 101)[9].forge(term=9)
    with_spark, plain = (
        verify(Asked([str(copy)], with_stores=False), spread, tmp_path)
        for spread in (SparkSpreader(spark), PlainSpread())
    )
    assert sorted(with_spark.findings) == sorted(plain.findings) != []
    assert ("payload", spot.position) in {(one.rule, one.position) for one in plain.findings}
    counted = stats([str(folder)], SparkSpreader(spark), split_bytes=6000)
    assert counted == stats([str(folder)], PlainSpread(), split_bytes=6000)


def test_export_adds_what_came_since(spark: Any, folder: Path, tmp_path: Path) -> None:
    from myqueue.analytics.export import export

    target = tmp_path / "out"
    wanted = messages(folder / "broker-1")
    assert export(spark, [str(folder)], str(target), ("b",), restart=False) == sum(
        one.group == 102 for one in wanted
    )
    assert export(spark, [str(folder)], str(target), ("b",), restart=False) == 0
    rows = spark.read.parquet(str(target)).collect()
    values = {one.offset: one.value for one in wanted if one.group == 102}
    assert {row.offset: bytes(row.value) for row in rows} == values
    assert {(row.topic, row.partition) for row in rows} == {("b", 0)}
    with pytest.raises(Exception, match="is not an export"):
        export(spark, [str(folder)], str(folder), (), restart=True)
    assert export(spark, [str(folder)], str(target), (), restart=True) == len(wanted)


# -- a standalone cluster -------------------------------------------------------------------------


class Standalone:
    """A master and two workers, processes of their own, on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.page, *self.pages = free_ports(4)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> None:
        import pyspark

        from myqueue.analytics.spark.java import find_java

        home = Path(pyspark.__file__).parent
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "JAVA_HOME": find_java(os.environ, self.folder) or "",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_WORKER_DIR": str(self.folder / "work"),
        }
        with open(self.folder / f"{len(self.processes)}.log", "wb") as log:
            command = [str(home / "bin" / "spark-class"), *words]
            self.processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.folder)
            )

    def __enter__(self) -> Standalone:
        deploy = "org.apache.spark.deploy"
        listen = ("--host", "127.0.0.1")
        self.start(
            f"{deploy}.master.Master",
            *listen,
            "--port",
            str(self.port),
            "--webui-port",
            str(self.page),
        )
        wait_for("the master of Spark", lambda: self._listens(self.port), 90)
        for page in self.pages:
            self.start(
                f"{deploy}.worker.Worker",
                *listen,
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                str(page),
                self.address,
            )
        return self

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @staticmethod
    def _listens(port: int) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    def __exit__(self, *_error: object) -> None:
        for process in reversed(self.processes):
            process.terminate()
        end = time.monotonic() + 10
        for process in self.processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


@pytest.fixture
def standalone(spark: Any, tmp_path: Path) -> Iterator[Standalone]:
    """After the local session was found to work: else the skip says why."""
    with Standalone(tmp_path) as running:
        yield running


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A Python with Spark's packages, but without myqueue, ZeroMQ, LMDB and msgpack."""
    blocked = tmp_path / "bare"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(
        "import sys\n"
        "for name in ('zmq', 'lmdb', 'msgpack', 'click'): sys.modules[name] = None\n"
        "sys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in str(one)]\n"
    )
    program = tmp_path / "python3"
    path = f'PYTHONPATH="{blocked}:$PYTHONPATH"'
    program.write_text(f'#!/bin/sh\n{path} exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_verify_on_a_standalone_cluster(
    standalone: Standalone, bare_python: str, folder: Path, tmp_path: Path
) -> None:
    """D4: the command ships what executors need; they have Python and pyarrow, nothing of ours."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "myqueue.cli",
        "spark",
        "verify",
        str(folder),
        "--master",
        standalone.address,
        "--no-stores",
        "--json",
        "--html",
        str(tmp_path / "v.html"),
        "--conf",
        "spark.executor.memory=512m",
        "--conf",
        "spark.driver.host=127.0.0.1",
        "--conf",
        "spark.driver.bindAddress=127.0.0.1",
    ]
    environment = os.environ | {"PYSPARK_PYTHON": bare_python, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    facts = json.loads(done.stdout)
    assert facts["ok"] and facts["findings"] == []
    assert facts["looked_at"]["messages"] == 3 * len(messages(folder / "broker-1"))
    assert "All is well." in (tmp_path / "v.html").read_text()
    work = [one for one in (tmp_path / "work").glob("*/*") if one.is_dir()]
    assert len(work) == 2, "both workers had an executor"


def test_what_can_not_be_checked_is_not_a_finding(tmp_path: Path) -> None:
    """Exit code 3 and one line, before any Java is started."""
    command = [sys.executable, "-P", "-m", "myqueue.cli", "spark", "verify"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1 and "no logs were named" in done.stderr
