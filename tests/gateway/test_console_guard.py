"""The console's way in, without a browser: headers, forms from elsewhere, hosts, error pages."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from flask import Flask
from flask.testing import FlaskClient
from support.processes import Cluster, wait_for

from myqueue import Consumer, Session
from myqueue.gateway.app import create_app
from myqueue.gateway.console import page
from myqueue.gateway.console.live import poller
from myqueue.gateway.console.pages import messages
from myqueue.gateway.settings import DEFAULTS

HERE = "http://localhost"
PAGES = ("/console/", "/console/topics", "/console/create-topic", "/console/nodes")
FORMS = (
    "/console/create-topic",
    "/console/topics/t/grow",
    "/console/topics/t/retention",
    "/console/topics/t/delete",
    "/console/topics/t/messages",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("guard"), managers=1, brokers=1) as cluster:
        cluster.admin.create_topic("t", partitions=2)
        cluster.wait_healthy()
        yield cluster


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> Iterator[Flask]:
    app = create_app(replace(DEFAULTS, cluster=cluster.address))
    yield app
    app.extensions["myqueue"].close()


@pytest.fixture
def web(app: Flask) -> FlaskClient:
    return app.test_client()


def token(web: FlaskClient) -> str:
    found = re.search(r'name="token" value="([^"]+)"', web.get("/console/create-topic").text)
    assert found
    return found[1]


@pytest.mark.parametrize("path", [*PAGES, "/console/topics/none", "/console/static/console.js"])
def test_every_answer_has_its_guards(web: FlaskClient, path: str) -> None:
    answer = web.get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert "Set-Cookie" not in answer.headers
    if "static" not in path:
        assert answer.headers["Cache-Control"] == "no-store"
        body = answer.text
        assert not re.search(r"\sstyle=|<style|\son\w+=|javascript:|<script>", body)
        assert not re.search(r"(src|href)=\"(https?:)?//", body)
    answer.close()


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": HERE, "Sec-Fetch-Site": "cross-site"},
        {"Origin": HERE, "Sec-Fetch-Site": "same-site"},
    ],
)
def test_forms_of_other_sites_are_refused(web, cluster, path, headers) -> None:
    form = {"token": token(web), "name": "t", "value": "x", "partitions": "1", "count": "1"}
    answer = web.post(path, data=form | {"had": "2"}, headers=headers)
    assert answer.status_code == 403
    assert cluster.admin.topics() == ["t"]
    assert len(cluster.admin.describe_topic("t")["partitions"]) == 2


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("wrong", ["", "1.x", "é", "0." + "0" * 64])
def test_forms_without_a_good_token_are_refused(web, cluster, path, wrong) -> None:
    form = {"token": wrong, "name": "t", "value": "x", "partitions": "1", "count": "1"}
    answer = web.post(path, data=form, headers={"Origin": HERE})
    assert answer.status_code == 403
    assert "FORBIDDEN" in answer.text
    assert cluster.admin.topics() == ["t"]


def test_a_gateway_of_this_machine_has_no_other_name(web: FlaskClient) -> None:
    for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[::2]:80"):
        answer = web.get("/console/", headers={"Host": host})
        assert answer.status_code in (400, 403), host
    for host in ("127.0.0.1:8080", "localhost", "localhost:9", "[::1]:8080"):
        assert web.get("/console/", headers={"Host": host}).status_code == 200, host


def test_a_form_that_is_too_large_is_refused(web: FlaskClient) -> None:
    form = {"token": token(web), "value": "x" * (3 << 20)}
    answer = web.post("/console/topics/t/messages", data=form, headers={"Origin": HERE})
    assert answer.status_code == 413


def test_errors_are_pages_with_one_line_code_and_component(web: FlaskClient) -> None:
    answer = web.get("/console/topics/none")
    assert answer.status_code == 404
    assert "there is no topic &#39;none&#39;" in answer.text
    assert "UNKNOWN_TOPIC 1210" in answer.text
    assert re.search(r"Component</dt><dd>manager 1", answer.text)
    told = web.get("/console/topics/none?live=1")
    assert (told.status_code, told.get_json()["error"]["code"]) == (404, 1210)
    for way in ("from=nowhere", "offset=x", "partition=-1", "limit=0", "from=time&time=noon"):
        assert web.get(f"/console/topics/t/messages?{way}").status_code == 400, way
    assert web.get("/console/topics?page=x").status_code == 400
    assert web.get("/console/series?since=x").status_code == 400
    assert web.post("/console/topics").status_code == 405


def test_the_log_names_the_page_that_failed(
    web: FlaskClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By method and path; the browser gets neither the traceback nor a line end for the log."""
    monkeypatch.setattr(messages, "asked", lambda: {}["on purpose"])
    answer = web.get("/console/topics/t%0a/messages")
    assert answer.status_code == 500 and "on purpose" not in answer.text
    assert r"GET '/console/topics/t\n/messages' failed" in caplog.messages


def test_the_live_part_is_what_the_page_has(web: FlaskClient) -> None:
    told = web.get("/console/topics/t?live=1").get_json()
    assert set(told) == {"live", "health"}
    assert "<table>" in told["live"]
    assert "<html" not in told["live"]
    assert "Healthy" in told["health"]


def test_every_page_tells_its_live_part(web: FlaskClient, app: Flask) -> None:
    """A form has none, and says so."""
    values = {"name": "t", "partition": "0", "offset": "0", "node": "1", "rest": "none"}
    for rule in app.url_map.iter_rules():
        if not rule.endpoint.startswith("console.") or "GET" not in (rule.methods or ()):
            continue
        path = re.sub(r"<(?:\w+:)?(\w+)>", lambda found: values.get(found[1], "1"), rule.rule)
        answer = web.get(f"{path}?live=1")
        assert answer.status_code in (200, 302, 303, 308, 400, 404), (path, answer.text[:300])
        answer.close()


def test_a_page_that_is_none_is_a_page(web: FlaskClient) -> None:
    for path in ("/console/xyz", "/console/topics/t/xyz", "/console/<script>"):
        answer = web.get(path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        assert (answer.status_code, answer.mimetype) == (404, "text/html"), path
        assert "NOT_FOUND" in answer.text and 'href="/console/"' in answer.text
        assert answer.headers["X-Frame-Options"] == "DENY" and "<script>" not in answer.text
    told = web.get("/console/xyz?live=1")
    assert (told.status_code, told.get_json()["error"]["name"]) == (404, "NOT_FOUND")


def test_a_topic_says_which_groups_read_it(web: FlaskClient, cluster: Cluster) -> None:
    assert "No group reads this topic." in web.get("/console/topics/t/consumers").text
    with Consumer(cluster.address, ["t"], group="packing"):

        def told() -> str:
            text = web.get("/console/topics/t/consumers").text
            return text if "packing" in text else ""

        text = wait_for("the group to be there", told)
    assert '<a href="/console/groups/packing">packing</a>' in text
    assert "No group reads this topic." not in text


def test_no_link_leads_elsewhere(app: Flask) -> None:
    """Topics of older clusters may be called as steps in a path are."""
    with app.test_request_context("/console/"):
        assert page.link("topic", name="..") == page.link("messages", name=".", partition=1) == ""
        assert page.link("topic", name="...").endswith("/topics/...")


def test_a_name_cannot_be_markup_even_if_it_is_asked_for(web: FlaskClient) -> None:
    for path in (
        "/console/topics?filter=<script>",
        "/console/topics?deleted=<script>",
        "/console/topics/<script>",
        "/console/topics/t/messages?partition=<script>",
        "/console/consumers?filter=<script>",
    ):
        text = web.get(path).text
        assert "<script>" not in text, path
        assert "&lt;script&gt;" in text, path


def test_series_have_as_many_values_as_times(web: FlaskClient) -> None:
    def told() -> dict[str, list[float]] | None:
        found = web.get("/console/series").get_json()
        return found if found["messages_in"] and found["messages_in"][-1] is not None else None

    found = wait_for("two looks", told, 30)
    lengths = {len(value) for value in found.values() if isinstance(value, list)}
    assert len(lengths) == 1
    newer = web.get(f"/console/series?since={found['at_ms'][-1]}").get_json()
    assert all(at > found["at_ms"][-1] for at in newer["at_ms"])


def test_a_saved_value_is_never_shown_by_a_browser(web: FlaskClient) -> None:
    form = {"token": token(web), "value": "<script>", "partition": "0"}
    sent = web.post("/console/topics/t/messages", data=form, headers={"Origin": HERE})
    assert sent.status_code == 303
    answer = web.get("/console/topics/t/messages/0/0/value")
    assert answer.data == b"<script>"
    assert answer.content_type == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment")


def test_the_tail_goes_on_from_any_offset(web: FlaskClient) -> None:
    told = web.get("/console/topics/t/tail/more?at=0:0,1:0").get_json()
    assert told["rows"][0]["value"] == "<script>"
    assert told["at"].startswith("0:1")
    assert web.get("/console/topics/t/tail/more?at=0:99999999,7:1").get_json()["rows"] == []
    assert web.get("/console/topics/t/tail/more?at=x").status_code == 400


def test_the_watch_rests_when_nobody_looks_and_begins_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_looking() -> bool:
        return any(one.name == "myqueue-watch" for one in threading.enumerate())

    monkeypatch.setattr(poller, "EVERY_S", 0.05)
    wait_for("the watch of other tests rests", lambda: not is_looking() or rest_all(monkeypatch))
    with Session(cluster.address) as session:
        mine = poller.Watch(session)
        for _ in range(2):
            monkeypatch.setattr(poller, "REST_AFTER_S", 60.0)
            assert mine.latest().is_reachable
            assert is_looking()
            before = len(mine.points())
            wait_for("it looks on", lambda before=before: len(mine.points()) > before + 2)
            monkeypatch.setattr(poller, "REST_AFTER_S", 0.0)
            wait_for("it rests", lambda: not is_looking())
    assert mine.latest() is not None  # of a session that was closed: what was known last
    assert not is_looking()


def rest_all(monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(poller, "REST_AFTER_S", 0.0)
    return False


def test_what_a_form_deletes_has_to_be_typed(web: FlaskClient, cluster: Cluster) -> None:
    cluster.admin.create_topic("typed", partitions=1)
    cluster.wait_healthy()
    cluster.admin.reset_group("packers", to="latest", topics=["typed"])
    for path, name in (("/console/groups/packers", "packers"), ("/console/topics/typed", "typed")):
        form = {"token": token(web), "name": name[:-1]}
        refused = web.post(f"{path}/delete", data=form, headers={"Origin": HERE})
        assert refused.status_code == 400 and "nothing was deleted" in refused.text
        assert web.get(path).status_code == 200
        done = web.post(f"{path}/delete", data=form | {"name": name}, headers={"Origin": HERE})
        assert done.status_code == 303 and done.location.endswith(f"s?deleted={name}")
        assert f"Deleted {name}." in web.get(done.location).text
        again = web.post(f"{path}/delete", data=form | {"name": name}, headers={"Origin": HERE})
        assert again.status_code == 404
