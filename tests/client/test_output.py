"""Tables for people, JSON for programs."""

import json
import os

import pytest

from myqueue.cli.shared import output


def test_columns_of_numbers_are_aligned_to_the_right(capsys) -> None:
    rows = [["a", 1, 0.5, True], ["long name", 1234567, None, False], [None, 2, 10.0, True]]
    output.write_table(["name", "size", "rate", "live"], rows)
    assert capsys.readouterr().out.splitlines() == [
        "NAME            SIZE   RATE  LIVE",
        "a                  1   0.50  yes",
        "long name  1,234,567      -  no",
        "-                  2  10.00  yes",
    ]


def test_a_table_without_rows_is_its_heads(capsys) -> None:
    output.write_table(["name", "size"], [])
    assert capsys.readouterr().out == "NAME  SIZE\n"


def test_lines_are_cut_on_a_terminal_only(capsys, monkeypatch) -> None:
    output.write_table(["name"], [["x" * 200]])
    assert "x" * 200 in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 24)))
    output.write_table(["name"], [["x" * 200]])
    assert "x" * 40 + "\n" in capsys.readouterr().out


def test_json_carries_its_schema_and_plain_numbers(capsys) -> None:
    output.write_json("myq.test/1", {"size": 1234567, "name": "ä"})
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert json.loads(line) == {"schema": "myq.test/1", "size": 1234567, "name": "ä"}


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (64 * 2**20, "64.0 MiB"),
        (3 * 2**40, "3.0 TiB"),
        (5000 * 2**40, "5,000.0 TiB"),
    ],
)
def test_bytes_for_people(count: int, said: str) -> None:
    assert output.human_bytes(count) == said


def test_progress_is_silent_off_a_terminal(capsys) -> None:
    with output.progress(3, "Working") as bar:
        bar.update(3)
    assert capsys.readouterr() == ("", "")


def test_what_clients_call_themselves_can_not_write_on_the_terminal(capsys) -> None:
    output.write_table(["name", "é"], [["a\x1b[2J\nb", "é"]])
    assert capsys.readouterr().out == "NAME         É\na\\x1b[2J\\nb  é\n"
