"""Random requests, made from the OpenAPI document: whatever comes, the answer has its form.

Values are of the documented type, at its edges, or of another type altogether; parameters come in
the query, in the body, in both, or not at all. No answer may be 500, and each is of the form that
the document promises for its status.
"""

from __future__ import annotations

import json
import random
import re
import string
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.gateways import Client, Gateway, ask

pytestmark = pytest.mark.slow

REQUESTS, CLIENTS = 2400, 4
Values = dict[str, Any]


class Maker:
    """Draws requests."""

    def __init__(self, document: Values, seed: int, known: Values) -> None:
        self.random, self.known = random.Random(seed), known
        self.operations = [
            (path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]

    def text(self) -> str:
        chance = self.random
        return chance.choice(
            [
                "",
                "x",
                "ü€",
                "a" * 300,
                "../..",
                "%00",
                "null",
                "0",
                "\ud800",
                "\x00",
                "".join(chance.choices(string.printable, k=chance.randint(1, 40))),
                self.known["topic"],
                self.known["other"],
                "no-such-topic",
            ]
        )

    def anything(self) -> Any:
        chance = self.random
        return chance.choice(
            [
                None,
                True,
                False,
                0,
                -1,
                1,
                1 << 64,
                1.5,
                1e300,
                [],
                [1],
                {},
                {"a": 1},
                self.text(),
                str(chance.randint(0, 1 << 70)),
                [[[[]]]],
            ]
        )

    def value(self, name: str, schema: Values) -> Any:
        """Mostly one that the schema allows."""
        chance = self.random
        if chance.random() < 0.2:
            return self.anything()
        if name in self.known:
            return self.known[name]
        if "enum" in schema:
            return chance.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "integer":
            low, high = schema.get("minimum", 0), schema.get("maximum", 1 << 62)
            found = chance.choice([low, high, low + 1, high + 1, low - 1, chance.randint(0, 3)])
            # Long waits and large topics are for other tests.
            found = min(found, 50) if name == "wait_ms" else found
            found = min(found, 3) if name in ("partitions", "count") else found
            return str(found) if chance.random() < 0.3 else found
        if kind == "boolean":
            return chance.choice([True, False, 0, 1, "true"])
        if kind == "array":
            return [chance.choice([self.text(), {"message": self.text()}, self.anything()])]
        if kind == "object":
            return {chance.choice(["retention_ms", "x"]): self.anything()}
        return self.text()

    def draw(self) -> tuple[str, str, Any, Values, Values]:
        """method, path, body, query, headers"""
        chance = self.random
        path, method, operation = chance.choice(self.operations)
        wanted = {one["name"]: one["schema"] for one in operation.get("parameters", ())}
        content = operation.get("requestBody", {}).get("content", {})
        wanted |= content.get("application/json", {}).get("schema", {}).get("properties", {})
        headers = {}
        if wanted.pop("Idempotency-Key", None) and chance.random() < 0.4:
            headers["Idempotency-Key"] = f"key {chance.randint(0, 50)}"
        path = re.sub(
            r"{\w+}", lambda _: chance.choice(["no-such", "7", "%2e", "%ff", "a%2Fb"]), path
        )
        body: Values = {}
        query: Values = {}
        for name, schema in wanted.items():
            place = chance.random()
            if place < 0.75:
                body[name] = self.value(name, schema)
            if place > 0.6 and place < 0.95:
                value = self.value(name, schema)
                query[name] = value if isinstance(value, str) else json.dumps(value)
        data: Any = body if body or chance.random() < 0.5 else None
        if chance.random() < 0.03:
            data = chance.choice([b"", b"{", b"\xff\xfe", b"[]", b'"x"', b"{}" * 9])
        if chance.random() < 0.05:
            method = chance.choice(["put", "patch", "head", "options", "get", "post"])
        query = {name: text for name, text in query.items() if _is_text(text)}
        return method.upper(), path, data, query, headers


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def test_random_requests_get_proper_answers(gateway: Gateway, topic: str, seed: int | None) -> None:
    """H2, H5, Q11: no 500, and every answer in the contract's form."""
    first = random.SystemRandom().getrandbits(32) if seed is None else seed
    print(f"replay: --seed {first}")
    known: Values = {"topic": topic, "other": topic + "-other"}
    for name in known.values():
        ask(gateway.port, "POST", "/topics", {"topic": name, "partitions": 2})
    known["producer_id"] = ask(gateway.port, "POST", "/producers", {"topic": topic})[1][
        "producer_id"
    ]
    known["consumer_id"] = ask(gateway.port, "POST", "/consumers", {"topic": topic})[1][
        "consumer_id"
    ]
    document = ask(gateway.port, "GET", "/openapi.json")[1]
    documented = {
        (path, method): operation["responses"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }

    def run(number: int) -> dict[int, int]:
        maker = Maker(document, first + number, known)
        counts: dict[int, int] = {}
        with Client([gateway.port]) as client:
            for _ in range(REQUESTS // CLIENTS):
                method, path, body, query, headers = maker.draw()
                said = (method, path, body, query, headers)
                status, answer = client.ask(
                    method,
                    path,
                    body,
                    headers=headers,
                    **{
                        name: text for name, text in query.items() if name not in ("method", "path")
                    },
                )
                assert status < 500 or status in (501, 503), (said, status, answer)
                known_answers = documented.get((path, method.lower()))
                assert known_answers is None or str(status) in known_answers, (said, answer)
                counts[status] = counts.get(status, 0) + 1
        return counts

    total: dict[int, int] = {}
    with ThreadPoolExecutor(CLIENTS) as pool:
        for counts in pool.map(run, range(CLIENTS)):
            for status, count in counts.items():
                total[status] = total.get(status, 0) + count
    assert sum(total.values()) == REQUESTS and total[200] > REQUESTS // 20, total
    assert {400, 404} <= set(total), total
    gateway.check()
