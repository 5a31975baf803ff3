"""The storage engine against the bare machine: `bin/test bench -k wal`.

`turn` records are appended before each submit and some turns are in flight, as in a daemon that
serves clients. The floor writes the same bytes with as many syncs, in the same run, alternating
with ours.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from time import perf_counter

import pytest
from bench.bare import bare_latency_us, bare_seconds
from bench.figures import Row, median, percentile
from bench.journals import append_cost_us, fill, journal_seconds, latencies_us, open_log

from myqueue.wal.process_tuning import tune_process

ROUNDS = 3
Report = list[Row]


@pytest.fixture(autouse=True, scope="module")
def _tuned() -> None:
    tune_process()


@pytest.mark.parametrize("groups", [1, 8, 100])
@pytest.mark.parametrize(
    ("size", "total_mib", "turn"),
    [(100, 5, 4), (100, 5, 16), (1024, 32, 16), (16 << 10, 48, 4), (256 << 10, 48, 1)],
)
def test_throughput(
    disk: Path, report: Report, size: int, total_mib: int, turn: int, groups: int
) -> None:
    plain, before, rates = [], [], []
    syncs = 0
    for _ in range(ROUNDS):
        took, sizes, records = journal_seconds(disk, size, groups, total_mib << 20, turn, 4)
        assert sum(sizes) >= records * size, "every record is in a flush"
        plain.append(bare_seconds(disk, sizes, written_before=False) / took)
        before.append(bare_seconds(disk, sizes, written_before=True) / took)
        rates.append(records / took)
        syncs = len(sizes)
    what = f"append {size:,} B, {groups} groups, turns of {turn}"
    rate = median(rates)
    note = f"{rate:,.0f}/s, {rate * size / 1e6:,.0f} MB/s, {records / syncs:.1f} records a sync"
    report.append(Row(f"{what}: of a growing file", median(plain), "x bare", note, 0.8))
    report.append(Row(f"{what}: of written blocks", median(before), "x bare"))


def test_sustained(disk: Path, report: Report) -> None:
    """Across rotations: the next segments are made and zeroed beside the writing."""
    took, sizes, records = journal_seconds(disk, 16 << 10, 8, 512 << 20, 4, 4)
    bare = bare_seconds(disk, sizes, written_before=False)
    note = f"bare {sum(sizes) / bare / 1e6:,.0f} MB/s in {len(sizes)} syncs"
    rate = records * (16 << 10) / took / 1e6
    report.append(Row("append 16,384 B, 512 MiB over 8 rotations", rate, "MB/s", note))


def test_latency(disk: Path, report: Report) -> None:
    rounds = 2000
    ours, grow, before = [], [], []
    for _ in range(ROUNDS):
        times = latencies_us(disk, 100, rounds)
        assert len(times) == rounds
        ours += times
        grow.append(bare_latency_us(disk, 244, rounds, written_before=False))
        before.append(bare_latency_us(disk, 244, rounds, written_before=True))
    p50, p99 = percentile(ours, 0.5), percentile(ours, 0.99)
    note = f"bare growing {median(grow):.0f}, written blocks {median(before):.0f} us"
    report.append(Row("append -> persisted, 100 B, p50", p50, "us", note))
    report.append(Row("append -> persisted, 100 B, p99", p99, "us"))
    over = p50 - median(grow)
    report.append(Row("  over a bare append + fdatasync", over, "us", "", 60, -1))
    report.append(Row("  over the same in written blocks", p50 - median(before), "us"))


def test_many_groups(disk: Path, report: Report) -> None:
    one = median([append_cost_us(disk, 1, 60_000) for _ in range(ROUNDS)])
    many = median([append_cost_us(disk, 10_000, 60_000) for _ in range(ROUNDS)])
    report.append(Row("append cost, 1 group", one, "us/record"))
    report.append(Row("append cost, 10,000 groups", many, "us/record"))
    report.append(Row("  10,000 groups against one", many / one, "x", "", 1.5, -1))


def test_index_lookups(disk: Path, report: Report) -> None:
    groups, entries, messages = 100, 2000, 10
    log = open_log(disk / "log")
    fill(log, groups, entries, 100, messages)
    random = Random(7)
    wanted = [(random.randint(1, groups), random.randint(1, entries)) for _ in range(100_000)]
    began = perf_counter()
    rows = [log.index.row(group, index) for group, index in wanted]
    by_index = len(rows) / (perf_counter() - began)
    assert all(row is not None and row[:2] == want for row, want in zip(rows, wanted, strict=True))
    began = perf_counter()
    at_offset = log.index.row_at_offset
    found = [at_offset(group, (index - 1) * messages + 3) for group, index in wanted]
    by_offset = len(found) / (perf_counter() - began)
    assert found == rows
    log.close()
    shutil.rmtree(disk / "log")
    report.append(Row("random look-ups by index", by_index, "/s", "", 200_000))
    report.append(Row("random look-ups by offset", by_offset, "/s", "", 200_000))


def test_read_back(disk: Path, report: Report) -> None:
    groups, entries, size = 100, 100, 16 << 10
    log = open_log(disk / "log")
    fill(log, groups, entries, size)
    rates = []
    for _ in range(ROUNDS):
        began, total = perf_counter(), 0
        for group in range(1, groups + 1):
            index = 1
            while index <= entries:
                got = log.reader.entries(group, index, entries, 1 << 20)
                total += sum(entry.record.length for entry in got)
                index += len(got)
        rates.append(total / (perf_counter() - began) / 1e6)
        assert total == groups * entries * size
    log.close()
    shutil.rmtree(disk / "log")
    what = "read one group's 16 KiB entries out of 100"
    report.append(Row(what, median(rates), "MB/s", "", 500))


def test_rebuild(disk: Path, report: Report) -> None:
    log = open_log(disk / "log")
    total = fill(log, 100, 3000, 1600, 16)
    log.close()
    shutil.rmtree(disk / "log" / "store")
    began = perf_counter()
    log = open_log(disk / "log")
    took = perf_counter() - began
    assert sum(group.last_index for group in log.journal.groups.by_uid.values()) == total
    log.close()
    shutil.rmtree(disk / "log")
    report.append(Row("rebuild of the store", total / took, "entries/s", "", 100_000))


# What the process itself needed, in KiB. `ru_maxrss` is no less than that of whoever started it.
_PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
"""

_RECOVER = """
import sys, time
from random import Random
from myqueue.wal.files import RealFiles
from myqueue.wal.groups import Groups
from myqueue.wal.recover.recovery import recover

began = time.perf_counter()
out = recover(RealFiles(sys.argv[1]), Groups(), (0, 0), lambda ops, segment, position: None)
took = time.perf_counter() - began
sys.stdout.write(f"{took} {out.bytes_read} {out.records} {len(out.findings)} {peak()}")
"""

_REOPEN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from bench.journals import open_log
log = open_log(Path(sys.argv[1]))
sys.stdout.write(str(peak()))
log.close()
"""


def test_recovery(disk: Path, report: Report) -> None:
    """A journal of 2 GiB in 16 KiB entries: speed of the scan, and memory with the store's
    rebuild.
    """
    log = open_log(disk / "log")
    fill(log, 64, 2048, 16 << 10)
    log.close()
    program = [sys.executable, "-P", "-c"]
    out = subprocess.run(
        [*program, _PEAK + _RECOVER, disk / "log" / "wal"],
        check=True,
        capture_output=True,
        text=True,
    )
    took, size, records, findings, peak = map(float, out.stdout.split())
    assert findings == 0 and records > 64 * 2048
    rate = size / took / 1e6
    report.append(Row("recovery scan, 2 GiB of 16 KiB entries", rate, "MB/s", "", 500))
    shutil.rmtree(disk / "log" / "store")
    here = str(Path(__file__).parent.parent)
    out = subprocess.run(
        [*program, _PEAK + _REOPEN, disk / "log", here], check=True, capture_output=True, text=True
    )
    peak = max(peak, float(out.stdout)) / 1024
    report.append(Row("  peak memory, store rebuilt", peak, "MiB", "", 200, -1))
    shutil.rmtree(disk / "log")
