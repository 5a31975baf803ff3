"""Look-ups of entries by index or offset: rows in the store, and newer rows in memory.

The store commits in the background, a fraction of a second later than the log. Until then the rows
of persisted entries wait here in memory, and look-ups see both. The loop calls `add` with the ops
of each `Persisted` event, the store's thread commits them, and `poll` drops what was committed.

Invariant: for each group the waiting rows are consecutive and follow the store's last valid row.
Rows of the store that a waiting TRUNCATE, reset or removal takes away are hidden (`_cuts`).
Relocated entries are not kept here, since their old place stays readable until the store has the
new one.

If the disk has no room for a commit, it is tried again until there is room: nothing is lost, since
the log has all of it. Any other failure ends the thread and reaches the loop through `poll`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import NamedTuple

from myqueue.errors import DiskFull, StateInvalid, WrongProcess
from myqueue.wal import format as f
from myqueue.wal.fork_guard import refuse_after_fork, wrong_process
from myqueue.wal.groups import Op, Relocated, Row, RowTuple
from myqueue.wal.store.store import STATE_KEY_BYTES_MAX, StateChange, Store

COMMIT_INTERVAL_S = 0.5
COMMIT_ROWS_MAX = 20_000
HURRY_WORKS = 1000  # with more waiting additions the store's thread makes no pauses
SPACE_RETRY_S = 0.5
ALL = 2**64 - 1
_INDEX, _OFFSET, _COUNT, _LENGTH = 1, 6, 5, 4


class _Work(NamedTuple):
    ops: list[Op]
    segment: int
    position: int
    states: dict[int, StateChange]
    sync: bool


_STOP = _Work([], 0, 0, {}, False)


class Index:
    """Look-ups for the loop's thread. A thread of its own commits; without one, `step` does."""

    def __init__(
        self,
        store: Store,
        threads: bool,
        on_done: Callable[[], None],
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_done` and `on_full` are called by the store's thread: after a commit or a failure,
        and whenever the disk has no room for a commit.
        """
        self.store, self._on_full = store, on_full
        self._recent: dict[int, list[RowTuple]] = {}  # group -> rows that the store lacks
        self._sent: deque[list[Op]] = deque()  # ops of each uncommitted addition, oldest first
        self._works_added = self._works_done = 0
        # group -> [(the store's rows are valid up to this index, until this addition is committed)]
        self._cuts: dict[int, list[tuple[int, int]]] = {}
        self._work: SimpleQueue[_Work] = SimpleQueue()
        self._done: deque[tuple[int, int, int, bool]] = deque()
        self._on_done = on_done
        self._closing, self._hurry = Event(), Event()
        self.error: Exception | None = None
        self.added = self.committed = store.watermark
        # What certainly survives a power loss. What an earlier process committed may not.
        self.durable = (0, 0)
        self._thread = Thread(target=self._run, name="wal-store", daemon=True) if threads else None
        if self._thread:
            refuse_after_fork(self)
            self._thread.start()

    # -- the loop's side -----------------------------------------------------------------------

    def add(
        self,
        ops: list[Op],
        segment: int,
        position: int,
        states: dict[int, StateChange] | None = None,
        sync: bool = False,
    ) -> None:
        """Take persisted ops in log order, and changes of applied state, for the next commit.

        With `sync`, `durable` reaches this position as well. The watermark never goes back: a
        restart must not replay records over state that already contains them.
        """
        self._refuse_child()
        if states:
            _check_states(states)
        self._works_added += 1
        for op in ops:
            if isinstance(op, Relocated):
                continue
            if isinstance(op, list):
                self._add_rows(op)
            else:
                self._add_record(op[0])
        self.added = max(self.added, (segment, position))
        self._sent.append(ops)
        self._work.put(_Work(ops, *self.added, states or {}, sync))
        if sync or self._works_added - self._works_done > HURRY_WORKS:
            self._hurry.set()

    def forked(self) -> None:
        """Forget the rows in a forked child: look-ups go to the store, which refuses them."""
        self.error = wrong_process()
        self._recent.clear()
        self._cuts.clear()

    def _refuse_child(self) -> None:
        if isinstance(self.error, WrongProcess):
            raise wrong_process()

    @property
    def works_waiting(self) -> int:
        """Number of additions that the store has not committed, as of the last `poll`."""
        return self._works_added - self._works_done

    def apply(self, states: dict[int, StateChange]) -> None:
        """Add applied state only, with the applied index that it belongs to."""
        self.add([], *self.added, states)

    def _add_rows(self, rows: list[RowTuple]) -> None:
        recent = self._recent
        for row in rows:
            group_rows = recent.get(row[0])
            if group_rows is None:
                recent[row[0]] = [row]
            elif row[_INDEX] == group_rows[-1][_INDEX] + 1:
                group_rows.append(row)
            elif row[_INDEX] > group_rows[-1][_INDEX]:
                recent[row[0]] = [row]  # after a reset: older rows are not of this log

    def _add_record(self, record: f.Record) -> None:
        group = record.group
        if record.kind == f.GROUP_REMOVED or (record.kind == f.START and record.flags & f.RESET):
            self._recent.pop(group, None)
            self._cuts.setdefault(group, []).append((-1, self._works_added))
        elif record.kind == f.TRUNCATE:
            self._cuts.setdefault(group, []).append((record.index - 1, self._works_added))
            rows = self._recent.get(group)
            if rows is not None:
                del rows[max(0, record.index - rows[0][_INDEX]) :]
                if not rows:
                    del self._recent[group]

    def _valid_to(self, group: int) -> int:
        """Return the last index at which the store's rows of this group are valid."""
        cuts = self._cuts.get(group)
        return min(valid_to for valid_to, _ in cuts) if cuts else ALL

    def poll(self) -> None:
        """Drop rows that the store has by now; raise the error that ended the store's thread."""
        while self._done:
            works, segment, position, durable = self._done.popleft()
            self._works_done += works
            self.committed = (segment, position)
            if durable:
                self.durable = (segment, position)
            for _ in range(works):
                for op in self._sent.popleft():
                    if isinstance(op, list):
                        self._forget(op)
            self._cuts = {
                group: waiting
                for group, cuts in self._cuts.items()
                if (waiting := [cut for cut in cuts if cut[1] > self._works_done])
            }
        if self.error is not None:
            raise self.error

    def _forget(self, rows: list[RowTuple]) -> None:
        """Drop these rows; a newer row of an index that was truncated and written again stays."""
        counts: dict[int, int] = {}
        for row in rows:
            waiting = self._recent.get(row[0])
            if waiting is not None:
                count = counts.get(row[0], 0)
                if count < len(waiting) and waiting[count] is row:
                    counts[row[0]] = count + 1
        for group, count in counts.items():
            del self._recent[group][:count]
            if not self._recent[group]:
                del self._recent[group]

    def row(self, group: int, index: int) -> Row | None:
        """Return the row of one entry, None if the log does not have it."""
        rows = self._recent.get(group)
        if rows is not None and rows[0][_INDEX] <= index:
            at = index - rows[0][_INDEX]
            return Row(*rows[at]) if at < len(rows) else None
        if index > self._valid_to(group):
            return None
        with self.store.view() as view:
            return view.row(group, index)

    def row_at_offset(self, group: int, offset: int) -> Row | None:
        """Return the row of the entry that holds this message offset."""
        rows = self._recent.get(group)
        if rows is not None and rows[0][_OFFSET] <= offset:
            at = bisect_right(rows, offset, key=lambda row: row[_OFFSET]) - 1
            while at > 0 and not rows[at][_COUNT]:
                at -= 1  # entries without messages share the offset of the next one's first
            row = Row(*rows[at])
            return row if row.offset <= offset < row.offset + row.count else None
        with self.store.view() as view:
            stored = view.row_at_offset(group, offset)
        return stored if stored is None or stored.index <= self._valid_to(group) else None

    def rows(self, group: int, first_index: int, last_index: int, max_bytes: int) -> list[Row]:
        """Return rows of consecutive entries: at least one if any, then up to the limits."""
        recent = self._recent.get(group)
        newer_from = recent[0][_INDEX] if recent else last_index + 1
        stored_to = min(last_index, newer_from - 1, self._valid_to(group))
        out: list[Row] = []
        if first_index <= stored_to:
            with self.store.view() as view:
                out = view.rows(group, first_index, stored_to, max_bytes)
        size = sum(row.length for row in out)
        at = out[-1].index + 1 if out else max(first_index, newer_from)
        if recent is None or not newer_from <= at <= last_index:
            return out
        for row in recent[at - newer_from : last_index - newer_from + 1]:
            size += row[_LENGTH]
            if out and size > max_bytes:
                break
            out.append(Row(*row))
        return out

    def next_row(self, group: int, index: int) -> Row | None:
        """Return the group's first row at or after this index."""
        recent = self._recent.get(group)
        newer_from = recent[0][_INDEX] if recent else ALL + 1
        stored_to = min(newer_from - 1, self._valid_to(group))
        if index <= stored_to:
            with self.store.view() as view:
                stored = view.rows(group, index, stored_to, -1)
            if stored:
                return stored[0]
        at = max(0, index - newer_from)
        return Row(*recent[at]) if recent and at < len(recent) else None

    def last_row(self, group: int) -> Row | None:
        """Return the row of the group's last entry, None if there is none."""
        recent = self._recent.get(group)
        if recent:
            return Row(*recent[-1])
        with self.store.view() as view:
            return view.last_row(group, self._valid_to(group))

    # -- the thread's side ---------------------------------------------------------------------

    def step(self) -> bool:
        """Commit what waits in one transaction; False if nothing waits."""
        first = self._next()
        return self._commit(self._gather([first])) if first is not None else False

    def _next(self) -> _Work | None:
        try:
            return self._work.get_nowait()
        except Empty:
            return None

    def _gather(self, work: list[_Work]) -> list[_Work]:
        """Add waiting work to this work, until the commit is large or an addition needs a sync."""
        rows = sum(len(op) for op in work[0].ops if isinstance(op, list))
        while rows < COMMIT_ROWS_MAX and not work[-1].sync:
            more = self._next()
            if more is None:
                break
            if more is _STOP:
                self._work.put(_STOP)  # for the thread's loop, after this commit
                break
            work.append(more)
            rows += sum(len(op) for op in more.ops if isinstance(op, list))
        return work

    def _commit(self, work: list[_Work]) -> bool:
        ops = [op for addition in work for op in addition.ops]
        states = _merged(work)
        last = work[-1]
        self.store.commit(ops, last.segment, last.position, states)
        if last.sync:
            self.store.sync()
        self._done.append((len(work), last.segment, last.position, last.sync))
        self._on_done()
        return True

    def _run(self) -> None:
        try:
            while (first := self._work.get()) is not _STOP:
                # One long pause instead of one for each addition: whenever this thread wakes up,
                # the loop has to wait for the interpreter.
                if not first.sync:
                    self._hurry.wait(COMMIT_INTERVAL_S)
                self._hurry.clear()
                self._commit_when_there_is_room(self._gather([first]))
        except Exception as error:  # `poll` raises it in the loop
            self.error = error
            self._on_done()

    def _commit_when_there_is_room(self, work: list[_Work]) -> None:
        while True:
            try:
                self._commit(work)
                return
            except DiskFull:
                self._on_full()
                if self._closing.wait(SPACE_RETRY_S):
                    raise

    def close(self, timeout_s: float = 5.0) -> bool:
        """Commit what was added and stop; False if that took too long."""
        self._refuse_child()
        if self._thread is None:
            while self.step():
                pass
            return True
        self._closing.set()
        self._hurry.set()
        self._work.put(_STOP)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def _check_states(states: dict[int, StateChange]) -> None:
    """Raise StateInvalid in the caller's thread; in the store's, it would look like damage."""
    for group, (applied, puts, deletes) in states.items():
        for number in (group, applied):
            if not isinstance(number, int) or not 0 <= number <= ALL:
                raise StateInvalid(f"group {group!r}, applied index {applied!r}")
        for key in (*puts, *deletes):
            if not isinstance(key, bytes) or len(key) > STATE_KEY_BYTES_MAX:
                raise StateInvalid(f"group {group:x}: a key of state is not bytes, or too long")
        if not all(isinstance(value, bytes) for value in puts.values()):
            raise StateInvalid(f"group {group:x}: a value of state is not bytes")


def _merged(works: list[_Work]) -> dict[int, StateChange]:
    """Merge changes: later ones win key by key, and the last applied index counts.

    State from before a GROUP_REMOVED is dropped: a new replica of the group may be created before
    the store has committed either, and must not inherit it.
    """
    out: dict[int, StateChange] = {}
    for work in works:
        for op in work.ops:
            if not isinstance(op, list) and op[0].kind == f.GROUP_REMOVED:
                out.pop(op[0].group, None)
        for group, (applied, puts, deletes) in work.states.items():
            _, all_puts, all_deletes = out.get(group, (0, {}, []))
            deleted = set(deletes)
            merged = {key: value for key, value in all_puts.items() if key not in deleted} | puts
            out[group] = (applied, merged, [*all_deletes, *deletes])
    return out
