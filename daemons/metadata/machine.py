"""The managers' state machine: what the cluster consists of, decided by the managers' log.

A command is an entry with the packed `[key, operation, arguments]`. `apply` runs it on the tables:
the entry's time is the time, its index is the version. Results and refusals are returned and kept
under the request's key, so that a repeated request gets the first answer. A refusal that changed
nothing and may succeed later is not kept. An empty key marks operations that managers start
themselves; these may be repeated without harm and are not kept.

    entry ─▶ unpack ─▶ known key? ─▶ run_operation ─▶ tables (changed rows) ─▶ result

Deterministic: the same entries give the same rows, byte by byte, on every replica, no matter when
it saved, loaded, or installed a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from myqueue.daemons.metadata.operations import run_operation
from myqueue.daemons.metadata.records import ResultRow
from myqueue.daemons.metadata.tables import Tables
from myqueue.daemons.metadata.topics import OperationContext
from myqueue.daemons.raft.types import COMMAND, INDEX, PAYLOAD, TIME, TYPE, Entry, require
from myqueue.daemons.state_machine import RowChanges
from myqueue.errors import NONE, InvalidRequest, MyQueueError, error_of
from myqueue.wire import protocol

SNAPSHOT_VERSION: Final = 1
LOG_ENTRIES_MAX: Final = 20_000
LEADER_ARGUMENTS: Final = frozenset(("avoid", "stranded"))  # the leader adds these
LOG_BYTES_MAX: Final = 64 << 20
KEPT_ENTRIES_MIN: Final = 100  # kept if their bytes were too many
Outcome = dict[str, Any] | MyQueueError


class AuditRecord(NamedTuple):
    """An entry that changed something. Refusals and repeats are not recorded."""

    operation: str
    arguments: dict[str, Any]
    result: dict[str, Any]


def pack_command(key: bytes, operation: str, arguments: dict[str, Any]) -> bytes:
    """Pack the payload of an entry."""
    return protocol.pack([key, operation, arguments])


def requested_operation(payload: bytes) -> tuple[str, dict[str, Any]]:
    """Return what a client asked for with this command, without the leader's arguments."""
    _, operation, arguments = protocol.unpack(payload)
    return operation, {k: v for k, v in arguments.items() if k not in LEADER_ARGUMENTS}


class MetadataMachine:
    """The managers' `Machine`. `tables` is another object after a restore.

    The tables are the whole state, so any applied entry may leave the log. Some thousand entries
    stay for managers that were away for a moment; a manager that was away for longer gets a
    snapshot.
    """

    def __init__(self, cluster: str, log_entries_max: int = LOG_ENTRIES_MAX) -> None:
        self.applied_index = self.bytes_gone = 0
        self.cluster = cluster
        self.tables = Tables()
        self.done: list[AuditRecord] = []  # until the manager takes them
        self._step = max(1, log_entries_max // 2)
        self._bytes = self._heavy_until_index = (
            0  # entries applied by this process; the last too many
        )

    @property
    def start_index(self) -> int:
        """First entry to keep. It moves in steps, as each move costs a snapshot: 1 to 2 steps are
        kept.
        """
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

    def take_changes(self) -> RowChanges:
        return self.tables.take_changes()

    def load(self, applied_index: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self.tables = Tables.from_rows(rows)
        self.applied_index = self.tables.loaded_index = applied_index

    def snapshot(self) -> bytes:
        """Pack all rows in the order of their keys: equal states give equal bytes."""
        rows = [(key, self.tables.row(key)) for key in sorted(self.tables.row_keys())]
        return protocol.pack([SNAPSHOT_VERSION, self.applied_index, rows])

    def restore(self, snapshot: bytes) -> None:
        version, applied_index, rows = protocol.unpack(snapshot)
        require(version == SNAPSHOT_VERSION, f"a snapshot of version {version}")
        before = self.tables
        self.load(applied_index, rows)
        self.tables.changed = {*before.row_keys(), *before.changed, *self.tables.row_keys()}


def _may_succeed_later(outcome: Outcome) -> bool:
    """True for a refusal that changed nothing and asks for a retry, which must not get it again."""
    return isinstance(outcome, MyQueueError) and outcome.retriable and outcome.outcome == NONE


def _pack_outcome(outcome: Outcome) -> bytes:
    if isinstance(outcome, MyQueueError):
        return protocol.pack([outcome.code, str(outcome), {}])
    return protocol.pack([0, "", outcome])


def _unpack_outcome(packed: bytes) -> Outcome:
    code, text, result = protocol.unpack(packed)
    return error_of(code, text) if code else dict(result)
