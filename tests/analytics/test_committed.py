"""Partitions that fell quiet: what of them is committed, with hints in the logs and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.forging import ForgedRecord, records_to_forge
from support.plain_spread import PlainSpread
from support.queue_logs import WALL_MS, Broker, Topic, replica_id, write_reclaimed_cluster
from support.verifying import verified

from myqueue.analytics.log.catalog import Catalog, make_catalog
from myqueue.analytics.log.discovery import find_logs
from myqueue.analytics.log.plan import Wanted, committed_ranges
from myqueue.analytics.stats.stats import stats
from myqueue.analytics.verify import commit_point
from myqueue.analytics.verify.commit_point import CommitJudge, Judgement, refuse_unknown
from myqueue.analytics.verify.page import verify_page
from myqueue.daemons.raft import types as t
from myqueue.errors import CorruptData, UnknownTopic
from myqueue.wal import format as f

NODES = (1, 2, 3)
TERM = 3


def quiet_topics() -> list[Topic]:
    topics = [Topic(name, 100 + at, uid=700 + at) for at, name in enumerate("abcd")]
    for topic in topics:
        topic.noop()
        topic.data(5)
    return topics


@pytest.fixture(scope="module")
def hinted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("hinted")
    write_reclaimed_cluster(path, quiet_topics())
    return path


@pytest.fixture(scope="module")
def hintless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As an older program leaves it: hints went with the segments in which they stood."""
    path: Path = tmp_path_factory.mktemp("hintless")
    write_reclaimed_cluster(path, quiet_topics(), hints=False)
    return path


def judged(*paths: Path, stores: bool = False) -> tuple[Catalog, Judgement]:
    catalog = make_catalog(find_logs(map(str, paths)))
    return catalog, CommitJudge(ask_stores=stores).judge(catalog, Wanted())


def ranges(catalog: Catalog) -> dict[str, tuple[int, int]]:
    found = committed_ranges(catalog, Wanted())
    return {catalog.groups[uid].topic: its for uid, its in found.items()}


WHOLE = dict.fromkeys("abcd", (1, 3))


def test_hints_that_outlive_their_segments_are_enough(hinted: Path) -> None:
    """Without looking at anything else, of each broker alone."""
    for node in NODES:
        catalog = make_catalog(find_logs([str(hinted / f"broker-{node}")]))
        assert ranges(catalog) == WHOLE


def test_logs_of_a_majority_prove_what_no_hint_says(hintless: Path, tmp_path: Path) -> None:
    assert ranges(make_catalog(find_logs([str(hintless)]))) == dict.fromkeys("abcd", (1, 1))
    two = [hintless / f"broker-{node}" for node in (1, 3)]
    for paths in ([hintless], two):
        catalog, judgement = judged(*paths)
        assert ranges(catalog) == WHOLE and judgement == Judgement()
    facts = stats([str(one) for one in two], PlainSpread())
    assert facts["messages"] == 20 and facts["not_counted"] == []
    report = verified(hintless, tmp_path)
    assert report.ok and report.unchecked == []
    assert {one.entries for one in report.groups if one.topic in WHOLE} == {2}


def test_a_store_tells_what_one_log_alone_can_not(hintless: Path) -> None:
    catalog, judgement = judged(hintless / "broker-2", stores=True)
    assert ranges(catalog) == WHOLE and judgement == Judgement()


@pytest.fixture
def alone(hintless: Path, tmp_path: Path) -> Path:
    """One log of three, without its store."""
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "wal").symlink_to(hintless / "broker-2" / "wal")
    (tmp_path / "alone" / "identity").symlink_to(hintless / "broker-2" / "identity")
    return tmp_path / "alone"


def test_what_nothing_tells_is_unknown_and_not_empty(alone: Path, tmp_path: Path) -> None:
    _, judgement = judged(alone)
    assert [(one.topic, one.first, one.last) for one in judgement.unknown] == [
        (name, 1, 2) for name in "abcd"
    ]
    with pytest.raises(CorruptData, match="what is committed of a/0"):
        refuse_unknown(judgement, "")
    with pytest.raises(CorruptData, match="nothing in these logs tells"):
        stats([str(alone)], PlainSpread())
    facts = stats([str(alone)], PlainSpread(), skip_unknown=True)
    assert facts["messages"] == 0 and len(facts["not_counted"]) == 4
    assert "left out, since nothing tells what is committed" in facts["notes"][0]
    report = verified(alone, tmp_path)
    assert not report.ok and not report.wrong and "a/0" in report.unchecked[0]
    for rule in ("majority", "prefix", "cut", "bytes", "state"):
        assert not report.was_checked(rule), rule
    assert report.was_checked("payload") and report.was_checked("vote")
    page = verify_page(report.plain() | {"paths": [], "took_s": 0.0})
    assert "Not all could be checked." in page and "All is well" not in page
    rows = {one["topic"]: one["commit_index"] for one in report.plain()["groups"]}
    assert rows == {**dict.fromkeys("abcd"), "": 0}


def test_a_deleted_topic_is_not_the_managers(hintless: Path, tmp_path: Path) -> None:
    """Nor is a partition whose creation went with its segment."""
    facts = verified(hintless, tmp_path).plain()
    assert [one["topic"] for one in facts["groups"] if one["removed"]] == [""]
    page = verify_page(facts | {"paths": [], "took_s": 0.0})
    assert "<td>deleted</td>" in page and "managers" not in page


def test_a_topic_that_was_made_a_moment_ago_is_waited_for(tmp_path: Path) -> None:
    """Its first hint comes within a second; a stream that runs meanwhile goes on."""
    topic = Topic("new", 100)
    topic.noop()
    topic.data(5)
    broker = Broker(tmp_path / "broker-1", 1)
    broker.create(topic, NODES)
    broker.append(topic, topic.entries)
    broker.close()
    catalog = make_catalog(find_logs([str(tmp_path)]))
    judgement = CommitJudge(clock_ms=lambda: WALL_MS + 5000).judge(catalog, Wanted())
    assert [one.is_new for one in judgement.unknown] == [True]
    refuse_unknown(judgement, "")
    assert ranges(catalog) == {"new": (1, 1)}
    for now in (WALL_MS + 15_000, WALL_MS - 60_000):  # a stamp of the future does not stay new
        judgement = CommitJudge(clock_ms=lambda now=now: now).judge(catalog, Wanted())
        assert [one.is_new for one in judgement.unknown] == [False]
        with pytest.raises(CorruptData, match="what is committed of new/0"):
            refuse_unknown(judgement, "")
    judgement = CommitJudge(clock_ms=lambda: WALL_MS - 5000).judge(catalog, Wanted())
    assert [one.is_new for one in judgement.unknown] == [True], "clocks differ a little"


def test_entries_behind_the_last_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A majority proves them; where it can't, they are told. What was proved is not read again."""
    topic = Topic("a", 100)
    topic.noop()
    for _ in range(5):
        topic.data(2)
    for node in NODES:
        broker = Broker(tmp_path / f"broker-{node}", node)
        broker.create(topic, NODES)
        broker.append(topic, topic.entries)
        broker.commit_hint(topic, 3)
        broker.close()
    catalog, judgement = judged(tmp_path)
    assert ranges(catalog) == {"a": (1, 7)} and judgement == Judgement()
    catalog, judgement = judged(tmp_path / "broker-1")
    assert ranges(catalog) == {"a": (1, 4)}
    assert [(one.first, one.last) for one in judgement.beyond] == [(4, 6)]
    assert "3 entries behind what is known" in commit_point.notes(judgement)[0]
    judge, reads = CommitJudge(), []
    real = commit_point.stories
    monkeypatch.setattr(commit_point, "stories", lambda *a: reads.append(1) or real(*a))
    for _ in range(3):
        catalog = make_catalog(find_logs([str(tmp_path)]))
        assert judge.judge(catalog, Wanted()) == Judgement()
        assert ranges(catalog) == {"a": (1, 7)}
    assert len(reads) == 1


def test_committed_entries_that_no_log_has_are_told(tmp_path: Path) -> None:
    """The hint came with another replica's log; their segments were not archived yet."""
    topic = Topic("a", 100)
    topic.noop()
    for _ in range(9):
        topic.data(2)
    for node, count in ((1, 6), (2, 0)):
        broker = Broker(tmp_path / f"broker-{node}", node)
        broker.create(topic, NODES)
        if count:
            broker.append(topic, topic.entries[:count])
        broker.commit_hint(topic, 6 if count else 10)
        broker.close()
    facts = stats([str(tmp_path)], PlainSpread())
    assert facts["not_counted"] == [
        {"topic": "a", "partition": 0, "first_index": 7, "last_index": 10, "why": "absent"}
    ]
    assert "4 committed entries that are in none" in facts["notes"][0]


def test_a_log_start_and_a_snapshot_tell_what_was_committed(tmp_path: Path) -> None:
    topic = Topic("a", 100)
    topic.noop()
    for _ in range(9):
        topic.data(2)
    broker = Broker(tmp_path / "broker-1", 1)
    broker.create(topic, NODES)
    broker.append(topic, topic.entries)
    before = topic.entries[4]
    end = before[t.OFFSET] + before[t.COUNT]
    broker.log.journal.start(100, 6, TERM, end, before[t.CHAIN])
    broker.close()
    assert make_catalog(find_logs([str(tmp_path)])).groups[100].commit_index == 5


def test_a_topic_that_is_not_there_is_named(hinted: Path) -> None:
    with pytest.raises(UnknownTopic, match="'nope' is in none of these logs") as raised:
        stats([str(hinted)], PlainSpread(), topics=("a", "nope"))
    assert "a, b, c, d" in str(raised.value.hint)
    with pytest.raises(UnknownTopic, match="'busy'"):  # deleted
        stats([str(hinted)], PlainSpread(), topics=("busy",))


def test_two_logs_of_five_prove_nothing(tmp_path: Path) -> None:
    topic = Topic("a", 100)
    topic.noop()
    topic.data(2)
    for node in (1, 2, 3):
        broker = Broker(tmp_path / f"broker-{node}", node)
        broker.create(topic, (1, 2, 3, 4, 5))
        broker.append(topic, topic.entries)
        broker.close()
    _, judgement = judged(tmp_path / "broker-1", tmp_path / "broker-3")
    assert len(judgement.unknown) == 1
    catalog, judgement = judged(tmp_path)
    assert ranges(catalog) == {"a": (1, 3)} and judgement == Judgement()


def test_members_of_before_and_after_a_change_are_asked(tmp_path: Path) -> None:
    """A fourth voter came; whether its configuration holds is as open as what stands before it."""
    topic = Topic("a", 100)
    topic.noop()
    topic.data(2)
    voters = [replica_id(node) for node in (1, 2, 3, 4)]
    config = str([voters, []]).encode()
    last = topic.entries[-1]
    entry = (3, TERM, last[t.OFFSET] + last[t.COUNT], 0, WALL_MS, t.CONFIG, 1, config)
    for node in (1, 2):
        broker = Broker(tmp_path / f"broker-{node}", node)
        broker.create(topic, NODES)
        broker.append(topic, [*topic.entries, entry] if node == 1 else topic.entries)
        broker.close()
    _, judgement = judged(tmp_path)
    assert len(judgement.unknown) == 1, "two of three have entry 2, but only two of four"


def damaged_witness(
    folder: Path, hurt: Callable[[ForgedRecord], None], kind: int, number: int
) -> None:
    """Two logs of three without hints; one of them is damaged at this record of the group."""
    topic = Topic("a", 100)
    topic.noop()
    for _ in range(3):
        topic.data(2)
    for node in (1, 2):
        broker = Broker(folder / f"broker-{node}", node)
        broker.create(topic, NODES)
        broker.append(topic, topic.entries)
        if node == 1 and kind == f.HARD_STATE:
            broker.log.journal.hard_state(100, TERM + 1, replica_id(3))
            broker.flush()
        other = Topic("b", 200)
        other.noop()
        broker.create(other, NODES)
        broker.append(other, other.entries)
        broker.commit_hint(other, 1)
        broker.close()
    hurt(records_to_forge(folder / "broker-1", kind, 100)[number])


@pytest.mark.parametrize(
    ("hurt", "kind", "number"),
    [
        (lambda spot: spot.flip(20), f.HARD_STATE, 1),  # a vote: its header
        (lambda spot: spot.blank(), f.HARD_STATE, 1),
        (lambda spot: spot.flip(20), f.ENTRY, 1),
        (lambda spot: spot.flip(f.RECORD_HEADER_BYTES + 60), f.ENTRY, 1),  # its bytes alone
    ],
)
def test_a_log_that_may_lack_a_vote_is_no_witness(
    hurt: Callable[[ForgedRecord], None], kind: int, number: int, tmp_path: Path
) -> None:
    """A vote of a later term, for a leader that cuts all of it off, may have stood there."""
    damaged_witness(tmp_path, hurt, kind, number)
    _, judgement = judged(tmp_path)
    assert [(one.topic, one.first, one.last) for one in judgement.unknown] == [("a", 1, 4)]


def test_damage_before_a_group_began_takes_nothing_from_its_log(tmp_path: Path) -> None:
    topics = [Topic("b", 200), Topic("a", 100)]
    for node in (1, 2):
        broker = Broker(tmp_path / f"broker-{node}", node)
        for topic in topics:
            if node == 1:
                topic.noop()
                topic.data(2)
            broker.create(topic, NODES)
            broker.append(topic, topic.entries)
        broker.commit_hint(topics[0], 2)
        broker.close()
    records_to_forge(tmp_path / "broker-1", f.ENTRY, 200)[0].flip(20)
    catalog, judgement = judged(tmp_path)
    assert ranges(catalog)["a"] == (1, 3) and judgement.unknown == []
