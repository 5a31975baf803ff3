"""D1, without a JVM: what is planned and read of real logs is what an independent reader finds."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.plain_reader import messages, records
from support.queue_logs import Broker, Topic, some_topics, write_cluster
from support.verifying import verified

from myqueue.analytics.log import batch as batches
from myqueue.analytics.log import msgpack_values
from myqueue.analytics.log.catalog import ALL, make_catalog
from myqueue.analytics.log.discovery import find_logs
from myqueue.analytics.log.plan import Task, Wanted, committed_ranges, entry_tasks, record_tasks
from myqueue.analytics.log.task_reader import chosen
from myqueue.analytics.spark import session
from myqueue.daemons.raft import types as t
from myqueue.errors import CorruptData, FormatUnknown
from myqueue.wal import format as f
from myqueue.wire import batch, protocol

SEGMENT = 1 << 14


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("cluster")
    write_cluster(path, some_topics(60), segment_bytes=SEGMENT)
    return path


EVERYTHING = Wanted()


def planned(*paths: object, wanted: Wanted = EVERYTHING, split: int = 4096) -> list[Task]:
    catalog = make_catalog(find_logs([str(one) for one in paths]))
    ranges = committed_ranges(catalog, wanted)
    return entry_tasks(catalog, ranges, wanted, split, may_miss=False)


def read(tasks: list[Task]) -> list[tuple[int, int]]:
    """(group, index) of each entry that these tasks yield."""
    return [(record.group, record.index) for task in tasks for record, _ in chosen(task)]


def entries_of(daemon: Path) -> list[tuple[int, int]]:
    return sorted((one.group, one.index) for one in records(daemon) if one.kind == f.ENTRY)


@pytest.mark.parametrize("split", [700, 4096, 1 << 30])
def test_each_entry_once_however_it_is_split(folder: Path, split: int) -> None:
    tasks = planned(folder, split=split)
    assert sorted(read(tasks)) == entries_of(folder / "broker-1")
    assert len(tasks) > 4 if split < SEGMENT else len({one.location for one in tasks}) > 1


def test_every_record_of_every_log_once(folder: Path) -> None:
    catalog = make_catalog(find_logs([str(folder)]))
    tasks = record_tasks(catalog, Wanted(), 4096)
    found = sorted((one.disk, one.number, r.position) for one in tasks for r, _ in chosen(one))
    assert len(found) == len(set(found))
    whole = [one for n in (1, 2, 3) for one in records(folder / f"broker-{n}")]
    # The last mark is proved by no later one; footers have no place among the records.
    footers = sum(one.kind == f.FOOTER for one in whole)
    assert len(whole) - footers - 6 <= len(found) <= len(whole)


def test_a_missing_replica_is_made_up_for_by_the_others(folder: Path, tmp_path: Path) -> None:
    whole = sorted(read(planned(folder)))
    for one in (1, 2):
        (tmp_path / f"b{one}").symlink_to(folder / f"broker-{one}")
    segments = sorted((folder / "broker-3" / "wal").glob("*.seg"))
    part = tmp_path / "b3" / "wal"
    part.mkdir(parents=True)
    for segment in segments[1:]:
        (part / segment.name).symlink_to(segment)
    assert sorted(read(planned(tmp_path / "b3", tmp_path / "b1"))) == whole
    with pytest.raises(CorruptData, match="in none of these logs"):
        planned(lacks_a_middle(folder, tmp_path / "hole"))


def lacks_a_middle(folder: Path, to: Path) -> Path:
    (to / "wal").mkdir(parents=True)
    segments = sorted((folder / "broker-1" / "wal").glob("*.seg"))
    for segment in [*segments[:1], *segments[2:]]:
        (to / "wal" / segment.name).symlink_to(segment)
    return to


def test_footers_say_what_need_not_be_read(folder: Path) -> None:
    catalog = make_catalog(find_logs([str(folder)]))
    everything = len({one.location for one in planned(folder)})
    end = max(one.offset for one in messages(folder / "broker-1") if one.group == 100)
    few = planned(folder, wanted=Wanted(topics=("a",), offsets=(end, ALL)))
    assert len({one.location for one in few}) == 1 < everything
    assert planned(folder, wanted=Wanted(topics=("nobody",))) == []
    assert planned(folder, wanted=Wanted(times_ms=(2**50, ALL))) == []
    only = record_tasks(catalog, Wanted(kinds=(f.GROUP_CREATED,)), 1 << 30)
    sealed = [one for one in only if one.end < one.capacity and one.number > 1]
    assert len(only) < sum(len(log.segments) for log in catalog.logs)
    assert len(sealed) <= 3  # of each broker at most the open one


def test_what_was_truncated_is_not_read(tmp_path: Path) -> None:
    """Entries that a new leader replaced stand in the log, but are not part of it."""
    topic = Topic("a", 100)
    for _ in range(10):
        topic.data(3)
    broker = Broker(tmp_path / "broker-1", 1)
    broker.create(topic, [1])
    broker.append(topic, topic.entries)
    kept = topic.entries[:6]
    last = kept[-1]
    broker.log.journal.truncate(100, 7, last[t.TERM], last[t.OFFSET] + last[t.COUNT], last[t.CHAIN])
    newer = Topic("a", 100, entries=list(kept))
    for _ in range(3):
        newer.data(2, term=5, sequence=90)
    broker.append(newer, newer.entries[6:])
    broker.commit_hint(newer, 9)
    broker.close()
    found = [(r.index, r.term) for one in planned(tmp_path) for r, _ in chosen(one)]
    assert sorted(found) == [(one[t.INDEX], one[t.TERM]) for one in newer.entries]


@pytest.mark.parametrize("deposed", [1, 2, 3])
def test_the_end_of_a_log_whose_leader_was_deposed_is_not_read(
    tmp_path: Path, deposed: int
) -> None:
    """Its daemon is down since: entries that it alone has stand at indices that are committed."""
    topic = Topic("a", 100)
    topic.noop()
    for _ in range(3):
        topic.data(3)
    old, new = Topic("a", 100, entries=list(topic.entries)), topic
    for _ in range(6):
        old.data(4, size=500)
    new.noop(term=5)
    for _ in range(3):
        new.data(2, term=5, producer=8)
    for node in (1, 2, 3):
        its = old if node == deposed else new
        broker = Broker(tmp_path / f"broker-{node}", node)
        broker.create(its, [1, 2, 3], term=3 if its is old else 5)
        broker.append(its, its.entries)
        broker.commit_hint(its, 3 if its is old else len(its.entries))
        broker.close()
    found = sorted((r.index, r.term) for one in planned(tmp_path) for r, _ in chosen(one))
    assert found == [(one[t.INDEX], one[t.TERM]) for one in new.entries]
    report = verified(tmp_path, tmp_path)
    assert report.findings == [], "it will be cut off, which is right"


def test_only_what_is_certain_of_an_open_segment(tmp_path: Path) -> None:
    """A record that no later mark proves may be lost yet; committed alone is not enough."""
    topic = Topic("a", 100)
    for _ in range(9):
        topic.data(3)
    broker = Broker(tmp_path / "broker-1", 1)
    broker.create(topic, [1])
    broker.commit_hint(topic, 9)
    broker.append(topic, topic.entries)
    broker.close()
    whole = records(broker.folder)
    last = [one for one in whole if one.kind == f.ENTRY][-1]
    [path] = (p for p in (broker.folder / "wal").glob("*.seg") if any(p.read_bytes()[512:600]))
    raw = path.read_bytes()
    path.write_bytes(raw[: last.end].ljust(len(raw), b"\0"))  # the marks behind it are lost
    proven = max(one.term for one in records(broker.folder) if one.kind == f.MARK)
    assert proven <= last.position
    certain = [one.index for one in whole if one.kind == f.ENTRY and one.position < proven]
    assert 9 not in certain
    assert read(planned(tmp_path)) == [(100, index) for index in certain]
    path.write_bytes(raw)
    assert len(read(planned(tmp_path))) == 9


def test_damage_is_an_error_with_its_place(folder: Path, tmp_path: Path) -> None:
    wal = tmp_path / "one" / "wal"
    wal.mkdir(parents=True)
    for segment in (folder / "broker-1" / "wal").glob("*.seg"):
        (wal / segment.name).write_bytes(segment.read_bytes())
    path = min(wal.glob("*.seg"))
    found = records(tmp_path / "one")
    entry = next(one for one in found if one.kind == f.ENTRY and one.length)
    raw = bytearray(path.read_bytes())
    raw[entry.position + 100] ^= 4
    path.write_bytes(raw)
    with pytest.raises(CorruptData, match=f"at position {entry.position}: payload checksum"):
        read(planned(wal))
    left = [(r.group, r.index) for one in planned(wal) for r, _ in chosen(one, skip_damage=True)]
    whole = entries_of(folder / "broker-1")
    assert sorted(left) == [one for one in whole if one != (entry.group, entry.index)]


def test_a_path_without_a_log_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(FormatUnknown, match="is empty"):
        find_logs([str(tmp_path)])


def test_uris_are_read_like_paths(folder: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra spark is not installed")
    assert sorted(read(planned(f"file://{folder}"))) == entries_of(folder / "broker-1")


# -- bytes ----------------------------------------------------------------------------------------

FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
)


@FEW
@given(values)
def test_packed_values_are_those_of_the_daemons(value: Any) -> None:
    assert msgpack_values.pack(value) == protocol.pack(value)
    assert msgpack_values.unpack(protocol.pack(value)) == value
    raw = protocol.pack([value, *range(40), bytes(100_000)])
    assert (
        msgpack_values.first_item(raw)
        == msgpack_values.first_item(raw[: len(raw) - 100_000])
        == value
    )


@FEW
@given(st.binary(max_size=60))
def test_garbage_is_refused_and_nothing_else_happens(raw: bytes) -> None:
    for read in (msgpack_values.unpack, msgpack_values.first_item):
        with suppress(msgpack_values.BadPack):
            read(raw)


columns = st.integers(1, 8).flatmap(
    lambda n: st.tuples(
        st.lists(st.binary(max_size=20), min_size=n, max_size=n)
        | st.binary(max_size=290).map(lambda one: [one] * n),
        st.none() | st.lists(st.none() | st.binary(max_size=9), min_size=n, max_size=n),
        st.none()
        | st.lists(
            st.none() | st.dictionaries(st.text(), st.binary(), max_size=3), min_size=n, max_size=n
        ),
        st.none() | st.lists(st.integers(0, 2**40), min_size=n, max_size=n),
    )
)


@FEW
@given(columns, st.sampled_from([batch.PLAIN, batch.ZLIB]))
def test_batches_open_as_with_the_clients_codec(given_columns: Any, codec: int) -> None:
    raw = memoryview(batch.make(given_columns, 5, producer=9, sequence=4, epoch=2, codec=codec))
    head = batches.head(raw)
    assert batches.is_right(raw)
    assert tuple(batches.columns(raw, head)) == tuple(batch.open_batch(raw)[1])
    assert (head.producer, head.epoch, head.sequence, head.count) == (
        *(9, 2, 4, len(given_columns[0])),
    )


@FEW
@given(columns, st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_batch_is_refused(given_columns: Any, place: int, flip: int) -> None:
    raw = bytearray(batch.make(given_columns, 5))
    raw[place % len(raw)] ^= flip
    view = memoryview(bytes(raw))
    try:
        head = batches.head(view)
    except batches.BadBatch:
        return
    assert not batches.is_right(view)
    try:
        batches.columns(view, head)  # may succeed; must not do anything else than that or refuse
    except batches.BadBatch:
        pass


# -- what is shipped ------------------------------------------------------------------------------


def test_executors_need_neither_zeromq_nor_lmdb_nor_msgpack(folder: Path, tmp_path: Path) -> None:
    """The zip alone, in an interpreter that has none of the rest, reads a log."""
    archive = session.package(tmp_path)
    code = f"""
import sys
sys.path[:0] = [{str(archive)!r}]
for name in ("zmq", "lmdb", "msgpack", "click", "flask"): sys.modules[name] = None
from myqueue.analytics.log.catalog import make_catalog
from myqueue.analytics.log.discovery import find_logs
from myqueue.analytics.log.plan import Wanted, committed_ranges, entry_tasks
from myqueue.analytics.log import ack_ledger, task_reader
from myqueue.analytics.source import rows
import myqueue
assert myqueue.__file__.startswith({str(archive)!r}), myqueue.__file__
catalog = make_catalog(find_logs([{str(folder)!r}]))
ranges = committed_ranges(catalog, Wanted())
tasks = entry_tasks(catalog, ranges, Wanted(), 1 << 20, may_miss=False)
print(sum(1 for one in tasks for _ in task_reader.chosen(one)))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(entries_of(folder / "broker-1"))
