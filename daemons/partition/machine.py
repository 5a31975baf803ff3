"""The state machine of a partition: the meaning of its entries. The log holds the messages.

A DATA entry is one batch: it takes the offsets that the log gave it, and its header names the
producer that sent it. A COMMAND entry is `pack([operation, …])` and takes no offsets. Requests of
one turn share one entry:

| operation | fields | result |
|---|---|---|
| COMMIT | rows of [consumer, offset, member epoch, assignment epoch] | [(code, position)…] |
| TAKE | rows of [consumer, key, messages max, also remember nothing?] | [(code, first, next)…] |
| START | offset, index of its entry, bytes removed before it | (code, start) |
| FORGET | rows of [consumer, member epoch, assignment epoch] | [(code, no position)…] |
| KEY_STEP | – (`keyed_batches.py`) | None |

The state is small: the ends of the log, producers' sequences, keys of batches and the steps by
which they age, consumers' positions, older takes. Each of these is one row of the store; only
changed rows are saved.

Invariant: `start <= end`; `end` is the offset after the last applied message. Offsets are dense:
each DATA entry begins at `end`, and a gap stops the replica before it harms the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from myqueue import errors
from myqueue.daemons.partition.keyed_batches import KeyedBatches, batch_key, key_row_name
from myqueue.daemons.partition.positions import OK, ConsumerPositions
from myqueue.daemons.partition.producers import IDENTITY, Sessions
from myqueue.daemons.raft.types import COMMAND, DATA, Entry, require
from myqueue.daemons.state_machine import RowChanges
from myqueue.wire import protocol
from myqueue.wire.batch import KEYED_EPOCH

COMMIT, TAKE, START, FORGET, KEY_STEP = 1, 2, 3, 4, 5

_STATE_VERSION: Final = 1  # of rows and snapshots
# First bytes of rows' keys; an id follows.
_META, _PRODUCER, _CONSUMER, _KEY, _TAKE, _STEPS = b"m", b"p", b"c", b"k", b"t", b"s"


def start_command(offset: int, index: int, bytes_gone: int) -> bytes:
    """Pack a START: retention removes messages before `offset`, which begins the entry at
    `index`.
    """
    return protocol.pack([START, offset, index, bytes_gone])


def key_step_command() -> bytes:
    """Pack a KEY_STEP: keys of batches grow older by one step."""
    return protocol.pack([KEY_STEP])


class PartitionMachine:
    """The state machine of one partition; implements `state_machine.Machine`."""

    __slots__ = (
        "_touched",
        "applied_index",
        "bytes_gone",
        "bytes_total",
        "end",
        "keys",
        "positions",
        "sessions",
        "start",
        "start_index",
        "time_ms",
    )

    def __init__(self) -> None:
        self.sessions, self.keys, self.positions = Sessions(), KeyedBatches(), ConsumerPositions()
        self.applied_index = 0
        self._set_meta(0, 0, 1, 0, 0, 0)
        self._touched = False  # something was applied since the last `take_changes`

    def _set_meta(self, *meta: int) -> None:
        (
            self.end,  # the offset after the last message
            self.start,  # the first offset that is kept
            self.start_index,  # the entry of that message
            self.bytes_total,  # of all batches ever appended
            self.bytes_gone,  # of those that retention removed
            self.time_ms,  # the last entry's stamp
        ) = meta

    def _meta(self) -> list[int]:
        return [
            self.end,
            self.start,
            self.start_index,
            self.bytes_total,
            self.bytes_gone,
            self.time_ms,
        ]

    @property
    def bytes_kept(self) -> int:
        """Bytes of the batches from `start` on."""
        return self.bytes_total - self.bytes_gone

    # -- applying ------------------------------------------------------------------------------

    def apply(self, entries: list[Entry]) -> list[Any]:
        """Apply entries in order. Results: None for a batch, a command's as in the table above."""
        results: list[Any] = [None] * len(entries)
        end, stamp, total = self.end, self.time_ms, self.bytes_total
        identity, record = IDENTITY.unpack_from, self.sessions.record
        place = -1
        for index, _, offset, count, time_ms, kind, _, payload in entries:
            place += 1
            if kind == DATA:
                require(offset == end, f"entry {index} begins at {offset}, not at {end}")
                end += count
                total += len(payload)
                if time_ms > stamp:
                    stamp = time_ms
                producer, epoch, sequence = identity(payload)
                if epoch == KEYED_EPOCH:
                    self.keys.record(batch_key(producer, sequence), count, offset, stamp)
                elif producer:
                    record(producer, epoch, sequence, count, offset, index)
            elif kind == COMMAND:
                results[place] = self._command(end, protocol.unpack(payload))
        self.end, self.time_ms, self.bytes_total = end, stamp, total
        if entries:
            self.applied_index = entries[-1][0]
            self._touched = True
        return results

    def _command(self, end: int, command: list[Any]) -> Any:
        operation, *fields = command
        if operation == COMMIT:
            commit = self.positions.commit
            return [commit(consumer, offset, m, a, end) for consumer, offset, m, a in fields[0]]
        if operation == TAKE:
            take = self.positions.take
            return [
                take(consumer, key, most, self.start, end, *more)
                for consumer, key, most, *more in fields[0]
            ]
        if operation == START:
            return self._move_start(end, *fields)
        if operation == FORGET:
            return [self.positions.forget(consumer, m, a) for consumer, m, a in fields[0]]
        if operation == KEY_STEP:
            return self.keys.step(end)
        # Ignoring it would let this replica differ from newer ones in silence.
        raise errors.Unsupported(f"operation {operation} of a newer version stands in the log")

    def _move_start(self, end: int, offset: int, index: int, bytes_gone: int) -> tuple[int, int]:
        """Move the start forward; a repeated command changes nothing."""
        if offset > end:
            return errors.OffsetOutOfRange.code, self.start
        if offset > self.start:
            self.start, self.start_index = offset, index
            self.bytes_gone += bytes_gone
        return OK, self.start

    # -- saving --------------------------------------------------------------------------------

    def take_changes(self) -> RowChanges:
        sessions, forgotten = self.sessions.take_changes()
        positions, removed = self.positions.take_changes()
        puts = {_producer_key(one): row for one, row in sessions.items()}
        puts.update((_consumer_key(one), row) for one, row in positions.items())
        keys, outdated = self.keys.take_changes()
        puts.update((_KEY + key_row_name(one), row) for one, row in keys.items())
        steps = self.keys.take_steps()
        if steps:
            puts[_STEPS] = protocol.pack(steps)
        takes, forgotten_takes = self.positions.older.take_changes()
        puts.update((_TAKE + one, row) for one, row in takes.items())
        if self._touched:
            puts[_META] = protocol.pack([_STATE_VERSION, *self._meta()])
            self._touched = False
        gone = [_producer_key(one) for one in forgotten]
        gone += [_consumer_key(one) for one in removed]
        gone += [_KEY + key_row_name(one) for one in outdated]
        gone += [_TAKE + one for one in forgotten_takes]
        if steps == []:
            gone.append(_STEPS)
        return puts, gone

    def load(self, applied_index: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        meta: list[int] = [0, 0, 1, 0, 0, 0]
        sessions: list[list[Any]] = []
        positions: list[list[Any]] = []
        keys: list[list[Any]] = []
        takes: list[list[Any]] = []
        steps: list[int] = []
        for key, value in rows:
            kind, name = bytes(key[:1]), bytes(key[1:])
            if kind == _PRODUCER:
                sessions.append([int.from_bytes(name, "big"), *protocol.unpack(value)])
            elif kind == _CONSUMER:
                positions.append([name.decode(), *protocol.unpack(value)])
            elif kind == _KEY:
                keys.append([name, *protocol.unpack(value)])
            elif kind == _TAKE:
                takes.append([name, *protocol.unpack(value)])
            elif kind == _STEPS:
                steps = protocol.unpack(value)
            elif kind == _META:
                form, *meta = protocol.unpack(value)
                _check_state_version(form)
        self._become(applied_index, meta, sessions, positions, keys, takes, steps, changed=False)

    def snapshot(self) -> bytes:
        return protocol.pack(
            [
                _STATE_VERSION,
                self.applied_index,
                self._meta(),
                list(self.sessions.packed()),
                self.positions.packed(),
                self.keys.packed(),
                self.positions.older.packed(),
                *([self.keys.steps] if self.keys.steps else []),
            ]
        )

    def restore(self, snapshot: bytes) -> None:
        form, *rest = protocol.unpack(snapshot)
        _check_state_version(form)
        self._become(*rest, changed=True)

    def _become(
        self,
        applied_index: int,
        meta: list[int],
        sessions: list[list[Any]],
        positions: list[list[Any]],
        keys: Iterable[list[Any]] = (),
        takes: Iterable[list[Any]] = (),
        steps: Iterable[int] = (),
        *,
        changed: bool,
    ) -> None:
        self.applied_index = applied_index
        self._set_meta(*meta)
        self.sessions.become(sessions, changed=changed)
        self.positions.become(positions, changed=changed)
        self.positions.older.become(takes, changed=changed)
        self.keys.become(keys, steps, changed=changed)
        self._touched = changed


def _check_state_version(form: int) -> None:
    if form != _STATE_VERSION:
        raise errors.FormatUnknown(
            f"a partition's state of form {form}; this version knows {_STATE_VERSION}"
        )


def _producer_key(producer: int) -> bytes:
    return _PRODUCER + producer.to_bytes(8, "big")


def _consumer_key(consumer: str) -> bytes:
    return _CONSUMER + consumer.encode()
