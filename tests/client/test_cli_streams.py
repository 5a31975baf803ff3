"""The command line on streams that are closed, full, a directory, or a terminal to be protected."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from myqueue.cli import consume, main, produce
from myqueue.cli.local import up
from myqueue.cli.shared import streams
from myqueue.consumer.message import Message
from myqueue.daemons.agent.cluster_folder import ClusterFolder
from myqueue.errors import DiskFull

ROOT = Path(__file__).parents[2]
MYQ = f"'{sys.executable}' -P -m myqueue.cli"
DELETED = "\x1b[2J\x9b1m\x7f"


def shell(line: str) -> tuple[int, str]:
    """The exit code of a line of shell, and what it says."""
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1 3>&1; {line}"],
        capture_output=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
    )
    return done.returncode, done.stdout.decode()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (f"{MYQ} version >&- 2>&3", 1, "standard output is closed, so nothing was done"),
        (f"{MYQ} version 2>&- >/dev/null", 0, ""),
        (f"{MYQ} version >/dev/full 2>&3", 1, "could not write the output: No space left on"),
        (f"{MYQ} produce t <&- 2>&3", 2, "standard input is closed. Name a file"),
        (f"{MYQ} config show | head -n 1; exit ${{PIPESTATUS[0]}}", 0, "SETTING"),
        (f"{MYQ} topic create $'a\\xff' --cluster 127.0.0.1:1", 1, "can't be sent"),
    ],
)
def test_streams_that_can_not_be_used_are_named(line: str, code: int, said: str) -> None:
    found, text = shell(line)
    assert found == code, text
    assert said in text and "defect" not in text and "Exception ignored" not in text, text


def test_a_directory_as_input_is_not_taken_for_a_missing_python(tmp_path: Path) -> None:
    code, text = shell(f"bin/myq version < '{tmp_path}'")
    assert code == 1 and "standard input is a directory" in text and "3.11" not in text


def test_the_numbers_of_closed_streams_are_not_left_to_sockets() -> None:
    code = "import os, socket, sys; from myqueue.cli import main; main(['version']);"
    code += "sys.exit(socket.socket().fileno() < 3)"
    assert shell(f"'{sys.executable}' -P -c \"{code}\" <&- >&- 2>&-")[0] == 0


def test_texts_that_the_terminal_has_no_letters_for_are_printed(capsys) -> None:
    code, text = shell(f"PYTHONIOENCODING=latin-1 {MYQ} produce --help")  # click mends ASCII itself
    assert code == 0 and r"tcp://host:port[,\u2026]" in text, text
    assert main(["explain", "ä"]) != 0
    assert "defect" not in capsys.readouterr().err


def test_messages_on_a_terminal_move_nothing_but_lines() -> None:
    message = Message("t", 0, 1, b"k\x1b]0;x\x07", b"a\tb\n" + DELETED.encode(), {}, 0)
    render = consume.compiled(r"%k %v\n", consume.shown)
    assert render(message) == rb"k\x1b]0;x\x07" + b" a\tb\n" + rb"\x1b[2J\x9b1m\x7f" + b"\n"
    assert consume.compiled("%v")(message) == message.value, "a file gets the bytes"


def test_json_lines_have_no_control_characters_and_say_the_same() -> None:
    message = Message("t", 0, 1, None, f"ä{DELETED}\u202e".encode(), {}, 0)
    line = consume.as_line(message).decode().removesuffix("\n")
    assert line.isprintable() and "ä" in line
    assert json.loads(line)["value"].encode() == message.value


def test_a_format_may_have_bytes_of_any_kind() -> None:
    form = b"%v\xff\n".decode("utf-8", "surrogateescape")  # as arguments of a program come
    assert consume.compiled(form)(Message("t", 0, 1, None, b"x", {}, 0)) == b"x\xff\n"


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n\nb\n", b"x" * 30 + b"\n", b"x" * 31])
def test_lines_are_read_whole_or_counted(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "LINE_BYTES_MAX", 7)
    found = list(produce.lines(io.BytesIO(b"1\n" + text)))
    wanted = [b"1", *text.removesuffix(b"\n").split(b"\n")] if text else [b"1"]
    assert found == [(line if len(line) <= 7 else None, len(line)) for line in wanted]


def test_printable_texts_are_left_as_they_are() -> None:
    assert streams.printable("3 äpfel 漢") == "3 äpfel 漢"
    assert streams.printable("a\udcff") == r"a\udcff"


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("free_mib", "said"), [(19, "need"), (470, "need"), (500, "take no"), (900, "")]
)
def test_a_disk_that_is_too_small_is_told_before_anything_starts(
    free_mib: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Six logs of 64 MiB with 16 MiB in reserve each, and 256 MiB that stay free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free_mib << 20))
    folder = ClusterFolder(tmp_path / "data")
    if said == "need":
        with pytest.raises(DiskFull, match=r"6 new daemons need 480\.0 MiB"):
            up.check_room(folder, None, None)
    else:
        up.check_room(folder, None, None)
        assert said in capsys.readouterr().err
    for number in (1, 2, 3):  # daemons that have their logs need no more
        for kind in ("manager", "broker"):
            (folder.data / f"{kind}-{number}").mkdir(parents=True)
    up.check_room(folder, None, None)
