"""Files of keys: made once, private, refused when damaged or readable by others (S2)."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from myqueue import cli
from myqueue.cluster.connection import new_keypair
from myqueue.errors import InvalidSetting
from myqueue.wire import keyfiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keyfiles.make_cluster(tmp_path / "keys", new_keypair)
    return tmp_path / "keys"


def test_keys_are_made_once_and_nobody_else_may_read_them(folder: Path) -> None:
    before = keyfiles.DoorKeys(folder)
    assert keyfiles.make_cluster(folder, new_keypair) == []
    after = keyfiles.DoorKeys(folder)
    assert (before.peers, before.clients) == (after.peers, after.clients)
    assert before.peers.public != before.clients.public
    for path in (folder / "peers.key", folder / "clients.key"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert folder.joinpath("admitted").stat().st_mode & 0o077 == 0


def test_a_client_is_admitted_by_its_file_and_revoked_without_it(folder: Path) -> None:
    out = folder.parent / "app.key"
    keyfiles.make_client(folder, "app", out, new_keypair)
    key, doors = keyfiles.read_client_key(out), keyfiles.DoorKeys(folder)
    assert key.door == doors.clients.public and out.stat().st_mode & 0o777 == 0o600
    assert doors.admits(key.public) == "app" and doors.admits(new_keypair().public) is None
    assert keyfiles.clients(folder) == ["app"]
    with pytest.raises(InvalidSetting, match="exists already"):
        keyfiles.make_client(folder, "app", folder.parent / "other.key", new_keypair)
    keyfiles.revoke(folder, "app")
    assert doors.admits(key.public) is None
    with pytest.raises(InvalidSetting, match="no client called 'app'"):
        keyfiles.revoke(folder, "app")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a b", "x" * 65, ".hidden"])
def test_names_are_names(folder: Path, name: str) -> None:
    with pytest.raises(InvalidSetting):
        keyfiles.make_client(folder, name, folder.parent / "x.key", new_keypair)
    assert not (folder.parent / "x.key").exists()


def test_a_key_that_others_can_read_is_refused(folder: Path) -> None:
    """S2: by then it may have been read."""
    (folder / "peers.key").chmod(0o640)
    with pytest.raises(InvalidSetting, match="can be read by others"):
        keyfiles.DoorKeys(folder)


@pytest.mark.parametrize("text", ["", "public = 1", 'public = "short"', "\xff", "not toml ="])
def test_what_is_no_key_is_named(folder: Path, text: str) -> None:
    (folder / "clients.key").write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidSetting, match=r"clients\.key"):
        keyfiles.DoorKeys(folder)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        done = CliRunner().invoke(cli.myq, ["key", *words])
        assert done.exception is None, done.output
        return done.output

    assert "Made keys/peers.key" in run("generate", "keys")
    assert "has its keys already" in run("generate", "keys")
    assert "MYQ_KEY=app.key" in run("generate", "keys", "--client", "app")
    assert run("list", "keys").split()[-1] == "app"
    assert "not admitted any more" in run("revoke", "keys", "app")
    assert "app" not in run("list", "keys", "--json")
