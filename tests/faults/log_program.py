"""A daemon in small: a real process with a real log, made to be killed.

It opens the log in DIRECTORY, tells everything that it finds there, then works until somebody ends
it: appends for several groups, votes, snapshots, log starts, truncations, reclaim, applied state.
What it says on its standard output, one line each, is what a client would have been promised:

    found KIND ...      at start, about everything that is in the log; then `ready`
    offer KIND ...      before a call that changes something that was promised earlier
    done KIND ...       after the journal said that it is on disk: the acknowledgement
    stopped ERROR       the disk failed; nothing is acknowledged behind this line

Payloads follow from (group, term, index), so that any process can tell right ones from wrong ones.
`ledger.py` checks the lines of many lives of one directory against each other.
"""

import argparse
import os
import select
import sys
import time
from collections import deque
from random import Random
from zlib import crc32

from myqueue.errors import DiskFull, JournalBusy, MyQueueError
from myqueue.wal import files
from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.append.writer import Persisted, Stopped
from myqueue.wal.groups import Group
from myqueue.wal.log import Log

GROUPS = 6
KEPT_ENTRIES = 150
SIZES = (0, 10, 100, 1000, 5000)
EXIT_CLEAN, EXIT_STOPPED, EXIT_STORE = 0, 3, 4


def payload_of(group: int, term: int, index: int, size: int) -> bytes:
    return Random(group << 80 | term << 40 | index).randbytes(size)


def parts_of(group: int, term: int, index: int) -> list[bytes]:
    rng = Random(-(group << 80 | term << 40 | index))
    return [rng.randbytes(rng.choice(SIZES)) for _ in range(rng.randint(1, 4))]


def tell(*lines: str) -> None:
    if lines:
        os.write(1, ("\n".join(lines) + "\n").encode())


class Program:
    def __init__(self, log: Log, rng: Random) -> None:
        self.log, self.rng = log, rng
        self.entries: dict[tuple[int, int], tuple[int, int]] = {}  # -> term, next offset
        self.waiting: deque[tuple[int, str]] = deque()  # batch, what it acknowledges
        self.turns = 0
        self.applied: dict[int, int] = {}

    # -- at start ------------------------------------------------------------------------------

    def tell_what_is_there(self) -> None:
        recovered = self.log.journal.recovered
        tell(*(f"found finding {finding}" for finding in recovered.findings))
        tell(f"found store {self.log.store_problem or 'ok'}")
        for uid, group in sorted(self.log.journal.groups.by_uid.items()):
            if uid <= GROUPS:
                self._tell_group(uid, group)

    def _tell_group(self, uid: int, group: Group) -> None:
        lines = [
            f"found group {uid} {group.first_index} {group.last_index}",
            f"found vote {uid} {group.term} {group.vote}",
        ]
        with self.log.store.view() as view:
            state = int(view.state(uid, b"applied") or b"0")
            lines.append(f"found applied {uid} {view.applied_index(uid)} {state}")
        if group.snapshot_parts:
            term, index = group.snapshot_term, group.snapshot_index
            right = self.log.reader.snapshot(group) == parts_of(uid, term, index)
            lines.append(f"found snapshot {uid} {index} {'right' if right else 'WRONG'}")
        at = group.first_index
        while at <= group.last_index:
            for record, payload in self.log.reader.entries(uid, at, group.last_index):
                right = payload == payload_of(uid, record.term, record.index, record.length)
                lines.append(
                    f"found entry {uid} {record.term} {record.index} "
                    f"{crc32(payload) if right else 'WRONG'}"
                )
                self.entries[uid, record.index] = record.term, record.offset + record.count
                at = record.index + 1
        tell(*lines)

    # -- work ----------------------------------------------------------------------------------

    def create_groups(self) -> None:
        for uid in range(1, GROUPS + 1):
            if uid not in self.log.journal.groups.by_uid:
                self.log.journal.create_group(uid, b"group %d" % uid)

    def turn(self) -> None:
        """Some calls, then everything goes to the writer; acknowledge what is on disk."""
        for _ in range(self.rng.randint(1, 6)):
            uid = self.rng.randint(1, GROUPS)
            group = self.log.journal.groups.by_uid[uid]
            self.rng.choices(
                (self.append, self.vote, self.truncate, self.start, self.snapshot),
                (60, 10, 4, 8, 3),
            )[0](uid, group)
        self.log.journal.submit()
        if self.rng.random() < 0.5:
            select.select([self.log.journal], [], [], 0.02)
        self.poll()
        self.turns += 1
        if not self.log.reclaimer.step() and self.turns % 40 == 0:
            self.log.reclaimer.begin()
        if self.rng.random() < 0.05:
            self.log.journal.settle()

    def poll(self) -> None:
        for event in self.log.poll():
            if isinstance(event, Stopped):
                tell(f"stopped {event.error}")
            elif isinstance(event, Persisted):
                lines = []
                while self.waiting and self.waiting[0][0] <= event.batch:
                    lines.append(self.waiting.popleft()[1])
                tell(*lines)
                self.apply(event)

    def apply(self, event: Persisted) -> None:
        """State that is right exactly if it is of its applied index (W13)."""
        states = {}
        for uid, (_, index) in event.tails.items():
            if index > self.applied.get(uid, 0):
                self.applied[uid] = index
                states[uid] = (index, {b"applied": b"%d" % index}, [])
        if states:
            self.log.index.apply(states)

    def append(self, uid: int, group: Group) -> None:
        entries, lines = [], []
        offset, term = group.next_offset, max(1, group.last_term)
        for index in range(group.last_index + 1, group.last_index + self.rng.randint(2, 9)):
            count = self.rng.randrange(3)
            payload = payload_of(uid, term, index, self.rng.choice(SIZES))
            entries.append((index, term, offset, count, 1, 0, 0, payload))
            lines.append(f"done entry {uid} {term} {index} {crc32(payload)}")
            offset += count
        try:
            batch = self.log.journal.append(uid, entries)
        except (JournalBusy, DiskFull):
            return
        self.waiting.extend((batch, line) for line in lines)
        for index, term, first, count, *_ in entries:
            self.entries[uid, index] = term, first + count

    def vote(self, uid: int, group: Group) -> None:
        term, vote = group.term + self.rng.randint(0, 1), self.rng.randint(0, 3)
        tell(f"offer vote {uid} {term} {vote}")
        self.waiting.append(
            (self.log.journal.hard_state(uid, term, vote), f"done vote {uid} {term} {vote}")
        )

    def truncate(self, uid: int, group: Group) -> None:
        """The entry that replaces the first one removed has a higher term, as in Raft."""
        if group.last_index - group.first_index < 3:
            return
        index = group.last_index - self.rng.randint(0, 2)
        term, offset = self.entries[uid, index - 1]
        new_term = max(group.last_term, group.term) + 1
        tell(f"offer truncate {uid} {index} {new_term}")
        self.log.journal.truncate(uid, index, term, offset)
        payload = payload_of(uid, new_term, index, 50)
        entry = (index, new_term, offset, 1, 1, 0, 0, payload)
        batch = self.log.journal.append(uid, [entry], urgent=True)
        self.entries[uid, index] = new_term, offset + 1
        self.waiting.append((batch, f"done truncate {uid} {index} {new_term}"))
        self.waiting.append((batch, f"done entry {uid} {new_term} {index} {crc32(payload)}"))

    def start(self, uid: int, group: Group) -> None:
        index = group.last_index - self.rng.randint(KEPT_ENTRIES // 2, KEPT_ENTRIES)
        if index <= group.first_index:
            return
        tell(f"offer start {uid} {index}")
        batch = self.log.journal.start(uid, index, *self.entries[uid, index - 1])
        self.waiting.append((batch, f"done start {uid} {index}"))

    def snapshot(self, uid: int, group: Group) -> None:
        index, term = group.last_index, group.last_term
        tell(f"offer snapshot {uid} {index}")
        batch = self.log.journal.snapshot(uid, index, term, parts_of(uid, term, index))
        self.waiting.append((batch, f"done snapshot {uid} {index}"))


def flood(log: Log, seconds: float) -> None:
    """Append as fast as it goes, whatever the disk does; tell how long a call took at most."""
    uid, slowest, refused, taken = GROUPS + 1, 0.0, 0, 0
    if uid not in log.journal.groups.by_uid:
        log.journal.create_group(uid, b"flood")
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        index = log.journal.groups.by_uid[uid].last_index + 1
        try:
            log.journal.append(uid, [(index, 1, index, 1, 1, 0, 0, bytes(4000))])
            taken += 1
        except MyQueueError as error:
            refused += error.name == "JOURNAL_BUSY"
            time.sleep(0.001)
            began = time.monotonic()
        log.journal.submit()
        log.poll()
        slowest = max(slowest, time.monotonic() - began)
    tell(f"flood {taken} {refused} {slowest:.3f} {log.journal.queued_bytes}")


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("directory")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--turns", type=int, default=1 << 60)
    options.add_argument("--flood", type=float, help="seconds")
    options.add_argument("--no-dsync", action="store_true", help="sync with a call of its own")
    given = options.parse_args()
    if given.no_dsync:
        files._DSYNC = 0
    config = JournalConfig(
        segment_bytes=64 << 10, soft_limit_bytes=0, queue_bytes_max=256 << 10, close_timeout_s=20
    )
    rng = Random(given.seed)
    identity = ("cluster", "daemon", "broker")
    log = Log(given.directory, identity, config, lambda: time.time_ns() // 10**6, rng)
    program = Program(log, rng)
    try:
        program.tell_what_is_there()
        program.create_groups()
        tell("ready")
        if given.flood:
            flood(log, given.flood)
            return EXIT_CLEAN
        while program.turns < given.turns and log.journal.error is None:
            program.turn()
    except MyQueueError as error:
        tell(f"error {error.name} {error}")
        program.poll() if log.index.error is None else None
        return EXIT_STOPPED if log.journal.error is not None else EXIT_STORE
    finally:
        tell(f"closed {log.close()}")
    return EXIT_STOPPED if log.journal.error is not None else EXIT_CLEAN


if __name__ == "__main__":
    sys.exit(main())
