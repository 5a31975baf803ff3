"""A member's place in its group: what it tells the managers, and in which order to what it does.

Played by hand at the session's seam: requests are kept until the test answers them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition
from types import SimpleNamespace
from typing import Any, cast

import pytest

from myqueue.consumer.assignment import Assignment
from myqueue.consumer.group_membership import CHECK_MS, LEAVE_MS_MAX, GroupMembership
from myqueue.consumer.subscription import Subscription
from myqueue.errors import Closed, InvalidName, NotLeader, TimedOut, UnknownMember
from myqueue.settings import ConsumerSettings
from myqueue.wire import clock

SESSION_MS, POLL_MS = 10_000, 60_000


class Desk:
    """A session and a fetcher as a member sees them; the time is the test's."""

    managers = "managers"

    def __init__(self) -> None:
        self.now, self.closed = 1000, False
        self.asked: list[tuple[str, dict[str, Any], bytes | None, Future[Any]]] = []
        self.beats: list[tuple[Any, Future[Any]]] = []
        self.refreshed: list[tuple[list[str], int]] = []
        self._timers: list[tuple[int, Callable[[], object]]] = []
        self.shares_at_leave: list[int] = []
        self.subscription = Subscription({"t": "group/g"}, assignment=Assignment())
        fetcher: Any = SimpleNamespace(changed=Condition(), listeners=[], take_routes=lambda: None)
        self.member = GroupMembership(
            cast(Any, self),
            fetcher,
            self.subscription,
            ConsumerSettings(group="g", session_timeout_ms=SESSION_MS, max_poll_ms=POLL_MS),
        )
        self.routes = SimpleNamespace(partition=lambda group: group)
        self.member.start()

    # -- the seam --------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.now

    def refresh(self, names: Any, at_least: int = 0) -> None:
        self.refreshed.append((list(names), at_least))

    def on_io(self, job: Callable[[], object]) -> None:
        job()

    def after(self, delay_ms: int, job: Callable[[], object]) -> None:
        self._timers.append((self.now + delay_ms, job))

    def update(
        self,
        operation: str,
        arguments: dict[str, Any],
        *,
        timeout_ms: int,
        key: bytes | None = None,
    ) -> Future[Any]:
        if operation == "leave_group":
            self.shares_at_leave.append(len(self.member.assignment.by_group))
        future: Future[Any] = Future()
        self.asked.append((operation, arguments, key, future))
        return future

    def call(self, target: str, kind: int, fields: Any, *, timeout_ms: int) -> Future[Any]:
        future: Future[Any] = Future()
        self.beats.append((fields, future))
        return future

    # -- what the test does ----------------------------------------------------------------------

    def run(self, passed_ms: int) -> None:
        end = self.now + passed_ms
        while due := [timer for timer in self._timers if timer[0] <= end]:
            timer = min(due, key=lambda one: one[0])
            self._timers.remove(timer)
            self.now = max(self.now, timer[0])
            timer[1]()
        self.now = end

    def answer(self, result: Any) -> tuple[str, dict[str, Any], bytes | None]:
        operation, arguments, key, future = self.asked.pop(0)
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
        return operation, arguments, key

    def joined(self, member: int) -> None:
        assert self.answer({"member": member, "session_ms": SESSION_MS})[0] == "join_group"

    def heard(self, *rows: Any) -> None:
        _, future = self.beats.pop(0)
        future.set_result(SimpleNamespace(fields=[self.now, SESSION_MS, list(rows)]))


ROW = [41, "t", 0, 7, False, False]


def test_a_join_that_may_be_done_is_asked_for_again_and_no_other() -> None:
    """Else the first one would hold partitions that nobody reads for a whole session."""
    desk = Desk()
    _, _, key = desk.answer(TimedOut("no answer"))
    desk.run(1000)
    (again,) = {row[2] for row in desk.asked}
    assert again == key is not None
    # That this one was not done says nothing of the one before, which may still be.
    desk.answer(NotLeader("certainly not done"))
    desk.run(1000)
    assert desk.asked[0][2] == key
    desk.answer(InvalidName("never"))
    desk.run(1000)
    assert desk.asked[0][2] != key


def test_c8_who_is_stuck_has_nothing_any_more_before_it_says_that_it_leaves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    desk.joined(5)
    desk.heard(ROW)
    for _ in range(POLL_MS // 1000 + 2):
        desk.run(1000)
        if desk.beats:
            desk.heard(ROW)
    assert desk.answer({})[:2] == ("leave_group", {"group": "g", "member": 5})
    assert desk.shares_at_leave == [0]
    assert desk.asked == []  # it rests
    desk.member.note_poll()
    desk.joined(6)
    warned = [row.getMessage() for row in caplog.records if "asked for no messages" in row.msg]
    assert len(warned) == 1 and "The last message was from nowhere" in warned[0]


@pytest.mark.parametrize("noticed_by", ["the clock", "the application"])
def test_whose_session_is_over_says_so_as_soon_as_somebody_hears(noticed_by: str) -> None:
    """New leaders give every member a whole session; nobody should wait for one that is gone."""
    desk = Desk()
    desk.joined(5)
    desk.heard(ROW)
    if noticed_by == "the application":
        desk.now += SESSION_MS
        assert desk.member.end_if_over() and desk.member.assignment.by_group == {}
    desk.run(SESSION_MS + 2 * CHECK_MS)
    desk.joined(6)  # first, so that it is dealt out once
    assert desk.answer({})[:2] == ("leave_group", {"group": "g", "member": 5})
    assert desk.member.assignment.member == 6
    desk.beats.pop(0)
    desk.beats[0][1].set_exception(UnknownMember("gone"))  # who was told has nothing to say
    assert [row[0] for row in desk.asked] == ["join_group"]


def test_who_is_closed_while_it_joins_leaves_when_it_knows_who_it_is() -> None:
    desk = Desk()
    left = desk.member.leave()
    assert not left.done()
    desk.joined(5)
    assert desk.answer({})[:2] == ("leave_group", {"group": "g", "member": 5})
    assert left.done()

    desk = Desk()
    left = desk.member.leave()
    desk.run(LEAVE_MS_MAX)  # nobody answers
    assert left.done()
    desk.answer(Closed("the session was closed"))

    desk = Desk()
    desk.joined(5)
    left = desk.member.leave()
    assert desk.answer({})[0] == "leave_group" and left.done()


def test_routes_of_a_new_share_are_asked_of_who_knows_it() -> None:
    """A manager that lags behind would say again what was known before the topic grew."""
    desk = Desk()
    desk.joined(5)
    desk.heard(ROW)
    assert desk.refreshed == []
    desk.routes.partition = lambda group: None
    desk.now += 7
    desk.heard(ROW, [42, "t", 1, 7, False, True])
    assert desk.refreshed == [(["t"], desk.now)]


def test_c8_a_machine_that_slept_knows_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock stands still meanwhile: a session that is long over would look alive."""
    slept_ms = 3_600_000
    since_boot = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + slept_ms * 1_000_000
    real = time.clock_gettime_ns

    def clocks(which: int) -> int:
        return since_boot if which == time.CLOCK_BOOTTIME else real(which)

    monkeypatch.setattr(time, "clock_gettime_ns", clocks)
    assert clock.now_ms() - time.monotonic_ns() // 1_000_000 > slept_ms // 2
