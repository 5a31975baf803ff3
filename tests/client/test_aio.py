"""AsyncProducer and AsyncConsumer: one await, one result; the event loop is never held."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from support.fake_cluster.groups import serve_groups
from support.fake_cluster.peer import EchoCluster
from support.fake_cluster.reads import Reads, fill, serve_reads

from myqueue import errors
from myqueue.aio import AsyncConsumer, AsyncProducer
from myqueue.wire import protocol as words

HELD_S = 2.0


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(2) as cluster:
        cluster.topic("t")
        yield cluster


@pytest.fixture
def reads(cluster: EchoCluster) -> Reads:
    return serve_reads(cluster)


def test_send_returns_where_it_was_stored(cluster, reads):
    async def main() -> None:
        async with AsyncProducer(cluster.address) as producer:
            stored = await producer.send("t", b"0", key=b"k")
            assert (stored.topic, stored.partition, stored.offset) == ("t", 0, 0)
            found = await asyncio.gather(
                *(producer.send("t", b"%d" % number) for number in range(1, 200))
            )
            assert [row.offset for row in found] == list(range(1, 200))
            [run] = await producer.send_many("t", [b"200", b"201"])
            assert (run.offset, run.messages) == (200, 2)
            await producer.flush()

    asyncio.run(main())
    values = cluster.topic("t")[0].values()
    assert values == [b"%d" % number for number in range(202)]


def test_failures_are_raised_by_the_await(cluster, reads):
    async def main() -> None:
        async with AsyncProducer(cluster.address, max_block_ms=500) as producer:
            with pytest.raises(errors.MisuseError):
                await producer.send("t", b"x", partition=7)
            with pytest.raises(errors.UnknownTopic):
                await producer.send("nothing", b"x")

    asyncio.run(main())


def test_poll_and_iteration(cluster, reads):
    fill(cluster.topic("t")[0], 10)

    async def main() -> None:
        async with AsyncConsumer(
            cluster.address, ["t"], consumer_id=7, idle_timeout=0.2
        ) as consumer:
            first = await consumer.poll(max_messages=3)
            rest = []
            async for message in consumer:
                rest.append(message)
                if message.offset == 5:
                    assert await consumer.commit() == {("t", 0): 6}
                    assert await consumer.position(("t", 0)) == 6
            assert [m.offset for m in [*first, *rest]] == list(range(10))
            assert await consumer.poll(timeout=0.05) == []
            assert await consumer.lag() == {("t", 0): 0}
            await consumer.seek(("t", 0), 8)
            assert [m.offset for m in await consumer.poll()] == [8, 9]
            assert await consumer.seek_to_beginning() == {("t", 0): 0}
            await consumer.pause()
            assert await consumer.poll(timeout=0.05) == []
            await consumer.resume()
            assert len(await consumer.poll()) == 10
            assert await consumer.committed() == {("t", 0): 6}
            assert await consumer.assignment() == [("t", 0)]

    asyncio.run(main())


def test_who_waits_holds_neither_the_loop_nor_other_tasks(cluster, reads):
    async def main() -> None:
        async with AsyncConsumer(cluster.address, ["t"], consumer_id=7) as consumer:
            waiting = [asyncio.create_task(consumer.poll(timeout=None)) for _ in range(1)]
            await asyncio.sleep(0.1)
            begin = time.monotonic()
            assert await consumer.lag() == {("t", 0): 0}
            assert time.monotonic() - begin < 1
            fill(cluster.topic("t")[0], 1)
            [found] = await asyncio.wait_for(waiting[0], 3)
            assert found.offset == 0

    asyncio.run(main())


def test_close_lets_go_who_waits(cluster, reads):
    async def main() -> None:
        consumer = AsyncConsumer(cluster.address, ["t"])
        with pytest.raises(errors.Closed):
            await consumer.poll()
        await consumer.start()
        tasks = [asyncio.create_task(_all(consumer)), asyncio.create_task(consumer.poll(1, None))]
        await asyncio.sleep(0.1)
        await consumer.close()
        assert await asyncio.wait_for(asyncio.gather(*tasks), 2) == [[], []]
        with pytest.raises(errors.Closed):
            await consumer.poll()

    asyncio.run(main())


def test_who_gives_up_on_a_commit_may_go_on_at_once(cluster, reads):
    """The call goes on to its end; the next one waits for it, and is not refused."""
    groups = serve_groups(cluster)
    fill(cluster.topic("t")[0], 10)
    groups.give("t", (0, 7, False))

    async def main() -> None:
        async with AsyncConsumer(cluster.address, ["t"], group="g") as consumer:
            assert await consumer.poll(5)
            groups.loses_commits = True
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.commit(timeout=0.5), 0.1)
            assert await consumer.poll(5)

    asyncio.run(main())


def test_who_gives_up_on_the_start_leaves_no_member_behind(cluster, reads):
    groups = serve_groups(cluster)

    async def main() -> None:
        for wait_s in (0.001, 0.01, 0.03, 0.1):
            consumer = AsyncConsumer(cluster.address, ["t"], group="g")
            try:
                await asyncio.wait_for(consumer.start(), wait_s)
            except TimeoutError:
                continue
            await consumer.close()
        consumer = AsyncConsumer(cluster.address, ["t"], group="g")
        await asyncio.gather(consumer.start(), consumer.start())
        await consumer.close()

    asyncio.run(main())  # waits for its executor
    end = time.monotonic() + 3
    while groups.done.count("join_group") != groups.done.count("leave_group"):
        assert time.monotonic() < end, groups.done
        time.sleep(0.02)
    assert groups.done.count("join_group") >= 1


def test_what_is_given_back_is_committed_without_holding_the_loop(cluster, reads):
    groups = serve_groups(cluster)
    fill(cluster.topic("t")[0], 10)
    groups.give("t", (0, 7, False))

    async def main() -> None:
        revoked, gaps = [], []
        async with AsyncConsumer(
            cluster.address, ["t"], group="g", auto_commit=True, on_revoke=revoked.append
        ) as consumer:
            while not await consumer.poll(10):
                pass

            async def tick() -> None:
                last = time.monotonic()
                while not revoked:
                    await asyncio.sleep(0.01)
                    now = time.monotonic()
                    gaps.append(now - last)
                    last = now

            ticking = asyncio.create_task(tick())
            groups.loses_commits = True
            groups.give("t", (0, 7, True))
            while not revoked:
                await consumer.poll(timeout=0.1)
            await ticking
        assert max(gaps) < 1, "a commit that nobody answers takes 3 s"

    asyncio.run(main())


async def _all(consumer: AsyncConsumer) -> list[int]:
    return [message.offset async for message in consumer]


class Ticker:
    """How long the event loop stood still at most, while this was entered."""

    async def __aenter__(self) -> "Ticker":
        self.worst, self._last = 0.0, time.monotonic()
        self._task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self._tick()

    def _tick(self) -> None:
        now = time.monotonic()
        self.worst, self._last = max(self.worst, now - self._last), now

    async def __aexit__(self, *_: object) -> None:
        self._tick()
        self._task.cancel()


@pytest.mark.parametrize("call", ["seek", "pause", "resume", "assignment", "skipped"])
def test_no_call_holds_the_loop_while_the_io_thread_has_the_lock(cluster, reads, call):
    fill(cluster.topic("t")[0], 3)
    held, enough = threading.Event(), threading.Event()

    async def main() -> None:
        async with AsyncConsumer(cluster.address, "t") as consumer:
            assert len(await consumer.poll(timeout=5)) == 3
            lock = consumer._consumer._changed

            def hold() -> None:
                with lock:
                    held.set()
                    enough.wait(HELD_S)

            holding = asyncio.ensure_future(asyncio.to_thread(hold))
            await asyncio.to_thread(held.wait)
            async with Ticker() as ticker:
                found = getattr(consumer, call)(*((("t", 0), 1) if call == "seek" else ()))
                if asyncio.iscoroutine(found):
                    await found
            assert ticker.worst < HELD_S / 2, ticker.worst
            enough.set()
            await holding
            if call == "seek":
                assert [one.offset for one in await consumer.poll(timeout=5)] == [1, 2]

    asyncio.run(main())


def test_the_time_that_another_task_takes_counts(cluster, reads):
    """A commit that nobody answers; polls of other tasks end when their own time is over."""
    fill(cluster.topic("t")[0], 3)
    waits: list[float] = []

    async def poll(consumer: AsyncConsumer, limit_s: float) -> None:
        begin = time.monotonic()
        assert await consumer.poll(timeout=limit_s) == []
        waits.append(time.monotonic() - begin - limit_s)

    async def main() -> None:
        async with AsyncConsumer(cluster.address, "t", consumer_id=7) as consumer:
            assert len(await consumer.poll(timeout=5)) == 3
            for daemon in cluster.daemons:
                before = daemon.script
                daemon.script = lambda envelope, frames, before=before: (
                    [] if envelope[words.KIND] == words.COMMIT else before(envelope, frames)
                )
            commit = asyncio.ensure_future(consumer.commit(timeout=HELD_S))
            await asyncio.sleep(0)  # the commit is first
            async with Ticker() as ticker:
                await asyncio.gather(*(poll(consumer, limit_s) for limit_s in (0.0, 0.1, 0.2)))
            assert not commit.done() and ticker.worst < HELD_S / 2
            with pytest.raises(errors.MyQueueError):
                await commit
            await poll(consumer, 0.1)  # nobody was left behind with the turn

    asyncio.run(main())
    assert max(waits) < HELD_S / 2, waits


def test_giving_a_partition_back_does_not_outlast_the_time_of_poll(cluster, reads):
    groups = serve_groups(cluster)
    groups.give("t", (0, 3, False))
    fill(cluster.topic("t")[0], 3)

    async def main() -> None:
        async with AsyncConsumer(cluster.address, "t", group="g", auto_commit=True) as consumer:
            assert len(await consumer.poll(timeout=10)) == 3
            groups.loses_commits = True
            groups.give("t", (0, 3, True))
            while not consumer._consumer._handover.has_to_save():
                await asyncio.sleep(0.01)
            begin = time.monotonic()
            assert await consumer.poll(timeout=0.2) == []
            assert time.monotonic() - begin < 1.5  # the commit is tried for three seconds
            while not groups.released:
                assert await consumer.poll(timeout=0.2) == []
            assert time.monotonic() - begin < 10

    asyncio.run(main())
