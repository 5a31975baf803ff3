"""Hints name the folder that this installation came from, never the bare name."""

from typing import Any

import pytest

from myqueue.cli.shared import install_hint


class Noted:
    """A distribution that pip made."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.text


FOLDER = '{"url": "file:///home/me/my%20queue", "dir_info": {"editable": true}}'
SOURCE = "in the folder of myqueue's source"


@pytest.mark.parametrize(
    ("noted", "extra", "command"),
    [
        (FOLDER, "server", "pip install '/home/me/my queue[server]'"),
        (FOLDER, "", "pip install '/home/me/my queue'"),
        ('{"url": "https://host/x.whl", "archive_info": {}}', "jdk", f"'.[jdk]' {SOURCE}"),
        ('{"url": "https://host/x", "vcs_info": {}}', "", f"pip install . {SOURCE}"),
        (None, "server", f"pip install '.[server]' {SOURCE}"),
        ("[", "server", f"pip install '.[server]' {SOURCE}"),
        ("[]", "server", f"pip install '.[server]' {SOURCE}"),
    ],
)
def test_the_command(monkeypatch: Any, noted: str | None, extra: str, command: str) -> None:
    monkeypatch.setattr(install_hint.metadata, "distribution", lambda name: Noted(noted))
    assert install_hint.install_command(extra).endswith(command)


def test_where_it_was_not_installed_by_pip(monkeypatch: Any) -> None:
    def missing(name: str) -> None:
        raise install_hint.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(install_hint.metadata, "distribution", missing)
    assert install_hint.install_command("server") == f"pip install '.[server]' {SOURCE}"
