"""The tools beside a process that appends, rotates and reclaims as fast as it can."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from support import wal_logs as t

from myqueue import cli
from myqueue.wal.check.segments import Finding, survey
from myqueue.wal.files import RealFiles
from myqueue.wal.tools.dump import Dump, DumpedRecord, RecordFilter

SECONDS = 2.0
pytestmark = pytest.mark.slow

# Three groups are written all the time, a fourth one seldom; all but its entries are reclaimed.
WRITER = """
import sys
from pathlib import Path
from time import monotonic
from support import wal_logs as t

log = t.open_log(Path(sys.argv[1]))
for group in (*t.GROUPS, 4):
    log.journal.create_group(group, b"x")
print("ready", flush=True)
until, turn = monotonic() + float(sys.argv[2]), 0
log.reclaimer.begin()
while monotonic() < until:
    turn += 1
    for group in t.GROUPS:
        t.append(log, group, 20, b"some payload " * 20)
    if turn % 50 == 0:
        t.append(log, 4, 1, b"seldom")
    if turn % 20 == 0:
        for group in t.GROUPS:
            last = log.journal.groups.by_uid[group].last_index
            if last > 400:
                log.journal.start(group, last - 300, 3, 2 * (last - 300))
        log.journal.submit()
    if not log.reclaimer.step():
        log.reclaimer.begin()
    log.poll()
print(log.reclaimer.removed_segments, log.journal.end[0], flush=True)
log.close()
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    tests = str(Path(t.__file__).parent.parent)
    command = [sys.executable, "-P", "-c", WRITER, str(tmp_path / "b1"), str(SECONDS)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": tests}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def outcome(writer: subprocess.Popen[str]) -> tuple[int, int]:
    """How many segments it reclaimed, and the number of the last one."""
    assert writer.stdout is not None
    removed, last = writer.stdout.readline().split()
    assert writer.wait(timeout=20) == 0
    return int(removed), int(last)


def test_verify_beside_a_writer(writer, tmp_path: Path, capsys) -> None:
    until, runs = monotonic() + SECONDS, 0
    while monotonic() < until - 0.5:
        code = cli.main(["wal", "verify", str(tmp_path / "b1")])
        out, err = capsys.readouterr()
        assert (code, err) == (0, ""), out
        runs += 1
    removed, last = outcome(writer)
    assert removed > 2
    assert last > 20
    assert runs > 3
    found, summary = t.check(tmp_path / "b1" / "wal")
    assert found == []
    assert summary.entries > 400


def test_ls_and_archive_beside_a_writer(writer, tmp_path: Path, capsys) -> None:
    until = monotonic() + SECONDS
    while monotonic() < until - 0.5:
        for words in (["ls"], ["archive", "--to", str(tmp_path / "archive")]):
            assert cli.main(["wal", *words, str(tmp_path / "b1")]) == 0, capsys.readouterr()
        assert "damaged" not in capsys.readouterr().out
    outcome(writer)
    (disk,) = (tmp_path / "archive").iterdir()
    for segment in survey(t.Folder(disk)):
        assert segment.trailer() is not None


def test_follow_beside_a_writer(writer, tmp_path: Path) -> None:
    """Each record once and in order, over the ends of segments and away from those reclaimed."""
    files = RealFiles(str(tmp_path / "b1" / "wal"), read_only=True, open_max=2)
    dump = Dump(files, RecordFilter())
    places: list[tuple[int, int]] = []
    following = True
    while following:
        following = writer.poll() is None
        for found in dump.records():
            assert not isinstance(found, Finding), str(found)
            assert isinstance(found, DumpedRecord)
            places.append((found.segment.number, found.record.position))
    assert places == sorted(set(places))
    outcome(writer)
    written = [
        (segment.number, record.position)
        for segment in survey(t.Folder(tmp_path / "b1" / "wal"))
        for record, _ in segment.scan().records()
    ]
    assert sorted(set(written) - set(places)) == []
    files.close()
