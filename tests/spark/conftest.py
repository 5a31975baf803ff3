"""One Spark session for all tests of the part: starting it is what takes long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.queue_logs import some_topics, write_cluster

JAVA_MISSING = "no Java; Debian: apt install openjdk-17-jre-headless"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from myqueue.analytics.spark.java import NoJava
    from myqueue.analytics.spark.session import make_session

    try:
        session = make_session("local[2]", name="tests", quick=True)
    except NoJava:
        pytest.skip(JAVA_MISSING)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three brokers, three partitions of two topics, several segments each."""
    path: Path = tmp_path_factory.mktemp("logs")
    write_cluster(path, some_topics(60), segment_bytes=1 << 14)
    return path
