"""The OpenAPI 3.1 document, made from the same table of operations that requests are checked by.

Parameters may come in the query string or in a JSON body, under several names. The document shows
the plainest of these: with GET and DELETE in the query string, else in a body; other names stand
under `x-also-named`. So nothing has to be written twice, and `tests/gateway/test_openapi.py`
compares document, routes and real answers.
"""

from __future__ import annotations

import re
from typing import Any, Final

from flask import Response

from myqueue import __version__, errors
from myqueue.gateway.api.operations import OPERATIONS, ApiBlueprint, Operation
from myqueue.gateway.api.parameter_catalog import ON_DAMAGED, UNREADABLE
from myqueue.gateway.api.parameters import Parameter, Schema
from myqueue.gateway.api.responses import JSON, dumps

blueprint = ApiBlueprint("openapi")

FORM: Final = "application/x-www-form-urlencoded"
IN_QUERY: Final = ("GET", "DELETE")
FAILURES: Final = {
    "400": "bad or missing parameter",
    "404": "unknown topic, partition or id",
    "409": "exists already, in use, or an id of another topic",
    "413": "too large",
    "429": "slow down: Retry-After says how long",
    "503": "no quorum, or no reachable component; nothing was done",
    "504": "outcome unknown: repeat it with the same Idempotency-Key",
}
_ALWAYS: Final = ("400", "429", "503", "504")
_VARIABLE = re.compile(r"<(\w+)>")


@blueprint.get("/openapi.json")
def document() -> Response:
    return Response(dumps(describe()), content_type=JSON)


document.role = None  # type: ignore[attr-defined]


def describe() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {}
    for row in OPERATIONS:
        path = _VARIABLE.sub(r"{\1}", row.path)
        paths.setdefault(path, {})[row.method.lower()] = _operation(row)
    paths["/"] = {"get": _plain("heartbeat", "A heartbeat; a browser gets the console")}
    paths["/openapi.json"] = {"get": _plain("openapi", "This document")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "myqueue gateway",
            "version": __version__,
            "description": "HTTP for a cluster of myqueue. Parameters may come in the query"
            " string, in a JSON body or in a form, with every method; numbers may be written as"
            " digits.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Failure": failure_schema()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(row: Operation) -> dict[str, Any]:
    in_path = set(_VARIABLE.findall(row.path))
    rest = [one for one in row.parameters if one.name not in in_path]
    shown = [_parameter(one, "path") for one in row.parameters if one.name in in_path]
    found: dict[str, Any] = {
        "operationId": _identifier(row),
        "summary": row.summary,
        "description": " ".join(row.about.split()),
        "parameters": shown,
        "responses": _responses(row),
    }
    if row.role is not None:
        found["security"] = [{"token": []}, {}]
        found["x-role"] = row.role
    if row.keyed:
        shown.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
                "description": "A repeat with the same key gets the first answer.",
            }
        )
    if row.method in IN_QUERY:
        shown += [_parameter(one, "query") for one in rest]
    elif rest:
        found["requestBody"] = {
            "required": any(one.required for one in rest),
            "content": {kind: {"schema": _body(row, rest)} for kind in (JSON, FORM)},
        }
    return found


def _identifier(row: Operation) -> str:
    """Unique: an operation may have several paths."""
    words = re.findall(r"\w+", row.path)
    return "_".join([row.method.lower(), *words])


def _parameter(one: Parameter, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": one.name,
        "in": where,
        "required": one.required or where == "path",
        "schema": one.schema,
        "description": one.about,
    }
    if one.also:
        found["x-also-named"] = list(one.also)
    if one.example is not None:
        found["example"] = one.example
    return found


def _body(row: Operation, rest: list[Parameter]) -> Schema:
    properties: dict[str, Schema] = {}
    for one in rest:
        about: Schema = {"description": one.about}
        if one.also:
            about["x-also-named"] = list(one.also)
        if one.example is not None:
            about["examples"] = [one.example]
        if one.default is not None:
            about["default"] = one.default
        properties[one.name] = one.schema | about
    schema: Schema = {"type": "object", "properties": properties}
    needed = [one.name for one in rest if one.required]
    if needed:
        schema["required"] = needed
    if row.takes_more:
        schema["additionalProperties"] = {"type": "integer", "description": row.takes_more}
    return schema


def _responses(row: Operation) -> dict[str, Any]:
    properties = {"status": {"const": "success"}} | row.adds
    success: Schema = {"type": "object", "required": ["status"], "properties": properties}
    found: dict[str, Any] = {
        "200": {"description": "success", "content": {JSON: {"schema": success}}}
    }
    codes = _ALWAYS if row.role is None else tuple(FAILURES)
    for code in codes:
        if code != "504" or row.changes:
            found[code] = _failure(FAILURES[code])
    if row.role is not None:
        found["401"] = _failure("no token, or one that is not known")
        found["403"] = _failure(f"the token lacks the role {row.role}")
    if row.beside:
        found["503"] = _failure(FAILURES["503"], row.beside)
    if ON_DAMAGED in row.parameters:
        found["500"] = _failure("BATCH_UNREADABLE: a batch can't be unpacked", UNREADABLE)
    return found


def _failure(text: str, beside: dict[str, Schema] | None = None) -> dict[str, Any]:
    schema: Schema = {"$ref": "#/components/schemas/Failure"}
    if beside:
        schema = {"allOf": [schema, {"type": "object", "properties": beside}]}
    return {"description": text, "content": {JSON: {"schema": schema}}}


def _plain(name: str, text: str) -> dict[str, Any]:
    schema: Schema = {"type": "object", "properties": {"status": {"const": "success"}}}
    return {
        "operationId": name,
        "summary": text,
        "responses": {"200": {"description": "success", "content": {JSON: {"schema": schema}}}},
    }


def failure_schema() -> Schema:
    text: Schema = {"type": "string"}
    return {
        "type": "object",
        "required": [
            "status", "message", "code", "name", "retriable", "outcome", "component", "hint",
        ],
        "properties": {
            "status": {"const": "failure"}, "message": text,
            "code": {"type": "integer", "description": "'myq explain CODE' tells more"},
            "name": text, "retriable": {"type": "boolean"},
            "outcome": {"enum": [errors.NONE, errors.UNKNOWN]}, "component": text, "hint": text,
        },
    }  # fmt: skip
