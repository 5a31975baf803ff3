"""A journal stepped by hand on a simulated disk, and what it was told.

No threads and no clock: `rig.pump()` is the writer's turn, `rig.journal.spares.step()` the
background's. The rig notes every record that the journal handed to its writer, in log order, and
how many of them were reported as persisted; tests compare that with what a recovery finds.
"""

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from sim.disk import SimDisk

from myqueue.wal.append.journal import Journal, JournalConfig
from myqueue.wal.append.layout import Entry
from myqueue.wal.append.writer import Batch, Event, Persisted
from myqueue.wal.format import RECORD_HEADER_BYTES
from myqueue.wal.groups import Group, Groups
from myqueue.wal.recover.recovery import Recovered, recover

OWNER = bytes(range(16))
UID = 0xABCDEF  # of the one group that most tests need
Watermark = tuple[int, int]


class TappedJournal(Journal):
    """Notes what is handed to the writer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.handed: list[Any] = []
        self.written: list[tuple[int, int, bytes]] = []  # segment, position, bytes; without marks
        super().__init__(*args, **kwargs)

    def _enqueue(self, batch: Batch) -> None:
        self.handed.extend(flat(batch.ops))
        begin = batch.position + RECORD_HEADER_BYTES
        self.written.append((batch.segment, begin, b"".join(batch.buffers[1:])))
        super()._enqueue(batch)


class Rig:
    """One disk, one journal at a time."""

    def __init__(self, disk: SimDisk | None = None, seed: int = 1, **config: Any) -> None:
        self.disk = SimDisk() if disk is None else disk
        self.rng = Random(seed)
        self.now_ms = 1_700_000_000_000
        sizes = {"segment_bytes": 4096, "soft_limit_bytes": 0, "record_bytes_max": 1 << 20}
        self.config = JournalConfig(**(sizes | config))
        self.before: list[Any] = []  # what recovery found when the journal was opened
        self.reported = 0  # records persisted since then
        self.events: list[Event] = []
        self.entries: dict[tuple[int, int], Entry] = {}  # (group, index) -> what was appended last
        self.open()

    def open(self) -> None:
        found: list[Any] = []
        self.journal = TappedJournal.open(
            self.disk,
            OWNER,
            self.config,
            self.clock_ms,
            self.rng,
            sink=lambda ops, segment, position: found.extend(flat(ops)),
            threads=False,
        )
        self.before, self.reported = found, 0
        for one in found:
            if len(one) == 10:
                self.entries[one[0], one[1]] = self._entry_at(one)

    def _entry_at(self, row: Any) -> Entry:
        """The entry that stands where a row of the index says (its type aside)."""
        _, index, segment, position, length, count, offset, term, time_ms, chain = row
        name = self.journal.segments[segment].name
        payload = self.disk.read(name, position + RECORD_HEADER_BYTES, length)
        return (index, term, offset, count, time_ms, 0, chain, payload)

    def clock_ms(self) -> int:
        self.now_ms += 1
        return self.now_ms

    @property
    def log(self) -> list[Any]:
        """Every record that a recovery might find, in order."""
        return self.before + self.journal.handed

    @property
    def promised(self) -> int:
        """How many of these must be found."""
        return len(self.before) + self.reported

    @property
    def groups(self) -> Groups:
        return self.journal.groups

    def group(self, uid: int) -> Group:
        return self.journal.groups.by_uid[uid]

    # -- work ----------------------------------------------------------------------------------

    def make(self, uid: int, sizes: Iterable[int], term: int = 0) -> list[Entry]:
        """The next entries of a group, with payloads of these sizes."""
        group, entries = self.group(uid), []
        offset = group.next_offset
        for index, size in enumerate(sizes, group.last_index + 1):
            count = self.rng.randrange(4)
            entries.append(
                (
                    *(index, term or max(1, group.last_term), offset, count, self.clock_ms()),
                    *(self.rng.randrange(16), self.rng.getrandbits(64), self.rng.randbytes(size)),
                )
            )
            offset += count
        return entries

    def append(self, uid: int, *sizes: int, term: int = 0, urgent: bool = False) -> None:
        entries = self.make(uid, sizes, term)
        self.journal.append(uid, entries, urgent=urgent)
        for entry in entries:
            self.entries[uid, entry[0]] = entry

    def before_index(self, uid: int, index: int) -> tuple[int, int, int]:
        """(term, next offset, chain) of the entry before: what TRUNCATE and START must tell."""
        group = self.group(uid)
        if index == group.first_index:
            return group.start_term, group.start_offset, group.start_chain
        entry = self.entries[uid, index - 1]
        return entry[1], entry[2] + entry[3], entry[6]

    def truncate(self, uid: int, index: int) -> None:
        self.journal.truncate(uid, index, *self.before_index(uid, index))

    def start(self, uid: int, index: int) -> None:
        self.journal.start(uid, index, *self.before_index(uid, index))

    def pump(self) -> list[Event]:
        """Submit, write all that waits, take the events."""
        self.journal.submit()
        events = []
        while self.journal.writer.step():
            events += self.poll()
        return events + self.poll()

    def poll(self) -> list[Event]:
        events = self.journal.poll()
        for event in events:
            if isinstance(event, Persisted):
                self.reported += len(flat(event.ops))
        self.events += events
        return events

    def settle(self) -> None:
        self.pump()
        self.journal.settle()
        self.pump()

    def reopen(self, disk: SimDisk | None = None) -> Recovered:
        """Another process on this disk, or on what a crash left of it."""
        if disk is not None:
            self.disk = disk
        self.open()
        return self.journal.recovered


def flat(ops: list[Any]) -> list[Any]:
    """Ops without their grouping: rows of entries, and (record, segment, payload) of others.

    Without those that recovery makes itself to remember a damage: no record stands at position 0.
    """
    records: list[Any] = []
    for op in ops:
        if isinstance(op, list):
            records += op
        elif op[0].position:
            records.append(op)
    return records


def recovered(
    disk: SimDisk, watermark: Watermark = (0, 0), groups: Groups | None = None, repair: bool = True
) -> tuple[Recovered, list[Any]]:
    """What a recovery of this disk finds."""
    found: list[Any] = []
    out = recover(
        disk,
        groups or Groups(),
        watermark,
        lambda ops, segment, position: found.extend(flat(ops)),
        owner=OWNER,
        repair=repair,
    )
    return out, found


def state_of(group: Group) -> dict[str, Any]:
    """All that a group is, to be compared with another."""
    return {name: getattr(group, name) for name in Group.__slots__}


def states_of(groups: Groups) -> dict[int, dict[str, Any]]:
    return {uid: state_of(group) for uid, group in groups.by_uid.items()}


def journal_state(rig: Rig) -> Any:
    """Everything that a refused call must leave as it was."""
    layout = rig.journal._layout
    batch = layout.batch
    return (
        states_of(rig.groups),
        rig.journal.queued_bytes,
        layout.number,
        layout.tail,
        layout.limit,
        {group: row[:] for group, row in layout.rows.by_group.items()},
        None if batch is None else (batch.records, len(batch.buffers), len(flat(batch.ops))),
    )


def refused(rig: Rig, error: type[Exception], call: Any) -> None:
    before = journal_state(rig)
    with pytest.raises(error):
        call()
    assert journal_state(rig) == before, "a refused call changes nothing"


def newest_segment(rig: Rig) -> str:
    """The name of the segment that is written now."""
    return rig.journal.segments[rig.journal.persisted_at[0]].name


def contents(disk: SimDisk) -> dict[str, bytes]:
    """Every file, as a process would read it now."""
    return {name: bytes(disk.contents(name)) for name in disk.list()}
