"""The judges of runs with real daemons find what is planted in notes of clients, and nothing else.

P12: `support.traffic.judge` and `support.members.judge_group` decide whether a run was sound; a
judge that finds nothing would make every run a sound one.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

import pytest
from support.members import OrphanedPartition, Seen, judge_group, orphaned_partitions
from support.traffic import Ack, Reader, Writer, judge

from myqueue.errors import Busy, MyQueueError, TimedOut

PARTITIONS, MESSAGES = 2, 20


class ToldWriter(Writer):
    """Its notes are given."""

    def __init__(self, name: str) -> None:
        threading.Thread.__init__(self, name=name)
        self.acked: dict[str, Ack] = {}
        self.failed: dict[str, MyQueueError] = {}
        self.sent = MESSAGES


class ToldReader(Reader):
    def __init__(self, name: str) -> None:
        threading.Thread.__init__(self, name=name)
        self.seen = defaultdict(list)
        self.committed = defaultdict(list)
        self.commit_errors = 0


class Notes:
    """A sound run: two writers in turn, two readers that saw all of it."""

    def __init__(self) -> None:
        self.writers = [ToldWriter("w0"), ToldWriter("w1")]
        self.readers = [ToldReader("r0"), ToldReader("r1")]
        for number in range(MESSAGES):
            for writer in self.writers:
                text, partition = f"{writer.name}:{number}", number % PARTITIONS
                offset = len(self.readers[0].seen[partition])
                writer.acked[text] = Ack(partition, offset, float(number), 0.01)
                for reader in self.readers:
                    reader.seen[partition].append((offset, text))
        self.writers[0].failed["w0:20"] = Busy("not now")
        for reader in self.readers:
            reader.committed["t", 0] += [3, 3, 9]

    def judged(self) -> dict[str, int]:
        return judge([*self.readers], [*self.writers])

    def at(self, offset: int, text: str) -> None:
        """In partition 0, for all readers."""
        for reader in self.readers:
            reader.seen[0][offset] = offset, text


def lost(notes: Notes) -> None:
    for reader in notes.readers:
        del reader.seen[0][-1]


def twice(notes: Notes) -> None:
    notes.at(7, notes.readers[0].seen[0][4][1])


def elsewhere(notes: Notes) -> None:
    ack = notes.writers[1].acked["w1:4"]
    notes.writers[1].acked["w1:4"] = ack._replace(offset=ack.offset + 1)


def there_after_a_failure(notes: Notes) -> None:
    for reader in notes.readers:
        reader.seen[0].append((len(reader.seen[0]), "w0:20"))


def reordered(notes: Notes) -> None:
    """Both are where they were acknowledged, and yet the later one stands before."""
    acked = notes.writers[0].acked
    acked["w0:2"], acked["w0:4"] = acked["w0:4"], acked["w0:2"]
    for text in ("w0:2", "w0:4"):
        notes.at(acked[text].offset, text)


def skipped(notes: Notes) -> None:
    """By one reader alone."""
    del notes.readers[1].seen[1][5]


def differing(notes: Notes) -> None:
    """The second reader got something else there."""
    notes.readers[1].seen[0][-1] = notes.readers[1].seen[0][-1][0], "w0:99"


def a_position_that_goes_back(notes: Notes) -> None:
    notes.readers[1].committed["t", 0].append(8)


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (lost, "is lost"), (twice, "is twice"), (elsewhere, "not Ack"),
        (there_after_a_failure, "failed for certain"), (reordered, "stands behind"),
        (skipped, "has offset"), (differing, "differ in partition"),
        (a_position_that_goes_back, "went back"),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)  # fmt: skip
def test_p12_what_is_planted_in_traffic_is_found(alter: Callable[[Notes], None], said: str) -> None:
    notes = Notes()
    alter(notes)
    with pytest.raises(AssertionError, match=said):
        notes.judged()


def test_p12_sound_traffic_is_called_sound() -> None:
    notes = Notes()
    notes.writers[0].failed["w0:21"] = TimedOut("it may be there")
    assert notes.judged()["acknowledged"] == 2 * MESSAGES


def a_group() -> list[Seen]:
    """Partition 0 passes from a to b, who gets two messages again; partition 1 is a's all along."""
    first = [Seen(0, offset, 1, 1.0 + offset, "a") for offset in range(10)]
    second = [Seen(0, offset, 2, 20.0 + offset, "b") for offset in range(8, 20)]
    return [*first, *second, *(Seen(1, offset, 1, 1.5 + offset, "a") for offset in range(20))]


def replaced(seen: list[Seen], at: int, **change: object) -> list[Seen]:
    return [*seen[:at], seen[at]._replace(**change), *seen[at + 1 :]]  # type: ignore[arg-type]


def test_p12_what_is_planted_in_a_group_is_found() -> None:
    """C7, C8; and a group that is sound has no finding."""
    seen, acked = a_group(), {0: 20, 1: 20}
    assert judge_group(seen, acked) == {"messages": 42, "again": 2, "epochs": 3}
    planted = {
        "two members": replaced(seen, 4, who="b"),
        "a gap": [*seen[:5], *seen[6:]],
        "left out": [*seen[:10], *seen[13:]],
        "came later": replaced(seen, 9, at_s=29.0),
        "read to": seen[:-1],
    }
    for said, rows in planted.items():
        with pytest.raises(AssertionError, match=said):
            judge_group(rows, acked)
    again = [*seen, Seen(1, 3, 1, 30.0, "a")]  # back, in the same epoch
    with pytest.raises(AssertionError, match="a gap"):
        judge_group(again, acked)


def test_p12_how_long_an_orphaned_partition_waits() -> None:
    """Of who had it last; one that is nobody's for ever is not left out."""
    seen, forever = a_group(), float("inf")
    first = orphaned_partitions(seen, {"a": 15.0})
    assert first == [
        OrphanedPartition(0, 15.0, 13.0, 13.0),
        OrphanedPartition(1, 15.0, forever, forever),
    ]
    assert orphaned_partitions(seen, {"a": 15.0, "c": 26.0})[0] == OrphanedPartition(
        0, 15.0, 13.0, 2.0
    )
    assert orphaned_partitions(seen, {"b": 15.0}) == [], "it had nothing yet"
    assert orphaned_partitions(seen, {"a": 30.0, "b": 50.0})[0] == OrphanedPartition(
        0, 50.0, forever, forever
    )
