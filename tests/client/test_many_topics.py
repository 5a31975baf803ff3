"""A client of very many topics: how many requests it makes for them, and how long these are."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from support.fake_cluster.peer import EchoCluster

from myqueue import errors
from myqueue.admin.client import UPDATES_UNDER_WAY, Admin
from myqueue.cli.topic import topic
from myqueue.cluster.route_refresh import TOPICS_PER_REQUEST_MAX
from myqueue.cluster.routes_ahead import LOOKUPS_MIN
from myqueue.cluster.session import Session
from myqueue.producer.producer import Producer
from myqueue.wire import protocol as words

MANY = 1000


def named(count: int) -> list[str]:
    return [f"topic-{number:04}" for number in range(count)]


def watch_routes(cluster: EchoCluster) -> list[list[str]]:
    """Return the names of each ROUTE that comes from now on."""
    asked: list[list[str]] = []

    def note(envelope: words.Envelope, frames: list[bytes]) -> None:
        if envelope[words.KIND] == words.ROUTE:
            asked.append(envelope[3])

    for daemon in cluster.daemons:
        daemon.script = note
    return asked


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_first_messages_to_a_thousand_topics_take_few_requests() -> None:
    with EchoCluster() as cluster:
        for name in named(MANY):
            cluster.topic(name)
        asked = watch_routes(cluster)
        with Producer(cluster.address) as producer:
            sent = [producer.send(name, b"first") for name in named(MANY)]
            assert all(delivery.result(20).offset == 0 for delivery in sent)
        # Those before the others are fetched ahead, some while that is under way, and all of them.
        assert len(asked) <= MANY // 10
        assert max(map(len, asked)) <= TOPICS_PER_REQUEST_MAX


def test_a_topic_is_asked_for_without_those_that_are_known() -> None:
    with EchoCluster() as cluster:
        for name in named(LOOKUPS_MIN - 1):
            cluster.topic(name)
        asked = watch_routes(cluster)
        with Session(cluster.address, routes_max_age_ms=60_000) as session:
            for name in named(LOOKUPS_MIN - 1):
                session.wait(session.ensure_topics([name]), 10_000)
        assert asked == [[name] for name in named(LOOKUPS_MIN - 1)]


def test_topics_in_use_are_kept_fresh_in_portions() -> None:
    with EchoCluster() as cluster:
        for name in named(MANY):
            cluster.topic(name)
        asked = watch_routes(cluster)
        with Session(cluster.address, routes_max_age_ms=200) as session:
            session.wait(session.ensure_topics(named(MANY)), 10_000)
            asked.clear()
            until(lambda: len(asked) >= 2 * (MANY // TOPICS_PER_REQUEST_MAX))
        assert max(map(len, asked)) == TOPICS_PER_REQUEST_MAX
        first_round = asked[: MANY // TOPICS_PER_REQUEST_MAX]
        assert sorted(name for portion in first_round for name in portion) == named(MANY)


def test_topics_that_nobody_used_are_forgotten() -> None:
    """Only topics in use are kept fresh, so a route of another one would grow old."""
    with EchoCluster() as cluster:
        names = named(4 * LOOKUPS_MIN)
        for name in names:
            cluster.topic(name)
        with Session(cluster.address, routes_max_age_ms=200) as session:
            for name in names[:LOOKUPS_MIN]:
                session.wait(session.ensure_topics([name]), 10_000)
            until(lambda: len(session.routes.topics) == len(names))
            used = names[: LOOKUPS_MIN + 1]
            session.wait(session.ensure_topics(used[-1:]), 10_000)
            until(lambda: len(session.routes.topics) == len(used))
            assert sorted(session.routes.topics) == used
            cluster.delete(names[-1])
            with pytest.raises(errors.UnknownTopic):
                session.wait(session.ensure_topics(names[-1:]), 10_000)
            cluster.delete(used[-1])
            until(lambda: used[-1] not in session.routes.topics)


# -- many updates in one call ---------------------------------------------------------------------


def test_many_topics_are_created_at_once() -> None:
    with EchoCluster() as cluster, Admin(cluster.address) as admin:
        cluster.topic("topic-0003")
        rows = admin.create_topics(named(300), partitions=2)
        assert [row["topic"] for row in rows] == named(300)
        refused = [row for row in rows if "error" in row]
        assert [(row["topic"], row["code"]) for row in refused] == [("topic-0003", "TOPIC_EXISTS")]
        assert rows[7]["partitions"] == cluster.topics["topic-0007"] and len(cluster.topics) == 300
        assert admin.create_topics([]) == []


def test_updates_of_one_call_are_under_way_together() -> None:
    """One after another would be as many round trips, each with a synced write of a majority."""
    with EchoCluster() as cluster, Admin(cluster.address, timeout=20) as admin:
        held: list[Any] = []
        together = threading.Event()

        def hold(envelope: words.Envelope, frames: list[bytes]) -> Any:
            if envelope[words.KIND] != words.UPDATE or together.is_set():
                return None
            held.append(envelope)
            if len(held) < UPDATES_UNDER_WAY:
                return []
            together.set()
            daemon = cluster.daemons[0]
            return [one for held_one in held for one in daemon._answer(b"", held_one, [], {})]

        cluster.daemons[0].script = hold
        rows = admin.create_topics(named(2 * UPDATES_UNDER_WAY))
        assert together.is_set() and not [row for row in rows if "error" in row]


# -- the command line -----------------------------------------------------------------------------


def run(cluster: EchoCluster, *words_: str) -> tuple[int, str]:
    address = cluster.address.replace("tcp://", "")
    found = CliRunner().invoke(topic, [*words_, "--cluster", address])
    return found.exit_code, found.output


def test_several_topics_are_created_by_one_command() -> None:
    with EchoCluster() as cluster:
        cluster.topic("b")
        code, text = run(cluster, "create", "a", "b", "c", "--partitions", "2")
        assert code == 1 and "Created a, c with 2 partitions." in text
        assert "b: " in text and "(TOPIC_EXISTS)" in text
        assert {name: len(groups) for name, groups in cluster.topics.items()} == {
            "a": 2,
            "b": 1,
            "c": 2,
        }
        code, text = run(cluster, "create", "d", "e", "--json")
        assert code == 0 and [row["topic"] for row in json.loads(text)["topics"]] == ["d", "e"]
        code, text = run(cluster, "create", "f", "--json")
        assert (code, json.loads(text)["topic"]) == (0, "f")


def test_several_topics_are_deleted_by_one_command() -> None:
    with EchoCluster() as cluster:
        for name in "abc":
            cluster.topic(name)
        code, text = run(cluster, "delete", "a", "missing", "b", "--yes")
        assert code == 1 and "Deleted a, b." in text and "missing: " in text
        assert list(cluster.topics) == ["c"]
