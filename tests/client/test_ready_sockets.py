"""`ReadySockets`: what it says is what the sockets have, after any use of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import zmq

from myqueue.wire.ready_sockets import READABLE, WRITABLE, ReadySockets

LONG_MS = 20_000


class Pairs:
    """Sockets that are watched, and their other ends in another context."""

    def __init__(self, count: int) -> None:
        self.context, self.other_context = zmq.Context(), zmq.Context()
        self.sockets = ReadySockets()
        self.watched: list[Any] = []
        self.others: list[Any] = []
        for _ in range(count):
            watched, other = self.context.socket(zmq.DEALER), self.other_context.socket(zmq.DEALER)
            port = watched.bind_to_random_port("tcp://127.0.0.1")
            other.connect(f"tcp://127.0.0.1:{port}")
            self.sockets.add(watched)
            self.watched.append(watched)
            self.others.append(other)

    def close(self) -> None:
        self.sockets.close()
        self.context.destroy(linger=0)
        self.other_context.destroy(linger=0)

    def wait_for(self, socket: Any) -> None:
        while socket not in self.sockets.ready:
            self.sockets.wait(LONG_MS)
            assert self.sockets.ready, "nothing in twenty seconds"


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    made = Pairs(5)
    yield made
    made.close()


def test_nothing_is_ready_without_messages(pairs: Pairs) -> None:
    pairs.sockets.wait(20)
    assert not pairs.sockets.ready


def test_a_message_wakes_the_wait_and_counts_until_it_is_read(pairs: Pairs) -> None:
    threading.Timer(0.05, lambda: pairs.others[3].send(b"x")).start()
    pairs.wait_for(pairs.watched[3])
    assert pairs.sockets.ready == {pairs.watched[3]}
    pairs.sockets.wait(LONG_MS)  # it was not read
    assert pairs.sockets.ready == {pairs.watched[3]}
    assert pairs.watched[3].recv(zmq.DONTWAIT) == b"x"
    pairs.sockets.wait(0)
    assert not pairs.sockets.ready


def test_a_message_that_came_while_the_socket_was_used_is_not_missed(pairs: Pairs) -> None:
    """A send takes the note that a message is there, and the descriptor is silent after it."""
    watched, other = pairs.watched[0], pairs.others[0]
    other.send(b"first")
    pairs.wait_for(watched)
    assert watched.recv() == b"first"
    pairs.sockets.wait(0)
    other.send(b"second")
    while not watched.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # this takes the note
        pass
    pairs.sockets.note_use(watched)
    pairs.sockets.wait(LONG_MS)
    assert pairs.sockets.ready == {watched}


def test_room_to_send_is_an_event_only_where_it_is_wanted(pairs: Pairs) -> None:
    watched, other = pairs.watched[0], pairs.others[0]
    other.send(b"x")
    pairs.wait_for(watched)
    watched.recv()
    pairs.sockets.want(watched, READABLE | WRITABLE)
    pairs.sockets.wait(LONG_MS)
    assert pairs.sockets.ready == {watched}
    pairs.sockets.want(watched, READABLE)
    pairs.sockets.wait(20)
    assert not pairs.sockets.ready


def test_descriptors_wake_the_wait(pairs: Pairs) -> None:
    bell = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        pairs.sockets.add_descriptor(bell)
        os.eventfd_write(bell, 1)
        pairs.sockets.wait(LONG_MS)
        assert pairs.sockets.ready == {bell}
        os.eventfd_read(bell)
        pairs.sockets.wait(0)
        assert not pairs.sockets.ready
    finally:
        os.close(bell)


def test_a_removed_socket_is_not_asked_any_more(pairs: Pairs) -> None:
    watched = pairs.watched[0]
    pairs.others[0].send(b"x")
    pairs.wait_for(watched)
    pairs.sockets.remove(watched)
    watched.close()
    assert not pairs.sockets.ready
    pairs.sockets.wait(0)
    assert not pairs.sockets.ready


@pytest.mark.parametrize("seed", range(3))
def test_no_message_is_missed_in_any_order_of_uses(seed: int) -> None:
    """Both sides send at random; only ready sockets are read; in the end all has arrived."""
    random, pairs = Random(seed), Pairs(4)
    try:
        sent, got, answers = [0] * 4, [0] * 4, 0
        for _ in range(2000):
            at = random.randrange(4)
            for _ in range(random.randrange(3)):
                pairs.others[at].send(b"x")
                sent[at] += 1
            if random.random() < 0.3:
                other = random.randrange(4)
                pairs.sockets.note_use(pairs.watched[other])
                pairs.watched[other].send(b"y")
                answers += 1
            pairs.sockets.wait(0)
            for number, watched in enumerate(pairs.watched):
                if watched in pairs.sockets.ready:
                    watched.recv(zmq.DONTWAIT)
                    got[number] += 1
        while got != sent:
            pairs.sockets.wait(LONG_MS)
            assert pairs.sockets.ready, f"missed: {sent} sent, {got} received"
            for number, watched in enumerate(pairs.watched):
                if watched in pairs.sockets.ready:
                    watched.recv(zmq.DONTWAIT)
                    got[number] += 1
        assert answers > 100
    finally:
        pairs.close()
