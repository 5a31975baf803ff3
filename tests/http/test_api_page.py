"""The examples of gateway/API.md, as they stand there, against a real gateway."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.gateways import Client, Gateway, ask
from support.processes import Cluster, wait_for

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "gateway" / "API.md"


def examples() -> list[str]:
    lines = PAGE.read_text("utf-8").splitlines()
    return [line[2:] for line in lines if line.startswith("$ curl ")]


def test_the_page_names_roles_and_what_has_no_key(http: Client) -> None:
    """As the table of operations has it: nobody should rely on a key that is not looked at."""
    page = " ".join(PAGE.read_text("utf-8").split())
    rows = [
        (path, method, row)
        for path, methods in http.ask("GET", "/openapi.json")[1]["paths"].items()
        for method, row in methods.items()
    ]
    keyless = {
        f"{method} {path}"
        for path, method, row in rows
        if method != "get" and all(one["in"] != "header" for one in row["parameters"])
    }
    assert keyless == {
        "post /producer/heartbeat",
        "post /consumer/heartbeat",
        "post /groups/{group}/reset",
        "delete /groups/{group}",
    }
    (said,) = re.findall(r"`Idempotency-Key: TEXT`\*\* .*? and on consume:", page)
    assert "on POST and DELETE (except heartbeats, and reset and deletion of a group)" in said
    (said,) = re.findall(r"Reading and consuming need the role .*? `admin`\.", page)
    for path, _, row in rows:
        if row.get("x-role") == "admin":
            assert path.split("/")[1].removesuffix("s") in said, path


def run(client: Client, line: str, broker: str) -> int:
    """What curl would do with these words. $B is the address of a broker."""
    words = iter(shlex.split(line.replace("$B", broker), comments=True)[1:])
    method, path, body, headers = "", "", None, {}
    for word in words:
        match word:
            case "-s":
                pass
            case "-X":
                method = next(words)
            case "-d":
                body = next(words).encode()
            case "-H":
                name, _, value = next(words).partition(": ")
                headers[name] = value
            case _:
                assert word.startswith("$G/"), line
                path = word[2:]
    status, _ = client.ask(method or "GET", path, body, headers=headers)
    return status


def test_every_example_works(tmp_path: Path) -> None:
    """Ids are those of a new cluster, so it has one of its own."""
    with (
        Cluster(tmp_path, managers=1) as cluster,
        Gateway(tmp_path, cluster.address) as gateway,
        Client([gateway.port]) as client,
    ):
        broker = f"127.0.0.1:{cluster.ports['broker', 3][0]}"
        for line in examples():
            refused = re.search(r"  # (\d{3}): ", line)
            wanted = int(refused[1]) if refused else 200
            if "readyz" in line or "healthz" in line:  # a partition may be a moment old

                def is_ready(line: str = line) -> bool:
                    return run(client, line, broker) == 200

                wait_for(line, is_ready, 30)
            else:
                assert run(client, line, broker) == wanted, line
        document = ask(gateway.port, "GET", "/openapi.json")[1]
        gateway.check()
    shown = " ".join(examples())
    for path in document["paths"]:
        plain = path.partition("{")[0].rstrip("/")
        assert f"$G{plain}" in shown, f"no example of {path}"
