"""Whatever happens between consumer and brokers, every message is handed out once, in order.

Hypothesis chooses what happens next: batches are appended, requests are answered in any order,
lost or refused, leaders move, the application polls, pauses and resumes. Invariants hold after
each step, and when the world calms down all that was appended has come.
"""

from itertools import islice
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.partition_log import PartitionLog

from myqueue.consumer.fetch_plan import FetchLimits, FetchRequest, OffsetsRequest
from myqueue.consumer.message import TopicPartition
from myqueue.consumer.subscription import PartitionRoute, Subscription
from myqueue.errors import NotLeader, NotReady, TimedOut, UnknownPartition

PARTS = 3
ADDRESSES = ("a", "b", "")
REFUSALS = (NotLeader, NotReady, UnknownPartition)

steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "ask", "answer", "lose", "refuse", "move", "poll", "hold"]),
        st.integers(0, 7),
        st.integers(1, 9),
    ),
    max_size=150,
)


class World:
    """One subscription, its partitions, and requests that are under way."""

    def __init__(self) -> None:
        self.logs = {group: PartitionLog(group) for group in range(PARTS)}
        self.leaders = ["a"] * PARTS
        limits = FetchLimits(buffer_bytes=600, partition_bytes=300, fetch_bytes=200)
        self.sub = Subscription({"t": ""}, limits=limits)
        self.under_way: list[Any] = []
        self.now = 0
        self.got: dict[int, list[int]] = {number: [] for number in range(PARTS)}
        self.route()

    def route(self) -> None:
        places = [PartitionRoute(group, group, self.leaders[group]) for group in range(PARTS)]
        self.sub.set_routes("t", self.now, places)

    def ask(self) -> None:
        self.under_way += self.sub.fetch_plan.requests(self.now)
        for reading in self.sub.partitions.values():
            held = [request for request in self.under_way if reading in request.partitions]
            assert reading.request is None or reading.request in held

    def answer(self, request: Any) -> None:
        if isinstance(request, OffsetsRequest):
            rows = [self.logs[group].offsets(None, None) for group in request.fields[2]]
            self.sub.fetch_plan.on_offsets(request, rows, self.now)
            return
        answers = [self.logs[group].fetch(offset, 200) for group, offset in request.fields[3]]
        rows, frames = [row for row, _ in answers], [f for _, own in answers for f in own]
        self.sub.fetch_plan.on_fetched(request, rows, frames, self.now)

    def refuse(self, request: Any, code: int) -> None:
        if isinstance(request, FetchRequest):
            rows = [[group, code, 0, 0, [], None] for group, _ in request.fields[3]]
            self.sub.fetch_plan.on_fetched(request, rows, [], self.now)
        else:
            rows = [[group, code, 0, 0, None, None, 0] for group in request.fields[2]]
            self.sub.fetch_plan.on_offsets(request, rows, self.now)

    def poll(self, count: int) -> None:
        while count and (run := self.sub.next_run(self.now)) is not None:
            for message in islice(run, count):
                self.got[message.partition].append(message.offset)
                count -= 1

    def step(self, what: str, which: int, count: int) -> None:
        number = which % PARTS
        request = self.under_way.pop(which % len(self.under_way)) if self.under_way else None
        if what in ("answer", "lose", "refuse") and request is not None:
            if what == "answer":
                self.answer(request)
            elif what == "lose":
                self.sub.fetch_plan.on_failure(request, TimedOut(), self.now)
            else:
                self.refuse(request, REFUSALS[count % 3].code)
            return
        self.under_way += [request] if request is not None else []
        name = TopicPartition("t", number)
        match what:
            case "append":
                self.logs[number].append(count)
            case "ask":
                self.now += 40 * count
                self.ask()
            case "move":
                self.leaders[number] = ADDRESSES[count % 3]
                self.route()
            case "poll":
                self.poll(count)
            case "hold" if self.sub.partition(name).is_paused:
                self.sub.resume(name)
            case "hold":
                self.sub.pause(name)

    def check(self) -> None:
        for number, offsets in self.got.items():
            assert offsets == list(range(len(offsets)))
            reading = self.sub.partition(TopicPartition("t", number))
            reading.check_invariants()
            assert reading.position in (None, len(offsets))

    def calm_down(self) -> None:
        self.leaders = ["b"] * PARTS
        self.route()
        for number in range(PARTS):
            self.sub.resume(TopicPartition("t", number))
        for _ in range(200):
            self.now += 1_000
            self.ask()
            while self.under_way:
                self.answer(self.under_way.pop())
            self.poll(1_000)


@given(steps)
@settings(deadline=None, max_examples=150)
def test_every_message_once_and_in_order(chosen: list[tuple[str, int, int]]) -> None:
    world = World()
    for step in chosen:
        world.step(*step)
        world.check()
    world.calm_down()
    world.check()
    ends = {number: len(offsets) for number, offsets in world.got.items()}
    assert ends == {number: log.end for number, log in world.logs.items()}
