"""The OpenAPI 3.1 document, made from the same table of operations that requests are checked by.

Parameters may be in the query string or in a body, under several names. The document shows the
plainest of these: in the query string for GET and DELETE, else in a body; other names are in
`x-also-named`. So nothing is written twice, and `tests/gateway/test_openapi.py` compares the
document with routes and real answers.
"""

from __future__ import annotations

import re
from typing import Any, Final

from flask import Response

from myqueue import __version__, errors
from myqueue.gateway.api.large_json import dumps
from myqueue.gateway.api.operations import OPERATIONS, ApiBlueprint, Operation
from myqueue.gateway.api.parameter_catalog import ON_DAMAGED, UNREADABLE
from myqueue.gateway.api.parameters import Parameter, Schema
from myqueue.gateway.api.responses import JSON

blueprint = ApiBlueprint("openapi")

FORM: Final = "application/x-www-form-urlencoded"
IN_QUERY: Final = ("GET", "DELETE")
FAILURES: Final = {
    "400": "bad or missing parameter",
    "404": "unknown topic, partition or id",
    "409": "already exists, in use, or an id of another topic",
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
    """Return the whole document."""
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
    other_parameters = [parameter for parameter in row.parameters if parameter.name not in in_path]
    shown = [
        _parameter(parameter, "path") for parameter in row.parameters if parameter.name in in_path
    ]
    described: dict[str, Any] = {
        "operationId": _identifier(row),
        "summary": row.summary,
        "description": " ".join(row.about.split()),
        "parameters": shown,
        "responses": _responses(row),
    }
    if row.role is not None:
        described["security"] = [{"token": []}, {}]
        described["x-role"] = row.role
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
        shown += [_parameter(parameter, "query") for parameter in other_parameters]
    elif other_parameters:
        described["requestBody"] = {
            "required": any(parameter.required for parameter in other_parameters),
            "content": {kind: {"schema": _body(row, other_parameters)} for kind in (JSON, FORM)},
        }
    return described


def _identifier(row: Operation) -> str:
    """Return a unique name: an operation may have several paths."""
    words = re.findall(r"\w+", row.path)
    return "_".join([row.method.lower(), *words])


def _parameter(parameter: Parameter, where: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": where,
        "required": parameter.required or where == "path",
        "schema": parameter.schema,
        "description": parameter.about,
    }
    if parameter.also:
        described["x-also-named"] = list(parameter.also)
    if parameter.example is not None:
        described["example"] = parameter.example
    return described


def _body(row: Operation, rest: list[Parameter]) -> Schema:
    properties: dict[str, Schema] = {}
    for parameter in rest:
        about: Schema = {"description": parameter.about}
        if parameter.also:
            about["x-also-named"] = list(parameter.also)
        if parameter.example is not None:
            about["examples"] = [parameter.example]
        if parameter.default is not None:
            about["default"] = parameter.default
        properties[parameter.name] = parameter.schema | about
    schema: Schema = {"type": "object", "properties": properties}
    needed = [parameter.name for parameter in rest if parameter.required]
    if needed:
        schema["required"] = needed
    if row.takes_more:
        schema["additionalProperties"] = {"type": "integer", "description": row.takes_more}
    return schema


def _responses(row: Operation) -> dict[str, Any]:
    properties = {"status": {"const": "success"}} | row.adds
    success: Schema = {"type": "object", "required": ["status"], "properties": properties}
    responses: dict[str, Any] = {
        "200": {"description": "success", "content": {JSON: {"schema": success}}}
    }
    codes = _ALWAYS if row.role is None else tuple(FAILURES)
    for code in codes:
        if code != "504" or row.changes:
            responses[code] = _failure(FAILURES[code])
    if row.role is not None:
        responses["401"] = _failure("no token, or an unknown one")
        responses["403"] = _failure(f"the token lacks the role {row.role}")
    if row.beside:
        responses["503"] = _failure(FAILURES["503"], row.beside)
    if ON_DAMAGED in row.parameters:
        responses["500"] = _failure("BATCH_UNREADABLE: a batch can't be unpacked", UNREADABLE)
    return responses


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
