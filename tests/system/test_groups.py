"""Consumer groups on real daemons: members come, go, die and freeze; managers die too.

What must hold (C7, C8): in each epoch of a partition one member alone gets its messages, no two of
them at a time; nothing is left out; positions never go back; what a member had goes on soon.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.groups import PositionWatch, describe_group, ends_of, is_assigned
from support.members import Member, Process, judge_group
from support.processes import Cluster, wait_for
from support.traffic import Writer

from myqueue import AsyncConsumer, Consumer, Producer, cli
from myqueue.consumer.message import TopicPartition
from myqueue.errors import Fenced, InvalidName, MyQueueError

SESSION_MS = 2000
PARTITIONS = 24
PEACE, ELECTION = "in peace", "while managers elect a leader"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("groups")) as running:
        yield running


@pytest.mark.parametrize("name", [".", ".."])
def test_a_group_that_urls_take_for_another_page_is_refused(
    cluster: Cluster, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The managers refuse it, so Consumer, Admin and the command line tell the same."""
    topic = f"named-{len(name)}"
    cluster.admin.create_topic(topic)
    told = re.escape(f"a group can't be named {name!r}")
    with (
        Consumer(cluster.address, [topic], group=name) as consumer,
        pytest.raises(InvalidName, match=told),
    ):
        consumer.poll(timeout=30)
    with pytest.raises(InvalidName, match=told):
        cluster.admin.reset_group(name, to="latest", topics=[topic])
    where = ("--cluster", cluster.address)
    for command in (
        ("consume", topic, "--group", name, *where),
        ("group", "reset", name, "--to", "latest", "--topic", topic, "--execute", *where),
    ):
        assert cli.main(command) == 1, command
        assert re.search(told, capsys.readouterr().err), command
    assert name not in {row["group"] for row in cluster.admin.groups()}


class Crowd:
    """A group of members, some of which die."""

    def __init__(self, cluster: Cluster, topic: str, folder: Path) -> None:
        self.cluster, self.topic, self.folder = cluster, topic, folder
        self.living: list[Member] = []
        self.gone: list[Any] = []
        self.hand_overs: dict[str, list[float]] = {PEACE: [], ELECTION: []}
        self._number = 0

    def _name(self) -> str:
        self._number += 1
        return f"member-{self._number}"

    def add(self) -> Member:
        member = Member(
            self.cluster.address,
            self.topic,
            self._name(),
            group=self.topic,
            session_timeout_ms=SESSION_MS,
        )
        member.start()
        self.living.append(member)
        return member

    def close(self, member: Member) -> None:
        self.living.remove(member)
        member.finish()
        self.gone.append(member)

    def kill(self, member: Member, amid: str = PEACE) -> None:
        """It vanishes; how long does what it had wait for others?"""
        had = set(member.assigned)
        self.living.remove(member)
        begin = time.monotonic()
        member.die()
        self.gone.append(member)
        if had:
            self._wait_for_owners(had, begin, amid)

    def kill_process(self) -> None:
        """The same with SIGKILL of a process."""
        process = Process(self.folder, self.cluster.address, self.topic, self._name(), self.topic)
        try:
            wait_for("messages for it", lambda: process.seen, 30)
        finally:
            begin = time.monotonic()
            process.kill()
        self.gone.append(process)
        self._wait_for_owners({one.partition for one in process.seen[-50:]}, begin, PEACE)

    def _wait_for_owners(self, partitions: set[int], begin: float, amid: str) -> None:
        def owned() -> bool:
            known = [dict(one.assigned) for one in self.living]
            return all(any(p in of and of[p][1] > begin for of in known) for p in partitions)

        wait_for("others to go on with its partitions", owned, 40)
        self.hand_overs[amid].append(
            max(one.assigned[p][1] for one in self.living for p in partitions & set(one.assigned))
            - begin
        )

    def seen(self) -> list[Any]:
        return [one for member in (*self.living, *self.gone) for one in member.seen]


def churn(cluster: Cluster, tmp_path: Path, topic: str, rounds: int) -> Crowd:
    """Every round one member comes and one goes, in different ways."""
    cluster.admin.create_topic(topic, partitions=PARTITIONS)
    writer = Writer(cluster.address, topic, "w", 300)
    writer.start()
    crowd = Crowd(cluster, topic, tmp_path)
    for _ in range(6):
        crowd.add()
    wait_for("all six to have a share", lambda: is_assigned(cluster, topic, 6), 40)
    watch = PositionWatch(cluster, topic, topic)
    watch.start()
    for number in range(rounds):
        if number % 4 == 0:
            crowd.kill_process()
        elif number % 4 == 1:
            crowd.add()
            crowd.close(crowd.living[0])
        elif number % 4 == 2:
            crowd.kill(crowd.living[0])
            crowd.add()
        else:
            leader = cluster.managers_leader()
            cluster.kill(leader)
            crowd.kill(crowd.living[0], ELECTION)
            crowd.add()
            cluster.start(leader)
        wait_for("a group at rest", lambda: is_assigned(cluster, topic, len(crowd.living)), 60)
    writer.finish(60)
    acked = ends_of(writer)
    total = sum(acked.values())

    def all_read() -> bool:
        return len({(one.partition, one.offset) for one in crowd.seen()}) >= total

    wait_for("everything to be read", all_read, 60)
    watch.finish()
    for member in list(crowd.living):
        crowd.close(member)
    print(judge_group(crowd.seen(), acked))
    for amid, seconds in crowd.hand_overs.items():
        print(f"hand-over in s, {amid}:", *(f"{one:.2f}" for one in sorted(seconds)))
    for member in crowd.gone:
        if isinstance(member, Member):  # nobody is refused but who has lost something
            assert member.fenced <= member.losses + 1, member.history
    return crowd


def test_c7_c8_members_come_and_go_and_managers_die(cluster: Cluster, tmp_path: Path) -> None:
    crowd = churn(cluster, tmp_path, "churn", 4)
    # On a busy machine, and with a leader elected between, more than what is promised below.
    seconds = [*crowd.hand_overs[PEACE], *crowd.hand_overs[ELECTION]]
    assert max(seconds) < 20
    assert min(seconds) < SESSION_MS / 1000 + 3


@pytest.mark.full
def test_c7_c8_members_come_and_go_for_long(cluster: Cluster, tmp_path: Path) -> None:
    """With nothing else on the machine, what a dead member had goes on within a second more than
    its session lasts.
    """
    crowd = churn(cluster, tmp_path, "long", 60)
    assert max(map(max, crowd.hand_overs.values())) <= SESSION_MS / 1000 + 1


def test_c7_c8_a_member_that_froze_gets_and_commits_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It wakes up after others went on: what it has is nobody's, and it joins again."""
    cluster.admin.create_topic("frozen", partitions=4)
    writer = Writer(cluster.address, "frozen", "w", 200)
    writer.start()
    sleeper = Process(tmp_path, cluster.address, "frozen", "sleeper", "frozen")
    try:
        wait_for("messages for it", lambda: sleeper.seen, 30)
        other = Member(cluster.address, "frozen", "other", group="frozen", session_timeout_ms=2000)
        other.start()
        wait_for("two members", lambda: is_assigned(cluster, "frozen", 2), 30)
        sleeper.process.send_signal(signal.SIGSTOP)
        wait_for("the other one to have all", lambda: len(other.assigned) == 4, 30)
        before = len(other.seen)
        wait_for("it to go on", lambda: len(other.seen) > before + 100, 30)
        sleeper.process.send_signal(signal.SIGCONT)
        wait_for("both to read again", lambda: is_assigned(cluster, "frozen", 2), 30)
        seen = len(sleeper.seen)
        wait_for("messages for it", lambda: len(sleeper.seen) > seen, 30)
        writer.finish(30)
        acked = ends_of(writer)
        total = sum(acked.values())

        def all_read() -> bool:
            both = (*other.seen, *sleeper.seen)
            return len({(one.partition, one.offset) for one in both}) >= total

        wait_for("everything to be read", all_read, 30)
    finally:
        sleeper.process.send_signal(signal.SIGCONT)
        sleeper.kill()
    other.finish()
    judge_group([*other.seen, *sleeper.seen], acked)


def test_c7_what_a_lost_member_commits_is_fenced(cluster: Cluster) -> None:
    cluster.admin.create_topic("fenced")
    writer = Writer(cluster.address, "fenced", "w", 100)
    writer.start()
    old = Member(cluster.address, "fenced", "old", group="fenced", session_timeout_ms=2000)
    old.start()
    wait_for("messages", lambda: old.seen, 30)
    old.stop()  # it asks for nothing more, and says that it lives no more either:
    reading = old.consumer._subscription.partitions.copy().popitem()[1]
    old.consumer._membership._state = "resting"  # type: ignore[union-attr]
    new = Member(cluster.address, "fenced", "new", group="fenced", session_timeout_ms=2000)
    new.start()
    wait_for("the new one to go on", lambda: len(new.seen) > 50, 30)
    assert reading.position is not None
    reading.committed = 0  # it has not heard of anything
    with pytest.raises(Fenced):
        old.consumer.commit(timeout=5)
    writer.finish(30)
    new.finish()
    old.consumer.close(2)


def test_a_member_that_is_stuck_leaves_and_comes_back(cluster: Cluster) -> None:
    cluster.admin.create_topic("stuck", partitions=2)
    stuck = Member(cluster.address, "stuck", "stuck", group="stuck", max_poll_ms=1000)
    stuck.start()
    wait_for("both partitions", lambda: len(stuck.assigned) == 2, 30)
    stuck.stop()
    wait_for("it to leave", lambda: describe_group(cluster, "stuck")["state"] == "empty", 30)
    stuck.history.clear()
    wait_for("it to be back", lambda: stuck.consumer.poll(1, 0.1) or len(stuck.assigned) == 2, 30)
    assert [what for what, _, _ in stuck.history] == ["lost", "assign"]
    stuck.consumer.close()
    assert describe_group(cluster, "stuck")["members"] == []


def test_loops_and_coroutines_share_and_hand_over(cluster: Cluster) -> None:
    """Iteration hears of a rebalance between two messages; auto_commit commits what is handled."""
    cluster.admin.create_topic("loops", partitions=4)
    writer = Writer(cluster.address, "loops", "w", 400)
    writer.start()
    seen: dict[str, list[tuple[int, int]]] = {"loop": [], "task": []}
    settings: dict[str, Any] = {"group": "loops", "auto_commit": True, "idle_timeout": 3}
    with Consumer(cluster.address, "loops", **settings) as consumer:

        def loop() -> None:
            for message in consumer:
                seen["loop"].append((message.partition, message.offset))

        async def task() -> None:
            async with AsyncConsumer(cluster.address, "loops", **settings) as other:
                async for message in other:
                    seen["task"].append((message.partition, message.offset))
                    if len(seen["task"]) > 200:
                        break

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        wait_for("all partitions", lambda: len({p for p, _ in seen["loop"]}) == 4, 30)
        asyncio.run(asyncio.wait_for(task(), 60))
        writer.finish(30)
        thread.join(60)
        assert not thread.is_alive()
    both = seen["loop"] + seen["task"]
    assert len({p for p, _ in seen["task"]}) == 2
    assert len(set(both)) == len(writer.acked)  # nothing is left out
    assert len(both) - len(set(both)) < 300  # what the task had in hand when it broke off


def myq(cluster: Cluster, capsys: Any, *words: str, code: int = 0) -> str:
    assert cli.main([*words, "--cluster", cluster.address]) == code
    found = capsys.readouterr()
    return str(found.out if code == 0 else found.err)


def test_a_group_is_told_of_and_reset(cluster: Cluster, capsys: Any) -> None:
    cluster.admin.create_topic("told", partitions=2)
    total = 40
    with Producer(cluster.address) as producer:
        for number in range(total):
            producer.send("told", b"%d" % number, partition=number % 2)
    member = Member(cluster.address, "told", "reader", group="told")
    member.start()
    wait_for("all of them", lambda: len(member.seen) == total, 30)
    wait_for("commits", lambda: cluster.admin.describe_group("told")["lag"] == 0, 30)
    found = json.loads(myq(cluster, capsys, "group", "describe", "told", "--json"))
    assert (found["schema"], found["state"]) == ("myq.group.describe/1", "stable")
    assert [row["member"] for row in found["partitions"]] == [found["members"][0]["member"]] * 2
    assert abs(found["members"][0]["last_seen_ms"] - time.time() * 1000) < 10_000
    told = myq(cluster, capsys, "group", "describe", "told", "--members")
    assert "reader" in told and "LAST SEEN" in told
    assert "stable" in myq(cluster, capsys, "group", "list")

    # The plan alone; not while somebody reads; and if that is insisted on, the reader goes back.
    plan = myq(cluster, capsys, "group", "reset", "told", "--to", "earliest")
    assert "--execute" in plan
    assert cluster.admin.describe_group("told")["lag"] == 0
    words = ("group", "reset", "told", "--to", "earliest", "--execute")
    assert "GROUP_IN_USE" in myq(cluster, capsys, *words, code=1)
    assert "Done." in myq(cluster, capsys, *words, "--force")
    wait_for("all of them again", lambda: len(member.seen) == 2 * total, 30)
    assert "lost" in [what for what, _, _ in member.history]
    wait_for("commits", lambda: cluster.admin.describe_group("told")["lag"] == 0, 30)
    member.finish()

    rows = cluster.admin.reset_group("told", shift=-5, partitions=[TopicPartition("told", 1)])
    assert [row["position"] - row["new"] for row in rows] == [5]
    assert cluster.admin.describe_group("told")["lag"] == 5
    assert "LAG" not in myq(cluster, capsys, "group", "list")
    assert "LAG" in myq(cluster, capsys, "group", "list", "--lag")
    listed = json.loads(myq(cluster, capsys, "group", "list", "--lag", "--json"))["groups"]
    assert {row["group"]: row["lag"] for row in listed}["told"] == 5
    lines = myq(cluster, capsys, "consume", "told", "--group", "told", "-n", "5").splitlines()
    assert len(lines) == 5
    assert cluster.admin.describe_group("told")["lag"] == 0
    assert [row["new"] for row in cluster.admin.reset_group("told", time_ms=0)] == [0, 0]
    rows = cluster.admin.reset_group("told", offset=10**9)
    assert sum(row["new"] for row in rows) == total
    with pytest.raises(MyQueueError):
        cluster.admin.reset_group("told", to="earliest", shift=1)
    assert "--yes" in myq(cluster, capsys, "group", "delete", "told", code=2)
    assert "Deleted told." in myq(cluster, capsys, "group", "delete", "told", "--yes")
    assert "UNKNOWN_GROUP" in myq(cluster, capsys, "group", "describe", "told", code=1)
    assert set(cluster.admin.positions("told", group="told").values()) == {None}
