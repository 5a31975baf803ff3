"""The state machine of the simulated groups: a ledger of commands, each applied at most once.

A command is (client, sequence number). A repeat is recognised and not applied again (R32), as the
brokers do with producers' batches. The state is small and tells everything: the last sequence
number of each client, how many commands were applied, and a running hash of them in order.
"""

from __future__ import annotations

import json
from zlib import crc32

from myqueue.daemons.raft.types import DATA, PAYLOAD, TYPE, Entry
from myqueue.wal.reader import Entry as Stored


def encode_command(client: int, sequence: int, padding: int) -> bytes:
    return b"%d %d " % (client, sequence) + b"." * padding


class Ledger:
    """Applied state of one replica of one group."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}  # client -> sequence number of its last command
        self.count = 0
        self.hash = 0

    def apply(self, entry: Entry) -> tuple[int, int, bool] | None:
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


def entry_of(stored: Stored) -> Entry:
    record = stored.record
    return (
        record.index, record.term, record.offset, record.count, record.time_ms, record.entry_type,
        record.chain, stored.payload,
    )  # fmt: skip
