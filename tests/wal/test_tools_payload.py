"""`myq wal dump --payload`: what is in a log, in words; and whatever else may stand there.

The payloads are made by the code that makes them in a cluster, and written by the real journal.
"""

from __future__ import annotations

import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.batches import forged
from support.metadata_rig import Script
from support.partition_commands import commit_command, forget_command, take_command
from support.queue_logs import WALL_MS, Broker, Topic, make_entry

from myqueue import cli
from myqueue.cli.wal.lines import as_line
from myqueue.cli.wal.payload import decoded
from myqueue.daemons.partition import machine
from myqueue.daemons.raft import types as t
from myqueue.daemons.raft.membership import encode_config
from myqueue.daemons.replication.open_group import pack_group_description
from myqueue.wal import format as f
from myqueue.wire import batch, protocol

KEY = bytes(range(16))
GROUP = 0x64
ODD = b"\x00\xff"
KEYED = batch.make(
    [[ODD], None, None, None], WALL_MS, epoch=batch.KEYED_EPOCH, producer=1 << 63 | 5, sequence=6
)


@pytest.fixture
def dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Writes a partition with these payloads, as (type, payload, messages), and dumps it."""
    folder = tmp_path / "broker-1"

    def run(payloads: list[tuple[int, bytes, int]], *words: str) -> str:
        if not folder.exists():
            topic = Topic("orders", GROUP, 3, uid=0xABC)
            for kind, payload, count in payloads:
                topic.entries.append(make_entry(topic.entries, kind, payload, count))
            broker = Broker(folder, 1)
            broker.create(topic, (1, 2))
            broker.append(topic, topic.entries)
            broker.close()
        assert cli.main(["wal", "dump", str(folder), "--payload", *words]) == 0
        return capsys.readouterr().out

    return run


def of_json(out: str) -> list[Any]:
    return [json.loads(line)["payload"] for line in out.splitlines()]


def lines(out: str) -> list[str]:
    return [line.strip() for line in out.splitlines() if line.startswith("        ")]


def entry(kind: int, length: int, offset: int = 0) -> f.Record:
    flags = kind << f.ENTRY_TYPE_SHIFT
    return f.Record(0, 0, f.ENTRY, flags, length, 0, 0, GROUP, 1, 1, offset, 0, 0)


def shown(kind: int, payload: bytes, most: int = 256) -> dict[str, Any]:
    """Decoded; it can be printed both ways, within the limit about."""
    value = decoded(entry(kind, len(payload)), payload, most)
    json.dumps(value, allow_nan=False)
    assert as_line(value).replace("\n", "").isprintable()
    return value


# -- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [batch.PLAIN, batch.ZLIB])
def test_messages(dump, codec: int) -> None:
    columns = [["hällo".encode(), ODD, b""], [b"k", None, ODD], [{"h": b"1"}, None, {}], [0, 5, 2]]
    data = batch.make(columns, WALL_MS, producer=7, epoch=2, sequence=40, codec=codec)
    payloads = [(t.NOOP, b"", 0), (t.DATA, KEYED, 1), (t.DATA, data, 3)]
    keyed, found = of_json(dump(payloads, "--json", "--kind", "ENTRY"))[1:]
    size = len(msgpack.packb(columns))
    assert found == {
        "batch": {
            "producer": 7,
            "epoch": 2,
            "sequence": 40,
            "key": None,
            "count": 3,
            "time_ms": WALL_MS,
            "codec": ["none", "zlib"][codec],
            "stored_bytes": len(data) - batch.HEADER_BYTES,
            "body_bytes": size,
            "problem": None,
            "messages": [
                {
                    "offset": 1,
                    "time_ms": WALL_MS,
                    "key": {"text": "k"},
                    "value": {"text": "hällo"},
                    "headers": {"h": {"text": "1"}},
                },
                {
                    "offset": 2,
                    "time_ms": WALL_MS + 5,
                    "key": None,
                    "value": {"hex": "00ff"},
                    "headers": None,
                },
                {
                    "offset": 3,
                    "time_ms": WALL_MS + 2,
                    "key": {"hex": "00ff"},
                    "value": {"text": ""},
                    "headers": {},
                },
            ],
        },
        "cut": False,
    }
    about = keyed["batch"]
    assert about["key"] == "80000000000000050000000000000006"
    assert (about["producer"], about["epoch"], about["sequence"]) == (None, None, None)
    stored = f", zlib {len(data) - 48} of {size} bytes" if codec else ""
    assert lines(dump([], "--kind", "ENTRY")) == [
        "batch: key 80000000000000050000000000000006, 1 message: 0x00ff",
        f"batch: producer 7, epoch 2, sequence 40{stored}, 3 messages: "
        '"k" = "hällo" {"h": "1"}, 0x00ff, 0x00ff = ""',
    ]


def test_no_more_is_shown_than_was_asked_for(dump) -> None:
    data = batch.make([[b"hello world", b"more"], None, None, None], WALL_MS)
    words = ("--json", "--kind", "ENTRY", "--payload-bytes")
    (found,) = of_json(dump([(t.DATA, data, 2)], *words, "5"))
    assert [one["value"] for one in found["batch"]["messages"]] == [{"text": "hello"}]
    assert (found["batch"]["count"], found["cut"]) == (2, True)
    (found,) = of_json(dump([], *words, "15"))
    assert [one["value"]["text"] for one in found["batch"]["messages"]] == ["hello world", "more"]
    assert found["cut"] is False
    (line,) = lines(dump([], "--kind", "ENTRY", "--payload-bytes", "13"))
    assert line.endswith(f'2 messages: "hello world", "mo" … {len(data)} bytes in all')
    nothing = batch.make([[b""] * 5000, None, None, None], WALL_MS)
    assert len(shown(t.DATA, nothing)["batch"]["messages"]) == 256


def test_what_is_not_text_is_escaped(dump) -> None:
    """A terminal does what such texts say; names of headers are the producer's."""
    data = batch.make([["\x9b31m".encode()], None, [{"\x9b\u202e": b"1"}], None], WALL_MS)
    (line,) = lines(dump([(t.DATA, data, 1)], "--kind", "ENTRY"))
    assert line.endswith('1 message: 0xc29b33316d {"\\u009b\\u202e": "1"}')


def peak(payload: bytes, kind: int = t.DATA) -> tuple[int, dict[str, Any]]:
    """Bytes that showing it takes at most, beyond those that came."""
    tracemalloc.start()
    try:
        value = shown(kind, payload)
        return tracemalloc.get_traced_memory()[1], value
    finally:
        tracemalloc.stop()


def remade(data: bytes, body_bytes: int) -> bytes:
    """The same with another length of the body before compression, and a right checksum."""
    head = data[:20] + body_bytes.to_bytes(4, "little") + data[24:44]
    body = data[48:]
    return head + zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "little") + body


def test_a_bomb_is_told_by_its_header() -> None:
    size = 40 << 20
    bomb = batch.make([[bytes(size)], None, None, None], WALL_MS, producer=9, codec=batch.ZLIB)
    for data, problem in ((bomb, "too many to open"), (remade(bomb, 1000), "as its header says")):
        used, found = peak(data)
        assert used < 2 << 20
        assert (found["batch"]["producer"], found["batch"]["messages"]) == (9, None)
        assert problem in found["batch"]["problem"]
        assert found["hex"] == data[:256].hex()
        assert f"not opened ({found['batch']['problem']}): 514d0101" in as_line(found)


def test_a_batch_that_its_producer_did_not_make() -> None:
    good = batch.make([[b"a"], None, None, None], WALL_MS, producer=3)
    found = shown(t.DATA, good[:-1] + b"?")
    assert "checksum" in found["batch"]["problem"]
    assert found["hex"] == (good[:-1] + b"?").hex()
    assert shown(t.DATA, good[:-1]) == {"hex": good[:-1].hex(), "cut": False}  # not one at all
    assert shown(t.COMMAND, good) == {"hex": good.hex(), "cut": False}


# -- commands -------------------------------------------------------------------------------------


def test_commands_of_a_partition(dump) -> None:
    commands = [
        commit_command([["c1", 12, 3, 4], ["c2", protocol.NO_OFFSET, 5, 6]]),
        take_command([["c1", KEY, 10, True], ["c2", KEY, 1]]),
        machine.start_command(100, 20, 4096),
        forget_command([["c1", 3, 4]]),
        machine.key_step_command(),
    ]
    payloads = [(t.COMMAND, one, 0) for one in commands]
    found = of_json(dump(payloads, "--json", "--kind", "ENTRY"))
    assert [one["cut"] for one in found] == [False] * 5
    assert [one["command"] for one in found] == [
        {
            "operation": "COMMIT",
            "count": 2,
            "rows": [
                {"consumer": "c1", "offset": 12, "member_epoch": 3, "assignment_epoch": 4},
                {"consumer": "c2", "offset": None, "member_epoch": 5, "assignment_epoch": 6},
            ],
        },
        {
            "operation": "TAKE",
            "count": 2,
            "rows": [
                {"consumer": "c1", "key": KEY.hex(), "most": 10, "nothing_too": True},
                {"consumer": "c2", "key": KEY.hex(), "most": 1, "nothing_too": False},
            ],
        },
        {"operation": "START", "offset": 100, "index": 20, "bytes_gone": 4096},
        {
            "operation": "FORGET",
            "count": 1,
            "rows": [{"consumer": "c1", "member_epoch": 3, "assignment_epoch": 4}],
        },
        {"operation": "KEY_STEP"},
    ]
    assert lines(dump([], "--kind", "ENTRY")) == [
        'COMMIT: consumer="c1" offset=12 member_epoch=3 assignment_epoch=4; '
        'consumer="c2" offset=null member_epoch=5 assignment_epoch=6',
        f'TAKE: consumer="c1" key="{KEY.hex()}" most=10 nothing_too=true; '
        f'consumer="c2" key="{KEY.hex()}" most=1 nothing_too=false',
        "START: offset=100 index=20 bytes_gone=4096",
        'FORGET: consumer="c1" member_epoch=3 assignment_epoch=4',
        "KEY_STEP",
    ]


def test_rows_are_shown_whole_or_not() -> None:
    command = commit_command([[f"consumer-{one}", one, 1, 1] for one in range(100)])
    found = shown(t.COMMAND, command, most=20)
    assert found["cut"] is True and found["command"]["count"] == 100
    assert [row["consumer"] for row in found["command"]["rows"]] == ["consumer-0", "consumer-1"]


def test_commands_of_the_managers(dump) -> None:
    script = Script()
    settings = {"retention_ms": 5}
    made = [
        script.entry("create_topic", KEY, name="orders", partitions=3, settings=settings),
        script.entry("seen", producers=[[1, 2]], consumers=[]),
    ]
    payloads = [(t.COMMAND, one[t.PAYLOAD], 0) for one in made]
    found = of_json(dump(payloads, "--json", "--kind", "ENTRY"))
    arguments = {"name": "orders", "partitions": 3, "settings": settings}
    assert found[0]["command"] == {
        "operation": "create_topic",
        "key": KEY.hex(),
        "arguments": arguments,
    }
    assert found[1]["command"]["key"] is None
    assert lines(dump([], "--kind", "ENTRY")) == [
        'create_topic: name="orders" partitions=3 settings={"retention_ms": 5} '
        f"(key {KEY.hex()})",
        "seen: producers=[[1, 2]] consumers=[]",
    ]
    # Arguments that no operation takes stand in the log, refused: these were asked for.
    odd = script.entry("create_topic", KEY, name="\x9b", size=float("nan"), raw=ODD)
    command = shown(t.COMMAND, odd[t.PAYLOAD])["command"]
    assert command["arguments"] == {"name": "\x9b", "size": "nan", "raw": "00ff"}
    long = script.entry("create_topic", KEY, name="n" * 1000, settings={})
    found = shown(t.COMMAND, long[t.PAYLOAD], most=40)
    assert found["cut"] is True and 0 < len(found["command"]["arguments"]["name"]) < 40


def test_groups(dump) -> None:
    (found,) = of_json(dump([(t.NOOP, b"", 0)], "--json", "--kind", "GROUP_CREATED"))
    replicas = [t.replica_id(1, 1), t.replica_id(2, 1)]
    assert found["group"] == {
        "replica": replicas[0],
        "voters": replicas,
        "learners": [],
        "topic": "orders",
        "partition": 3,
        "topic_uid": "0000000000000abc",
        "settings": {},
    }
    (line,) = lines(dump([], "--kind", "GROUP_CREATED"))
    assert line.endswith('topic="orders" partition=3 topic_uid="0000000000000abc" settings={}')
    payload = pack_group_description(5, t.Config((5, 6), (7,)), b"managers")
    record = entry(0, len(payload))._replace(kind=f.GROUP_CREATED)
    found = decoded(record, payload, 256)["group"]
    assert (found["voters"], found["learners"], found["topic"]) == ([5, 6], [7], None)


# -- whatever else --------------------------------------------------------------------------------


def test_what_nobody_knows_stays_as_it_is() -> None:
    newer = protocol.pack([9, [["c1", 1]]])
    deep = protocol.pack([b"", "seen", {"a": [[[[[[[[[[1]]]]]]]]]]}])
    many = protocol.pack([protocol.pack(["c", 1]), {}])
    keys = msgpack.packb([b"", "seen", {1: 2}])
    for payload in (newer, deep, many, keys, msgpack.packb([True, []]), b"\x90", b"\x92\x01"):
        assert shown(t.COMMAND, payload) == {"hex": payload.hex(), "cut": False}
    command = machine.start_command(1, 2, 3)
    assert shown(t.DATA, command)["hex"] == shown(t.CONFIG, command)["hex"] == command.hex()
    config = encode_config(t.Config((1, 2), (3,)))
    assert shown(t.CONFIG, config) == {"text": "[[1, 2], [3]]", "cut": False}
    assert shown(t.DATA, b"hello", most=3) == {"text": "hel", "cut": True}


def test_lengths_that_are_only_announced_cost_nothing() -> None:
    """A list in a list …, each of nearly as many items as there are bytes."""
    for payload in (b"\xdd\x00\x00\x10\x00" * 900, b"\x92\x01" + b"\xdc\x08\x00" * 900):
        used, found = peak(payload, t.COMMAND)
        assert used < 1 << 20
        assert found["hex"] == payload[:256].hex()


SIZE = (4 << 20) - 16
MADE_OF = {
    "lists": b"\xdd" + SIZE.to_bytes(4, "big") + b"\x90" * SIZE,
    "maps": b"\x92\x01\xdd" + SIZE.to_bytes(4, "big") + b"\x80" * SIZE,
    "maps in maps": b"\xdd\x00\x00\x4e\x20" + (b"\x81\xa0" * 100 + b"\x80") * 20_000,
}


@pytest.mark.parametrize("name", MADE_OF)
@pytest.mark.parametrize("kind", [t.COMMAND, t.DATA, t.CONFIG])
def test_a_command_of_nothing_but_lists_or_maps_is_shown_in_hex(name: str, kind: int) -> None:
    used, found = peak(MADE_OF[name], kind)
    assert found == {"hex": MADE_OF[name][:256].hex(), "cut": True}
    assert used < 96 << 20, "all of it would be 300"


@pytest.mark.parametrize("item", [b"\x90", b"\x81\xa0\x80"])
def test_a_batch_of_nothing_but_lists_or_maps_says_why_it_is_not_opened(item: bytes) -> None:
    count = 1 << 16
    column = b"\xdd" + count.to_bytes(4, "big") + item * count
    row = b"\xdd\x00\x00\x00\x40" + item * 64
    body = b"\x94" + b"\xdd" + count.to_bytes(4, "big") + row * count + b"\xc0" * 3
    for made in (body, b"\x94" + column + b"\xc0" * 3):
        packed = zlib.compress(made, 9)
        used, found = peak(forged(packed, count, size=len(made), codec=batch.ZLIB))
        assert "within its" in found["batch"]["problem"] and found["batch"]["messages"] is None
        assert used < 64 << 20, "all of it would be 250"


REAL = [
    KEYED,
    batch.make([[b"abc"] * 3, [b"k"] * 3, None, None], WALL_MS, codec=batch.ZLIB),
    commit_command([["c1", 12, 3, 4]]),
    take_command([["c1", KEY, 10, True]]),
    machine.start_command(1, 2, 3),
    machine.key_step_command(),
    Script().entry("seen", producers=[[1, 2]])[t.PAYLOAD],
    pack_group_description(5, t.Config((5, 6), (7,)), protocol.pack(["orders", 0, 9, {}])),
]


@pytest.mark.parametrize("payload", REAL, ids=range(len(REAL)))
def test_every_byte_may_be_another(payload: bytes) -> None:
    for at in range(len(payload)):
        for byte in (0, 1, 0x7F, 0x80, 0xC1, 0xD4, 0xDD, 0xFF, payload[at] ^ 1):
            whatever(payload[:at] + bytes([byte]) + payload[at + 1 :])
        whatever(payload[:at])


@given(st.binary(max_size=300) | st.builds(bytes.__add__, st.sampled_from(REAL), st.binary()))
@example(b"\x93\xc4\x00\xa1a\xc7\x00\xff")  # an extension without bytes, of the type of times
@settings(max_examples=300, deadline=None)
def test_garbage(payload: bytes) -> None:
    whatever(payload)


def whatever(payload: bytes) -> None:
    for kind in f.KIND_NAMES:
        for entry_type in (t.DATA, t.COMMAND, t.CONFIG) if kind == f.ENTRY else (0,):
            record = entry(entry_type, len(payload))._replace(kind=kind)
            value = decoded(record, payload, 64)
            json.dumps(value, allow_nan=False)
            as_line(value)
            assert type(value["cut"]) is bool
