"""`myq wal archive`: whole copies only, never twice, never of two disks in one folder."""

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest
from support import wal_logs as t
from support.wal_logs import flip, make_log, nth_record

from myqueue import cli
from myqueue.wal import format as f
from myqueue.wal.files import RealFiles
from myqueue.wal.tools.archive import PART, archive


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_log(tmp_path_factory.mktemp("log") / "b1").parent


@pytest.fixture
def daemon(template: Path, tmp_path: Path) -> Path:
    return Path(copytree(template, tmp_path / "b1"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    def run_it(*words: object, to: Path = tmp_path / "archive") -> tuple[int, dict, str]:
        code = cli.main(["wal", "archive", *map(str, words), "--to", str(to), "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out)["logs"][0] if out else {}, err

    return run_it


def sealed(wal: Path) -> list[str]:
    return [one.name for one in t.segments(wal) if one.trailer() is not None]


def test_copies_are_whole_and_made_once(run, daemon: Path, tmp_path: Path) -> None:
    before = t.whole_content(daemon)
    code, result, err = run(daemon)
    names = sealed(daemon / "wal")
    assert (code, err) == (0, "")
    assert (result["copied"], result["skipped"]) == (names, [])
    folder = Path(result["to"])
    owner = t.segments(daemon / "wal")[0].owner.hex()
    assert folder == tmp_path / "archive" / owner
    assert sorted(path.name for path in folder.iterdir()) == [*names, "manifest.json"]
    for name in names:
        assert (folder / name).read_bytes() == (daemon / "wal" / name).read_bytes()
    assert run(daemon)[1]["skipped"] == names
    assert t.whole_content(daemon) == before
    assert cli.main(["wal", "verify", str(tmp_path / "archive")]) == 0


def test_the_manifest(run, daemon: Path) -> None:
    _, result, _ = run(daemon)
    manifest = json.loads((Path(result["to"]) / "manifest.json").read_text())
    assert manifest["schema"] == "myq.wal.manifest/1"
    assert manifest["source"]["daemon"] == "b1"
    row = manifest["segments"][1]
    footer = nth_record(daemon / "wal", f.FOOTER, 0, 1)
    raw = footer.path.read_bytes()
    rows = f.decode_footer(raw[footer.record.position + 72 : footer.record.end])
    assert [one["last_index"] for one in row["groups"]] == [one.last_index for one in rows]
    digest = subprocess.run(["sha256sum", footer.path], capture_output=True, text=True, check=True)
    assert row["sha256"] == digest.stdout.split()[0]


def test_damaged_segments_are_refused_and_the_others_go_on(run, daemon: Path) -> None:
    names = sealed(daemon / "wal")
    path, record = nth_record(daemon / "wal", f.ENTRY, 9, 1)
    flip(path, record.position + 100)
    trailer = t.SEGMENT_BYTES - 72 + 30
    flip(daemon / "wal" / names[2], trailer)
    code, result, err = run(daemon)
    assert code == 1
    assert "were not archived" in err
    assert result["copied"] == [name for name in names if name not in (names[1], names[2])]
    assert [(one["segment"], one["position"]) for one in result["refused"]] == [
        (names[1], record.position),
        (names[2], t.SEGMENT_BYTES - 72),
    ]
    folder = Path(result["to"])
    assert not any(path.name.startswith(names[1]) for path in folder.iterdir())
    flip(path, record.position + 100)
    flip(daemon / "wal" / names[2], trailer)
    assert run(daemon)[1]["copied"] == names[1:3]


def test_a_copy_that_went_bad_is_made_again(run, daemon: Path, capsys, tmp_path: Path) -> None:
    _, result, _ = run(daemon)
    folder, names = Path(result["to"]), sealed(daemon / "wal")
    flip(folder / names[0], 5000)
    (folder / names[1]).unlink()
    assert cli.main(["wal", "verify", str(tmp_path / "archive")]) == 1
    out = capsys.readouterr().out
    assert f"{names[1]} at position 0: named in the manifest, but not there" in out
    assert run(daemon)[1]["copied"] == names[:2]
    assert cli.main(["wal", "verify", str(tmp_path / "archive")]) == 0


class Interrupted(Exception):
    """The process is killed here."""


class DyingFiles(RealFiles):
    """Dies at a chosen operation, and checks what others can see at each of them."""

    def __init__(self, directory: str, die_at: int) -> None:
        super().__init__(directory)
        self.left = die_at
        self.synced: set[str] = set()

    def _step(self) -> None:
        for name in os.listdir(self.directory):
            if f.parse_segment_name(name):
                size = os.path.getsize(self._path(name))
                assert size == t.SEGMENT_BYTES
        self.left -= 1
        if self.left < 0:
            raise Interrupted

    def write(self, name, position, buffers, sync):
        self._step()
        super().write(name, position, buffers, sync)

    def sync(self, name):
        self._step()
        self.synced.add(name)
        super().sync(name)

    def move(self, name, to):
        self._step()
        assert to is None or name in self.synced, "a name for what is not on the disk"
        super().move(name, to)


def test_interrupted_at_each_step(daemon: Path, tmp_path: Path) -> None:
    source = RealFiles(str(daemon / "wal"), read_only=True)
    owner = t.segments(daemon / "wal")[0].owner
    names = sealed(daemon / "wal")
    target = tmp_path / "target" / owner.hex()
    died = 0
    for at in range(1000):
        files = DyingFiles(str(target), at % 9)
        try:
            list(archive(source, files, owner))
            files.close()
            break
        except Interrupted:
            died += 1
        files.close()
        for segment in t.segments(target):
            assert (target / segment.name).read_bytes() == (
                daemon / "wal" / segment.name
            ).read_bytes()
        if at > 60:
            files = RealFiles(str(target))
            list(archive(source, files, owner))
            files.close()
            break
    source.close()
    assert died > 3
    assert sorted(path.name for path in target.iterdir()) == [*names, "manifest.json"]
    assert not any(path.name.endswith(PART) for path in target.iterdir())


def test_two_disks_are_never_mixed(run, daemon: Path, tmp_path: Path) -> None:
    other = make_log(tmp_path / "b2", seed=9).parent
    first, second = run(daemon)[1]["to"], run(other)[1]["to"]
    assert first != second
    stranger = t.segments(other / "wal")[1]
    (daemon / "wal" / stranger.name).write_bytes((other / "wal" / stranger.name).read_bytes())
    code, result, _ = run(daemon)
    assert code == 1
    assert {one["segment"] for one in result["refused"]} == {stranger.name}
    assert not (Path(first) / stranger.name).exists()
    manifest = Path(first) / "manifest.json"
    manifest.write_bytes((Path(second) / "manifest.json").read_bytes())
    code, _, err = run(daemon)
    assert code == 1
    assert "is of disk" in err


@pytest.mark.parametrize("where", [".", "wal", "wal/x", "x", "../b2", "../archive/disk"])
def test_targets_that_are_refused(run, daemon: Path, tmp_path: Path, where: str) -> None:
    make_log(tmp_path / "b2", rounds=1, seed=2)
    disk = tmp_path / "archive" / Path(run(daemon)[1]["to"]).name
    target = disk if where.endswith("disk") else daemon / where
    before = t.whole_content(tmp_path)
    code, _, err = run(daemon, to=target)
    assert (code, err.count("\n")) == (2, 1)
    assert "folder" in err
    assert t.whole_content(tmp_path) == before


def test_a_damaged_manifest(run, daemon: Path) -> None:
    manifest = Path(run(daemon)[1]["to"]) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"first_index": 1,', '"first_index": 2,'))
    code, _, err = run(daemon)
    assert code == 1
    assert "manifest.json is damaged" in err
    assert "Move it away and archive again" in err


def test_without_room(daemon: Path, tmp_path: Path) -> None:
    """The shell's limit of a file's size stands for a full disk: one line, and the path."""
    words = [sys.executable, "-P", "-m", "myqueue.cli", "wal", "archive", str(daemon)]
    command = ["bash", "-c", 'ulimit -f 10; exec "$@"', "-", *words, "--to", tmp_path / "small"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"{tmp_path / 'small'}" in done.stderr
    assert "File too large" in done.stderr
