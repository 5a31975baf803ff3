"""What several tests of the storage engine begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sim.rig import UID, Rig

from myqueue.wal.index import Index
from myqueue.wal.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(str(tmp_path), sync=False)
    yield store
    store.close()


@pytest.fixture
def index(store: Store) -> Index:
    """Stepped by hand, so that every moment of a commit is one that a test can stand in."""
    return Index(store, False, lambda: None)


@pytest.fixture
def rig() -> Rig:
    """A log with one group, on a disk that can be cut off at any operation."""
    rig = Rig()
    rig.journal.create_group(UID, b"topic/0")
    return rig
