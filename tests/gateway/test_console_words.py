"""What the console makes of facts, without a cluster: numbers, bytes, rates, sentences, tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.errors import Internal, InvalidRequest
from myqueue.gateway.cluster_snapshot import ClusterSnapshot, Facts
from myqueue.gateway.console.csrf import FormTokens
from myqueue.gateway.console.live import rates
from myqueue.gateway.console.live.changes import changes
from myqueue.gateway.console.live.growth import BETWEEN_MS_MAX, GrowthRates
from myqueue.gateway.console.message_reader import Range, clamp
from myqueue.gateway.console.page import list_problems
from myqueue.gateway.console.pages import tail
from myqueue.gateway.console.view import format, payload, settings
from myqueue.wire.metadata_settings import CLUSTER_SETTINGS, TOPIC_SETTINGS

BOUNDS = [0.001, 0.01, 0.1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (format.per_second(0), "0/s"),
        (format.per_second(7.26), "7.3/s"),
        (format.per_second(212.4), "212/s"),
        (format.per_second(9_999), "9,999/s"),
        (format.per_second(18_400), "18.4 k/s"),
        (format.per_second(1_250_000), "1.2 M/s"),
        (format.per_second(None), "–"),
        (format.bytes_(1023), "1,023 B"),
        (format.bytes_(1536), "1.5 KiB"),
        (format.bytes_(5 << 30), "5.0 GiB"),
        (format.duration(850), "850 ms"),
        (format.duration(119_000), "119 s"),
        (format.duration(7_000_000), "117 min"),
        (format.duration(90 * 3_600_000), "4 d"),
        (format.age(0, 5), "never"),
        (format.age(1000, 2000), "now"),
        (format.age(1000, 4000), "3 s ago"),
        (format.moment(0), "–"),
        (format.moment(1_700_000_000_123), "2023-11-14 22:13:20 UTC"),
        (format.moment(1 << 62), f"{1 << 62} ms since 1970"),
        (format.millis(9.71), "9.7 ms"),
        (format.plural(1, "partition"), "1 partition"),
    ],
)
def test_numbers_have_their_units(text: str, wanted: str) -> None:
    assert text == wanted


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("message_bytes_max", 8 << 20, "8.0 MiB"),
        ("partition_growth", 0, "off"),
        ("partition_growth", 1000, "1,000 messages"),
        ("retention_bytes", 0, "all are kept"),
        ("retention_ms", 0, "kept forever"),
        ("retention_ms", 60_000, "60 s"),
        ("moves_per_broker", 0, "none are moved"),
        ("moves_per_broker", 1, "1 replica"),
        ("partitions_max", 10_000, "10,000"),
    ],
)
def test_settings_are_shown_in_words(name: str, value: int, text: str) -> None:
    in_words = settings.of_topic if name in TOPIC_SETTINGS else settings.of_cluster
    known = (TOPIC_SETTINGS | CLUSTER_SETTINGS)[name]
    assert in_words({name: value}) == [(name, text, known.console_text)]


def test_a_setting_of_a_newer_cluster_is_shown_unchanged() -> None:
    shown = settings.of_topic({"retention_ms": 0, "colour": 12_345})
    assert [(row.name, row.text) for row in shown] == [
        ("colour", "12345"),
        ("retention_ms", "kept forever"),
    ]


# -- bytes of strangers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (b"17 apples", "text", "17 apples"),
        (b"", "text", ""),
        (b"\xff\xfe", "hex", "000000  ff fe" + " " * 42 + "  .."),
        (b'{"a":1.10,"b":[]}', "json", '{\n  "a": 1.10,\n  "b": []\n}'),
        (b'{"a": "}{,:"}', "json", '{\n  "a": "}{,:"\n}'),
        (b'{"a":', "text", '{"a":'),
        ("left \u202e right".encode(), "text", "left \\u{202e} right"),
        (b"bell \x07 rings here", "text", "bell \\x07 rings here"),
    ],
)
def test_a_value_is_shown_in_the_form_that_tells_most(value: bytes, form: str, text: str) -> None:
    shown = payload.show(value)
    assert (shown.form, shown.text) == (form, text)


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_can_be_shown_and_nothing_of_them_is_invisible(value: bytes) -> None:
    for form in ("", "text", "json", "hex"):
        text = payload.show(value, form).text
        assert all(one.isprintable() or one in "\n\t" for one in text)
    line = payload.preview(value)
    assert line.isprintable() or "\t" in line
    assert len(line) <= payload.PREVIEW_CHARS + 1


@given(st.recursive(st.integers() | st.text() | st.none(), lambda kind: st.lists(kind)))
def test_json_laid_out_means_the_same(value: Any) -> None:
    shown = payload.show(json.dumps([value]).encode())
    assert json.loads(shown.text) == [value]


def test_large_and_deep_values_stay_small() -> None:
    shown = payload.show(b"x" * 1_000_000)
    assert shown.is_cut
    assert len(shown.text) == payload.SHOWN_BYTES
    deep = b"[" * 900 + b"1," * 5_000 + b"1" + b"]" * 900
    assert payload.show(deep).form == "text"
    assert payload.show(b"[" * 60_000).form == "text"
    assert payload.show("é".encode() * 40_000).text == "é" * (payload.SHOWN_BYTES // 2)


# -- rates ----------------------------------------------------------------------------------------


def stats(node: int, pid: int, stored: int, buckets: list[int] | None = None) -> dict[str, Any]:
    histograms = {} if buckets is None else {rates.SYNC: [buckets, 0.0]}
    return {
        "daemon": "broker",
        "node": node,
        "process": {"pid": pid},
        "bounds": BOUNDS,
        "counters": {"messages_stored_total": stored},
        "histograms": histograms,
    }


def test_rates_are_sums_over_brokers_that_live_on() -> None:
    before = [stats(1, 11, 100), stats(2, 22, 900)]
    now = [stats(1, 11, 300), stats(2, 23, 5), {"daemon": "broker", "node": 3, "error": "gone"}]
    found = rates.point(7, before, now, 2.0)
    assert (found.at_ms, found.messages_in, found.bytes_in) == (7, 100.0, 0.0)  # 2 restarted
    assert rates.written(before, now, 2.0) == {1: 100.0}
    assert rates.point(7, [], now, 2.0) == rates.Point(7)
    assert rates.point(7, before, now, 0.0) == rates.Point(7)


def test_the_percentile_lies_within_its_bucket() -> None:
    before, now = [stats(1, 11, 0, [5, 0, 0, 0])], [stats(1, 11, 0, [5, 100, 0, 0])]
    assert rates.sync_ms(before, now) == pytest.approx(1 + 0.99 * 9)
    assert rates.sync_ms(now, now) is None
    assert rates.quantile([0, 0, 0, 4], BOUNDS, 0.99) == BOUNDS[-1]


def test_a_pace_is_that_of_the_last_seconds() -> None:
    paces = GrowthRates()
    assert paces.seen(1, 100, 10_000) is None
    assert paces.seen(1, 150, 10_500) is None  # too soon to tell
    assert paces.seen(1, 300, 12_000) == 100.0
    assert paces.seen(1, 300, 12_100) == 100.0
    assert paces.seen(1, 900, 12_000 + BETWEEN_MS_MAX + 1) is None  # long ago
    assert paces.seen(2, 5, 12_000) is None


# -- sentences ------------------------------------------------------------------------------------


def look(problems: list[Any] | None = None, alive: bool = True, leader: int = 1) -> ClusterSnapshot:
    rows = [{"node": node, "alive": alive or node == 1} for node in (1, 2)]
    found = ClusterSnapshot(brokers=rows, managers=[dict(row, last_seen_ms=5) for row in rows])
    found.problems, found.leader, found.term = problems, leader, 3
    return found


def test_without_a_leader_or_anybody_it_is_said_so() -> None:
    assert list_problems(look([])) == []
    texts = [problem.text for problem in list_problems(look(None, alive=False))]
    assert texts == ["no manager leads", "manager 2 is silent", "broker 2 is silent"]
    [only] = list_problems(look([{"problem": "broker-silent", "node": 2}]))
    assert only.text == "broker 2 is silent"
    [waits] = list_problems(ClusterSnapshot())
    assert "waiting for the first answer" in waits.text
    dead = ClusterSnapshot(errors=[Internal("one\n two", component="tcp://x:1")])
    [only] = list_problems(dead)
    assert only.text == "no manager answers: one two (INTERNAL 1290, tcp://x:1)"


def test_what_changed_is_told_once() -> None:
    well, ill = look([]), look([{"problem": "leaderless", "topic": "t", "partition": 0}], False, 2)
    assert [one.text for one in changes(well, ill)] == [
        "manager 2 fell silent",
        "broker 2 fell silent",
        "manager 2 leads the managers (term 3)",
        "t/0 without a leader",
    ]
    assert "broker 2 is alive again" in [one.text for one in changes(ill, well)]
    assert "t/0 with a leader again" in [one.text for one in changes(ill, well)]
    assert changes(ill, ill) == []
    texts = [one.text for one in changes(well, look(None))]
    assert texts == ["no manager leads any more"]


def test_what_was_done_to_brokers_and_damage_are_told_as_well() -> None:
    def at(state: str, *problems: Facts) -> ClusterSnapshot:
        out = look(list(problems))
        out.brokers = [{**row, "state": state} for row in out.brokers]
        return out

    def texts(before: ClusterSnapshot, now: ClusterSnapshot) -> list[str]:
        return [one.text for one in changes(before, now)]

    bad = {
        "problem": "damaged",
        "kind": "broker",
        "node": 2,
        "segment": "7.seg",
        "position": 512,
        "partitions": ["t/0"],
        "state": "asked for",
    }
    numbers = [1, 2]
    assert texts(at("active"), at("draining")) == [f"broker {n} is being drained" for n in numbers]
    assert texts(at("draining"), at("drained")) == [f"broker {n} is drained" for n in numbers]
    assert texts(at("dead"), at("active")) == [], "it was told as heard again"
    fewer = at("drained")
    gone = fewer.brokers.pop()["node"]
    fewer.brokers.append({"node": 99, "alive": True, "state": "active"})
    assert texts(at("drained"), fewer) == ["broker 99 joined", f"broker {gone} was removed"]
    assert texts(at("active"), at("active", bad)) == [
        "damage was found, broker 2: 7.seg at position 512"
    ]
    assert texts(at("active", bad), at("active", {**bad, "state": "being emptied"})) == []
    assert texts(at("active", bad), at("active")) == [
        "damage was repaired, broker 2: 7.seg at position 512"
    ]


# -- what browsers send ---------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 999), st.integers(0, 1 << 63)))
def test_positions_are_read_as_they_were_written(at: dict[int, int]) -> None:
    assert tail.positions(tail.spell(at)) == at


@pytest.mark.parametrize("text", ["1", "1:", ":1", "a:1", "1:-1", "1:²", "1:1,,", "1:" + "9" * 50])
def test_other_positions_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        tail.positions(text)


def test_positions_are_moved_to_what_exists() -> None:
    known = {0: Range(5, 9), 1: Range(0, 0), 2: Range(3, 4)}
    assert clamp({0: 2, 1: 7, 9: 1}, known) == {0: 5, 1: 0, 2: 3}


@given(st.text())
def test_a_token_that_was_not_made_here_is_no_token(text: str) -> None:
    assert not FormTokens().is_good(text)


def test_a_token_is_bound_to_process_and_user() -> None:
    """S6: compared in constant time; here: every other one is refused."""
    tokens = FormTokens()
    mine = tokens.make("a")
    assert tokens.is_good(mine, "a")
    assert not tokens.is_good(mine, "b")
    assert not FormTokens().is_good(mine, "a")
    made, _, sign = mine.partition(".")
    assert not tokens.is_good(f"{int(made) + 1}.{sign}", "a")
    assert not tokens.is_good(f"{made}.{sign[:-1]}", "a")
