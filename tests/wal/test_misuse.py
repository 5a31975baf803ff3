"""Calls that are wrong are refused with a typed error, and harm nobody else's records."""

import struct
from threading import Thread
from typing import Any

import pytest
from sim.rig import Rig

from myqueue.errors import EntryBackwards, EntryInvalid, JournalStopped, MisuseError, WrongThread
from myqueue.wal.config import JournalConfig
from myqueue.wal.groups import Group

ONE, TWO = 1, 2


def entry(index: int, payload: Any = b"good", **fields: int) -> Any:
    named = {"term": 1, "offset": 0, "count": 0, "time": 0, "type": 0, "chain": 0} | fields
    return (
        index,
        named["term"],
        named["offset"],
        named["count"],
        named["time"],
        named["type"],
        named["chain"],
        payload,
    )


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for uid in (ONE, TWO):
        rig.journal.create_group(uid, b"group")
    rig.pump()
    return rig


@pytest.mark.parametrize(
    "wrong",
    [
        entry(2, type=16),
        entry(2, term=2**64),
        entry(2, count=2**32),
        entry(2, chain=-1),
        entry(2, offset=2**64 - 1, count=2),
        entry(2, "text"),
        entry(2, bytearray(b"may change")),
        entry(2, memoryview(b"y" * 400).cast("I")),
        entry(2, term="1"),
        entry(2)[:7],
    ],
    ids=lambda one: f"{type(one[-1]).__name__}-{one[1:7]}"[:60],
)
def test_a_refused_append_leaves_nothing_behind(rig: Rig, wrong: Any) -> None:
    """W8, W10: what comes after it in the same batch stands where its header says."""
    with pytest.raises(EntryInvalid):
        rig.journal.append(ONE, [entry(1), wrong])
    rig.journal.append(TWO, [entry(1, b"innocent")])
    rig.journal.append(ONE, [entry(1, b"again")])
    rig.settle()
    out = rig.reopen()
    assert not out.findings
    assert {uid: out.groups.by_uid[uid].last_index for uid in (ONE, TWO)} == {ONE: 1, TWO: 1}


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("term 4, after 5", [entry(3, term=4, offset=20)]),
        ("offset 19, after 20", [entry(3, term=5, offset=19)]),
        ("term 6, after 7", [entry(3, term=7, offset=20), entry(4, term=6, offset=20)]),
        (
            "offset 22, after 23",
            [entry(3, term=5, offset=20, count=3), entry(4, term=5, offset=22)],
        ),
    ],
)
@pytest.mark.parametrize("urgent", [False, True])
def test_terms_and_offsets_never_fall(rig: Rig, what: str, wrong: list[Any], urgent: bool) -> None:
    """W10: within an append and from one to the next; the refusal changes nothing."""
    rig.journal.append(ONE, [entry(1, term=5, offset=10, count=10), entry(2, term=5, offset=20)])
    rig.settle()
    before = rig.journal.end, rig.journal.queued_bytes, dump(rig.group(ONE))
    with pytest.raises(EntryBackwards, match=what):
        rig.journal.append(ONE, wrong, urgent=urgent)
    rig.journal.submit()
    assert before == (rig.journal.end, rig.journal.queued_bytes, dump(rig.group(ONE)))
    rig.journal.append(ONE, [entry(3, term=5, offset=20), entry(4, term=9, offset=25)])
    rig.settle()
    out = rig.reopen()
    assert not out.findings and out.groups.by_uid[ONE].last_index == 4


def test_after_a_truncation_terms_and_offsets_continue_what_is_left(rig: Rig) -> None:
    rig.journal.append(ONE, [entry(1, term=2, offset=10, count=5), entry(2, term=7, offset=90)])
    rig.journal.truncate(ONE, 2, 2, 15)
    with pytest.raises(EntryBackwards):
        rig.journal.append(ONE, [entry(2, term=2, offset=14)])
    rig.journal.append(ONE, [entry(2, term=3, offset=15)])
    rig.journal.start(ONE, 50, 1, 3, reset=True)
    rig.journal.append(ONE, [entry(50, term=1, offset=3)])


def dump(group: Group) -> list[Any]:
    return [getattr(group, name) for name in Group.__slots__]


def test_an_interrupted_append_stops_the_journal(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was acknowledged stays; nothing is written whose place may be wrong."""
    rig.journal.append(TWO, [entry(1, b"before")])
    rig.settle()
    monkeypatch.setattr("myqueue.wal.append.layout.crc32", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        rig.journal.append(ONE, [entry(1)])
    monkeypatch.undo()
    with pytest.raises(JournalStopped):
        rig.journal.append(TWO, [entry(2)])
    rig.journal.submit()
    out = rig.reopen()
    assert not out.findings and out.groups.by_uid[TWO].last_index == 1


def _interrupt(*_: object) -> int:
    raise KeyboardInterrupt


def test_a_journal_has_one_thread(rig: Rig) -> None:
    caught: list[BaseException] = []

    def intrude() -> None:
        try:
            rig.journal.append(ONE, [entry(1)])
        except WrongThread as error:
            caught.append(error)

    thread = Thread(target=intrude)
    thread.start()
    thread.join()
    assert len(caught) == 1


@pytest.mark.parametrize("now", [-1, 1.75, -0.5, 2**70, float("inf"), float("nan")])
def test_a_clock_that_is_out_of_range_stops_nothing(now: float) -> None:
    """A clock set to before 1970, or in fractions: records keep what they can hold of it."""
    rig = Rig()
    rig.clock_ms = lambda: now  # type: ignore[assignment,method-assign,return-value]
    rig.open()
    rig.journal.create_group(ONE, b"group")
    for index in range(1, 60):  # through some segments
        rig.journal.append(ONE, [entry(index, b"x" * 300)])
        rig.settle()
    assert rig.journal.error is None and rig.journal.persisted_at == rig.journal.end
    del rig.clock_ms  # type: ignore[method-assign]
    out = rig.reopen()
    assert not out.findings and out.groups.by_uid[ONE].last_index == 59


def test_nothing_is_taken_after_close(rig: Rig) -> None:
    rig.journal.close()
    with pytest.raises(JournalStopped):
        rig.journal.append(ONE, [entry(1)])


@pytest.mark.parametrize("size", [0, 600, 4095, 2**32])
def test_segments_have_limits(size: int) -> None:
    with pytest.raises(MisuseError):
        JournalConfig(segment_bytes=size)


def test_the_error_is_ours_not_structs(rig: Rig) -> None:
    with pytest.raises(EntryInvalid) as caught:
        rig.journal.append(ONE, [entry(1, term=2**64)])
    assert isinstance(caught.value.__cause__, struct.error)
