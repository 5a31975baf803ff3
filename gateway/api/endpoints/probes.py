"""Is this gateway alive, and can it be used? For load balancers and people (H6).

/livez and /ping: this process answers, whatever the cluster does. /readyz: requests will be
answered: the managers have a leader that a majority confirmed, every partition has one, no disk is
full, and this gateway is not about to end; with check=quorum-critical, no group has lost so many
members that it would stop if one more failed. /healthz: the same, with all that is not well by
name, whatever the answer is. All of them need no token; where the gateway has tokens, only a
request with one that may read is told names, and others how many problems there are. /status, for
those who may read: how many daemons there are, and how many are alive.
"""

from __future__ import annotations

from typing import Final

from flask import Response, current_app, redirect, request

from myqueue.errors import NotReady, Stopping
from myqueue.gateway.api import parameter_catalog
from myqueue.gateway.api.failures import NotWell
from myqueue.gateway.api.operations import ApiBlueprint, Facts, RequestContext
from myqueue.gateway.api.responses import success
from myqueue.gateway.cluster_client import ClusterClient

blueprint = ApiBlueprint("probes")

# Problems that keep messages from being read or written now.
STOPPING: Final = ("managers-leaderless", "leaderless", "disk-low")
SHOWN_MAX: Final = 5  # in a sentence
_PROBLEMS: Final = {"problems": parameter_catalog.ROWS, "omitted": parameter_catalog.NUMBER}


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
    "GET",
    "/livez",
    "Is this process alive?",
    also=("/ping",),
    role=None,
    adds={"message": parameter_catalog.TEXT},
)
def livez(ask: RequestContext) -> Facts:
    """It answers, so it is; whatever the cluster does."""
    return {"message": "alive"}


@blueprint.operation(
    "GET",
    "/status",
    "How many daemons are there and alive",
    adds={
        "message": parameter_catalog.TEXT,
        "leader": parameter_catalog.nullable(parameter_catalog.NUMBER),
        "managers": parameter_catalog.NUMBER,
        "managers_alive": parameter_catalog.NUMBER,
        "brokers": parameter_catalog.NUMBER,
        "brokers_alive": parameter_catalog.NUMBER,
        "topics": parameter_catalog.NUMBER,
        "partitions": parameter_catalog.NUMBER,
    },
)
def status(ask: RequestContext) -> Facts:
    """The cluster in numbers, as a manager knows it; leader: which manager leads, null if none."""
    counts = ask.sdk.read("cluster")["counts"]
    managers = ask.sdk.read("managers")
    brokers = ask.sdk.read("brokers")["brokers"]
    return {
        "message": "alive",
        "leader": managers["leader"] or None,
        "managers": counts["managers"],
        "managers_alive": sum(row["alive"] for row in managers["managers"]),
        "brokers": len(brokers),
        "brokers_alive": sum(row["alive"] for row in brokers),
        "topics": counts["topics"],
        "partitions": counts["partitions"],
    }


@blueprint.operation(
    "GET",
    "/readyz",
    "Can it be used?",
    role=None,
    parameters=(parameter_catalog.CHECK,),
    adds={"message": parameter_catalog.TEXT},
)
def readyz(ask: RequestContext, check: str | None) -> Facts:
    """200 if requests will be answered; else 503, and what is wrong."""
    problems = _found(ask.sdk)["problems"]
    bad = _stopping(problems)
    if check is not None and not bad:
        bad = _critical(ask.sdk, problems)
    if bad and not ask.may_read:
        raise _without_names(bad)
    if bad:
        raise NotReady(_sentence(bad), hint="GET /healthz lists all that is not well.")
    return {"message": "ready"}


@blueprint.operation(
    "GET",
    "/healthz",
    "All checks",
    role=None,
    adds={"message": parameter_catalog.TEXT, **_PROBLEMS},
    beside=_PROBLEMS,
)
def healthz(ask: RequestContext) -> Facts:
    """As /readyz, and all that is not well by name, in a 503 too: when something stops, all else
    that is wrong is of interest most. Of very many the first ones; omitted says how many more.
    """
    found = _found(ask.sdk)
    bad = _stopping(found["problems"])
    if not ask.may_read:
        if bad:
            raise _without_names(bad)
        return {"message": "ready"}
    if bad:
        raise NotWell(_sentence(bad), found)
    return {"message": "ready", **found}


def _without_names(bad: list[Facts]) -> NotReady:
    number = f"{len(bad)} problem{'s' * (len(bad) != 1)}"
    return NotReady(number, hint="GET /healthz with a token names them.")


def _found(sdk: ClusterClient) -> Facts:
    """What the managers' leader says: `_PROBLEMS`."""
    if sdk.wait_slots.stopping.is_set():
        raise Stopping("this gateway is about to end")
    told = sdk.newest("problems")
    found = {"problems": told["problems"]}
    return found | {"omitted": told["omitted"]} if told["omitted"] else found


def _stopping(problems: list[Facts]) -> list[Facts]:
    return [row for row in problems if row["problem"] in STOPPING]


def _sentence(bad: list[Facts]) -> str:
    """ "7 problems: orders/0 leaderless, orders/1 leaderless, … and 2 more"."""
    shown = ", ".join(_in_words(row) for row in bad[:SHOWN_MAX])
    more = f" and {len(bad) - SHOWN_MAX} more" if len(bad) > SHOWN_MAX else ""
    return f"{len(bad)} problem{'s' * (len(bad) != 1)}: {shown}{more}"


def _in_words(row: Facts) -> str:
    what = row["problem"]
    if "topic" in row:
        return f"{row['topic']}/{row['partition']} {what}"
    if "node" in row:
        return f"broker {row['node']} {what}"
    return f"{what}, {row['silent']} silent" if "silent" in row else str(what)


def _critical(sdk: ClusterClient, problems: list[Facts]) -> list[Facts]:
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
