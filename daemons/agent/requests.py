"""Requests of commands and the gateway to a running agent, at the agent's side.

`myqueue.admin.local_agent` is the asking side and says how requests travel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from myqueue.admin import local_agent
from myqueue.daemons.agent.cluster_folder import ClusterFolder

ADD, DROP = local_agent.ADD, local_agent.DROP


def take_requests(folder: ClusterFolder) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Remove and yield waiting requests, each with the path where its answer belongs."""
    for path in sorted(folder.node.glob("errand-*.json")):
        try:
            request = local_agent.read(path)
        except (OSError, ValueError):
            request = {}
        with contextlib.suppress(OSError):
            path.unlink()
        if request:
            yield path.with_name(path.name.replace("errand-", "done-", 1)), request


def write_answer(path: Path, broker: int, error: str = "", hint: str = "") -> None:
    """Write the answer to a request; `error` is empty if it succeeded."""
    local_agent.put(path, {"broker": broker, "error": error, "hint": hint})
