"""`myq wal` as people and programs call it: output, filters, exit codes, bad input."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest
from support import wal_logs as t
from support.wal_logs import GROUPS, flip, make_log, nth_record, put

from myqueue import cli
from myqueue.wal import format as f

MYQ = [sys.executable, "-P", "-m", "myqueue.cli"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_log(tmp_path_factory.mktemp("log") / "b1").parent


@pytest.fixture
def daemon(template: Path, tmp_path: Path) -> Path:
    return Path(copytree(template, tmp_path / "data" / "b1"))


@pytest.fixture
def myq(capsys: pytest.CaptureFixture[str]):
    """Runs `myq wal …`; gives exit code, stdout, stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        code = cli.main(["wal", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def of_json(answer: tuple[int, str, str], schema: str) -> dict:
    value = json.loads(answer[1])
    assert value["schema"] == schema
    return value


# -- where a log may be ----------------------------------------------------------------------------


def test_every_kind_of_path(myq, daemon: Path) -> None:
    for path in (daemon, daemon / "wal", daemon.parent):
        value = of_json(myq("ls", path, "--json"), "myq.wal.ls/1")
        assert [log["path"] for log in value["logs"]] == [str(daemon / "wal")]
        assert value["logs"][0]["totals"]["entries"] == 600
    make_log(daemon.parent / "b2", rounds=1, seed=2)
    code, out, _ = myq("verify", daemon.parent)
    assert code == 0
    assert out.count("no corruption") == 2
    assert f"== {daemon.parent / 'b2' / 'wal'}" in out


def test_entries_without_a_time_are_not_of_1970(myq, tmp_path: Path) -> None:
    """A leader's first entry in a term has none; a segment may hold nothing else."""
    log = t.open_log(tmp_path / "b1")
    times = {GROUPS[0]: (0, t.TIME_MS + 7), GROUPS[1]: (0,), GROUPS[2]: (t.TIME_MS + 3,)}
    for group, its in times.items():
        log.journal.create_group(group, b"x")
        log.journal.append(group, [(i, 3, i, 1, at, 0, i, b"") for i, at in enumerate(its, 1)])
    log.journal.leave_segment()
    log.journal.append(GROUPS[1], [(2, 3, 2, 0, 0, 0, 2, b"")])
    assert log.close()
    value = of_json(myq("ls", tmp_path / "b1", "--groups", "--json"), "myq.wal.ls/1")
    first, second = value["logs"][0]["segments"][:2]
    assert (first["first_time_ms"], first["last_time_ms"]) == (t.TIME_MS + 3, t.TIME_MS + 7)
    assert (second["first_time_ms"], second["last_time_ms"]) == (None, None)
    rows = {int(one["group"], 16): one for one in first["group_rows"]}
    assert rows[GROUPS[0]]["first_time_ms"] is rows[GROUPS[1]]["last_time_ms"] is None
    for words in (("ls",), ("ls", "--groups"), ("dump",), ("dump", "--json")):
        assert "1970" not in (out := myq(*words, tmp_path / "b1")[1]) and out
    code, _, _ = myq("archive", tmp_path / "b1", "--to", tmp_path / "to")
    [manifest] = (tmp_path / "to").glob("*/manifest.json")
    kept = json.loads(manifest.read_text())["segments"]
    assert code == 0 and kept[0]["first_time_ms"] == t.TIME_MS + 3


def test_a_damaged_identity_is_named(myq, daemon: Path) -> None:
    """Which of many daemons it is, for every command that needs to know whose log it reads."""
    make_log(daemon.parent / "b2", rounds=1, seed=2)
    path = daemon.parent / "b2" / "identity"
    path.write_bytes(path.read_bytes()[:-20])
    for command in ("ls", "verify"):
        code, _, err = myq(command, daemon.parent)
        assert code and f"{path} is damaged" in err, (command, err)


def test_bad_paths_are_one_line_that_says_what_to_do(myq, tmp_path: Path, daemon: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("x")
    (tmp_path / "fresh" / "wal").mkdir(parents=True)
    cases = {
        tmp_path / "nowhere": "No such file or directory. Check the path",
        tmp_path / "empty": "is empty",
        tmp_path / "other": "holds no log",
        tmp_path / "other" / "notes": "Not a directory",
        tmp_path / "fresh": "holds no segment",
    }
    for verb in (["ls"], ["dump"], ["verify"], ["archive", "--to", str(tmp_path / "a")]):
        for path, said in cases.items():
            code, out, err = myq(*verb, path)
            assert (code, out, err.count("\n")) == (1, "", 1), err
            assert said in err
            assert str(path) in err


def test_no_permission(myq, daemon: Path) -> None:
    assert myq("ls", daemon)[0] == 0  # and all that the command needs is imported now
    daemon.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        code, out, err = myq("ls", daemon)
    finally:
        if is_root:
            os.seteuid(0)
        daemon.chmod(0o700)
    assert (code, out) == (1, "")
    assert err == f"myq: {daemon}: Permission denied. Check the path and its permissions.\n"


@pytest.mark.parametrize(
    "words",
    [
        ["dump", "--group", "xyz"],
        ["dump", "--index", "9..3"],
        ["dump", "--offset", ".."],
        ["dump", "--kind", "NOTHING"],
        ["dump", "--limit", "0"],
        ["verify", "--limit-rate", "0"],
        ["archive"],
    ],
)
def test_wrong_usage(myq, daemon: Path, words: list[str]) -> None:
    code, out, err = myq(*words, daemon)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_the_core_needs_no_library() -> None:
    """Other programs take it as plain files, to places where only Python is."""
    script = (
        "import sys; from myqueue.wal.tools import archive, dump, listing as overview, verify;"
        "sys.exit(' '.join({'lmdb', 'click', 'zmq', 'msgpack'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""


def test_a_finding_does_not_stand_behind_the_bar(myq, daemon: Path, monkeypatch) -> None:
    path, record = nth_record(daemon / "wal", f.ENTRY, 30, 2)
    flip(path, record.position + 72, 4)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code, out, err = myq("verify", daemon)
    assert code == 1
    assert out.startswith("corrupt: ")
    assert "Verifying" in err
    assert "\r\x1b[K" in err


# -- ls --------------------------------------------------------------------------------------------


def test_ls(myq, daemon: Path) -> None:
    wal = daemon / "wal"
    (wal / "000000000001-00000000000000aa.seg.trash").write_bytes(b"x")
    (wal / "000000000099-00000000000000aa.seg.new").write_bytes(b"x")
    one, last = t.segments(wal)[1], t.segments(wal)[-1]
    header = f.SegmentHeader(last.number + 1, 7, last.capacity, 0, last.owner)
    spare = wal / f.segment_name(header.number, header.uid)
    spare.write_bytes(f.encode_segment_header(header).ljust(last.capacity, b"\0"))
    flip(wal / one.name, 20)
    rows = of_json(myq("ls", daemon, "--json"), "myq.wal.ls/1")["logs"][0]["segments"]
    states = {row["name"]: row["state"] for row in rows}
    assert set(states.values()) == {"sealed", "open", "spare", "trash", "new", "damaged"}
    assert states[one.name] == "damaged"
    first = next(row for row in rows if row["state"] == "sealed")
    footer = nth_record(wal, f.FOOTER).record
    assert first["used_bytes"] == footer.end
    assert first["first_index"] == 1
    assert first["groups"] == 3
    code, out, _ = myq("ls", daemon)
    assert code == 0
    assert out.startswith("SEGMENT")
    assert "600 entries of 3 groups" in out
    assert f"damaged: {one.name}" in out


def test_ls_by_groups(myq, daemon: Path) -> None:
    value = of_json(myq("ls", daemon, "--groups", "--json"), "myq.wal.ls/1")
    rows = [row for segment in value["logs"][0]["segments"] for row in segment["group_rows"]]
    assert sum(row["entries"] for row in rows) == 600
    assert {row["group"] for row in rows} == {f"{group:016x}" for group in GROUPS}
    _, out, _ = myq("ls", daemon, "--groups")
    assert out.count(f"{GROUPS[0]:016x}") >= 3


# -- dump ------------------------------------------------------------------------------------------


def dumped(answer: tuple[int, str, str]) -> list[dict]:
    assert answer[0] == 0, answer[2]
    rows = [json.loads(line) for line in answer[1].splitlines()]
    assert {row["schema"] for row in rows} <= {"myq.wal.record/1"}
    return rows


def test_dump_has_every_record(myq, daemon: Path) -> None:
    rows = dumped(myq("dump", daemon, "--json"))
    placed = [one.record for one in t.records(daemon / "wal")]
    assert [row["position"] for row in rows if row["kind"] != "TRAILER"] == [
        record.position for record in placed
    ]
    assert sum(row["kind"] == "TRAILER" for row in rows) == t.check(daemon / "wal")[1].sealed
    code, out, _ = myq("dump", daemon)
    assert code == 0
    assert len(out.splitlines()) == len(rows) + 1


def test_dump_filters(myq, daemon: Path) -> None:
    def rows(*words: object) -> list[dict]:
        return dumped(myq("dump", daemon, "--json", *words))

    for name in ("161", "0xa1", f"{0xA1:016x}", "a1"):
        assert len(rows("--group", name, "--kind", "entry")) == 200
    some = rows("--group", GROUPS[2], "--kind", "ENTRY", "--index", "20..29")
    assert [row["index"] for row in some] == list(range(20, 30))
    assert [row["index"] for row in rows("--index", "199..", "--group", "a1")] == [199, 200]
    # Entry i has the messages 2 i and 2 i + 1.
    assert [row["index"] for row in rows("--group", "a1", "--offset", "5..8")] == [2, 3, 4]
    assert [row["index"] for row in rows("--group", "a1", "--offset", "9")] == [4]
    assert {row["kind"] for row in rows("--kind", "mark", "--kind", "footer")} == {"MARK", "FOOTER"}
    assert {row["segment"] for row in rows("--segment", 2)} == {2}
    assert len(rows("--limit", 7)) == 7
    assert rows("--group", "77") == []


def test_dump_payloads(myq, daemon: Path) -> None:
    words = ("dump", daemon, "--json", "--payload", "--group", "a1")
    created = dumped(myq(*words, "--kind", "GROUP_CREATED"))
    assert created[0]["payload"] == {"text": "group a1", "cut": False}
    entry = dumped(myq(*words, "--limit", 3, "--payload-bytes", 8))[-1]
    assert entry["payload"] == {"text": "hello he", "cut": True}
    _, out, _ = myq("dump", daemon, "--payload", "--payload-bytes", "4", "--kind", "FOOTER")
    assert '"a1000000"' in out
    assert "264 bytes in all" in out


def test_dump_tells_damage_and_goes_on(myq, daemon: Path) -> None:
    path, record = nth_record(daemon / "wal", f.ENTRY, 4, 1)
    flip(path, record.position + 90)
    code, out, err = myq("dump", daemon, "--json", "--kind", "ENTRY")
    assert code == 1
    assert len(out.splitlines()) == 599
    assert f"{path.name} at position {record.position}" in err
    assert "1 damaged places; run 'myq wal verify" in err


def test_a_reader_that_stops(daemon: Path) -> None:
    words = " ".join([*MYQ, "wal", "dump", str(daemon), "--json", "| head -n 1"])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_follow_until_ctrl_c(daemon: Path) -> None:
    words = [*MYQ, "wal", "dump", str(daemon), "--json", "--follow", "--kind", "ENTRY"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as shown:
        assert shown.stdout is not None
        for _ in range(600):
            assert json.loads(shown.stdout.readline())["kind"] == "ENTRY"
        log = t.open_log(daemon)
        for _ in range(30):  # over the ends of segments
            t.append(log, GROUPS[1], 10, b"new " * 100)
        got = [json.loads(shown.stdout.readline())["index"] for _ in range(300)]
        assert got == list(range(201, 501))
        log.close()
        shown.send_signal(signal.SIGINT)
        out, err = shown.communicate(timeout=10)
        assert (shown.returncode, out) == (130, "")
        assert "Traceback" not in err


# -- verify ----------------------------------------------------------------------------------------


def test_verify(myq, daemon: Path) -> None:
    code, out, err = myq("verify", daemon)
    assert (code, err) == (0, "")  # and no progress, since this is not a terminal
    assert "no corruption" in out
    path, record = nth_record(daemon / "wal", f.ENTRY, 30, 2)
    flip(path, record.position + 72, 4)
    code, out, _ = myq("verify", daemon)
    assert code == 1
    line = out.splitlines()[0]
    assert line.startswith(f"corrupt: {path.name} at position {record.position}: ENTRY payload")
    assert f"bit 4 of byte {record.position + 72}" in line
    assert f"(group {record.group:016x}, index {record.index})" in line
    answer = myq("verify", daemon, "--json")
    assert answer[0] == 1
    value = of_json(answer, "myq.wal.verify/1")
    assert value["ok"] is False
    (found,) = value["logs"][0]["findings"]
    assert found["segment"] == path.name
    assert (found["position"], found["byte"], found["bit"]) == (
        record.position,
        record.position + 72,
        4,
    )
    assert (found["group"], found["index"]) == (f"{record.group:016x}", record.index)


def test_a_torn_tail_passes(myq, daemon: Path) -> None:
    last = [one for one in t.segments(daemon / "wal") if one.is_used()][-1]
    scan = last.scan()
    list(scan.records())
    put(daemon / "wal" / last.name, scan.position, b"torn")
    code, out, _ = myq("verify", daemon)
    assert code == 0
    assert f"torn: {last.name} at position {scan.position}" in out


def test_verify_keeps_to_a_rate(myq, daemon: Path) -> None:
    value = of_json(myq("verify", daemon, "--json", "--limit-rate", "2"), "myq.wal.verify/1")
    read = sum(one.capacity for one in t.segments(daemon / "wal"))
    assert value["logs"][0]["took_s"] >= read / 2e6 * 0.9


def test_verify_with_the_store(myq, daemon: Path) -> None:
    before = t.whole_content(daemon)
    code, out, _ = myq("verify", "--store", daemon)
    assert code == 0
    assert "store: 600 rows of the index compared" in out
    assert t.whole_content(daemon) == before


def test_a_store_of_another_time_is_noticed(myq, daemon: Path, tmp_path: Path) -> None:
    """The log goes on, then its old store comes back with a watermark that lies."""
    longer = make_log(tmp_path / "longer", rounds=30).parent
    for name in ("data.mdb", "lock.mdb"):
        (daemon / "store" / name).write_bytes((longer / "store" / name).read_bytes())
    code, out, _ = myq("verify", "--store", daemon)
    assert code == 1
    assert "store at position" in out


def test_a_store_that_cannot_be_read(myq, daemon: Path) -> None:
    data = (daemon / "store" / "data.mdb").read_bytes()
    (daemon / "store" / "data.mdb").write_bytes(data[:8192] + bytes(len(data) - 8192))
    code, out, _ = myq("verify", "--store", daemon)
    assert code == 1
    assert "corrupt: store" in out
    assert "no corruption" not in out
    (daemon / "store" / "data.mdb").unlink()
    code, out, _ = myq("verify", "--store", daemon)
    assert code == 1
    assert "there is no store" in out


def test_the_store_of_a_running_daemon(myq, daemon: Path) -> None:
    log = t.open_log(daemon)
    try:
        code, _, err = myq("verify", "--store", daemon)
        assert code == 1
        assert "in use by another process" in err
        assert "Stop the daemon" in err
        assert myq("verify", daemon)[0] == 0
    finally:
        log.close()
