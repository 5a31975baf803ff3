"""Messages that are nearly right, of every kind: what they meet first answers with typed errors.

M3, M5: `decode` of an envelope, `check` and `open_batch` of a batch, `peerwire` for a packet. The
same messages are sent to real daemons by `tests/system/test_garbage.py`; here, without sockets,
there is time for more of them. As a program (PORTS GROUPS SEED RATE) this is a stranger that sends
them: in a process of its own, it takes no time from the client that is measured.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
from collections import Counter
from random import Random
from typing import Any

import msgpack
import pytest
import zmq

from myqueue import errors
from myqueue.daemons.raft.types import replica_id
from myqueue.daemons.replication import packets as peerwire
from myqueue.errors import BatchInvalid, InvalidRequest
from myqueue.wire import batch, protocol

KEY = b"k" * 16
TEXT_MAX = 2000  # of an error


class Raw(bytes):
    """Is put into an envelope as it is."""


DEEP = Raw(b"\x91" * 1000 + b"\xc0")
LESS_DEEP = Raw(b"\x91" * 400 + b"\xc0")  # could be shown and packed again
BOMB = Raw(b"\xdc\xff\xff" * 1000)  # took 80 ms and 70 MiB
EXTENSION = Raw(b"\xc7\x00\x05")
LAST = 2**64 - 1
ODD: list[Any] = [
    *(None, True, -1, 1.5, float("nan"), 2**63, LAST, "", "x/y", "x" * 70_000, b"", bytes(300)),
    *([], [[]], [None], [1, 2], [[1, 2]], [[LAST, LAST]], {}, {"a": {"b": [1]}}, {b"k": 1}),
    *(DEEP, LESS_DEEP, BOMB, EXTENSION, Raw(b"\xc1"), Raw(b"")),
]


def pack(envelope: list[Any]) -> bytes:
    parts = [one if isinstance(one, Raw) else msgpack.packb(one) for one in envelope]
    return bytes([0x90 + len(parts)]) + b"".join(parts)


def good(groups: list[int]) -> list[list[Any]]:
    """Envelopes of every kind that are (nearly) right; none of them changes what others rely on."""
    group, p = groups[0], protocol
    return [
        [p.HELLO, "x" * 60_000, ""], [p.WELCOME, "c", "broker", 1, "1", {}], [p.STATS],
        [p.ERROR, 1200, "", "", {}], [p.STATUS, group], [p.INFO, {}], [p.ROUTE, ["junk"], LAST],
        [p.ROUTES, 1, [], [], []], [p.UPDATE, KEY, "create_topic", {"topic": "x/y"}],
        [p.UPDATE, KEY, "alter_cluster", {"settings": {"producers_max": -1}}], [p.UPDATED, 1, {}],
        [p.UPDATE, KEY, "alter_topic", {"topic": "junk", "settings": {"retention_ms": "x"}}],
        [p.READ, "topic", {"topic": "junk"}, LAST, True], [p.READ, "health", {"limit": 0}, 0, True],
        [p.ANSWER, 1, {}], [p.ALIVE, [1, LAST], [LAST]], [p.ALIVE_OK], [p.PRODUCE, [group, LAST]],
        [p.PRODUCED, []], [p.FETCH, LAST, LAST, LAST, [[group, 0], [group, LAST], [LAST, 0]]],
        [p.FETCH, 0, 0, 0, [[group, 0]] * 300], [p.FETCH, 0, 1, 1, [[group, LAST]]],
        [p.FETCHED, []], [p.COMMIT, "group/x", [[group, LAST, LAST, LAST], [LAST, 0, 0, 0]]],
        [p.COMMITTED, []], [p.TAKE, [[group, "group/x", KEY, LAST, False]]], [p.TAKEN, []],
        [p.OFFSETS, "5", LAST, groups], [p.OFFSETS, None, LAST, [*groups, LAST]], [p.POSITIONS, []],
        [p.WHERE, group, LAST], [p.GREET, "other", "broker", 1, "d", 1, "a", "1"],
        [p.GREETED, "test", "broker", 1, "d", 1], [p.PACKET, [], []], [p.PACKET, [[1]], [[2]]],
        [p.BEAT, {"disk": "d", "groups": [[1]]}], [p.ORDERS, {}], [99, 1], [2**40],
    ]  # fmt: skip


MANY = (protocol.PRODUCED, protocol.TAKEN)  # results by their own numbers


def batches(random: Random) -> list[bytes]:
    """Payload frames: whole, damaged, and lying with a right checksum."""
    made = batch.make(([b"junk"] * 3, None, None, None), 7, producer=random.choice((0, 5, LAST)))
    damaged = bytearray(made)
    damaged[random.randrange(len(made))] ^= 1 << random.randrange(8)
    body = random.choice((b"", b"\x91" * 600, b"\xdd\xff\xff\xff\xff" * 50, bytes(1000)))
    size = random.choice((0, len(body), 2**32 - 1))
    codec = random.choice((0, 1, 9))
    head = struct.pack("<HBBIQIIQQI", 0x4D51, 1, codec, 9, 0, 0, size, 0, 0, len(body))
    liar = head + batch.crc32(body, batch.crc32(head)).to_bytes(4, "little") + body
    return [made, bytes(damaged), made[:-5], liar, b"", random.randbytes(100)]


def fuzzed(random: Random, groups: list[int]) -> list[bytes]:
    """One message: an envelope of some kind, in most cases with something wrong, and frames."""
    kind, *fields = random.choice(good(groups))
    if KEY in fields:  # else all got the first one's answer
        fields[fields.index(KEY)] = random.randbytes(16)
    version, request = 1, random.choice((7, 8, LAST))
    if fields and random.random() < 0.7:
        fields[random.randrange(len(fields))] = random.choice(ODD)
    if kind == protocol.UPDATE and fields[1] == "create_topic" and random.random() < 0.3:
        fields[2] = {"topic": random.choice(([[1]], b"x" * 50_000, -1, "x" * 50_000))}
    how = random.random()
    if how < 0.05:
        version = random.choice((0, 2, LAST, None, DEEP))
    elif how < 0.1:
        request = random.choice((None, -1, True, DEEP, BOMB, "7"))
    elif how < 0.15:
        kind = random.choice((None, -1, True, DEEP, LAST, "30"))
    elif how < 0.2:
        fields.append(1)
    frame = pack([version, kind, request, *fields])
    if random.random() < 0.15:
        raw = bytearray(frame)
        raw[random.randrange(len(raw))] = random.randrange(256)
        frame = bytes(raw[: random.randrange(len(raw) + 1)])
    count = random.choice((0, 1, 2, 3))
    if kind == protocol.PRODUCE and type(fields[0]) is list and random.random() < 0.8:
        count = len(fields[0])
    return [frame, *random.choices(batches(random), k=count)]


def packets(random: Random, group: int, node: int, target: int) -> list[Any]:
    """Fields of a PACKET, of a right form or nearly: elections, entries, claims to lead."""
    me, you, term = replica_id(node, 1), replica_id(target, 1), random.choice((1, 9, 2**62, LAST))
    head = (group, random.choice((me, me, you, 0, LAST)), random.choice((you, 0, LAST)), term)
    row = [term, random.choice((0, 5, -1)), 1, 1, random.choice((0, 2, 9)), 5, 4]
    messages: list[Any] = [
        (1, *head, LAST, LAST, False, True), (1, *head, 2**40, 2**40, True, False),
        (2, *head, True, False), (3, *head, 0, 0, 0, 2**40, 0, b""),
        (3, *head, 0, 0, 0, 9, 0, protocol.pack([row])), (3, *head, 5, 1, 1, 9, 0, BOMB[:3000]),
        (4, *head, True, random.choice((5, 2**40)), 0, 0, False), (4, *head, True, "5", 0, 0, 1),
        (5, *head, [2**40, 9, [me], [], 2**40, 9, 0, 0, 4]), (6, *head), (7, *head), [], 5, None,
    ]  # fmt: skip
    beats: list[Any] = [
        (1, 7, 1, 9, LAST, [[group, me, term, 2**40]]),
        (2, 5, True),
        (2, LAST, 1),
        (9, 9),
        (3, [[group, me, you, term]]),
        (3, [[group, "x", you, term]]),
        (1,),
        [],
        None,
    ]
    return [random.choices(messages, k=random.choice((0, 1, 3))), random.choices(beats, k=1)]


def for_another(group: int, node: int, target: int) -> list[list[Any]]:
    """Packets of a right form in which replicas of `node` claim something."""
    me, you = replica_id(node, 1), replica_id(target, 1)
    return [
        [[(6, group, me, you, 2**40)], []],
        [[], [(1, 7, 1, 9, 5, [[group, me, 2**40, 2**40]])]],
        [[], [(3, [[group, me, you, 2**40]])]],
    ]


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
READY = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


def raw_starts(random: Random) -> list[bytes]:
    """How a connection may begin that is none of ours."""
    return [
        b"",
        GREETING[:11],
        GREETING[:40],
        GREETING,
        GREETING + READY[:9],
        b"GET / HTTP/1.1\r\n",
        GREETING + b"\x04\xff" + bytes(255),
        GREETING + READY + b"\x02" + b"\xff" * 8,
        GREETING + READY + b"\x02" + (1 << 40).to_bytes(8, "big"),  # more than is allowed
        GREETING + READY + b"\x02" + (16 << 20).to_bytes(8, "big") + b"x",  # and never comes
        GREETING + READY + b"\x01\x01x" * 5000,  # a message without end
        GREETING + READY + b"\x00\x00",
        GREETING + READY + random.randbytes(500),
        b"\xff" * 64,
        random.randbytes(64),
        random.randbytes(5000),
        GREETING + random.randbytes(99),
        b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(47),
        b"\x01\x00" * 100,
    ]


class Stranger:
    """One DEALER at one door; collects what it is told."""

    def __init__(self, context: zmq.Context[Any], port: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, 5000)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.told: Counter[str] = Counter()
        self.sent = 0

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)
        self.sent += 1
        self.read(0)

    def read(self, wait_ms: int) -> list[list[Any]]:
        """What came by now; every answer is a good envelope."""
        out = []
        while self.socket.poll(wait_ms):
            out.append(protocol.decode(self.socket.recv_multipart()[0]))
            name = protocol.name_of(out[-1][1])
            assert name != "ERROR" or len(out[-1][4]) <= TEXT_MAX, "it shows all that it was sent"
            self.told[errors.error_of(out[-1][3]).name if name == "ERROR" else name] += 1
            wait_ms = 0
        return out

    def ask(self, kind: int, *fields: Any, request: int = 9, frames: Any = ()) -> list[Any]:
        """The answer; to others that are under way nobody listens."""
        self.socket.send_multipart((pack([1, kind, request, *fields]), *frames))
        end = time.monotonic() + 5
        while time.monotonic() < end:
            for answer in self.read(100):
                if answer[2] == request or answer[1] in MANY:
                    return answer
        raise AssertionError(f"no answer to a {protocol.name_of(kind)}")

    def refused(self, *what: Any, frames: Any = ()) -> str:
        """The error's name."""
        answer = self.ask(*what, frames=frames)
        assert answer[1] == protocol.ERROR, answer
        return errors.error_of(answer[3]).name

    def greet(self, node: int, disk: str = "made-up", kind: str = "broker") -> str:
        answer = self.ask(protocol.GREET, "test", kind, node, disk, 1, "127.0.0.1:9", "1")
        return protocol.name_of(answer[1]) if answer[1] != 3 else errors.error_of(answer[3]).name


def flood(ports: str, groups: str, seed: str, rate: str) -> None:
    """One stranger with many connections, at both doors in turns, until its input ends."""
    random, context = Random(int(seed)), zmq.Context()
    doors = [Stranger(context, int(port)) for port in ports.split(",")]
    for one in doors[1::2]:
        one.greet(9)
    print("ready", flush=True)
    os.set_blocking(0, False)
    due = time.monotonic()
    while sys.stdin.buffer.raw.read(1) is None:
        due = max(due + 1 / float(rate), time.monotonic() - 0.5)
        at = random.randrange(len(doors))
        numbers = [int(group) for group in groups.split(",")]
        if at % 2 and random.random() < 0.5:
            fields = packets(random, random.choice(numbers), 9, 1)
            doors[at].send(pack([1, protocol.PACKET, 7, *fields]), b"xxxx")
        else:
            doors[at].send(*fuzzed(random, numbers))
        time.sleep(max(0.0, due - time.monotonic()))
    print(sum(one.sent for one in doors), flush=True)


@pytest.mark.parametrize("seed", range(20))
def test_nearly_right_messages(seed: int) -> None:
    random, right = Random(seed), 0
    for _ in range(200):
        envelope, *frames = fuzzed(random, [5, 6, 7])
        with contextlib.suppress(InvalidRequest):
            assert protocol.decode(envelope)[1] in protocol.KINDS
            right += 1
        for frame in frames:
            with contextlib.suppress(BatchInvalid):
                batch.check(frame)
                batch.open_batch(frame)
    assert 10 < right < 190, "all good, or all bad: neither tries much"


@pytest.mark.parametrize("seed", range(20))
def test_nearly_right_packets(seed: int) -> None:
    random, right = Random(seed), 0
    for _ in range(200):
        frame = pack([1, protocol.PACKET, 7, *packets(random, 5, 9, 1)])
        envelope = protocol.decode(frame)
        peerwire.is_from_node(envelope, 9)
        with contextlib.suppress(peerwire.MalformedPacket):
            peerwire.decode(envelope, [b"xxxx"])
            right += 1
    assert 10 < right < 190


if __name__ == "__main__":
    flood(*sys.argv[1:])
