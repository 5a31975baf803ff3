"""Login, where the gateway has tokens: a page that takes a token, and a cookie that keeps it.

A browser can't send a header when a person follows a link, so the token is in a cookie that no
script can read (HttpOnly), that no other site can make it send (SameSite=Strict), and that is sent
for these pages only. Programs send `Authorization: Bearer` as everywhere. Where no tokens are
configured, there is no login and no cookie.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import flask
from flask import Blueprint, Response, redirect

from myqueue.errors import Forbidden, Unauthorized
from myqueue.gateway.api.auth import COOKIE
from myqueue.gateway.console import page as frame

KEPT_S: Final = 12 * 3600
READ, WRITE, ADMIN = "read", "write", "admin"
# The role that a page needs, by its endpoint; all other pages only show something, and need READ.
ROLES: Final = {
    "send": WRITE, "create_topic": ADMIN, "create_topic_now": ADMIN, "grow": ADMIN,
    "grow_now": ADMIN, "delete": ADMIN, "delete_now": ADMIN, "reset": ADMIN, "reset_now": ADMIN,
    "add_broker": ADMIN, "add_broker_now": ADMIN, "drain": ADMIN, "drain_now": ADMIN,
    "undrain": ADMIN, "undrain_now": ADMIN, "remove": ADMIN, "remove_now": ADMIN,
    "retention": ADMIN, "retention_now": ADMIN,
}  # fmt: skip
OPEN: Final = ("static", "login", "login_now")
WAY: Final = "/console"


def add_to(blueprint: Blueprint) -> None:
    blueprint.add_url_rule("/login", "login", page)
    blueprint.add_url_rule("/login", "login_now", take, methods=["POST"])
    blueprint.add_url_rule("/logout", "logout", leave, methods=["POST"])


def find_out() -> Response | None:
    """Find out which person asks; return a redirection to the login if that is required."""
    config, guard = _config(), _guard()
    flask.g.myqueue_roles = frozenset((ADMIN,))
    if not config.tokens or guard is None:
        return None
    endpoint = str(flask.request.endpoint).removeprefix("console.")
    token = flask.request.cookies.get(COOKIE, "")
    header = flask.request.headers.get("Authorization")
    flask.g.myqueue_roles = frozenset()
    try:
        principal = guard.authenticate(header or f"Bearer {token}")
    except Unauthorized:
        if endpoint in OPEN:
            return None
        if frame.wants_json() or flask.request.method not in ("GET", "HEAD"):
            raise
        return flask.make_response(redirect(frame.link("login", next=flask.request.full_path)))
    flask.g.myqueue_user, flask.g.myqueue_roles = principal.name, principal.roles
    flask.g.myqueue_session = hashlib.sha256((header or token).encode()).hexdigest()
    wanted = ROLES.get(endpoint, READ)
    if endpoint not in (*OPEN, "logout") and not frame.may(wanted):
        raise Forbidden(f"{principal.name} lacks the role {wanted}")
    return None


def page(error: str = "", status: int = 200) -> Response:
    text = flask.render_template(
        "console/login.html",
        token=frame.console().tokens.make(frame.session_of()),
        trouble=error,
        next=_next(flask.request.values.get("next", "")),
    )
    return Response(text, status)


def take() -> Response:
    token = flask.request.form.get("bearer", "").strip()
    guard, config = _guard(), _config()
    try:
        if guard is None or not token.isascii():
            raise Unauthorized("this token is not known here")
        guard.authenticate(f"Bearer {token}")
    except Unauthorized as error:
        return page(f"{error} ({error.name} {error.code})", 401)
    response = frame.see(_next(flask.request.form.get("next", "")))
    response.set_cookie(
        COOKIE,
        token,
        max_age=KEPT_S,
        path=WAY,
        httponly=True,
        samesite="Strict",
        secure=bool(config.tls_certificate) or flask.request.is_secure,
    )
    return response


def leave() -> Response:
    response = frame.see(frame.link("login"))
    response.delete_cookie(COOKIE, path=WAY, httponly=True, samesite="Strict")
    return response


def _next(wanted: str) -> str:
    """Return the page to open after the login: only a page of the console."""
    ours = wanted == WAY or wanted.startswith((f"{WAY}/", f"{WAY}?"))
    return wanted if ours and "\\" not in wanted else frame.link("overview")


def _guard() -> Any:
    return flask.current_app.extensions.get("myqueue-guard")


def _config() -> Any:
    return flask.current_app.extensions["myqueue-config"]
