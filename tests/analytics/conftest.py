"""One healthy cluster for all tests that verify; single faults are planted in copies of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.queue_logs import some_topics, write_cluster


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One segment per broker. Not to be written to."""
    path: Path = tmp_path_factory.mktemp("healthy")
    write_cluster(path, some_topics(20))
    return path


@pytest.fixture
def cluster(healthy: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "cluster"
    shutil.copytree(healthy, copy)
    return copy
