"""Is this gateway alive, and can it be used? For load balancers and people (H6).

/livez: this process answers, whatever the cluster does. /readyz: requests will be answered: the
managers have a leader that a majority confirmed, every partition has one, no disk is full, and this
gateway is not about to end; with check=quorum-critical, no group would stop if one more of its
members failed. /healthz: the same, with all that is not well by name.
"""

from __future__ import annotations

from typing import Any, Final

from flask import Response, current_app, redirect, request

from myqueue.errors import NotReady, Stopping
from myqueue.gateway import names
from myqueue.gateway.answers import dumps, success
from myqueue.gateway.routes import Ask, Facts, Noun
from myqueue.gateway.sdk import Sdk

blueprint = Noun("probes")

# Problems that keep messages from being read or written now.
STOPPING: Final = ("managers-leaderless", "leaderless", "disk-low")


@blueprint.get("/")
def root() -> Response:
    """A heartbeat for programs; people with a browser get the console."""
    best = request.accept_mimetypes.best_match(["application/json", "text/html"])
    if best == "text/html" and "console" in current_app.blueprints:
        found: Response = redirect("/console")  # type: ignore[assignment]
        return found
    return success({"message": "alive"})


root.role = None  # type: ignore[attr-defined]


@blueprint.operation(
    "GET", "/livez", "Is this process alive?", role=None, adds={"message": names.TEXT}
)
def livez(ask: Ask) -> Facts:
    """It answers, so it is; whatever the cluster does."""
    return {"message": "alive"}


@blueprint.operation(
    "GET", "/readyz", "Can it be used?", role=None, parameters=(names.CHECK,),
    adds={"message": names.TEXT},
)  # fmt: skip
def readyz(ask: Ask, check: str | None) -> Facts:
    """200 if requests will be answered; else 503, and what is wrong."""
    _check_ready(ask.sdk, check is not None)
    return {"message": "ready"}


@blueprint.operation(
    "GET", "/healthz", "All checks", role=None,
    adds={"message": names.TEXT, "problems": names.ROWS},
)  # fmt: skip
def healthz(ask: Ask) -> Facts:
    """As /readyz, and all that is not well by name."""
    problems = _check_ready(ask.sdk, False)
    return {"message": "ready", "problems": problems}


def _check_ready(sdk: Sdk, quorum_critical: bool) -> list[dict[str, Any]]:
    if sdk.room.stopping.is_set():
        raise Stopping("this gateway is about to end")
    problems: list[dict[str, Any]] = sdk.newest("problems")["problems"]
    bad = [row for row in problems if row["problem"] in STOPPING]
    if quorum_critical and not bad:
        bad = _critical(sdk, problems)
    if bad:
        shown = "; ".join(dumps(row) for row in bad[:5])
        raise NotReady(f"{len(bad)} problems: {shown}")
    return problems


def _critical(sdk: Sdk, problems: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups that have just as many members alive as they need."""
    silent = sum(row["problem"] == "manager-silent" for row in problems)
    managers = len(sdk.read("managers")["managers"]) if silent else 0
    found = [{"problem": "managers", "silent": silent}] if _is_bare(managers, silent) else []
    sizes: dict[str, int] = {}
    for row in problems:
        if row["problem"] != "under-replicated":
            continue
        if row["topic"] not in sizes:
            sizes[row["topic"]] = sdk.topic(row["topic"])["replication"]
        if _is_bare(sizes[row["topic"]], row.get("lacking", len(row["missing"]))):
            found.append(row)
    return found


def _is_bare(members: int, missing: int) -> bool:
    return bool(missing) and members - missing <= members // 2 + 1
