"""How to add an optional part (an extra) to this installation.

It names the folder that myqueue was installed from. The bare name must never be named: a public
index gives it to a project of other people.
"""

from __future__ import annotations

import json
from importlib import metadata
from shlex import quote
from typing import Final
from urllib.parse import unquote, urlsplit

PACKAGE: Final = "myqueue"


def install_command(extra: str = "") -> str:
    """What to type.

    >>> install_command("server")  # doctest: +SKIP
    "pip install '/srv/queue[server]'"
    """
    suffix = f"[{extra}]" if extra else ""
    source = _source()
    if source:
        return f"pip install {quote(source + suffix)}"
    return f"pip install {quote('.' + suffix)} in the folder of {PACKAGE}'s source"


def _source() -> str:
    """The folder or URL that was installed from, as pip noted it; "": it did not."""
    try:
        noted = metadata.distribution(PACKAGE).read_text("direct_url.json")
        found = json.loads(noted or "{}")
        url = str(found.get("url", ""))
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return ""
    parts = urlsplit(url)
    if "dir_info" in found and parts.scheme == "file":
        return unquote(parts.path)
    return ""  # an archive or a repository: its folder is not on this machine
