"""Actions on brokers: add, drain, cancel draining, remove.

Each is a page that says what will happen before it does. Moving partitions takes time; the broker's
page shows the progress as the managers report it, so nothing is remembered here.
"""

from __future__ import annotations

from typing import Any

import flask
from flask import Blueprint, Response

from myqueue.admin.broker_moves import removal_losses
from myqueue.errors import BrokerInUse, MyQueueError, NotFound, Unreachable
from myqueue.gateway.broker_processes import ELSEWHERE, stop_when_unused
from myqueue.gateway.cluster_snapshot import Facts
from myqueue.gateway.console.page import Crumb, admin, draw, find, link, see, with_hint
from myqueue.gateway.console.view import format
from myqueue.problems import shortened


def add_to(blueprint: Blueprint) -> None:
    blueprint.add_url_rule("/add-broker", "add_broker", add_page)
    blueprint.add_url_rule("/add-broker", "add_broker_now", add, methods=["POST"])
    for name, page, act in (
        ("drain", drain_page, drain),
        ("undrain", undrain_page, undrain),
        ("remove", remove_page, remove),
    ):
        way = f"/nodes/broker/<int:node>/{name}"
        blueprint.add_url_rule(way, name, page)
        blueprint.add_url_rule(way, f"{name}_now", act, methods=["POST"])


def agent() -> Any:
    """Return the agent of this machine, if it runs."""
    local_agent = flask.current_app.extensions["myqueue"].agent
    return local_agent if local_agent is not None and local_agent.is_running else None


def _row(node: int) -> Facts:
    row = find(admin().brokers(), "node", node)
    if row is None:
        raise NotFound(f"there is no broker {node}")
    return row


def _ask(
    title: str,
    action: str,
    texts: list[str],
    button: str,
    trouble: str = "",
    status: int = 200,
    *,
    back: str,
    crumbs: tuple[Crumb, ...],
    typed: str = "",
    dangerous: bool = True,
) -> Response:
    """Draw one question. `typed`: the text that a person has to type to confirm."""
    return draw(
        "console/sure.html",
        "nodes",
        title,
        crumbs=crumbs,
        action=action,
        texts=texts,
        button=button,
        back=back,
        typed=typed,
        dangerous=dangerous,
        trouble=trouble,
        status=status,
    )


def _about(node: int, trouble: str, status: int) -> dict[str, Any]:
    here = link("broker", node=node)
    crumbs = (Crumb("Nodes", link("nodes")), Crumb(f"Broker {node}", here))
    return {"back": here, "crumbs": crumbs, "trouble": trouble, "status": status}


def _failed(error: MyQueueError) -> tuple[str, int]:
    return with_hint(error), error.http_status


# -- add ------------------------------------------------------------------------------------------


def add_page(trouble: str = "", status: int = 200) -> Response:
    crumbs = (Crumb("Nodes", link("nodes")),)
    if agent() is None:
        told = ELSEWHERE
        texts = ["No agent that starts brokers runs on the gateway's machine.", told]
        return _ask(
            "Add a broker", "", texts, "", trouble, status, back=link("nodes"), crumbs=crumbs
        )
    texts = [
        "This starts one more broker on the gateway's machine. After some seconds it gets its share"
        " of all partitions, a few at a time. Clients continue to work.",
        "To add a broker on another machine, start it there; it registers by itself.",
    ]
    return _ask(
        "Add a broker",
        link("add_broker_now"),
        texts,
        "Start one",
        trouble,
        status,
        back=link("nodes"),
        crumbs=crumbs,
        dangerous=False,
    )


def add() -> Response:
    helper = agent()
    try:
        if helper is None:
            raise Unreachable(
                "no agent that starts brokers runs on the gateway's machine",
                hint=ELSEWHERE,
            )
        # The key is the form's own token: a double click adds one broker.
        token, known = flask.request.form.get("token", ""), admin().brokers()
        taken = [row["node"] for row in known]
        node = helper.add_broker(key=token[-32:].encode(), taken=taken)
    except MyQueueError as error:
        return add_page(*_failed(error))
    return see(link("nodes", added=node))


# -- drain, and cancel ----------------------------------------------------------------------------


def drain_page(node: int, trouble: str = "", status: int = 200) -> Response:
    row = _row(node)
    held = format.plural(row["replicas"], "partition")
    texts = [
        f"Broker {node} holds {held}. All of them move to other brokers, a few at a time,"
        " and it gets no new ones. Clients continue to work: a replica is deleted here only when"
        " its new copy is complete.",
        "When it is drained you may stop or remove it, or let it hold partitions again.",
    ]
    return _ask(
        f"Drain broker {node}",
        link("drain_now", node=node),
        texts,
        "Drain it",
        **_about(node, trouble, status),
    )


def drain(node: int) -> Response:
    try:
        count = admin().drain_broker(node)["replicas"]
    except MyQueueError as error:
        return drain_page(node, *_failed(error))
    return see(link("broker", node=node, of=count))


def undrain_page(node: int, trouble: str = "", status: int = 200) -> Response:
    _row(node)
    texts = [f"Broker {node} may hold partitions again, and gets its share of them in a moment."]
    return _ask(
        f"Cancel draining of broker {node}",
        link("undrain_now", node=node),
        texts,
        "Cancel draining",
        dangerous=False,
        **_about(node, trouble, status),
    )


def undrain(node: int) -> Response:
    try:
        admin().undrain_broker(node)
    except MyQueueError as error:
        return undrain_page(node, *_failed(error))
    return see(link("broker", node=node))


# -- remove ---------------------------------------------------------------------------------------


def remove_page(node: int, trouble: str = "", status: int = 200) -> Response:
    row = _row(node)
    held = row["replicas"] + row["leaving"]
    texts = [
        f"Broker {node} is removed permanently; it can't rejoin with its present disk."
        " The data on its disk is not deleted."
    ]
    if held:
        losses = removal_losses(admin().topics(detail=True), row)
        texts.append(
            f"It holds {format.plural(held, 'partition')}. Better drain it first: then no"
            " copy is missing. Otherwise each has one copy fewer until a new one is made."
        )
        if losses.lost:
            texts.append(
                f"It has the only copy of {format.plural(len(losses.lost), 'partition')}:"
                f" {shortened(losses.lost)}. Their messages would be lost."
            )
        if losses.stranded:
            texts.append(
                f"{format.plural(len(losses.stranded), 'partition')} would have too few replicas"
                f" alive: {shortened(losses.stranded)}. These can't be read or written until their"
                " other brokers are back."
            )
    return _ask(
        f"Remove broker {node}",
        link("remove_now", node=node),
        texts,
        "Remove it anyway" if held else "Remove it",
        typed=str(node) if held else "",
        **_about(node, trouble, status),
    )


def remove(node: int) -> Response:
    row = _row(node)
    typed = flask.request.form.get("typed", "").strip()
    held = row["replicas"] + row["leaving"]
    if held and typed != str(node):
        text = f"It holds {format.plural(held, 'partition')}, and the number was not typed"
        return remove_page(node, f"{text}; nothing was done", BrokerInUse.http_status)
    try:
        done = admin().remove_broker(node, force=typed == str(node))
    except MyQueueError as error:
        return remove_page(node, *_failed(error))
    sdk = flask.current_app.extensions["myqueue"]
    counting, stopped = stop_when_unused(sdk, node, row, done["stranded"])
    return see(
        link(
            "nodes",
            removed=node,
            lost=done["lost"],
            stranded=done["stranded"],
            counting=counting,
            stopped=int(stopped),
        )
    )
