"""The state machine of the simulated groups: a ledger of commands, each applied at most once.

A command is (client, sequence number). A repeat is recognised and not applied again (R32), as the
brokers do with producers' batches. The state is small and tells everything: the last sequence
number of each client, how many commands were applied, and a running hash of them in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from zlib import crc32

from myqueue.daemons.raft.types import DATA, INDEX, PAYLOAD, TYPE, Entry

Command = tuple[int, int, bool]  # client, sequence number, whether it was new


def encode_command(client: int, sequence: int, padding: int) -> bytes:
    return b"%d %d " % (client, sequence) + b"." * padding


class Ledger:
    """Applied state of one replica of one group."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}  # client -> sequence number of its last command
        self.count = 0
        self.hash = 0

    def apply(self, entry: Entry) -> Command | None:
        """(client, sequence number, whether it was new) of a command; None for other entries."""
        if entry[TYPE] != DATA:
            return None
        client, sequence = map(int, bytes(entry[PAYLOAD]).split(b" ")[:2])
        new = sequence == self.last.get(client, 0) + 1
        if new:
            self.last[client] = sequence
            self.count += 1
            self.hash = crc32(b"%d %d" % (client, sequence), self.hash)
        return client, sequence, new

    def save(self) -> bytes:
        return json.dumps([self.count, self.hash, sorted(self.last.items())]).encode()

    @classmethod
    def load(cls, raw: bytes) -> Ledger:
        ledger = cls()
        ledger.count, ledger.hash, rows = json.loads(raw)
        ledger.last = dict(map(tuple, rows))
        return ledger


class LedgerMachine:
    """A ledger as the daemons' state machines are (`daemons/state_machine.py`)."""

    bytes_gone = 0

    def __init__(
        self, told: Callable[[Entry, Command | None], None], start_of: Callable[[int], int]
    ) -> None:
        self.applied_index = 0
        self.ledger = Ledger()
        self._told, self._start_of = told, start_of

    @property
    def start_index(self) -> int:
        return self._start_of(self.applied_index)

    def apply(self, entries: list[Entry]) -> list[None]:
        for entry in entries:
            command = self.ledger.apply(entry)
            self.applied_index = entry[INDEX]
            self._told(entry, command)
        return [None] * len(entries)

    def take_changes(self) -> tuple[dict[bytes, bytes], list[bytes]]:
        return {b"ledger": self.ledger.save()}, []

    def load(self, applied_index: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        saved = dict(rows).get(b"ledger")
        self.applied_index = applied_index
        self.ledger = Ledger() if saved is None else Ledger.load(saved)

    def snapshot(self) -> bytes:
        return b"%d " % self.applied_index + self.ledger.save()

    def restore(self, snapshot: bytes) -> None:
        applied, state = bytes(snapshot).split(b" ", 1)
        self.applied_index, self.ledger = int(applied), Ledger.load(state)
