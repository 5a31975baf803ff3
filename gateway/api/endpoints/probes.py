"""Probes for load balancers and people: is this gateway alive, and can the cluster be used?

/livez and /ping: this process answers, whatever the state of the cluster. /readyz: requests will be
answered: the managers have a leader that a majority confirmed, every partition has one, no disk is
full, and this gateway is not stopping; with check=quorum-critical also: no Raft group would stop if
one more member failed. /healthz: the same, and it lists all problems, with either status. None of
them needs a token; where the gateway has tokens, only a request whose token may read gets names,
and others get the number of problems. /status, for tokens that may read: how many daemons there
are, and how many are alive.
"""

from __future__ import annotations

from typing import Final

from flask import Response, current_app, redirect, request

from myqueue.errors import NotReady, Stopping
from myqueue.gateway.api import parameter_catalog as catalog
from myqueue.gateway.api.failures import NotWell
from myqueue.gateway.api.operations import ApiBlueprint, Facts, RequestContext
from myqueue.gateway.api.responses import success, to_flask
from myqueue.gateway.cluster_client import ClusterClient
from myqueue.problems import CRITICAL, describe

blueprint = ApiBlueprint("probes")

_PROBLEMS: Final = {"problems": catalog.ROWS, "omitted": catalog.NUMBER}


@blueprint.get("/")
def root() -> Response:
    """Answer a heartbeat to programs; a browser is redirected to the console."""
    best = request.accept_mimetypes.best_match(["application/json", "text/html"])
    if best == "text/html" and "console" in current_app.blueprints:
        found: Response = redirect("/console")  # type: ignore[assignment]
        return found
    return to_flask(success({"message": "alive"}))


root.role = None  # type: ignore[attr-defined]


@blueprint.operation(
    "GET",
    "/livez",
    "Is this process alive?",
    also=("/ping",),
    role=None,
    adds={"message": catalog.TEXT},
)
def livez(context: RequestContext) -> Facts:
    """Answer 200 as long as this process runs, whatever the state of the cluster."""
    return {"message": "alive"}


@blueprint.operation(
    "GET",
    "/status",
    "Number of daemons, and of those alive",
    adds={
        "message": catalog.TEXT,
        "leader": catalog.nullable(catalog.NUMBER),
        "managers": catalog.NUMBER,
        "managers_alive": catalog.NUMBER,
        "brokers": catalog.NUMBER,
        "brokers_alive": catalog.NUMBER,
        "topics": catalog.NUMBER,
        "partitions": catalog.NUMBER,
    },
)
def status(context: RequestContext) -> Facts:
    """Show the cluster in numbers, as a manager knows it; leader: the manager that leads, null if
    none.
    """
    counts = context.sdk.read("cluster")["counts"]
    managers = context.sdk.read("managers")
    brokers = context.sdk.read("brokers")["brokers"]
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
    parameters=(catalog.CHECK,),
    adds={"message": catalog.TEXT},
)
def readyz(context: RequestContext, check: str | None) -> Facts:
    """Answer 200 if requests will be answered; else 503 with what is wrong."""
    problems = _problems_now(context.sdk)["problems"]
    bad = _stopping(problems)
    if check is not None and not bad:
        bad = _critical(context.sdk, problems)
    if bad and not context.sender.may_read:
        raise _without_names(bad)
    if bad:
        raise NotReady(_sentence(bad), hint="GET /healthz lists all problems.")
    return {"message": "ready"}


@blueprint.operation(
    "GET",
    "/healthz",
    "All checks",
    role=None,
    adds={"message": catalog.TEXT, **_PROBLEMS},
    beside=_PROBLEMS,
)
def healthz(context: RequestContext) -> Facts:
    """Answer as /readyz does, and list all problems, in a 503 too: then they are needed most. If
    there are very many, the first ones are listed; omitted says how many more there are.
    """
    report = _problems_now(context.sdk)
    bad = _stopping(report["problems"])
    if not context.sender.may_read:
        if bad:
            raise _without_names(bad)
        return {"message": "ready"}
    if bad:
        raise NotWell(_sentence(bad), report)
    return {"message": "ready", **report}


def _without_names(bad: list[Facts]) -> NotReady:
    number = f"{len(bad)} problem{'s' * (len(bad) != 1)}"
    return NotReady(number, hint="GET /healthz with a token names them.")


def _problems_now(sdk: ClusterClient) -> Facts:
    """Return `_PROBLEMS`, as the managers' leader knows them."""
    if sdk.wait_slots.stopping.is_set():
        raise Stopping("this gateway is stopping")
    reply = sdk.newest("problems")
    problems = {"problems": reply["problems"]}
    return problems | {"omitted": reply["omitted"]} if reply["omitted"] else problems


def _stopping(problems: list[Facts]) -> list[Facts]:
    """Return the problems that keep messages from being read or written now."""
    return [row for row in problems if row["problem"] in CRITICAL]


def _sentence(bad: list[Facts]) -> str:
    return "; ".join(problem.text for problem in describe(bad))


def _critical(sdk: ClusterClient, problems: list[Facts]) -> list[Facts]:
    """Return why groups have just as many members alive as they need."""
    silent = [row for row in problems if row["problem"] == "manager-silent"]
    managers = len(sdk.read("managers")["managers"]) if silent else 0
    critical = silent if _is_bare(managers, len(silent)) else []
    sizes: dict[str, int] = {}
    for row in problems:
        if row["problem"] != "under-replicated":
            continue
        if row["topic"] not in sizes:
            sizes[row["topic"]] = sdk.topic(row["topic"])["replication"]
        if _is_bare(sizes[row["topic"]], row.get("lacking", len(row["missing"]))):
            critical.append(row)
    return critical


def _is_bare(members: int, missing: int) -> bool:
    return bool(missing) and members - missing <= members // 2 + 1
