"""Settings of topics over HTTP and in the console: what managers are asked, however it came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from myqueue.errors import InvalidRequest, InvalidSetting
from myqueue.gateway.app import create_app
from myqueue.gateway.cluster_client import ClusterClient
from myqueue.gateway.console.view import retention
from myqueue.gateway.settings import DEFAULTS
from myqueue.wire.metadata_settings import TOPIC_SETTINGS

Asked = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What came to the managers, who agree to everything."""
    out: Asked = []

    def update(
        _sdk: ClusterClient, operation: str, arguments: Mapping[str, Any], _key: Any = None
    ) -> Any:
        out.append((operation, dict(arguments)))
        return {"settings": arguments["settings"], "partitions": [7]}

    monkeypatch.setattr(ClusterClient, "update", update)
    return out


@pytest.fixture
def client() -> Iterator[FlaskClient]:
    app = create_app(replace(DEFAULTS, cluster="127.0.0.1:1"))
    yield app.test_client()
    app.extensions["myqueue"].close()


@pytest.mark.parametrize(
    ("query", "body", "settings"),
    [
        ("?retention_ms=60000", "", {"retention_ms": 60_000}),
        ("", '{"retention_ms": "60000"}', {"retention_ms": 60_000}),
        ("?retention_ms=60000", '{"settings": {"retention_bytes": 5}}',
         {"retention_ms": 60_000, "retention_bytes": 5}),
        ("", '{"settings": {"retention_ms": null}}', {"retention_ms": None}),
        ("?retention_ms=1e9", "", {"retention_ms": "1e9"}),  # for the managers to refuse
    ],
)  # fmt: skip
def test_settings_are_changed(
    client: FlaskClient, asked: Asked, query: str, body: str, settings: dict[str, Any]
) -> None:
    answer = client.post(f"/topics/orders/settings{query}", data=body)
    assert answer.status_code == 200, answer.data
    assert asked == [("alter_topic", {"topic": "orders", "settings": settings})]
    assert answer.json == {"status": "success", "topic": "orders", "settings": settings}


def test_numbers_are_digits_when_a_topic_is_created_too(client: FlaskClient, asked: Asked) -> None:
    assert client.post("/topics?topic=orders&retention_ms=60000").status_code == 200
    assert asked[0][1]["settings"] == {"retention_ms": 60_000}


@pytest.mark.parametrize("name", TOPIC_SETTINGS)
def test_a_misspelt_setting_gets_advice(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*_: Any) -> Any:
        raise InvalidSetting("there is no such setting")

    monkeypatch.setattr(ClusterClient, "update", refuse)
    for path in ("/topics?topic=orders&", "/topics/orders/settings?"):
        answer = client.post(f"{path}{name}x=5")
        assert answer.status_code == 400
        assert f"'{name}x'; did you mean '{name}'?" in answer.json["message"]


def test_a_change_of_nothing_is_refused(client: FlaskClient, asked: Asked) -> None:
    answer = client.post("/topics/orders/settings")
    assert answer.status_code == 400 and b'"INVALID_REQUEST"' in answer.data
    assert not asked


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_retention_in_a_form_is_what_it_is(kept_bytes: int, kept_ms: int) -> None:
    """A form that was opened and sent as it is changes nothing."""
    settings = {"retention_bytes": kept_bytes, "retention_ms": kept_ms}
    assert retention.read(retention.written(settings)) == settings


def test_what_people_write_for_retention() -> None:
    read = retention.read({"megabytes": " 1.5 ", "minutes": ""})
    assert read == {"retention_bytes": 1_500_000, "retention_ms": 0}
    assert retention.written({"retention_ms": 86_400_000}) == {"megabytes": "", "minutes": "1440"}
    for text in ("1,5", "-1", "nan", "inf", "1e300", "a day"):
        with pytest.raises(InvalidRequest, match="minutes: a number from 0 to"):
            retention.read({"minutes": text})
