"""Errands: what commands and the gateway ask of a running agent, as the agent sees them.

The asking side, and how errands travel, is `myqueue.admin.local_agent`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from myqueue.admin import local_agent
from myqueue.daemons.agent.cluster_folder import Folder

ADD, DROP = local_agent.ADD, local_agent.DROP


def waiting(folder: Folder) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Errands that were asked for; each is taken away, and answered at the path beside it."""
    for path in sorted(folder.node.glob("errand-*.json")):
        try:
            found = local_agent.read(path)
        except (OSError, ValueError):
            found = {}
        with contextlib.suppress(OSError):
            path.unlink()
        if found:
            yield path.with_name(path.name.replace("errand-", "done-", 1)), found


def answer(path: Path, broker: int, error: str = "", hint: str = "") -> None:
    local_agent.put(path, {"broker": broker, "error": error, "hint": hint})
