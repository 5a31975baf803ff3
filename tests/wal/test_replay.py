"""A store that was lost comes back from the log, the applied state included, byte for byte."""

import select
import shutil
from pathlib import Path
from random import Random

import pytest
from support.replay import replay

from myqueue.wal.append.journal import JournalConfig
from myqueue.wal.groups import Group
from myqueue.wal.log import Log
from myqueue.wal.read.reader import Entry
from myqueue.wal.store.store import StateChange

CONFIG = JournalConfig(segment_bytes=16 << 10, soft_limit_bytes=0, reserve_bytes=0)


class Words:
    """Counts the first words of payloads: a state machine whose state is easy to check by hand."""

    def restore(self, group: Group, parts: list[bytes]) -> StateChange:
        rows = [line.split(b"=") for line in b"".join(parts).splitlines()]
        return group.snapshot_index, dict(rows), []

    def __init__(self) -> None:
        self.counts: dict[int, dict[bytes, int]] = {}

    def apply(self, group: Group, entries: list[Entry]) -> StateChange:
        counts = self.counts.setdefault(group.uid, {})
        changed: dict[bytes, bytes] = {}
        for entry in entries:
            word = bytes(entry.payload).split(b" ")[0]
            counts[word] = counts.get(word, 0) + 1
            changed[word] = b"%d" % counts[word]
        return entries[-1].record.index, changed, []

    def snapshot(self, uid: int) -> list[bytes]:
        lines = sorted(b"%s=%d\n" % item for item in self.counts[uid].items())
        return [b"".join(lines[at : at + 2]) for at in range(0, len(lines), 2)]


class Continued(Words):
    """The same, starting from what a snapshot restored."""

    def restore(self, group: Group, parts: list[bytes]) -> StateChange:
        change = super().restore(group, parts)
        self.counts[group.uid] = {key: int(value) for key, value in change[1].items()}
        return change


def open_log(directory: Path) -> Log:
    return Log(str(directory), ("c", "d", "broker"), CONFIG, lambda: 5, Random(3))


def drain(log: Log, stored: bool = True) -> None:
    """Until everything that was appended is on disk and, if so wished, in the store."""
    waiting = select.poll()
    waiting.register(log.journal.fileno(), select.POLLIN)
    while log.journal.queued_bytes or (stored and log.index.works_waiting):
        waiting.poll(1000)
        log.poll()


def dump(log: Log) -> list[tuple[str, bytes, bytes]]:
    with log.store.view() as view:
        return list(view.dump())


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_lost_store_is_rebuilt_byte_for_byte(tmp_path: Path, with_snapshot: bool) -> None:
    """W13, L11: index, groups, applied state and applied index equal what the live store had."""
    directory, random, machine = tmp_path / "data", Random(11), Words()
    log = open_log(directory)
    for uid in (7, 8):
        log.journal.create_group(uid, b"words")
    for index in range(1, 301):
        for uid in (7, 8):
            payload = random.choice((b"red", b"green", b"blue")) + b" " * random.randrange(200)
            entry = (index, 1, index - 1, 1, 5, 0, 0, payload)
            log.journal.append(uid, [entry])
        log.journal.submit()
        drain(log, stored=False)
        for uid in (7, 8):
            group = log.journal.groups.by_uid[uid]
            log.index.apply({uid: machine.apply(group, [log.reader.entry(uid, index)])})
        if with_snapshot and index == 200:
            log.journal.snapshot(7, 200, 1, machine.snapshot(7))
            log.journal.start(7, 150, 1, 149)
    for uid in (7, 8):
        log.journal.commit_hint(uid, 300)
    log.journal.submit()
    drain(log)
    before = dump(log)
    assert log.close()

    shutil.rmtree(directory / "store")
    log = open_log(directory)
    assert list(replay(log, Continued())) == [7, 8]
    drain(log)
    after = dump(log)
    log.close()
    assert {table for table, _, _ in before} == {"index", "offsets", "groups", "state", "applied"}
    assert after == before


def test_replay_goes_no_further_than_the_commit_hint(tmp_path: Path) -> None:
    """What is not known to be committed may still be truncated: it is not applied."""
    log = open_log(tmp_path / "data")
    log.journal.create_group(7, b"words")
    log.journal.append(7, [(index, 1, index - 1, 1, 5, 0, 0, b"red") for index in (1, 2, 3)])
    log.journal.commit_hint(7, 2)
    log.journal.submit()
    drain(log)
    list(replay(log, Continued()))
    drain(log)
    with log.store.view() as view:
        assert (view.applied_index(7), view.state(7, b"red")) == (2, b"2")
    log.close()
