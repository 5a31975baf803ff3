"""What `consume` and `demo` compute: points to read from, formats, JSON lines, the verdict."""

import json
import time

import click
import pytest

from myqueue.cli import consume
from myqueue.cli.shared.start_point import From, Range, read_from
from myqueue.consumer.message import Message

MESSAGE = Message("orders", 2, 41, b"k\xc3\xa4", b"3 apples", {"a": b"1"}, 1_700_000_000_000)
OPTION = click.Option(["--from"])


def point(text: str) -> From:
    return read_from(click.Context(consume.consume), OPTION, text)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        *(("earliest", 10), ("latest", 50), ("20", 20), ("0", 10), ("60", 50)),
        *(("-5", 45), ("-500", 10), ("@1700000000000", 33)),
    ],
)
def test_points(text: str, offset: int) -> None:
    assert point(text).offset(Range(start=10, end=50, at_time=33)) == offset


def test_an_offset_that_is_gone_or_to_come_is_told() -> None:
    """C6: nothing that retention took is left out in silence."""
    known = {0: Range(10, 50, None), 1: Range(0, 5, None)}
    assert point("3").missed(known) == {0: "offset 3 is not between 10 (start) and 50 (end)"}
    assert not point("20").missed(known) and not point("50").missed(known)
    assert sorted(point("51").missed(known)) == [0, 1]
    assert not point("earliest").missed(known) and not point("-99").missed(known)


def test_times() -> None:
    assert point("@2026-01-01T00:00:00+00:00") == From("time", 1_767_225_600_000)
    ago = point("@-10m")
    assert abs(ago.number - (time.time() * 1000 - 600_000)) < 5_000
    assert point("@1700000000000").offset(Range(10, 50, None)) == 50


@pytest.mark.parametrize("text", ["", "x", "@", "@x", "--5", "5.0", "@-5y"])
def test_what_is_no_point(text: str) -> None:
    with pytest.raises(click.BadParameter):
        point(text)


@pytest.mark.parametrize(
    ("form", "rendered"),
    [
        (r"%v\n", b"3 apples\n"),
        (r"%t[%p]@%o %k=%v %d %h%%\t\\", 'orders[2]@41 kä=3 apples 1700000000000 {"a": "1"}%\t\\'),
        ("plain", b"plain"),
        (r"\x", rb"\x"),
        ("", b""),
    ],
)
def test_formats(form: str, rendered: bytes | str) -> None:
    expected = rendered.encode() if isinstance(rendered, str) else rendered
    assert consume.compiled(form)(MESSAGE) == expected


@pytest.mark.parametrize("form", ["%x", "100%"])
def test_formats_that_are_none(form: str) -> None:
    with pytest.raises(click.UsageError):
        consume.compiled(form)


def test_json_lines_hold_any_bytes() -> None:
    assert json.loads(consume.as_line(MESSAGE)) == {
        "schema": "myq.message/1",
        "topic": "orders",
        "partition": 2,
        "offset": 41,
        "key": "kä",
        "value": "3 apples",
        "headers": {"a": "1"},
        "timestamp": 1_700_000_000_000,
    }
    found = json.loads(consume.as_line(MESSAGE._replace(value=b"\xff", key=None, headers=None)))
    assert (found["value"], found["key"], found["encoding"]) == ("/w==", None, "base64")
    assert found["headers"] == {}
