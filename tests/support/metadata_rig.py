"""Entries for the metadata machine, by hand and at random.

`Script` makes entries as the managers' log would; `random_script` makes a long plausible history,
with refusals, repeats and deletions in it. Run as a program it prints what a history comes to, so
that processes with different hash seeds can be compared.
"""

from __future__ import annotations

import hashlib
import sys
from random import Random
from typing import Any

from myqueue.daemons.metadata.machine import MetadataMachine, pack_command
from myqueue.daemons.metadata.operations import CLIENT_OPERATIONS
from myqueue.daemons.raft.types import COMMAND, CONFIG, NOOP, Entry
from myqueue.errors import MyQueueError

CLUSTER = "test"


class Script:
    """Makes entries with consecutive indexes and keys."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.time_ms = 1_000_000
        self.keys = 0

    def raw(self, kind: int, payload: bytes) -> Entry:
        self.index += 1
        self.time_ms += 10
        return (self.index, 1, 0, 0, self.time_ms, kind, 0, payload)

    def entry(self, operation: str, key: bytes | None = None, **arguments: Any) -> Entry:
        if key is None:
            self.keys += 1
            key = self.keys.to_bytes(16, "big") if operation in CLIENT_OPERATIONS else b""
        return self.raw(COMMAND, pack_command(key, operation, arguments))


class Rig:
    """One machine to which a test applies one operation after the other."""

    def __init__(self, brokers: int = 0, hosts: int | None = None) -> None:
        self.machine = MetadataMachine(CLUSTER)
        self.script = Script()
        for node in range(1, brokers + 1):
            self.run("register_broker", **broker(node, hosts or brokers))

    def outcome(self, operation: str, key: bytes | None = None, **arguments: Any) -> Any:
        return self.machine.apply([self.script.entry(operation, key, **arguments)])[0]

    def run(self, operation: str, key: bytes | None = None, **arguments: Any) -> dict[str, Any]:
        found = self.outcome(operation, key, **arguments)
        assert isinstance(found, dict), repr(found)
        return found

    def refused(self, operation: str, **arguments: Any) -> MyQueueError:
        """Run an operation that must be refused without changing state; return the refusal."""
        before = self.machine.snapshot()
        index = self.machine.applied_index
        found = self.outcome(operation, b"", **arguments)
        assert isinstance(found, MyQueueError), repr(found)
        self.machine.applied_index = index
        assert self.machine.snapshot() == before
        self.machine.applied_index = index + 1
        return found


def broker(node: int, hosts: int = 1000, disk: str = "") -> dict[str, Any]:
    return {
        "node": node,
        "disk": disk or f"disk-{node}",
        "address": f"127.0.0.1:{9291 + node}",
        "peer": f"127.0.0.1:{9391 + node}",
        "host": f"host-{node % hosts}",
    }


def comparable(outcome: Any) -> Any:
    """Return an outcome that can be compared; an error as type, code and text."""
    if isinstance(outcome, MyQueueError):
        return (type(outcome).__name__, outcome.code, str(outcome))
    return outcome


def random_script(random: Random, length: int) -> list[Entry]:
    """Make a random history. It knows no machine, so some entries are refused on purpose."""
    script = Script()
    names = ["orders", "events", "a.b-c_d", "logs", "bad name", ""]
    entries: list[Entry] = []
    keys: list[bytes] = []

    def add(operation: str, **arguments: Any) -> None:
        key = None
        if operation in CLIENT_OPERATIONS and keys and random.random() < 0.1:
            key = random.choice(keys)
        entry = script.entry(operation, key, **arguments)
        keys.append(script.keys.to_bytes(16, "big"))
        entries.append(entry)

    for _ in range(length):
        name, number = random.choice(names), random.randint(0, 12)
        choice = random.randint(0, 16)
        if choice == 0:
            disk = "" if random.random() < 0.8 else "other"
            add("register_broker", **broker(number or 1, random.randint(1, 4), disk))
        elif choice <= 2:
            arguments: dict[str, Any] = {"partitions": random.choice([1, 2, 5, 70, 0, 2000])}
            if random.random() < 0.5:
                arguments["replication"] = random.randint(0, 4)
            if random.random() < 0.5:
                arguments["settings"] = {"retention_ms": number, "partition_growth": 10 * number}
            add("create_topic", topic=name, avoid=[number, 3], **arguments)
        elif choice == 3:
            add("delete_topic", topic=name)
        elif choice == 4:
            setting = random.choice(["retention_bytes", "message_bytes_max", "colour"])
            add("alter_topic", topic=name, settings={setting: number})
        elif choice == 5:
            add("grow_topic", topic=name, **({"count": number} if number % 2 else {"to": number}))
        elif choice == 6:
            add("register_producer", topic=name, create=random.random() < 0.5)
        elif choice == 7:
            add("register_consumer", topic=name)
        elif choice == 8:
            add("open_producer", producer_id=number, name=random.choice(["", "", "p1", "p2"]))
        elif choice == 9:
            pairs = [[random.randint(1, 20), script.time_ms] for _ in range(number)]
            add("seen", producers=pairs, consumers=pairs[:3])
        elif choice == 10:
            add("register_manager", **broker(number or 1))
        elif choice == 11:
            add("alter_cluster", settings={"producers_max": number})
        elif choice <= 15:
            operation, arguments = _of_groups(random, choice, name, number, script.index)
            add(operation, **arguments)
        elif choice == 16:
            entries.append(script.raw(random.choice([NOOP, CONFIG]), b""))
        else:
            entries.append(script.raw(COMMAND, random.choice([b"\x00", b"\xc1", b"\x93\xa0\xa0"])))
    return entries


def _of_groups(
    random: Random, choice: int, topic: str, number: int, index: int
) -> tuple[str, dict[str, Any]]:
    """Make a random operation on a consumer group."""
    group, member = random.choice(["g1", "g2"]), random.randint(0, index)
    if choice == 12:
        return "join_group", {"group": group, "topics": [topic, "orders"]}
    if choice == 13:
        shares = [[random.randint(0, 5), index] for _ in range(number)]
        ways: list[tuple[str, dict[str, Any]]] = [
            ("leave_group", {"group": group, "member": member}),
            ("expire_members", {"group": group, "members": [member, number]}),
            ("release_shares", {"group": group, "member": member, "shares": shares}),
        ]
        return random.choice(ways)
    if choice == 14:
        return "balance_groups", {"groups": ["g1", "g2", "g3"][: number % 4]}
    if random.random() < 0.5:
        return "begin_reset", {"group": group, "force": True}
    return "end_reset", {"group": group, "epoch": index}


def history_digest(seed: int, length: int) -> str:
    """Return a digest of all results, all saved rows and the last state."""
    machine = MetadataMachine(CLUSTER)
    digest = hashlib.sha256()
    for entry in random_script(Random(seed), length):
        digest.update(repr([comparable(one) for one in machine.apply([entry])]).encode())
        digest.update(repr(machine.take_changes()).encode())
    digest.update(machine.snapshot())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.stdout.write(history_digest(int(sys.argv[1]), int(sys.argv[2])))
