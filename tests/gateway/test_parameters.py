"""Parameters: where they come from, their names, and how what is wrong is named."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myqueue.errors import InvalidName, InvalidRequest, Malformed, MyQueueError
from myqueue.gateway.api import parameter_catalog
from myqueue.gateway.api.parameters import (
    BASE64,
    HANDED_ON,
    REFUSED,
    UTF8,
    Parameter,
    ParameterSet,
    from_bytes,
    from_query,
    loads,
    read,
    to_bytes,
)

PARAMETERS = (
    parameter_catalog.TOPIC,
    parameter_catalog.PRODUCER_ID,
    parameter_catalog.PARTITION,
    parameter_catalog.DETAIL,
    parameter_catalog.SETTINGS,
)
WANTED = ParameterSet(PARAMETERS)


def values(query: str = "", body: bytes = b"", **path: str) -> dict[str, Any]:
    return read(WANTED, query, body, path)[0]


def test_query_body_and_path_are_one_thing() -> None:
    found = values("producer_id=7", b'{"topic": "t", "partition": null}')
    assert (found["topic"], found["producer_id"], found["partition"]) == ("t", 7, None)
    assert values("topic_name=t&id=07")["producer_id"] == 7
    assert values(b"".decode(), b'{"name": "t", "id": "7", "detail": 1}')["detail"] is True
    assert values("id=1", topic="t")["topic"] == "t"
    assert values('id=1&topic=t&settings={"a":1}')["settings"] == {"a": 1}


def test_the_same_twice_has_to_be_the_same() -> None:
    assert values("topic=t&id=7", b'{"topic": "t", "producer_id": "7"}')["producer_id"] == 7
    for query, body in (
        ("topic=t&topic=u&id=1", b""),
        ("topic=t&id=1", b'{"topic": "u"}'),
        ("topic=t&topic_name=u&id=1", b""),
        ("topic=t&id=1&producer_id=2", b""),
    ):
        with pytest.raises(InvalidRequest):
            values(query, body)


@pytest.mark.parametrize("name", ["colour", "partiton", "x" * 9_999])
def test_what_is_not_known_is_dropped_handed_on_or_refused(name: str) -> None:
    """Dropped only where it can't be a slip of the pen for something that is known."""
    query = f"topic=t&id=1&{name}=red"
    assert read(ParameterSet(PARAMETERS, HANDED_ON), query, b"", {})[1] == {name: "red"}
    with pytest.raises(InvalidRequest, match="there is no parameter"):
        read(ParameterSet(PARAMETERS, REFUSED), query, b"", {})
    if name == "partiton":
        with pytest.raises(InvalidRequest, match="did you mean 'partition'"):
            read(WANTED, query, b"", {})
    else:
        assert values(query)["topic"] == "t"


@pytest.mark.parametrize(
    ("body", "topic"),
    [
        (b"topic=t&producer_id=1", "t"),
        (b"name=a.b&id=1&partition=", None),
        (b' {"topic": "t", "id": 1}', "t"),
        (b'{"a=b": 1, "topic": "t", "id": 1}', "t"),
        (b"topic=t&topic=u&id=1", None),
        (b"topic=%ff&id=1", None),
        (b"topic=\xff&id=1", None),
        (b"topic&id", None),
        (b"=t", None),
    ],
)
def test_a_body_is_json_or_a_form_by_how_it_begins(body: bytes, topic: str | None) -> None:
    if topic is not None:
        assert values(body=body)["topic"] == topic
        return
    with pytest.raises(MyQueueError) as refused:
        values(body=body)
    assert refused.value.http_status == 400


def test_no_name_means_two_parameters() -> None:
    with pytest.raises(ValueError, match="share a name"):
        ParameterSet((parameter_catalog.PRODUCER_ID, parameter_catalog.CONSUMER_ID))
    assert [one.name for one in map(WANTED.find, ("topicName", "Topic-Name", "ID")) if one] == [
        "topic",
        "topic",
        "producer_id",
    ]
    assert WANTED.find("colour") is None


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("id=1", "topic is missing"),
        ("topic=t", "producer_id is missing"),
        ("topic=t&id=x", "id is 'x'"),
        ("topic=t&id=-1", "id is"),
        ("topic=t&id=1.0", "id is"),
        ("topic=t&id=%D9%A1", "id is"),
        ("topic=t&id=99999999999999999999", "id is"),
        ("topic=t&id=1&detail=yes", "detail"),
        ("topic=t&id=1&settings=5", "settings"),
        ("topic=t&id=1&partition=", "partition"),
    ],
)
def test_what_is_wrong_is_named(query: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        values(query)


def test_names_of_topics() -> None:
    for name in ("a/b", "..%2F", "x" * 201, "ü", ""):
        with pytest.raises(InvalidName):
            values(f"id=1&topic={name}")


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b"1", b"NaN", b'{"a": Infinity}', b"\xff", b"[" * 99_999, b"1" * 9_999]
)
def test_bodies_that_are_no_objects(text: bytes) -> None:
    with pytest.raises(Malformed):
        values("topic=t&id=1", text)


@given(st.text("ab=&;#?é ", max_size=12))
def test_a_query_without_escapes_reads_as_any_other(query: str) -> None:
    pairs = parse_qsl(query, keep_blank_values=True)
    try:
        values = from_query(query)
    except InvalidRequest:  # the same name with two values
        assert len(set(pairs)) > len(dict(pairs))
    else:
        assert values == dict(pairs) and len(set(pairs)) == len(values)


def test_query_strings_that_are_none() -> None:
    for text in ("a=%ff", "&".join(f"a{n}=1" for n in range(200))):
        with pytest.raises(Malformed):
            from_query(text)


@settings(deadline=None)
@given(st.text(max_size=60), st.binary(max_size=60))
def test_nothing_but_a_refusal_is_raised(query: str, body: bytes) -> None:
    try:
        values(query, body)
    except MyQueueError as error:
        assert error.http_status == 400


@settings(deadline=None)
@given(st.binary(max_size=99))
def test_bytes_survive_base64(data: bytes) -> None:
    text = from_bytes(data, BASE64)
    assert text is not None and to_bytes("m", text, BASE64) == data == base64.b64decode(text)


def test_text_is_text() -> None:
    assert to_bytes("m", "ü", UTF8) == "ü".encode() and from_bytes("ü".encode(), UTF8) == "ü"
    assert from_bytes(None, UTF8) is None
    for value, how in ((5, UTF8), (None, UTF8), ("\ud800", UTF8), ("*", BASE64), ("ü", BASE64)):
        with pytest.raises(InvalidRequest, match="m "):
            to_bytes("m", value, how)
    with pytest.raises(UnicodeDecodeError):
        from_bytes(b"\xff", UTF8)


def test_each_parameter_says_what_it_is_for() -> None:
    known = [one for one in vars(parameter_catalog).values() if isinstance(one, Parameter)]
    assert len(known) > 20
    for one in known:
        assert one.about.endswith(".") or "0-9" in one.about
        if one.default is not None:
            assert one.read(one.name, one.default) == one.default or one.name == "replication"
        if one.example is not None:
            one.read(one.name, one.example)


def test_json_and_nothing_beside_it() -> None:
    assert loads('{"a": [1.5, null]}') == {"a": [1.5, None]}
    with pytest.raises(ValueError):
        loads("-Infinity")
