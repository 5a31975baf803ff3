"""The web console: what the cluster is doing, for people, in the browser that they have.

The server makes the pages, one template for each; a few hundred lines of our own script update them
and draw the charts. There is no build step, nothing is fetched from other sites, and without the
script every page still shows its facts. DESIGN.md in this folder gives the reasons.

`page` is the frame of every page, `csrf` checks each request first, `message_reader` reads messages
to show. The packages: `pages` has a file for each page, `live` what changes while a page is open,
`view` how things are shown. Only `gateway/app` imports this package.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import flask
from flask import Blueprint, Response
from flask.blueprints import BlueprintSetupState

from myqueue.errors import Internal, MyQueueError, NotFound
from myqueue.gateway.api import failures
from myqueue.gateway.console import csrf, page
from myqueue.gateway.console.pages import (
    brokers,
    clients,
    groups,
    login,
    messages,
    nodes,
    overview,
    reset_group,
    tail,
    topic,
    topics,
)

blueprint = Blueprint(
    "console",
    __name__,
    url_prefix="/console",
    template_folder="templates",
    static_folder="static",
    static_url_path="/static",
)
STATIC_S: Final = 300
log = logging.getLogger("myqueue.gateway")


def _nothing(rest: str) -> Response:
    raise NotFound(f"the console has no page {flask.request.path}", hint="Start from the overview.")


for part in (
    *(overview, topics, topic, messages, tail, groups, reset_group, clients, nodes, brokers),
    login,
):
    part.add_to(blueprint)
blueprint.add_url_rule("/<path:rest>", "nothing", _nothing)


@blueprint.record_once
def _begin(state: BlueprintSetupState) -> None:
    extensions = state.app.extensions
    extensions[page.NAME] = page.Console(extensions["myqueue"].session)
    views = state.app.view_functions
    for name in [one for one in views if one.startswith("console.")]:
        views[name] = _open(views[name])


def _open(view: Callable[..., Any]) -> Callable[..., Any]:
    """Exempt a view from the gateway's guard, which requires a header: these pages check the login
    themselves.
    """

    def opened(**values: Any) -> Any:
        return view(**values)

    opened.role = None  # type: ignore[attr-defined]
    return opened


@blueprint.before_request
def _check() -> Response | None:
    csrf.limit_form()
    elsewhere = login.find_out()
    if elsewhere is None and flask.request.method not in ("GET", "HEAD", "OPTIONS"):
        csrf.check_form(page.console().tokens, page.session_of())
    return elsewhere


@blueprint.after_request
def _protect(response: Response) -> Response:
    if flask.request.endpoint == "console.static":
        response.headers["Cache-Control"] = f"public, max-age={STATIC_S}"
    return csrf.protect(response)


@blueprint.errorhandler(MyQueueError)
def _refused(error: MyQueueError) -> Response:
    """Show the error in one readable line with code and component, in the frame of every page."""
    status, told, headers = failures.describe(error, page.name_of())
    if page.wants_json():
        response = flask.jsonify(error=told)
    else:
        response = page.draw("console/error.html", "", "That did not work", told=told)
    response.status_code = status
    response.headers.extend(headers)
    return response


@blueprint.errorhandler(Exception)
def _broken(error: Exception) -> Response:
    """Answer for a defect of this program: the log gets the traceback, the page does not."""
    log.exception("%s %r failed", flask.request.method, flask.request.path[:100])
    return _refused(Internal(f"{type(error).__name__} in the gateway; its log says where"))


def _not_http(error: Exception) -> Response:
    """Answer what Flask itself refuses below these pages."""
    code = int(getattr(error, "code", 500))
    told = {
        "message": getattr(error, "description", ""),
        "name": getattr(error, "name", ""),
        "code": code,
        "component": "gateway",
        "hint": "",
        "outcome": "none",
    }
    if page.wants_json():
        response = flask.jsonify(error=told)
    else:
        response = page.draw("console/error.html", "", "That did not work", told=told)
    response.status_code = code
    return response


for number in (400, 404, 405, 413, 414, 415):
    blueprint.register_error_handler(number, _not_http)
