"""What holds for every command of `myq`: exit codes, one-line errors, help without loading."""

import json
import re
import sys

import click
import pytest

from myqueue import cli, errors
from myqueue.cli.lazy import LazyGroup, load


class Unreachable(errors.TroubleError, ConnectionError):
    """The client's error for "no manager answers" is a ConnectionError as well."""


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> object:
    """Makes `myq fail` raise what the test wants."""

    def install(error: BaseException) -> None:
        @click.command()
        def fail() -> None:
            raise error

        monkeypatch.setitem(cli.myq.commands, "fail", fail)

    return install


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.CorruptData("segment 7"), 1, r"segment 7 \[1120 CORRUPT_DATA\]\. See 'myq b"),
        (
            errors.DiskFull("x", component="broker 2"),
            1,
            r"x \(broker 2\) \[1111 DISK_FULL\]\. Free",
        ),
        (Unreachable("no manager answers"), 3, "no manager answers"),
        (ConnectionRefusedError("port 9092"), 3, "could not reach the cluster: port 9092"),
        (FileNotFoundError(2, "No such file or directory", "a/b"), 1, "a/b: No such file"),
        (ModuleNotFoundError("x", name="lmdb.cpython"), 1, r"pip install '\S+\[server\]'"),
        (ModuleNotFoundError("x", name="json5"), 1, "This is a defect"),
        (ZeroDivisionError("one\ntwo"), 1, "ZeroDivisionError: one two. This is a defect"),
        (click.ClickException("say which"), 1, "say which"),
        (click.UsageError("say which"), 2, r"say which See 'myq.*--help'"),
        (click.exceptions.Exit(4), 4, None),
        (KeyboardInterrupt(), 130, None),
        (click.Abort(), 1, None),
    ],
)
def test_errors(failing, capsys, error, code, said) -> None:
    failing(error)
    assert cli.main(["fail"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    if said is None:
        assert err.strip() == ""
    else:
        assert err.count("\n") == 1
        assert re.match(f"myq: .*{said}", err)


def test_debug_shows_the_trace_wherever_it_stands(failing, capsys) -> None:
    failing(errors.CorruptData("segment 7"))
    for words in (["--debug", "fail"], ["fail", "--debug"]):
        assert cli.main(words) == 1
        err = capsys.readouterr().err
        assert err.startswith("Traceback")
        assert err.splitlines()[-1].startswith("myq: segment 7")


@pytest.mark.parametrize(
    "words",
    [["nonsense"], ["--nonsense"], ["version", "--nonsense"], ["group", "reset", "g", "--to", ""]],
)
def test_wrong_usage_is_one_line_that_names_the_help(capsys, words) -> None:
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--help'." in err


def test_no_arguments_show_the_help(capsys) -> None:
    assert cli.main([]) == 2
    assert "Usage: myq" in "".join(capsys.readouterr())


def test_version(capsys) -> None:
    assert cli.main(["version", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "myq.version/1"
    assert answer["wal_format"] >= 1
    assert cli.main(["version"]) == 0
    assert re.search(r"package +\d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_every_command_of_the_table_can_be_loaded(capsys) -> None:
    for name, (target, _) in cli.COMMANDS.items():
        assert load(target).name == name
        assert cli.main([name, "--help"]) == 0
        assert f"Usage: myq {name}" in capsys.readouterr().out


def test_a_group_lists_without_loading() -> None:
    group = LazyGroup("group", lazy={"ghost": ("no.such:module", "Does not exist.")})
    context = click.Context(group)
    assert group.list_commands(context) == ["ghost"]
    assert "Does not exist." in group.get_help(context)
    assert group.get_command(context, "other") is None
    with pytest.raises(ModuleNotFoundError):
        group.resolve_command(context, ["ghost"])


def test_only_commands_can_be_loaded() -> None:
    with pytest.raises(TypeError, match="not a click command"):
        load("sys:maxsize")


def test_ctrl_c_at_a_question_is_an_interruption(failing, monkeypatch) -> None:
    @click.command()
    def ask() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise click.Abort() from None  # what click.prompt does

    monkeypatch.setitem(cli.myq.commands, "ask", ask)
    assert cli.main(["ask"]) == 130
    assert "click" in sys.modules
