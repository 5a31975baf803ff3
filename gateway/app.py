"""The Flask application: one blueprint for each noun, over one client of the cluster.

`create_app` is what a WSGI server gets. It registers the operations of the API, the console and the
metrics. Whatever fails in any of them is answered in the one form of `gateway/api/failures.py`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from flask import Flask, Response, current_app, request

from myqueue import errors
from myqueue.gateway import console
from myqueue.gateway.api import openapi, responses
from myqueue.gateway.api.auth import Guard, access_to_page
from myqueue.gateway.api.endpoints import (
    brokers,
    cluster,
    consumers,
    groups,
    partitions,
    probes,
    producers,
    topics,
)
from myqueue.gateway.cluster_client import ClusterClient
from myqueue.gateway.dispatch.api_forms import refusal
from myqueue.gateway.dispatch.fast_path import FastPath
from myqueue.gateway.dispatch.head_check import HeadCheck
from myqueue.gateway.dispatch.wsgi import run_application
from myqueue.gateway.http.answer import RequestHandlers
from myqueue.gateway.metrics import endpoint as metrics
from myqueue.gateway.settings import GatewayConfig

log = logging.getLogger("myqueue.gateway")

NOUNS: Final = (
    *(topics, producers, consumers, partitions, brokers, groups, cluster, probes),
    *(openapi, console, metrics),
)


def create_app(config: GatewayConfig, sdk: ClusterClient | None = None) -> Flask:
    """Build the application. `sdk` is made from the settings if none is given; the caller closes
    it.
    """
    app = Flask("myqueue.gateway", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = config.body_bytes_max
    # The API reads its bodies itself.
    app.config["MAX_FORM_MEMORY_SIZE"] = app.config["MAX_FORM_PARTS"] = 0
    app.extensions["myqueue"] = sdk if sdk is not None else ClusterClient(config)
    app.extensions["myqueue-config"] = config
    app.extensions["myqueue-guard"] = Guard(config)
    app.url_map.strict_slashes = False
    for noun in NOUNS:
        app.register_blueprint(noun.blueprint)
    app.before_request(check_access)
    app.after_request(responses.add_guards)
    app.register_error_handler(errors.MyQueueError, answer_refusal)
    app.register_error_handler(Exception, answer_failure)
    fast_path = app.extensions["myqueue-fast-path"] = FastPath(app)
    app.wsgi_app = fast_path  # type: ignore[method-assign]
    return app


def request_handlers(app: Flask) -> RequestHandlers:
    """Return what our own server calls to answer the requests of this application."""
    return RequestHandlers(
        answer=partial(run_application, app, app.extensions["myqueue-config"]),
        refuse=refusal,
        begin=app.extensions["myqueue-fast-path"].begin,
        check_head=HeadCheck(app).check,
    )


def check_access() -> None:
    """Check the role that a page needs. An `OperationCall` checks that of its operation itself."""
    page = current_app.view_functions.get(request.endpoint or "")
    guard: Guard = current_app.extensions["myqueue-guard"]
    guard.check(*access_to_page(page, request.method), request.headers)


def answer_refusal(error: errors.MyQueueError) -> Response:
    sdk: ClusterClient = current_app.extensions["myqueue"]
    return responses.to_flask(responses.failure(error, sdk.name_of))


def answer_failure(error: Exception) -> Response:
    """Answer what Flask itself refuses. Anything else is a defect of this program: the log gets the
    traceback, the client does not.
    """
    code, description = getattr(error, "code", None), getattr(error, "description", None)
    if type(code) is not int:
        log.exception("%s %r failed", request.method, request.path[:100])
        name = type(error).__name__
        return answer_refusal(errors.Internal(f"{name} in the gateway; its log says where"))
    if code == 404:
        return answer_refusal(errors.NotFound(f"there is no path {request.path}"))
    if code == 413:
        return answer_refusal(errors.BodyTooLarge("the body is larger than this gateway takes"))
    if code != 405:
        return answer_refusal(errors.Malformed(f"{code}: {description}"))
    allowed = ", ".join(sorted(getattr(error, "valid_methods", None) or ()))
    text = f"{request.path} takes {allowed}, not {request.method}"
    answer = answer_refusal(errors.MethodNotAllowed(text))
    answer.headers["Allow"] = allowed
    return answer
