"""Is this gateway alive, and can it be used? For load balancers and people (H6)."""

from __future__ import annotations

from flask import Response, current_app, redirect, request

from myqueue.gateway import names
from myqueue.gateway.answers import success
from myqueue.gateway.routes import Ask, Facts, Noun

blueprint = Noun("probes")


@blueprint.get("/")
def root() -> Response:
    """A heartbeat for programs; people with a browser get the console."""
    best = request.accept_mimetypes.best_match(["application/json", "text/html"])
    if best == "text/html" and "console" in current_app.blueprints:
        found: Response = redirect("/console")  # type: ignore[assignment]
        return found
    return success({"message": "alive"})


@blueprint.operation("GET", "/livez", "Is this process alive?", adds={"message": names.TEXT})
def livez(ask: Ask) -> Facts:
    """It answers, so it is; whatever the cluster does."""
    return {"message": "alive"}
