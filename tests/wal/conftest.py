"""What several tests of the storage engine begin with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sim.rig import UID, Rig
from sim.whole import World

from myqueue.wal.space import evacuate as evacuate_module
from myqueue.wal.space import reclaim as reclaim_module
from myqueue.wal.store.index import Index
from myqueue.wal.store.store import Store


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


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(evacuate_module, "STEP_BYTES", 600)
    monkeypatch.setattr(reclaim_module, "COMPACT_BELOW_SHARE", 0.6)

    made: list[World] = []

    def make(seed: int) -> World:
        path = tmp_path / str(seed)
        path.mkdir()
        made.append(World(path, seed))
        return made[-1]

    yield make
    for world in made:
        world.close()
