"""Which names a gateway answers to, and what a browser may not be made to do by a foreign page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from myqueue.errors import InvalidSetting
from myqueue.gateway.app import create_app
from myqueue.gateway.settings import DEFAULTS, load

NOBODY = "127.0.0.1:9"  # no cluster is needed: who is refused does not come so far
MakeWeb = Callable[..., FlaskClient]
REBOUND = ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example")
EVERYWHERE = ("/topics", "/livez", "/healthz", "/metrics", "/openapi.json", "/none", "/console/")
TAKES = (
    ("GET", "/consumer/consume?topic=t&consumer_id=1"),
    ("HEAD", "/consumer/consume?topic=t&consumer_id=1"),
    ("GET", "/logs?topic=t&consumer_id=1&partition=0"),
    ("GET", "/messages?topic=t&consumer_id=1&partition=0"),
)
CHANGES = (
    ("POST", "/topics"),
    ("DELETE", "/topics/t"),
    ("POST", "/producer/produce"),
    ("DELETE", "/brokers/1"),
)


@pytest.fixture
def make(tmp_path: Any) -> Iterator[MakeWeb]:
    apps = []

    def made(**settings: Any) -> FlaskClient:
        if "tokens" in settings:
            settings["tokens"].write_text(f"admin sha256:{'0' * 64}")
            settings["tokens"] = str(settings["tokens"])
        app = create_app(replace(DEFAULTS, cluster=NOBODY, request_timeout_ms=100, **settings))
        apps.append(app)
        return app.test_client()

    yield made
    for app in apps:
        app.extensions["myqueue"].close()


def refusal(web: FlaskClient, method: str, path: str, **headers: str) -> str:
    """Why it was not even looked at; "" if it was."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = web.open(path, method=method, headers=fields)
    if answer.status_code != 403:
        return ""
    assert "Traceback" not in answer.text
    told = answer.get_json(silent=True)
    assert told is None or (told["status"], told["name"]) == ("failure", "FORBIDDEN")
    return answer.text if told is None else f"{told['message']}. {told['hint']}"


def test_a_rebound_name_reads_and_changes_nothing(make: MakeWeb) -> None:
    web = make()
    for host in REBOUND:
        for method, path in (*(("GET", one) for one in EVERYWHERE), *TAKES[:1], *CHANGES):
            said = refusal(web, method, path, Host=host)
            assert "--allowed-host" in said and "is not called" in said, (host, method, path)
    for host in ("[::2]:80", "10.1.2.3:8080", "queue", "0.0.0.0"):
        assert refusal(web, "GET", "/topics", Host=host), host


def test_names_of_loopback_are_its_own(make: MakeWeb) -> None:
    web = make()
    for host in (
        "localhost",
        "LOCALHOST:1",
        "localhost.",
        "127.0.0.1:8080",
        "127.9.9.9",
        "[::1]:8",
    ):
        assert not refusal(web, "GET", "/livez", Host=host), host
        assert not refusal(web, "POST", "/topics", Host=host), host


def test_other_names_are_those_that_were_given(make: MakeWeb) -> None:
    web = make(allowed_host=("queue.example.com",))
    assert not refusal(web, "GET", "/livez", Host="Queue.Example.com:80")
    assert not refusal(web, "GET", "/livez", Host="127.0.0.1:8080")
    assert refusal(web, "GET", "/livez", Host="evil.example")
    assert refusal(web, "GET", "/livez", Host="queue.example.com.evil.example")


def test_a_gateway_for_a_network_is_reached_by_numbers_and_short_names(make: MakeWeb) -> None:
    """Without tokens. No page of the Internet can have such a name."""
    web = make(listen="0.0.0.0:8080")
    for host in ("10.1.2.3:8080", "[fe80::1]", "queue", "queue:8080", "localhost"):
        assert not refusal(web, "GET", "/livez", Host=host), host
    for host in REBOUND:
        assert refusal(web, "GET", "/livez", Host=host), host


def test_where_a_token_is_needed_any_name_will_do(make: MakeWeb, tmp_path: Any) -> None:
    """A foreign page has no token. Names that are given hold all the same."""
    web = make(tokens=tmp_path / "tokens")
    assert not refusal(web, "GET", "/livez", Host="queue.example.com")
    assert web.get("/topics", headers={"Host": "queue.example.com"}).status_code == 401
    strict = make(tokens=tmp_path / "tokens", allowed_host=("queue.example.com",))
    assert refusal(strict, "GET", "/livez", Host="evil.example")


@pytest.mark.parametrize(("method", "path"), [*TAKES, *CHANGES])
def test_pages_of_other_sites_take_and_change_nothing(
    make: MakeWeb, method: str, path: str
) -> None:
    """By an image, a form or a script; what a browser says of it is one of these."""
    web = make()
    for said in (
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Site": "same-site", "Origin": "http://localhost"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://localhost:3000"},
        {"Referer": "http://evil.example/page?q=1"},
    ):
        answered = web.open(path, method=method, headers=dict(_fields(said)))
        assert answered.status_code == 403, said
    for said in (
        {},
        {"Sec_Fetch_Site": "none"},
        {"Origin": "http://localhost"},
        {"Sec_Fetch_Site": "same-origin", "Origin": "https://queue.example.com"},
        {"Referer": "http://localhost/console/"},
    ):
        assert web.open(path, method=method, headers=dict(_fields(said))).status_code != 403, said


def _fields(said: dict[str, str]) -> Iterator[tuple[str, str]]:
    return ((name.replace("_", "-"), value) for name, value in said.items())


def test_a_link_on_another_page_still_leads_to_what_only_shows(make: MakeWeb) -> None:
    web = make()
    for path in ("/livez", "/openapi.json", "/console/", "/"):
        assert not refusal(web, "GET", path, Sec_Fetch_Site="cross-site", Referer="http://wiki.x/")


def test_names_come_from_flags_variables_and_files(tmp_path: Any) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('allowed_host = ["a.example", "B.example:80"]')
    names = ("a.example", "b.example")
    assert load(str(file), {}, {"allowed_host": ()}).allowed_host == names
    assert load(None, {"MYQ_ALLOWED_HOST": "a.example,b.example"}, {}).allowed_host == names
    assert load(None, {}, {"allowed_host": ("a.example", "b.example")}).allowed_host == names
    assert load(None, {}, {"allowed_host": ("[::2]:80", "10.0.0.1")}).allowed_host[0] == "[::2]"
    for wrong in ("http://a.example", "*", "a b", "a/b"):
        with pytest.raises(InvalidSetting, match="not the name of a machine"):
            load(None, {}, {"allowed_host": (wrong,)})
    file.write_text("allowed_host = 5")
    with pytest.raises(InvalidSetting, match="not a list of names"):
        load(str(file), {}, {})
