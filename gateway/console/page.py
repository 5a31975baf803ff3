"""The frame of every page: its context, the health of the cluster, and how a page is drawn.

A page has one live part, the block `live` of its template. With `?live=1` the same address returns
only that part, in JSON, and the script on the page replaces it. So the first drawing and the
updates come from one template, and without a script the page only does not update itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import flask
from flask import Response

from myqueue import Admin, Session
from myqueue.errors import InvalidRequest, MyQueueError
from myqueue.gateway.api.failures import HINTS
from myqueue.gateway.cluster_snapshot import ClusterSnapshot, Facts
from myqueue.gateway.console.csrf import FormTokens
from myqueue.gateway.console.live.poller import Watch
from myqueue.gateway.console.view import format
from myqueue.problems import LEADERLESS, UNREACHABLE, Problem, describe

TIMEOUT_S: Final = 3.0
PAGE_ROWS: Final = 50
TEXT_CHARS_MAX: Final = 200  # in an address
UNKNOWN: Final = "Not known now: the managers did not answer."
NAME: Final = "myqueue.console"
SECTIONS: Final = (
    ("overview", "Overview"),
    ("topics", "Topics"),
    ("groups", "Groups"),
    ("consumers", "Consumers"),
    ("producers", "Producers"),
    ("nodes", "Nodes"),
)


class Console:
    """What the pages of one application share."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.watch = Watch(session)
        self.admin = Admin(session, timeout=TIMEOUT_S)
        self.tokens = FormTokens()


class Crumb(NamedTuple):
    text: str
    link: str


def console() -> Console:
    shared: Console = flask.current_app.extensions[NAME]
    return shared


def admin() -> Admin:
    """Return the client for a page's own requests. If the last look found the cluster unreachable,
    raise that error at once instead of waiting for it again.
    """
    look = console().watch.latest()
    if look.errors and not look.is_reachable:
        raise look.errors[0].with_traceback(None)
    return console().admin


def name_of() -> Callable[[str], str]:
    naming: Callable[[str], str] = flask.current_app.extensions["myqueue"].name_of
    return naming


def link(endpoint: str, **values: Any) -> str:
    """Return the address of a page; "" for topics called "." or "..", which browsers resolve as
    steps in a path.
    """
    if values.get("name") in (".", ".."):
        return ""
    return flask.url_for(f"console.{endpoint}", **values)


def draw(
    template: str,
    section: str,
    title: str,
    *,
    crumbs: tuple[Crumb, ...] = (),
    status: int = 200,
    **facts: Any,
) -> Response:
    """Draw the page; or only its live part, if that is requested."""
    watch = console().watch
    look = watch.latest()
    context: dict[str, Any] = {
        "title": title, "section": section, "crumbs": crumbs, "sections": SECTIONS,
        "as_of": format.clock(watch.looked_ms), "health": health_of(look), "words": format,
        "cluster": look.cluster.get("cluster", ""), "token": console().tokens.make(session_of()),
        "user": user(), "may": may, **facts,
    }  # fmt: skip
    if flask.request.args.get("live") == "1":
        return flask.jsonify(
            live=_block(template, "live", context), health=_block(template, "health", context)
        )
    return flask.make_response(flask.render_template(template, **context), status)


def see(address: str) -> Response:
    """Redirect after a form, so that reloading the page does not send it again."""
    return flask.make_response(flask.redirect(address, 303))


def act_if_typed(
    name: str,
    act: Callable[[str], object],
    ask_again: Callable[[str, str, int], Response],
    done: str,
) -> Response:
    """Act if the form has the typed name, and go to `done`; else ask again, and say why."""
    if flask.request.form.get("name", "").strip() != name:
        return ask_again(name, "The typed name does not match; nothing was deleted", 400)
    try:
        act(name)
    except MyQueueError as error:
        return ask_again(name, with_hint(error), error.http_status)
    return see(done)


def _block(template: str, block: str, context: dict[str, Any]) -> str:
    app = flask.current_app
    app.update_template_context(context)
    loaded = app.jinja_env.get_template(template if block == "live" else "console/_health.html")
    if block != "live":
        return loaded.render(context)
    draws = loaded.blocks.get(block)  # a page with a form has none
    return "" if draws is None else "".join(draws(loaded.new_context(context)))


def user() -> str:
    """Return the name of the person who is logged in; "" where no tokens are configured."""
    return str(flask.g.get("myqueue_user", ""))


def may(role: str) -> bool:
    """True if the role is granted; admin includes all roles."""
    roles = flask.g.get("myqueue_roles", frozenset())
    return role in roles or "admin" in roles


def session_of() -> str:
    """Return what tokens of forms are bound to: the login, if there is one."""
    return str(flask.g.get("myqueue_session", ""))


def wants_json() -> bool:
    request = flask.request
    return request.args.get("live") == "1" or request.accept_mimetypes.best == "application/json"


class Health(NamedTuple):
    state: str
    text: str
    troubles: list[Problem]


def health_of(look: ClusterSnapshot) -> Health:
    problems = list_problems(look)
    if not problems:
        return Health(format.OK, "Healthy", [])
    critical = any(problem.critical for problem in problems)
    text = "Down" if not look.is_reachable else "Failing" if critical else "Degraded"
    return Health(format.BAD, text, problems)


def list_problems(look: ClusterSnapshot) -> list[Problem]:
    """Describe the problems of the managers' leader; without one, what the gateway sees itself."""
    if not look.is_reachable:
        why = one_line(look.errors[0]) if look.errors else "waiting for the first answer"
        return describe([{"problem": UNREACHABLE, "why": why}])
    if look.problems is not None:
        return describe(look.problems)
    silent = [
        {"problem": f"{kind}-silent", "node": row["node"]}
        for kind, rows in (("manager", look.managers), ("broker", look.brokers))
        for row in rows
        if not row["alive"]
    ]
    return describe([{"problem": LEADERLESS}, *silent])


def one_line(error: MyQueueError) -> str:
    """Return the text of an error with its code and component, for people."""
    at = f", {error.component}" if error.component else ""
    return f"{' '.join(str(error).split())} ({error.name} {error.code}{at})"


def with_hint(error: MyQueueError) -> str:
    """Return the same with the hint. Where the hint names a command line flag, the page says it
    itself.
    """
    hint = error.own_hint if type(error) in HINTS else error.hint
    return f"{one_line(error)}. {hint}".rstrip()


# -- values from addresses ------------------------------------------------------------------------


def text_of(name: str) -> str:
    """Read a short text from the address."""
    return flask.request.args.get(name, "").strip()[:TEXT_CHARS_MAX]


def number_of(name: str, default: int | None, low: int, high: int) -> int:
    """Read a whole number from the address; the default if it is missing or empty."""
    text = flask.request.args.get(name, "").strip()
    if not text and default is not None:
        return default
    return whole(name, text, low, high)


def whole(name: str, text: str, low: int, high: int) -> int:
    clean = text.strip().replace(",", "").replace("_", "")
    if not format.is_digits(clean) or not low <= int(clean[:20]) <= high:
        raise InvalidRequest(f"{name} is a number from {low:,} to {high:,}, not {text[:40]!r}")
    return int(clean)


def moment_of(text: str) -> int:
    """Read a time in UTC, as a browser's field sends it; return ms since 1970."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidRequest(
            f"a time is written 2026-01-31 12:00:00 (UTC), not {text[:40]!r}"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, round(moment.timestamp() * 1000))


class Pager(NamedTuple):
    """One page of a longer list."""

    first: int
    last: int
    total: int
    before: str  # link, "" at the beginning
    after: str


def pages(total: int) -> tuple[slice, Pager]:
    """Return the rows that `?page=` asks for, and links to the previous and next pages."""
    last_page = max(1, -(-total // PAGE_ROWS))
    page = min(number_of("page", 1, 1, 1_000_000), last_page)
    first = (page - 1) * PAGE_ROWS
    rows = slice(first, first + PAGE_ROWS)

    def to(number: int) -> str:
        args = {key: value for key, value in flask.request.args.items() if key != "live"}
        values = {**(flask.request.view_args or {}), **args, "page": number}
        return flask.url_for(flask.request.endpoint or "", **values)

    return rows, Pager(
        first + 1 if total else 0,
        min(first + PAGE_ROWS, total),
        total,
        to(page - 1) if page > 1 else "",
        to(page + 1) if page < last_page else "",
    )


def find(rows: list[Facts], key: str, wanted: Any) -> Facts | None:
    return next((row for row in rows if row[key] == wanted), None)
