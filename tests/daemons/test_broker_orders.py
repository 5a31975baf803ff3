"""BEAT and ORDERS: what managers hear, and what a broker does because of them."""

from __future__ import annotations

from typing import Any

import pytest
from support.batches import make_batch
from support.broker_seam import GROUP, World
from support.orders import answer, later, orders, wanted_row

from myqueue import errors
from myqueue.daemons.broker import manager_link
from myqueue.daemons.raft import types as t
from myqueue.wire import protocol


@pytest.fixture
def world() -> World:
    made = World()
    made.engine.beats.clear()
    made.engine.now += 1_000
    return made


def test_every_manager_hears_everything_at_first(world: World) -> None:
    world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch(4, producer=9)])
    world.ask(protocol.COMMIT, "12", [[GROUP, 1, 0, 0]])
    first, second = later(world, 0)
    assert first[0] == 1 and second[0] == 2 and first[2] == second[2]
    state = first[2]
    size = len(make_batch(4))
    assert state["full"] and state["held"] == [[GROUP, 1]]
    assert state["groups"] == [[GROUP, 1, True, 2, 1, 0, 4, size, []]]
    assert (state["disk"], state["incarnation"], state["host"]) == ("disk-a", 5, "here")
    assert (state["address"], state["peer"], state["disk_low"]) == ("me:1", "me:2", False)
    assert (state["producers"], state["consumers"], state["version"]) == ([9], [12], 0)


def test_only_changes_after_an_answer(world: World) -> None:
    other = world.add(GROUP + 1)
    for manager, number, _ in later(world):
        answer(world, orders(), manager, number)
    assert all(not state["full"] and not state["groups"] for _, _, state in later(world))
    world.produce(make_batch(1))
    assert all([row[0] for row in state["groups"]] == [GROUP] for _, _, state in later(world))
    world.engine.lead(other)
    one, two = later(world, 0)  # at once
    assert {row[0] for row in one[2]["groups"]} == {GROUP, GROUP + 1}  # not answered: again
    answer(world, orders(), 1, one[1])
    answer(world, orders(), 2, two[1] - 1)  # an older answer says nothing
    one, two = later(world)
    assert one[2]["groups"] == [] and len(two[2]["groups"]) == 2
    answer(world, orders(more=True), 1, one[1])
    assert [state["full"] for _, _, state in later(world)] == [True, False]


def test_nothing_is_lost_while_a_manager_is_away(world: World) -> None:
    later(world)
    world.engine.links_up = False
    world.produce(make_batch(1))
    assert later(world) == []
    world.engine.links_up = True
    assert all(len(state["groups"]) == 1 for _, _, state in later(world))


def test_a_manager_that_is_reached_only_now_hears_at_once(world: World) -> None:
    """Its orders name the other brokers; nothing waits for the next beat that is due."""
    world.engine.links_up = False
    assert later(world) == later(world, 10) == []
    world.engine.links_up = True
    told = later(world, 10)
    assert told and all(state["full"] for _, _, state in told)
    assert later(world, 10) == []


def test_load_is_messages_a_second(world: World) -> None:
    later(world)
    world.produce(make_batch(225))
    assert later(world)[0][2]["load"] == 500


def test_clients_beyond_one_heartbeat_come_with_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is left out again and again, even if the same ones are always active."""
    monkeypatch.setattr(manager_link, "ACTIVE_CLIENTS_MAX", 2)
    later(world)
    producers, consumers = [], []
    for sequence in range(3):
        batches = [make_batch(1, producer=one, sequence=sequence) for one in (1, 2, 3)]
        world.ask(protocol.PRODUCE, [GROUP] * 3, frames=batches)
        for consumer in ("11", "12", "13"):
            world.ask(protocol.COMMIT, consumer, [[GROUP, 1, 0, 0]])
        state = later(world)[0][2]
        producers.append(state["producers"])
        consumers.append(state["consumers"])
    assert producers == [[1, 2], [3, 1], [2, 1]] and consumers == [[11, 12], [13, 11], [12, 11]]


def test_parts_of_one_answer_acknowledge_only_the_groups_of_its_heartbeat(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_link, "GROUPS_PER_HEARTBEAT_MAX", 2)
    made = [5, 6, 7, 8, 9]
    rows = [wanted_row(group, [[1, 7], [2, 8], [3, 9]]) for group in made]
    answer(world, orders(version=9, wanted=rows))
    seen = set[int]()
    for _ in range(6):
        for manager, number, state in later(world):
            if manager == 1:
                seen.update(row[0] for row in state["groups"])
                for _ in range(3):  # as many parts answer one heartbeat
                    answer(world, orders(version=9), manager, number)
    assert seen == {GROUP, *made}


def test_wanted_groups_are_made(world: World) -> None:
    mine = wanted_row(5, [[1, 7], [2, 8], [3, 9]], {"message_bytes_max": 100})
    second, others = wanted_row(6, [[2, 8], [1, 11]]), wanted_row(7, [[2, 8], [3, 9]])
    brokers = [[1, "one:1", "one:2", "h"], [2, "two:1", "two:2", "h"]]
    answer(world, orders(version=9, wanted=[mine, second, others], brokers=brokers))
    assert set(world.engine.replicas) == {GROUP, 5, 6}
    made = world.engine.replicas[5]
    assert made.raft.config.voters == tuple(t.replica_id(n, i) for n, i in ((1, 7), (2, 8), (3, 9)))
    assert made.about == protocol.pack(["events", 2, 40, {"message_bytes_max": 100}])
    assert (made.campaigns, world.engine.replicas[6].campaigns) == (1, 0)
    assert world.engine.peers == {("broker", 2): "two:2"}
    assert world.broker.orders.version == 9 and world.broker.orders.broker_addresses[2] == "two:1"
    world.engine.lead(made)
    (row,) = world.produce(make_batch(1, size=2_000), group=5)
    assert row[1] == errors.MessageTooLarge.code
    changed = wanted_row(5, [[1, 7], [2, 8], [3, 9]], {"message_bytes_max": 5_000})
    answer(world, orders(version=10, wanted=[changed]))
    assert world.produce(make_batch(1, size=2_000), group=5)[0][1] == 0
    assert made.campaigns == 1


def test_older_orders_are_not_followed(world: World) -> None:
    answer(world, orders(version=9, wanted=[]))
    answer(world, orders(version=8, wanted=[wanted_row(5, [[1, 7]])]))
    assert set(world.engine.replicas) == {GROUP}  # and what is neither wanted nor gone stays (W6)


def test_gone_groups_are_removed_and_all_are_told(world: World) -> None:
    world.engine.apply_at_once = False
    world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch()])
    assert world.turn() == []
    world.ask(protocol.PRODUCE, [GROUP], frames=[make_batch()])
    world.ask(protocol.OFFSETS, "a", None, [GROUP])
    world.ask(protocol.COMMIT, "a", [[GROUP, 0, 0, 0]])
    answer(world, orders(version=9, wanted=[], gone=[[GROUP, 1], [1234, 7]]))
    found = {envelope[1]: envelope for envelope, _ in world.turn()}
    unknown, gone = errors.OutcomeUnknown.code, errors.UnknownPartition.code
    assert sorted(row[1] for row in found[protocol.PRODUCED][3]) == sorted((unknown, gone))
    assert found[protocol.POSITIONS][3][0][1] == gone == found[protocol.COMMITTED][3][0][1]
    assert not world.engine.replicas and world.broker.produce_handler.inflight_bytes == 0


def test_transfers(world: World) -> None:
    answer(world, orders(transfers=[[GROUP, 3], [1234, 2], [GROUP, 0]]))
    assert world.engine.transfers == [(GROUP, 3)]
    assert world.engine.counts["transfers_refused_total"] == 1
    world.engine.lagging = {2}
    answer(world, orders(transfers=[[GROUP, 2]]))
    assert world.engine.transfers == [(GROUP, 3)], "who would have to catch up waits"


MALFORMED: dict[str, Any] = {
    "version": "x", "life": None, "life_from": [], "wanted": [[1]], "gone": 3, "transfers": [1],
    "brokers": [1], "wall_ms": "x", "managers": 3, "founders": [[1]], "since": "x",
    "unwanted": None, "part": None, "parts": "2",
}  # fmt: skip


@pytest.mark.parametrize("field", [*MALFORMED, "more"])
def test_malformed_orders_change_nothing(world: World, field: str) -> None:
    followed, brokers = world.broker.orders, [[3, "tcp://new:1", "tcp://new:2", "host"]]
    before = followed.version, dict(followed.wanted), dict(followed.broker_addresses)
    state = orders(version=99, wanted=[wanted_row(5, [[1, 7]])], brokers=brokers)
    if field == "more":
        del state["more"]
    else:
        state[field] = MALFORMED[field]
    answer(world, state)
    assert world.engine.counts["orders_invalid_total"] == 1
    assert (followed.version, followed.wanted, followed.broker_addresses) == before
    assert set(world.engine.replicas) == {GROUP}


MALFORMED_COLUMNS: list[tuple[int, Any]] = [
    (0, "5"), (1, 7), (2, None), (3, "x"), (4, 3), (4, [[1]]), (4, [[1, "7"]]), (5, None),
    (5, {"message_bytes_max": "1"}), (5, {"retention_ms": None}), (6, [1]), (7, True),
]  # fmt: skip


@pytest.mark.parametrize(("column", "value"), MALFORMED_COLUMNS)
def test_a_malformed_wanted_row_is_refused_before_anything_is_stored(
    world: World, column: int, value: Any
) -> None:
    row = wanted_row(5, [[1, 7]])
    row[column] = value
    answer(world, orders(version=99, wanted=[wanted_row(6, [[1, 8]]), row]))
    assert world.engine.counts["orders_invalid_total"] == 1
    assert world.broker.orders.version == 0 and set(world.engine.replicas) == {GROUP}


def test_columns_of_a_later_version_are_left_out(world: World) -> None:
    row = [*wanted_row(5, [[1, 7, "rack"]]), "new"]
    answer(world, orders(version=9, wanted=[row], brokers=[[2, "two:1", "two:2", "h", 3]]))
    assert set(world.engine.replicas) == {GROUP, 5} and world.broker.orders.version == 9
    assert world.engine.peers == {("broker", 2): "two:2"}


def test_the_log_says_that_orders_were_not_understood(world: World) -> None:
    answer(world, orders(version="x"))
    why = world.broker.join_status.why(world.engine.now)
    assert why.startswith(
        "manager 1 at manager-1:1: orders not understood: version is malformed; manager 2"
    )
    answer(world, orders(life=4))
    assert "not understood" not in world.broker.join_status.why(world.engine.now)


def test_answers_of_unknown_managers_change_nothing(world: World) -> None:
    answer(world, {})
    answer(world, orders(version=99, wanted=[]), manager=9)
    assert world.broker.orders.version != 99
    assert set(world.engine.replicas) == {GROUP}


def test_stopping_hands_over_to_who_has_most(world: World) -> None:
    world.add(GROUP + 1)
    world.replica.follower = 3
    world.broker.begin_stopping(world.engine.now)
    assert world.engine.transfers == [(GROUP, 3)]
    world.engine.now += 600
    world.broker.tick(world.engine.now)  # it leads still: again
    assert len(world.engine.transfers) == 2
    world.engine.depose(world.replica)
    world.engine.now += 600
    world.broker.tick(world.engine.now)
    assert len(world.engine.transfers) == 2


def refuse(world: World, manager: int, beat: int = 0) -> None:
    code, text = errors.IdentityMismatch.code, "broker 1 was removed"
    frame = protocol.encode(protocol.ERROR, beat, code, text, f"manager {manager}", {})
    world.broker.handle_peer_reply(("manager", manager), protocol.decode(frame))


def test_p4_a_removed_broker_that_lives_on_hands_its_leaders_over() -> None:
    """No client is sent to it any more, and its followers hear it: nobody else would ever lead."""
    said: list[str] = []
    world = World(lambda _level, event, **_: said.append(event))
    world.replica.follower = 3
    tick(world)
    refuse(world, 1)
    tick(world)
    assert not world.engine.transfers, "one of two managers may be mistaken"
    refuse(world, 2)
    tick(world)
    assert world.engine.transfers == [(GROUP, 3)] and said == ["rejected-by-managers"]
    refuse(world, 1)
    refuse(world, 2)
    tick(world)
    assert len(world.engine.transfers) == 2, "it leads still: again"
    answer(world, orders(), 1)
    tick(world)
    assert len(world.engine.transfers) == 2 and said == ["rejected-by-managers", "ready"], (
        "it is heard again"
    )


def tick(world: World) -> None:
    world.engine.now += 600
    world.broker.tick(world.engine.now)
