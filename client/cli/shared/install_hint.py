"""Name the command that adds an optional part (an extra) to this installation.

It names the folder that myqueue was installed from, never the bare name, which may be another
project's in a public index.
"""

from __future__ import annotations

import json
from importlib import metadata
from shlex import quote
from typing import Final
from urllib.parse import unquote, urlsplit

PACKAGE: Final = "myqueue"


def install_command(extra: str = "") -> str:
    """Return the command to type.

    >>> install_command("server")  # doctest: +SKIP
    "pip install '/srv/queue[server]'"
    """
    suffix = f"[{extra}]" if extra else ""
    source = _source()
    if source:
        return f"pip install {quote(source + suffix)}"
    return f"pip install {quote('.' + suffix)} in the folder of {PACKAGE}'s source"


def _source() -> str:
    """Return the folder or URL of the installation, as pip noted it; "" if it did not."""
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
