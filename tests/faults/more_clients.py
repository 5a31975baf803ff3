"""More clients of the nemesis: takes, a group's members, a look at positions, a topic that comes
and goes.
"""

from __future__ import annotations

import time
from random import Random
from secrets import token_bytes

from faults.clients import GIVE_UP_S, Client, name_of, runs_of, value_of
from faults.history import History
from support.members import Member

from myqueue.admin.client import Admin
from myqueue.cluster.session import Session
from myqueue.consumer.consumer import Consumer
from myqueue.errors import Fenced, MyQueueError, TopicExists, UnknownTopic
from myqueue.producer.producer import Producer
from myqueue.taker.take_walk import KEY_BYTES
from myqueue.taker.taker import Taker

NAME = "volatile"


class TakeClient(Client):
    """Takes messages away, under the id that it shares with others, and never gives up on a call:
    what was taken by one whose answer was lost would be nobody's.
    """

    def __init__(
        self, name: str, history: History, cluster: str, topic: str, consumer_id: int
    ) -> None:
        super().__init__(name, history)
        self.topic, self.id, self.calls = topic, consumer_id, 0
        self.session = Session(cluster, name=name, request_timeout_ms=5000)
        self.taker = Taker(self.session)

    def turn(self) -> None:
        self.calls += 1
        call, key, who = f"{self.name}/{self.calls}", token_bytes(KEY_BYTES), str(self.id)
        self.history.note("take", self.name, who, self.topic, call)
        found = self.patiently(
            lambda: self.taker.take(self.topic, self.id, max_messages=100, key=key), 300
        )
        rows = [[one.partition, one.offset, name_of(one.value)] for one in found]
        self.history.note("taken", self.name, who, self.topic, call, rows)
        self.stopped.wait(0.3 if found else 0.6)

    def left(self) -> int:
        return self.taker.left(self.topic, self.id)

    def finish(self, seconds: float = 60.0) -> None:
        super().finish(seconds)
        self.session.close()


class GroupMember(Member):
    """A member of a group that notes what it got."""

    def __init__(self, cluster: str, topic: str, name: str, history: History, group: str) -> None:
        self.history_file, self.topic, self.group = history, topic, group
        super().__init__(cluster, topic, name, group=group, session_timeout_ms=6000)

    def ask_to_stop(self) -> None:
        self._stop_asked.set()

    def run(self) -> None:
        who = f"group/{self.group}"
        try:
            while not self._stop_asked.is_set():
                asked = round(time.monotonic(), 4)
                messages = self.consumer.poll(200, 0.2)
                for partition, first, names in runs_of(messages):
                    epoch = self.assigned[partition][0]
                    self.history_file.note(
                        "got", self.name, who, self.topic, partition, epoch, asked, first, names
                    )
                    behind = first + len(names)
                    self.history_file.note("commit", who, self.topic, partition, behind)
                if messages:
                    self._commit()
        except Exception as error:
            self.error = error

    def _commit(self) -> None:
        """What is acknowledged is a position that nobody may be told less than, from now on."""
        try:
            done = self.consumer.commit(timeout=2)
        except Fenced:
            self.fenced += 1
            return
        except MyQueueError as error:
            if not error.retriable:
                raise
            return
        for (_, partition), position in done.items():
            who = f"group/{self.group}"
            self.history_file.note("committed", who, self.topic, partition, position)


class Watcher(Client):
    """Asks what consumers and groups have committed."""

    def __init__(
        self, name: str, history: History, cluster: str, topic: str, ids: list[int], group: str
    ) -> None:
        super().__init__(name, history)
        self.topic, self.ids, self.group = topic, ids, group
        self.admin = Admin(cluster, timeout=4)

    def turn(self) -> None:
        for number in (*self.ids, None):
            who = f"group/{self.group}" if number is None else str(number)
            asked = round(time.monotonic(), 4)
            group = self.group if number is None else None
            try:
                found = self.admin.positions(self.topic, consumer_id=number, group=group)
            except MyQueueError as error:
                if not error.retriable:
                    raise
                continue
            for (_, partition), position in found.items():
                fields = (who, self.topic, partition, position or 0, asked)
                self.history.note("position", *fields)
        self.stopped.wait(0.5)

    def finish(self, seconds: float = 60.0) -> None:
        super().finish(seconds)
        self.admin.close()


class Volatile(Client):
    """Makes a topic, writes and reads, deletes it while messages are under way, makes it again.

    One session for all of it: what it was told of its own changes holds for whatever it asks next.
    """

    def __init__(self, name: str, history: History, cluster: str, seed: int) -> None:
        super().__init__(name, history)
        self.random, self.lives, self.is_there = Random(seed), 0, False
        self.session = Session(cluster, name=name, request_timeout_ms=4000)
        self.admin = Admin(self.session, timeout=4)

    def turn(self) -> None:
        self.lives += 1
        label = f"{NAME}#{self.lives}"
        self._make(label)
        producer = Producer(self.session, delivery_timeout_ms=4000, max_block_ms=4000)
        consumer = self.patiently(lambda: Consumer(self.session, [NAME]), GIVE_UP_S)
        end, number = time.monotonic() + self.random.uniform(1, 5), 0
        try:
            while time.monotonic() < end or not number:
                self._send(producer, label, number)
                number += 1
                self._read(consumer, label)
            self._list()
            self._drop(label)
        finally:
            consumer.close(2)
            try:
                producer.close(10)
            except MyQueueError:
                pass  # each of them was noted
        self._list()
        self.stopped.wait(self.random.uniform(0, 1))

    def _make(self, label: str) -> None:
        self.history.note("make", NAME, label)
        try:
            self.patiently(lambda: self.admin.create_topic(NAME, partitions=2), 120)
        except TopicExists:
            pass  # by a call whose answer was lost; nobody else makes it
        self.history.note("made", NAME, label)
        self.is_there = True

    def _drop(self, label: str) -> None:
        self.history.note("drop", NAME, label)
        try:
            self.patiently(lambda: self.admin.delete_topic(NAME), 120)
        except UnknownTopic:
            pass
        self.history.note("dropped", NAME, label)
        self.is_there = False

    def _list(self) -> None:
        asked = round(time.monotonic(), 4)
        try:
            self.history.note("listed", asked, self.admin.topics())
        except MyQueueError as error:
            if not error.retriable:
                raise

    def _send(self, producer: Producer, label: str, number: int) -> None:
        client = f"{self.name}.{self.lives}"
        self.history.note("send", client, label, number)

        def settled(done: object) -> None:
            error = done.exception()  # type: ignore[attr-defined]
            if error is None:
                at = done.result()  # type: ignore[attr-defined]
                self.history.note("ack", client, label, number, at.partition, at.offset)
            else:
                self.history.note("fail", client, label, number, error.outcome, error.name)

        try:
            delivery = producer.send(NAME, value_of(f"{client}:{number}"))
        except MyQueueError as error:
            self.history.note("fail", client, label, number, error.outcome, error.name)
            if not error.retriable:
                raise
        else:
            delivery.add_done_callback(settled)

    def _read(self, consumer: Consumer, label: str) -> None:
        for partition, first, names in runs_of(consumer.poll(100, 0.05)):
            client = f"{self.name}.{self.lives} reader"
            self.history.note("read", client, label, partition, first, names)

    def finish(self, seconds: float = 60.0) -> None:
        super().finish(seconds)
        if self.is_there:
            self._drop(f"{NAME}#{self.lives}")
        self.admin.close()
        self.session.close()
