"""What is answered, against what `/openapi.json` says of it: each member of a row stands there."""

from __future__ import annotations

from typing import Any

import pytest
from kit.gateways import Client, good

pytestmark = pytest.mark.slow


def schema_of(http: Client, method: str, path: str) -> dict[str, Any]:
    """The members of a success, by name, without the status."""
    operation = good(http.ask("GET", "/openapi.json"))["paths"][path][method.lower()]
    content = operation["responses"]["200"]["content"]["application/json"]
    found: dict[str, Any] = content["schema"]["properties"]
    return {name: schema for name, schema in found.items() if name != "status"}


def members_of(answer: dict[str, Any]) -> set[str]:
    return answer.keys() - {"status"}


def test_every_member_of_a_broker_is_named(http: Client) -> None:
    named = schema_of(http, "GET", "/brokers/{broker_id}")
    one = good(http.ask("GET", "/brokers/2"))
    assert members_of(one) == named.keys()
    assert one["used_bytes"] > 0 < one["free_bytes"] and not (one["draining"] or one["disk_low"])
    rows = schema_of(http, "GET", "/brokers")["brokers"]["items"]["properties"]
    (row, *_) = good(http.ask("GET", "/brokers"))["brokers"]
    assert row.keys() == rows.keys() == named.keys()
