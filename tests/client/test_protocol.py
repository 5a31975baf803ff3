"""What comes from a socket is an envelope of the right form, or a typed error; nothing else.

M1 (never pickle), M2 (each frame by itself), M3 (limits before anything is made), M4 (payloads are
not unpacked), M5 (types of all fields), Z6 (sizes). Hypothesis makes valid envelopes of every kind
and damages them; what is special about msgpack is tried by hand.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from myqueue.errors import InvalidRequest, Unsupported
from myqueue.wire import protocol

KEY = b"k" * 16
# One envelope of each kind that is as it should be; the keys are checked against the table.
GOOD: dict[int, list[Any]] = {
    protocol.HELLO: ["me", ""],
    protocol.WELCOME: ["c", "broker", 1, "1.0", {"frames": 4097}],
    protocol.ERROR: [1200, "text", "broker 1", {}],
    protocol.STATUS: [0],
    protocol.STATS: [],
    protocol.INFO: [{"a": [1.5, None, {"b": b"c"}]}],
    protocol.ROUTE: [["t", "u"], 0],
    protocol.ROUTES: [7, [[1, "a", "h", True]], [["t", 5, {}, [[0, 9, 1, 2, [1, 2]]]]], ["u"]],
    protocol.UPDATE: [KEY, "create_topic", {"topic": "t", "settings": {"retention_ms": 5}}],
    protocol.UPDATED: [5, {"topic_uid": 7}],
    protocol.READ: ["topics", {"detail": False}, 0, True],
    protocol.ANSWER: [5, {"topics": ["t"]}],
    protocol.ALIVE: [[1, 2], [3]],
    protocol.ALIVE_OK: [],
    protocol.MEMBER: ["g", 7, 9, 500, [[5, 8]]],
    protocol.MEMBERSHIP: [9, 10_000, [[5, "t", 0, 8, False, True]]],
    protocol.PRODUCE: [[5, 5, 6]],
    protocol.PRODUCED: [[[1, 0, 7, 9, None], [2, 1204, 0, 0, {"message": "x"}]]],
    protocol.FETCH: [500, 1, 1 << 20, [[5, 0], [6, 2**64 - 1]]],
    protocol.FETCHED: [[[5, 0, 0, 9, [[0, 1], [4, 2]], None]]],
    protocol.COMMIT: ["group/g", [[5, 9, 0, 0]]],
    protocol.COMMITTED: [[[5, 0, 9, {}]]],
    protocol.TAKE: [[[5, "7", KEY, 10, True], [6, "8", KEY, 1, False]]],
    protocol.TAKEN: [[[9, 0, 0, 10, [[0, 0], [4, 1]], None], [10, 1204, 0, 0, [], {}]]],
    protocol.OFFSETS: [None, 5, [5, 6]],
    protocol.POSITIONS: [[[5, 0, 0, 9, None, 4, 100]]],
    protocol.WHERE: [5, 0],
    protocol.GREET: ["c", "broker", 1, "disk", 9, "127.0.0.1:1", "1.0"],
    protocol.GREETED: ["c", "broker", 1, "disk", 9],
    protocol.PACKET: [[[1, 2, 3]], [[4]]],
    protocol.BEAT: [{"disk": "d", "groups": [[1, True]]}],
    protocol.ORDERS: [{"version": 1, "gone": []}],
}
BEHIND = b"\xd9\x01a"  # something that would be a text, were it looked at


def packed(kind: int, fields: list[Any], version: Any = 1, request: Any = 5) -> bytes:
    data: bytes = msgpack.packb([version, kind, request, *fields])
    return data


def refused(frame: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        protocol.decode(frame)
    assert len(str(caught.value)) < 500, "an answer that shows what it was sent"
    return caught.value


def anything() -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats()
        | st.text(max_size=8)
        | st.binary(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(max_size=4) | st.binary(max_size=2), inner, max_size=3)
        ),
        max_leaves=12,
    )


def holds(envelope: list[Any]) -> None:
    """M5, said a second time and in another way: what `decode` lets through."""
    version, kind, request, *fields = envelope
    assert (type(version), type(kind), type(request)) == (int, int, int)
    assert version == protocol.VERSION and kind in GOOD and 0 <= request < 2**64
    sample = GOOD[kind]
    assert len(fields) == len(sample)
    for field, good in zip(fields, sample, strict=True):
        assert type(field) is type(good) or field is None or good is None, (field, good)
    if kind == protocol.PRODUCE:
        assert request + len(fields[0]) <= 2**64


# -- M5: every field of its type ------------------------------------------------------------------


def test_every_kind_is_tried_here() -> None:
    assert GOOD.keys() == protocol.KINDS.keys()


@pytest.mark.parametrize("kind", GOOD)
def test_a_good_envelope_comes_out_as_it_went_in(kind: int) -> None:
    for version in (memoryview, bytes):
        frame = version(protocol.encode(kind, 5, *GOOD[kind]))
        assert protocol.decode(frame) == [1, kind, 5, *GOOD[kind]]


@pytest.mark.parametrize("kind", GOOD)
def test_a_field_of_a_wrong_type_is_refused_and_its_request_is_known(kind: int) -> None:
    """M5: bool is no int, an int no bool; floats, negative numbers, nothing, and what is nested."""
    wrong: list[Any] = [True, -1, 1.0, float("nan"), float("inf"), None, "t", b"b", {1.5: 2}]
    wrong += [[None], [[True, 0]], [1, "t"], {b"k": 1}]
    for place, good in enumerate(GOOD[kind]):
        for value in wrong:
            if type(value) is type(good) or (value is None and kind == protocol.OFFSETS):
                continue
            fields = list(GOOD[kind])
            fields[place] = value
            try:
                envelope = protocol.decode(packed(kind, fields))
            except InvalidRequest as error:
                assert error.request == 5
            else:
                holds(envelope)  # an optional field may be of two types


@pytest.mark.parametrize("kind", GOOD)
def test_too_few_and_too_many_fields(kind: int) -> None:
    assert refused(packed(kind, [*GOOD[kind], 1])).request == 5
    if GOOD[kind]:
        assert refused(packed(kind, GOOD[kind][:-1])).request == 5


def test_unknown_versions_and_kinds_are_told() -> None:
    for frame in (packed(3, [], version=2), packed(99, []), packed(0, []), packed(-1, [])):
        error = refused(frame)
        assert isinstance(error, Unsupported) and error.request == 5


@pytest.mark.parametrize("odd", [True, None, 1.0, "1", b"1", [], {}, -1, float("nan")])
def test_what_stands_in_front_is_a_number(odd: Any) -> None:
    assert refused(packed(protocol.STATS, [], request=odd)).request is None
    for frame in (packed(odd, []), packed(protocol.STATS, [], version=odd)):
        refused(frame)


def test_the_numbers_of_batches_end_where_numbers_end() -> None:
    """A batch's request is the first one's plus its place: an answer must be able to name it."""
    last = 2**64 - 1
    assert protocol.decode(packed(protocol.PRODUCE, [[7]], request=last))[2] == last
    assert refused(packed(protocol.PRODUCE, [[7, 7]], request=last)).request == last


def test_nobody_asks_for_one_thing_many_times_at_once() -> None:
    many = 10_000
    assert refused(packed(protocol.ROUTE, [["t"] * many, 0])).request == 5
    assert refused(packed(protocol.OFFSETS, [None, 5, [7] * many])).request == 5
    names = [f"t{n}" for n in range(many)]
    assert protocol.decode(packed(protocol.ROUTE, [names, 0]))[3] == names


# -- M3: limits -----------------------------------------------------------------------------------


def cost(action: Callable[[], object]) -> int:
    """Bytes, at most."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "head", [b"\xdc\xff\xff", b"\xdd\x00\x01\x00\x00", b"\xdd\xff\xff\xff\xff"]
)
@pytest.mark.parametrize("kind", [b"", b"\x96\x01\x0c\x05"])
def test_lists_that_only_announce_their_items_cost_nothing(head: bytes, kind: bytes) -> None:
    """M3, Z6: 3 KiB took 70 MiB and 80 ms before this was looked at."""
    for levels in (1, 100, 1019, 1030, 50_000):
        frame = (kind + head * levels)[: protocol.SMALL_BYTES_MAX]
        size = cost(lambda frame=frame: refused(frame))
        assert size < 4 << 20, f"{levels} levels cost {size} bytes"


def test_a_long_envelope_costs_no_more_than_its_bytes_can_hold() -> None:
    """M3: all that is announced is there, a million empty lists; still bounded."""
    room = protocol.ENVELOPE_BYTES_MAX - 100
    items = protocol.ITEMS_MAX
    rows = b"\xdc\xff\xff" + b"\x90" * 65_535
    frame = b"\x94\x01" + bytes([protocol.BEAT, 5]) + b"\x81\xa1a" + b"\x9f" + rows * 15
    assert len(frame) < room and items > 65_535
    size = cost(lambda: protocol.decode(frame))
    assert size < 128 << 20


@pytest.mark.parametrize("levels", [7, 8, 9, 511, 1020, 1024, 5000])
@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1k"])
def test_arguments_are_not_nested_without_end(levels: int, nest: bytes) -> None:
    """M3: what is let through can be shown and packed again; 1,000 levels could not be shown."""
    head = b"\x96\x01\x0c\x05" + msgpack.packb(KEY) + b"\xa1x" + b"\x81\xa1a"
    frame = head + nest * levels + b"\xc0"
    if levels < protocol.DEPTH_MAX:
        envelope = protocol.decode(frame)
        assert protocol.pack(envelope) and repr(envelope)
    else:
        assert refused(frame).request == 5


@pytest.mark.parametrize("levels", [1, 600, 1020, 1030])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_deep_nesting_where_numbers_belong(levels: int, place: int) -> None:
    """M5: an error's text does not show it either: that would nest as deep."""
    parts = [b"\x93", b"\x01", b"\x05", b"\x05"]
    parts[place] = b"\x91" * levels + b"\xc0"
    refused(b"".join(parts))


@pytest.mark.parametrize(
    "odd",
    [
        *(b"\xc7\x00\x05", b"\xd4\x01a", b"\xd6\xff\x00\x00\x00\x00", b"\xc7\x00\xff"),
        *(b"\xd7\xff" + bytes(8), b"\xc7\x0c\xff" + bytes(12), b"\xc9\xff\xff\xff\xff\x01"),
        *(b"\x81\x01\x01", b"\x81\xc4\x01a\x01", b"\x81\xc0\x01", b"\x81\x90\x01", b"\xc1"),
        *(b"\x81\xca\x7f\xc0\x00\x00\x01", b"\xa3\xed\xa0\x80", b"\xdb\xff\xff\xff\xff"),
        *(b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xde\xff\xff", b"\xa1\xff"),
    ],
)
def test_what_msgpack_knows_and_we_do_not(odd: bytes) -> None:
    """M3: extensions (even empty ones), times, keys that are no texts, texts that are none."""
    head = b"\x96\x01\x0c\x05" + msgpack.packb(KEY) + b"\xa1x" + b"\x81\xa1a"
    assert refused(head + odd).request == 5
    assert refused(head + odd + BEHIND).request == 5


def test_sizes() -> None:
    """M3, Z6: by kind; a kind that names many things may be longer."""
    text = "x" * (protocol.ITEMS_MAX + 1)
    refused(packed(protocol.ERROR, [1, text, "", {}]))
    refused(packed(protocol.ALIVE, [[1] * (protocol.ITEMS_MAX + 1), []]))
    refused(packed(protocol.INFO, [{f"{n}": n for n in range(protocol.KEYS_MAX + 1)}]))
    long = {f"{n}": "x" * 1000 for n in range(100)}
    assert protocol.decode(packed(protocol.INFO, [long]))[3] == long
    error = refused(packed(protocol.UPDATE, [KEY, "x", long]))
    assert error.request == 5 and "64 KiB" in str(error)
    most = {f"{n}": bytes(60_000) for n in range(20)}
    error = refused(packed(protocol.INFO, [most]))
    assert error.request == 5 and "1024 KiB" in str(error)
    for frame in (bytes(1 << 20), b"\x91" * (1 << 20), b"\xff" * (2 << 20), bytes(16 << 20)):
        assert refused(frame).request is None


def test_each_frame_is_looked_at_by_itself() -> None:
    """M2: nothing is left of a bad one."""
    good = protocol.encode(protocol.STATUS, 5, 0)
    for at in range(len(good)):
        refused(good[:at])
        assert protocol.decode(good) == [1, protocol.STATUS, 5, 0]
    assert refused(good + b"\x00").request == 5


def test_a_pickle_is_only_bytes() -> None:
    """M1: this one would raise SystemExit where it is loaded; here it is no envelope."""
    trap = b"cbuiltins\nexit\n(tR."
    refused(trap)
    refused(packed(protocol.HELLO, [trap, ""]))


def not_rows(data: bytes) -> None:
    with pytest.raises(ValueError):
        protocol.unpack_rows(data)


def test_rows_of_somebody_else_are_numbers_in_lists() -> None:
    rows = [[1, 2, 3], [4, 5, 6]]
    assert protocol.unpack_rows(protocol.pack(rows)) == rows
    for odd in (b"\xdc\x0b\x00" * 1000, b"\xdd\xff\xff\xff\xff" * 50_000, b"", b"\x92\x01"):
        size = cost(lambda odd=odd: not_rows(odd))
        assert size < 4 << 20
    for value in ["t", b"b", {"a": 1}, [["t"]]]:
        not_rows(msgpack.packb(value))


# -- whatever comes -------------------------------------------------------------------------------


@given(st.binary(max_size=300))
@settings(max_examples=500, deadline=None)
def test_random_bytes(frame: bytes) -> None:
    try:
        holds(protocol.decode(frame))
    except InvalidRequest:
        pass


@given(st.lists(anything(), max_size=9))
@settings(max_examples=150, deadline=None)
def test_random_lists(envelope: list[Any]) -> None:
    try:
        holds(protocol.decode(msgpack.packb(envelope)))
    except InvalidRequest:
        pass


@given(st.sampled_from(sorted(GOOD)), st.data())
@settings(max_examples=200, deadline=None)
def test_one_field_replaced_by_anything(kind: int, data: st.DataObject) -> None:
    fields = list(GOOD[kind])
    assume(fields)
    fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(anything())
    try:
        holds(protocol.decode(packed(kind, fields)))
    except InvalidRequest as error:
        assert error.request == 5, "the front was readable: it can be answered"


@given(st.sampled_from(sorted(GOOD)), st.data())
@settings(max_examples=700, deadline=None)
def test_bytes_changed_cut_and_doubled(kind: int, data: st.DataObject) -> None:
    raw = bytearray(packed(kind, GOOD[kind]))
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    at = data.draw(st.integers(0, len(raw)))
    cut = data.draw(st.sampled_from([bytes(raw), bytes(raw[:at]), bytes(raw + raw[:at])]))
    try:
        holds(protocol.decode(cut))
    except InvalidRequest:
        pass
