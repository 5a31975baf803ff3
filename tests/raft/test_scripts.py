"""Golden scripts: each file in `scripts/` is a conversation, its name is what it shows.

`--rewrite` writes down what is said now; the diff is then the change of behaviour, for review.
"""

from pathlib import Path

import pytest
from raft.scripts_env import Script, ScriptError, play

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_script(path: Path, rewrite: bool) -> None:
    said = play(path)
    if rewrite:
        path.write_text(said)
    assert said == path.read_text()


def test_a_difference_is_seen(tmp_path: Path) -> None:
    """The net has no hole: a changed word in the output fails."""
    path = tmp_path / "a.txt"
    path.write_text("> cluster 1\n> elect 1\n")
    path.write_text(play(path))
    assert play(path) == path.read_text()
    changed = path.read_text().replace("1 leads", "2 leads")
    path.write_text(changed)
    assert play(path) != changed


@pytest.mark.parametrize("command", ["elect 1", "cluster 3\n> nonsense", "cluster 3\n> drop 1->2"])
def test_a_wrong_script_is_an_error(tmp_path: Path, command: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(f"> {command}\n")
    with pytest.raises(ScriptError):
        play(path)


def test_every_command_is_described() -> None:
    from raft import scripts_env

    commands = {name[3:].replace("_", "-") for name in dir(Script) if name.startswith("do_")}
    missing = {name for name in commands if name not in (scripts_env.__doc__ or "")}
    assert missing == set()
