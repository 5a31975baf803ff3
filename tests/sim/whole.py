"""A whole log without threads, and a model that knows what every group holds.

The journal stands on a simulated disk, the store is real LMDB; the test decides when the writer
writes and when the store commits. `act` does one lawful thing, `check` asks the reader for all that
the model knows, `check_rebuild` builds the store again from the segments that are left.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from sim.disk import SimDisk

from myqueue.wal.append.journal import Journal, JournalConfig
from myqueue.wal.append.writer import Persisted
from myqueue.wal.groups import Group
from myqueue.wal.read.reader import Reader
from myqueue.wal.space.reclaim import Reclaimer
from myqueue.wal.store.index import Index
from myqueue.wal.store.store import Store

OWNER = bytes(range(16))
GROUPS = 5


@dataclass
class Model:
    """What one group holds, as its owner knows it."""

    entries: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)  # term, next, payload
    before: tuple[int, int] = (0, 0)  # term and next offset of the entry before the first
    vote: tuple[int, int] = (0, 0)
    commit: int = 0  # the highest that a hint or a snapshot spoke of
    snapshot: list[bytes] = field(default_factory=list)


class World:
    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.rng, self.seed = path, Random(seed), seed
        self.disk, self.stores = SimDisk(), 0
        self.models: dict[int, Model] = {}
        self.next_uid = 1
        self.open()

    def open(self, store: Path | None = None) -> None:
        """A process on what is there; without a store it is built from the segments."""
        self.stores, self.closed = self.stores + 1, False
        directory = store or self.path / f"store-{self.stores}"
        directory.mkdir(exist_ok=True)
        self.store = Store(str(directory), map_bytes=16 << 20, sync=False)
        with self.store.view() as view:
            groups = view.groups()
        self.journal = Journal.open(
            self.disk,
            OWNER,
            JournalConfig(segment_bytes=4096, soft_limit_bytes=0),
            lambda: 1,
            self.rng,
            groups=groups,
            watermark=self.store.watermark,
            sink=self.store.commit,
            threads=False,
        )
        self.index = Index(self.store, False, lambda: None)
        self.reader = Reader(self.disk, self.index, self.journal.segment_name)
        self.reclaimer = Reclaimer(self.disk, self.journal, self.index, self.reader)

    def close(self) -> None:
        """Once or more often."""
        if not self.closed:
            self.closed = True
            self.store.close()
            self.journal.close_signal()

    def write(self) -> None:
        self.journal.submit()
        while self.journal.writer.step():
            pass
        for event in self.journal.poll():
            if isinstance(event, Persisted):
                self.index.add(event.ops, event.segment, event.position)

    def commit(self) -> None:
        self.write()
        while self.index.step():
            pass
        self.index.poll()

    def turn(self) -> None:
        """Any part of what a loop does between two steps of a pass."""
        if self.rng.random() < 0.7:
            self.act()
        if self.rng.random() < 0.7:
            self.write()
        if self.rng.random() < 0.7:
            self.index.step()
            self.index.poll()

    def reclaim(self) -> None:
        self.reclaimer.begin()
        for _ in range(10_000):
            if not self.reclaimer.step():
                return
            self.turn()
        raise AssertionError("a pass comes to an end")

    def reclaim_quietly(self) -> None:
        self.reclaimer.begin()
        while self.reclaimer.step():
            self.commit()
        self.commit()

    # -- work ----------------------------------------------------------------------------------

    def act(self) -> None:
        if len(self.models) < GROUPS:
            uid = self.next_uid
            self.next_uid += 1
            self.models[uid] = Model()
            self.journal.create_group(uid, b"group %d" % uid)
            return
        # Some groups are busy, the last one is nearly always idle.
        uid = self.rng.choices(sorted(self.models), (10, 10, 5, 3, 0.3))[0]
        actions = (
            self.append,
            self.truncate,
            self.start,
            self.reset,
            self.vote,
            self.snap,
            self.hint,
            self.remove,
        )
        action = self.rng.choices(actions, (40, 5, 12, 1, 5, 3, 3, 0.5))[0]
        action(uid, self.models[uid], self.journal.groups.by_uid[uid])

    def append(self, uid: int, model: Model, group: Group) -> None:
        term, offset = group.last_term + self.rng.choice((0, 0, 1)), group.next_offset
        entries = []
        for index in range(group.last_index + 1, group.last_index + self.rng.randint(2, 6)):
            count, payload = self.rng.randrange(3), self.rng.randbytes(self.rng.randrange(300))
            entries.append((index, term, offset, count, 1, 0, index, payload))
            offset += count
            model.entries[index] = term, offset, payload
        self.journal.append(uid, entries)

    def before(self, model: Model, index: int) -> tuple[int, int]:
        return model.entries[index - 1][:2] if index - 1 in model.entries else model.before

    def truncate(self, uid: int, model: Model, group: Group) -> None:
        """And at once other entries in their places, as a new leader's."""
        if group.first_index <= group.last_index:
            index = self.rng.randint(group.first_index, group.last_index)
            term = group.last_term + 1
            self.journal.truncate(uid, index, *self.before(model, index))
            for gone in range(index, max(model.entries) + 1):
                del model.entries[gone]
            group.last_term = term
            self.append(uid, model, group)

    def start(self, uid: int, model: Model, group: Group) -> None:
        index = self.rng.randint(group.first_index, group.last_index + 1)
        model.before = self.before(model, index)
        self.journal.start(uid, index, *model.before)
        for gone in [one for one in model.entries if one < index]:
            del model.entries[gone]

    def reset(self, uid: int, model: Model, group: Group) -> None:
        index = max(1, group.last_index + self.rng.randint(-20, 20))
        model.before = group.last_term + 1, self.rng.randrange(1000)
        self.journal.start(uid, index, *model.before, reset=True)
        model.entries.clear()

    def vote(self, uid: int, model: Model, group: Group) -> None:
        model.vote = group.term + 1, self.rng.randrange(4)
        self.journal.hard_state(uid, *model.vote)

    def snap(self, uid: int, model: Model, group: Group) -> None:
        sizes = [self.rng.randrange(900) for _ in range(self.rng.randint(1, 6))]
        model.snapshot = [self.rng.randbytes(size) for size in sizes]
        model.commit = max(model.commit, group.last_index)
        self.journal.snapshot(uid, group.last_index, group.last_term, model.snapshot)

    def hint(self, uid: int, model: Model, group: Group) -> None:
        model.commit = max(model.commit, group.last_index)
        self.journal.commit_hint(uid, group.last_index)

    def remove(self, uid: int, model: Model, group: Group) -> None:
        del self.models[uid]
        self.journal.remove_group(uid)

    # -- checks --------------------------------------------------------------------------------

    def check(self) -> None:
        groups = self.journal.groups.by_uid
        assert sorted(groups) == sorted(self.models)
        for uid, model in self.models.items():
            group = groups[uid]
            assert (group.term, group.vote) == model.vote
            assert group.created == b"group %d" % uid
            assert group.commit_index >= model.commit
            assert self.reader.snapshot(group) == model.snapshot
            assert group.last_index - group.first_index + 1 == len(model.entries)
            for index, (term, _, payload) in model.entries.items():
                entry = self.reader.entry(uid, index)
                assert (entry.record.term, entry.payload) == (term, payload)

    def dump(self) -> list[Any]:
        """Groups as well: how far each is committed, and where that stands."""
        with self.store.view() as view:
            return list(view.dump(("index", "offsets", "groups")))

    def twin(self, disk: SimDisk, store: Path | None = None) -> "World":
        """Another process, on a disk that is left; its store is built from the segments."""
        twin = World.__new__(World)
        twin.path, twin.rng, twin.stores = self.path / "twin", Random(1), 0
        twin.models, twin.disk = self.models, disk
        shutil.rmtree(twin.path, ignore_errors=True)
        twin.path.mkdir()
        twin.open(store)
        return twin

    def check_rebuild(self) -> None:
        """What the remaining segments say is what the live store says."""
        twin = self.twin(self.disk.killed())
        assert not twin.journal.recovered.corrupt, twin.journal.recovered.findings
        assert twin.dump() == self.dump()
        twin.check()
        twin.close()


def quiet_world(worlds: Any, groups: int = 2) -> World:
    """A world in which only the test acts."""
    world = worlds(77)
    for uid in range(1, groups + 1):
        world.models[uid] = Model()
        world.journal.create_group(uid, b"group %d" % uid)
    world.commit()
    return world


def fill(world: World, uid: int, segments: int) -> None:
    """Append until so many segments more are sealed."""
    until = world.journal.end[0] + segments
    while world.journal.end[0] < until:
        world.append(uid, world.models[uid], world.journal.groups.by_uid[uid])
        world.commit()


def drop(world: World, uid: int) -> None:
    """Move the log's start to its end."""
    group, model = world.journal.groups.by_uid[uid], world.models[uid]
    model.before = world.before(model, group.last_index + 1)
    world.journal.start(uid, group.last_index + 1, *model.before)
    model.entries.clear()
    world.commit()
