"""The managers' state machine: what the cluster consists of, decided by the managers' log.

A command is an entry with the packed `[key, operation, arguments]`. `apply` runs it on the tables:
the entry's time is the time, its index is the version; results and refusals alike are handed back,
and kept under the request's key, so that a repeat gets what the first one got. Not kept are
refusals that did nothing and may succeed later. An empty key marks what managers do by themselves;
these operations may be repeated without harm and are not kept either.

    entry ─▶ unpack ─▶ known key? ─▶ operations.run ─▶ tables (rows that changed) ─▶ result

Deterministic (R27): the same entries give the same rows, byte by byte, on every replica, whenever
it saved, loaded, or took the state from another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from myqueue.daemons.metadata.operations import run_operation
from myqueue.daemons.metadata.records import ResultRow
from myqueue.daemons.metadata.tables import Tables
from myqueue.daemons.metadata.topics import OperationContext
from myqueue.daemons.raft.types import COMMAND, INDEX, PAYLOAD, TIME, TYPE, Entry, require
from myqueue.daemons.state_machine import Changes
from myqueue.errors import NONE, InvalidRequest, MyQueueError, error_of
from myqueue.wire import protocol

SNAPSHOT_VERSION: Final = 1
LOG_ENTRIES_MAX: Final = 20_000
LEADER_ARGUMENTS: Final = frozenset(("avoid", "stranded"))  # which the leader adds
LOG_BYTES_MAX: Final = 64 << 20
KEPT_ENTRIES_MIN: Final = 100  # kept if their bytes were too many
Outcome = dict[str, Any] | MyQueueError


class AuditRecord(NamedTuple):
    """What an entry did. A refusal did nothing, and neither did a repeat."""

    operation: str
    arguments: dict[str, Any]
    result: dict[str, Any]


def pack_command(key: bytes, operation: str, arguments: dict[str, Any]) -> bytes:
    """The payload of an entry."""
    return protocol.pack([key, operation, arguments])


def requested_operation(payload: bytes) -> tuple[str, dict[str, Any]]:
    """What a client asked for with this command, without what the leader added."""
    _, operation, arguments = protocol.unpack(payload)
    return operation, {k: v for k, v in arguments.items() if k not in LEADER_ARGUMENTS}


class MetadataMachine:
    """A `Machine`; see the module's docstring. `tables` is another object after a restore.

    The state is all there is, so any applied entry may leave the log. Some thousand stay for
    managers that were away for a moment; who was away for longer gets the state.
    """

    def __init__(self, cluster: str, log_entries_max: int = LOG_ENTRIES_MAX) -> None:
        self.applied_index = self.bytes_gone = 0
        self.cluster = cluster
        self.tables = Tables()
        self.done: list[AuditRecord] = []  # until somebody takes it
        self._step = max(1, log_entries_max // 2)
        self._bytes = self._heavy_until_index = (
            0  # entries applied by this process; the last too many
        )

    @property
    def start_index(self) -> int:
        """In steps, as each one costs a snapshot: between one and two of them are kept."""
        whole = (self.applied_index // self._step - 1) * self._step + 1
        return max(1, whole, self._heavy_until_index - KEPT_ENTRIES_MIN)

    def apply(self, entries: list[Entry]) -> list[Any]:
        results: list[Any] = []
        for entry in entries:
            require(entry[INDEX] == self.applied_index + 1, "entries are applied in their order")
            self.applied_index = entry[INDEX]
            self._bytes += len(entry[PAYLOAD])
            if self._bytes > LOG_BYTES_MAX:
                self._bytes, self._heavy_until_index = 0, entry[INDEX]
            results.append(self._command(entry) if entry[TYPE] == COMMAND else None)
        return results

    def _command(self, entry: Entry) -> Outcome:
        try:
            key, operation, arguments = protocol.unpack(entry[PAYLOAD])
        except (ValueError, TypeError):
            return InvalidRequest("an entry that holds no command")
        if type(key) is not bytes:
            return InvalidRequest("a command whose key is not bytes")
        known = self.tables.known_result(key)
        if known is not None:
            return _unpack_outcome(known)
        call = OperationContext(self.tables, self.cluster, entry[INDEX], entry[TIME], key)
        outcome: Outcome
        try:
            outcome = run_operation(call, operation, arguments)
            self.done.append(AuditRecord(operation, arguments, outcome))
        except MyQueueError as error:
            outcome = error.with_traceback(None)
        if key and not _may_succeed_later(outcome):
            self.tables.put_result(ResultRow(entry[INDEX], key, _pack_outcome(outcome)))
        return outcome

    # -- state ---------------------------------------------------------------------------------

    def take_changes(self) -> Changes:
        return self.tables.take_changes()

    def load(self, applied_index: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self.tables = Tables.from_rows(rows)
        self.applied_index = applied_index

    def snapshot(self) -> bytes:
        """All rows, in the order of their keys: equal states give equal bytes."""
        rows = [(key, self.tables.row(key)) for key in sorted(self.tables.row_keys())]
        return protocol.pack([SNAPSHOT_VERSION, self.applied_index, rows])

    def restore(self, snapshot: bytes) -> None:
        version, applied_index, rows = protocol.unpack(snapshot)
        require(version == SNAPSHOT_VERSION, f"a snapshot of version {version}")
        before = self.tables
        self.load(applied_index, rows)
        self.tables.changed = {*before.row_keys(), *before.changed, *self.tables.row_keys()}


def _may_succeed_later(outcome: Outcome) -> bool:
    """A refusal that did nothing, and that asks for a repeat: the repeat must not get it again."""
    return isinstance(outcome, MyQueueError) and outcome.retriable and outcome.outcome == NONE


def _pack_outcome(outcome: Outcome) -> bytes:
    if isinstance(outcome, MyQueueError):
        return protocol.pack([outcome.code, str(outcome), {}])
    return protocol.pack([0, "", outcome])


def _unpack_outcome(packed: bytes) -> Outcome:
    code, text, result = protocol.unpack(packed)
    return error_of(code, text) if code else dict(result)
