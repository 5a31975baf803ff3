"""The OpenAPI document against the code: routes, parameters, roles, forms."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from myqueue.gateway.api import openapi
from myqueue.gateway.api.operations import OPERATIONS
from myqueue.gateway.app import create_app
from myqueue.gateway.settings import DEFAULTS

Document = dict[str, Any]
# Every row of the contract.
ROWS = """
POST /topics; GET /topics; GET /topics/{topic}; DELETE /topics/{topic}
POST /topics/{topic}/settings
POST /producer/register; POST /producers
POST /consumer/register; POST /consumers; POST /producer/produce; GET /consumer/consume
POST /consumer/consume; GET /size; POST /producer/heartbeat; POST /consumer/heartbeat; GET /logs
GET /messages; POST /logs; POST /messages; GET /partitions; POST /partitions; GET /brokers
GET /broker; POST /brokers; POST /broker; DELETE /brokers/{broker_id}; GET /health
GET /brokers/{broker_id}; POST /brokers/{broker_id}/drain; POST /brokers/{broker_id}/undrain
GET /groups; GET /groups/{group}; POST /groups/{group}/reset; DELETE /groups/{group}
GET /settings; POST /settings
GET /raft_status; GET /repairs; GET /where; GET /; GET /livez; GET /ping; GET /status
GET /readyz; GET /healthz
GET /openapi.json
"""


@pytest.fixture(scope="module")
def app() -> Iterator[Flask]:
    app = create_app(replace(DEFAULTS, cluster="127.0.0.1:1"))
    yield app
    app.extensions["myqueue"].close()


@pytest.fixture(scope="module")
def document(app: Flask) -> Document:
    found: Document = json.loads(app.test_client().get("/openapi.json").data)
    return found


def operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_every_row_of_the_contract_is_there(document: Document) -> None:
    wanted = {row.strip() for line in ROWS.strip().split("\n") for row in line.split(";")}
    assert {f"{method} {path}" for method, path, _ in operations(document)} == wanted


def test_what_flask_serves_is_what_is_documented(app: Flask, document: Document) -> None:
    served = {
        (method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if not rule.rule.startswith(("/console", "/metrics"))
    }
    assert served == {(method, path) for method, path, _ in operations(document)}


def test_functions_take_what_is_documented() -> None:
    for row in OPERATIONS:
        names = [one.name for one in row.parameters]
        takes = [name for name in inspect.signature(row.run).parameters if name != "context"]
        if row.request is not None:  # made of the values in this order
            assert takes == ["request"] and list(row.request._fields) == names
        else:
            assert sorted(takes) == sorted(names), (row.method, row.path)


def test_the_document_is_whole(document: Document) -> None:
    """Of OpenAPI's own rules those that tools stumble over."""
    assert document["openapi"] == "3.1.0"
    identifiers = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(identifiers)) == len(identifiers)
    text = json.dumps(document)
    for name in re.findall(r'"\$ref": "#/components/schemas/(\w+)"', text):
        assert name in document["components"]["schemas"]
    for method, path, operation in operations(document):
        in_path = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path)), path
        assert operation["summary"] and "200" in operation["responses"]
        assert method != "GET" or "requestBody" not in operation
        for response in operation["responses"].values():
            assert response["description"] and "application/json" in response["content"]


def test_keys_are_offered_where_they_work(document: Document) -> None:
    rows = [row for row in OPERATIONS if row.keyed]
    keyed_rows = {(row.method, re.sub(r"<(\w+)>", r"{\1}", row.path)) for row in rows}
    for method, path, operation in operations(document):
        shown = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "header"]
        keyed = (method, path) in keyed_rows
        assert (shown == ["Idempotency-Key"]) is keyed
    assert {row.path for row in rows} >= {"/producer/produce", "/logs"}


def test_the_form_of_failures_is_that_of_the_code(app: Flask) -> None:
    answer = app.test_client().get("/no/such/path")
    found = json.loads(answer.data)
    assert sorted(openapi.failure_schema()["required"]) == sorted(found)


def test_flask_and_the_short_way_agree(app: Flask) -> None:
    """An operation that is asked for in ways that need no cluster, through both."""
    client = app.test_client()
    for method, path, body in (
        ("POST", "/topics", b"{"),
        ("POST", "/topics", b"{}"),
        ("GET", "/size", b""),
        ("POST", "/broker", b""),
        ("GET", "/livez", b""),
        ("POST", "/topics", b'{"topic": 5}'),
    ):
        plain = client.open(path, method=method, data=body)
        short = client.open(path, method=method, environ_overrides={"myqueue.body": body})
        assert (plain.status_code, plain.data) == (short.status_code, short.data), path
