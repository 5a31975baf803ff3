"""Tokens with roles, TLS, and a gateway that does not open itself to everybody (H1, S5, S6)."""

from __future__ import annotations

import hashlib
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.gateways import Gateway, ask
from support.processes import Cluster, wait_for

pytestmark = pytest.mark.slow

CERTIFICATE = Path(__file__).parent / "certificate.pem"  # and its key; of "localhost", for tests
TOKENS = {name: f"{name}-token-0123456789" for name in ("reader", "writer", "boss")}


@pytest.fixture(scope="module")
def guarded(folder: Path, cluster: Cluster) -> Iterator[Gateway]:
    hashed = hashlib.sha256(TOKENS["boss"].encode()).hexdigest()
    lines = [
        f"read {TOKENS['reader']} reader",
        f"write,read {TOKENS['writer']} # a comment",
        f"admin sha256:{hashed} boss",
    ]
    path = folder / "tokens"
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    with Gateway(folder, cluster.address, "guarded", tokens=path) as gateway:
        yield gateway
        gateway.check()
        assert not any(token in gateway.log for token in TOKENS.values())


def test_each_role_may_do_its_part(guarded: Gateway, topic: str) -> None:
    """H1, S6."""

    def status(name: str, method: str, path: str, **values: Any) -> int:
        token = TOKENS.get(name, name)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return ask(guarded.port, method, path, values, headers=headers)[0]

    create = ("POST", "/topics")
    assert status("", *create, topic=topic) == 401
    assert status("wrong-token-0123", *create, topic=topic) == 401
    assert status("reader", *create, topic=topic) == status("writer", *create, topic=topic) == 403
    assert status("boss", *create, topic=topic) == 200
    assert status("", "GET", "/topics") == 401
    assert status("reader", "GET", "/topics") == status("boss", "GET", "/topics") == 200
    assert status("reader", "POST", "/producer/register", topic=topic) == 403
    assert status("writer", "POST", "/producer/register", topic=topic) == 200
    assert status("reader", "POST", "/consumer/register", topic=topic) == 200
    assert status("reader", "DELETE", f"/topics/{topic}") == 403
    assert status("reader", "GET", "/settings") == status("boss", "GET", "/settings") == 200
    assert status("writer", "POST", "/settings", inactive_ms=30_000) == 403
    assert status("boss", "POST", "/settings", inactive_ms=30_000) == 200
    for path in ("/livez", "/readyz", "/openapi.json"):
        assert status("", "GET", path) in (200, 503)  # a partition may be so new that none leads
    if ask(guarded.port, "GET", "/no/such")[0] != 404:
        raise AssertionError("a path that is none asks for no token")
    asked = urllib.request.Request(f"{guarded.url}/metrics")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked, timeout=30)
    caught.value.close()
    assert caught.value.code == 401 and caught.value.headers["WWW-Authenticate"] == "Bearer"


def test_tls(folder: Path, cluster: Cluster) -> None:
    settings = {"tls_certificate": CERTIFICATE, "tls_key": CERTIFICATE}
    gateway = Gateway(folder, cluster.address, "tls", **settings)
    gateway.start(ready=False)
    context = ssl.create_default_context(cafile=str(CERTIFICATE))

    def get(path: str, data: bytes | None = None) -> Any:
        url = f"https://localhost:{gateway.port}{path}"
        try:
            with urllib.request.urlopen(url, data, timeout=30, context=context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return json.load(error)
        except OSError:
            return None

    try:
        wait_for("TLS", lambda: (get("/readyz") or {}).get("status") == "success", 60)
        assert get("/nope")["name"] == "NOT_FOUND"
        big = json.dumps({"topic": "/" * 500_000}).encode()  # many records of TLS
        assert get("/topics", big)["name"] == "INVALID_NAME"
        with pytest.raises((OSError, AssertionError, KeyError, ValueError)):
            ask(gateway.port, "GET", "/livez", timeout=5)  # plain HTTP is not understood
        assert get("/livez")["status"] == "success"
        gateway.check()
    finally:
        gateway.kill()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--listen", "0.0.0.0:1"], "not a loopback address"),
        (["--tls-key", "/nowhere"], "one of them is missing"),
        (["--tokens", "/nowhere"], "No such file"), (["--threads", "2"], "is not 4 to 512"),
        (["--config", "/nowhere"], "No such file"),
    ],
)  # fmt: skip
def test_what_can_not_run_says_so_in_a_line(flags: list[str], said: str) -> None:
    """S5: other addresses than loopback need tokens, or --insecure."""
    command = [sys.executable, "-P", "-m", "myqueue.gateway.main", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_named(gateway: Gateway) -> None:
    command = [sys.executable, "-P", "-m", "myqueue.gateway.main", "--listen"]
    done = subprocess.run(
        [*command, f"127.0.0.1:{gateway.port}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and str(gateway.port) in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_readers_of_a_file_of_tokens_are_few(tmp_path: Path) -> None:
    """A file that others may read, a token that is too short, a role that is none."""
    path = tmp_path / "tokens"
    command = [sys.executable, "-P", "-m", "myqueue.gateway.main", "--tokens", str(path)]
    for text, mode, said in (
        ("read 0123456789abcdef", 0o644, "others may read it"),
        ("read short", 0o600, "at least 16 characters"),
        ("king 0123456789abcdef", 0o600, "roles are read, write, admin"),
        ("read sha256:beef", 0o600, "64 hex digits"),
        ("# nothing", 0o600, "has none"),
    ):
        path.write_text(text)
        path.chmod(mode)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1 and said in done.stderr, (text, done.stderr)
        assert "0123456789abcdef" not in done.stderr
