"""Closes a single group whose log contradicts itself or what other replicas send.

Its core raised `InvariantBroken`: somebody has forgotten what was committed (a disk that was rolled
back, an old copy of a data folder), or a bug, or a bit in memory. Nobody here can tell who is
right, so the replica stops: it neither votes, nor counts, nor answers, nor acknowledges, and
nothing of the turn in which that was found leaves this daemon. All other groups go on.

- It stays closed over a restart, by a note in the data folder (`wal/closed_groups.py`).
- The event log, STATUS (`health`), heartbeats and `myq health` report it.
- The heartbeat reports it. Where the other replicas have a leader and are a majority without it,
  the managers put a replica with another id in its place.
- It may be the replica that is right, with the only copy of acknowledged messages. So its segments
  are hard-linked into `kept/` before it is removed; operators inspect them and remove the folder.

A group whose machine fails (`replica.Defect`) is closed in the same way, but without a note: no
other replica contradicts it, so each start tries again, and a version that can apply the log opens
it. If a replica of the same group is closed again while the daemon runs, it is removed later each
time (`PACE_MS_MIN`): the entries that fill its replacement may close that, too, and the managers
must not replace replicas in a quick loop.

The managers' group is closed like any other. Its process stays and says in STATUS and heartbeats
why it takes no part. If it ended, its supervisor would start it again and again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from myqueue.daemons.raft.health import START, ReplicaHealth
from myqueue.daemons.repair.damage import REPORTED_MAX, TEXT_MAX, partition_name
from myqueue.daemons.replication.open_group import replica_id_of
from myqueue.daemons.replication.replica import Defect
from myqueue.errors import MyQueueError
from myqueue.wal.closed_groups import folder_name
from myqueue.wire import protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from myqueue.daemons.raft.types import InvariantBroken
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica
    from myqueue.wal.groups import Group
    from myqueue.wal.space.background import Job

AGAIN_MS: Final = 2000  # until a failed write is tried again
LOOK_MS: Final = 10_000  # between checks whether operators removed kept folders
PACE_MS_MIN, PACE_MS_MAX = 30_000, 3_600_000  # until a replica that was closed again is removed
HINT: Final = (
    "Was a disk or a data folder set back to an older copy, here or on the brokers of the other"
    " replicas? The files of this replica are kept. Another one takes its place as soon as the"
    " others have a leader."
)
HINT_MANAGER: Final = (
    "Was a disk or a data folder set back to an older copy, here or on another manager? Leave this"
    " manager as it is, and keep its folder: the others go on without it as long as they are a"
    " majority. Nothing replaces a manager yet: with an empty folder the others refuse it, and"
    " without its note it is closed again. Put no other files under managers that went on: brokers"
    " follow what these recorded. To have all managers again, found a new cluster and copy the"
    " messages into it."
)
HINT_DEFECT: Final = (
    "This program fails at what its log or its state says. Start the version of myqueue that wrote"
    " it: each start tries again. The files are kept. Another replica of a partition takes its"
    " place as soon as the others have a leader."
)


@dataclass(slots=True)
class ClosedReplica:
    """A replica that was closed."""

    group: int
    replica: int
    partition: str
    why: str
    since_ms: int
    first: int  # entries before this one are not in doubt
    is_noted: bool = False  # on the disk
    kept: int = -1  # segments that were linked; -1: none yet
    reached: tuple[int, int] | None = (
        None  # the store must have saved this before segments are linked
    )
    may_go_at: int = 0  # by the engine's clock

    def fields(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "replica": self.replica,
            "partition": self.partition,
            "why": self.why,
            "since_ms": self.since_ms,
            "first": self.first,
        }


class ClosedReplicas:
    """The closed replicas of a daemon. Called by the engine, in the loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.closed: dict[int, ClosedReplica] = {}
        # Notes of replaced replicas whose segments are kept
        self._kept: dict[str, dict[str, Any]] = {}
        self._jobs: list[tuple[str, Job[Any], Callable[[Any], None]]] = []
        self._next_retry_at = self._next_kept_check_at = self._told_from = 0
        self._times: dict[int, int] = {}  # group -> how often it was closed since the start
        self._going: dict[int, str] = {}  # group -> note of a replica that is being removed

    # -- at a start ----------------------------------------------------------------------------

    def before_groups_open(self) -> None:
        self._kept = self._engine.log.kept.all()
        self._notes = self._engine.log.kept.notes()

    def restore_closed(self, group: Group) -> str:
        """Take an earlier process's note; return why the group stays closed, "": it does not."""
        replica = replica_id_of(group)
        note = self._notes.pop(folder_name(group.uid, replica), None)
        if note is None:
            return ""
        self.closed[group.uid] = ClosedReplica(
            group.uid,
            replica,
            str(note.get("partition", f"group {group.uid:x}")),
            str(note.get("why", "the note that says why can't be read")),
            _number(note, "since_ms"),
            _number(note, "first"),
            is_noted=True,
        )
        return self.closed[group.uid].why

    def after_groups_open(self) -> None:
        """Forget the notes of replicas that are not here any more."""
        for name in self._notes:
            self._run_in_background("forget", partial(self._engine.log.kept.forget, name), _nothing)
        self._notes = {}

    # -- closing -------------------------------------------------------------------------------

    def close(self, replica: Replica, error: InvariantBroken) -> None:
        raft = replica.raft
        why = str(error) if isinstance(error, Defect) else f"it contradicts: {error}"
        name = partition_name(replica.about)
        is_defect = isinstance(error, Defect)
        one = ClosedReplica(
            replica.uid,
            replica.replica_id,
            name,
            why,
            self._engine.wall_ms(),
            error.index,
            is_noted=is_defect,
        )
        self._close(
            one,
            replica.noted_health,
            is_defect=is_defect,
            term=raft.term,
            leader=replica.leader_node,
            commit=raft.commit_index,
        )

    def close_unopenable(self, group: Group, why: str, *, is_defect: bool = False) -> None:
        """Close a group that a start can't open. It gets no note: each start tries again."""
        try:
            _, _, _, about = protocol.unpack(group.created or b"")
            name = partition_name(about)
        except (ValueError, TypeError):
            name = f"group {group.uid:x}"
        wall_ms, replica = self._engine.wall_ms(), replica_id_of(group)
        one = ClosedReplica(group.uid, replica, name, why, wall_ms, 0, is_noted=True)
        self._close(one, START, is_defect=is_defect)

    def _close(self, one: ClosedReplica, before: str, *, is_defect: bool, **more: int) -> None:
        engine = self._engine
        self.closed[one.group] = one
        times = self._times[one.group] = self._times.get(one.group, 0) + 1
        if times > 1:
            pace_ms = PACE_MS_MIN << min(times - 2, 10)
            one.may_go_at = engine.now + min(pace_ms, PACE_MS_MAX)
        engine.counts["groups_closed_total"] += 1
        hint = HINT_MANAGER if engine.kind == "manager" else HINT
        engine.leave_out(
            one.group,
            ReplicaHealth.CLOSED,
            one.why,
            before,
            partition=one.partition,
            **more,
            do=HINT_DEFECT if is_defect else hint,
        )
        if not one.is_noted:
            self._save_note(one)

    def _save_note(self, one: ClosedReplica) -> None:
        def noted(_: Any) -> None:
            one.is_noted = True

        name = folder_name(one.group, one.replica)
        self._run_in_background(
            "note", partial(self._engine.log.kept.note, name, one.fields()), noted
        )

    # -- its removal ---------------------------------------------------------------------------

    def prepare_removal(self, uid: int) -> bool:
        """Prepare the removal of a replica: keep the segments of a closed one.

        False: not done yet; the managers' order comes again until it is.
        """
        one = self.closed.get(uid)
        if one is None or one.kept >= 0:
            return True
        if self._engine.now < one.may_go_at:
            return False
        index, now = self._engine.log.index, self._engine.now
        if one.reached is None:
            one.reached = index.added
        if index.committed < one.reached or now < self._next_retry_at or self._is_busy("keep"):
            return False

        def kept(segments: int) -> None:
            one.kept = segments
            self._kept[name] = one.fields()
            self._next_kept_check_at = 0
            self._engine.report(
                "warning",
                "closed-group-kept",
                group=f"{one.group:x}",
                partition=one.partition,
                folder=log.kept.folder(name),
                segments=segments,
            )

        log, name = self._engine.log, folder_name(one.group, one.replica)
        names = {number: segment.name for number, segment in log.journal.segments.items()}
        self._run_in_background(
            "keep", partial(log.kept.keep, name, one.group, one.first, names, one.fields()), kept
        )
        return False

    def note_removal(self, uid: int) -> None:
        """The removal of a replica was appended. Its note stays until that is on the disk: a start
        that still finds the replica must find it closed.
        """
        one = self.closed.pop(uid, None)
        if one is not None:
            self._going[uid] = folder_name(one.group, one.replica)

    def removal_persisted(self, uid: int) -> None:
        """The removal of a replica is on the disk: forget its note."""
        name = self._going.pop(uid, None)
        if name is not None:
            self._run_in_background("forget", partial(self._engine.log.kept.forget, name), _nothing)

    # -- work of the disk ----------------------------------------------------------------------

    def _run_in_background(
        self, what: str, work: Callable[[], Any], then: Callable[[Any], None]
    ) -> None:
        self._jobs.append((what, self._engine.log.background.start(work), then))

    def _is_busy(self, what: str) -> bool:
        return any(one == what for one, _, _ in self._jobs)

    def tick(self, now: int) -> None:
        jobs, self._jobs = self._jobs, []
        for what, job, then in jobs:
            if not job.done:
                self._jobs.append((what, job, then))
                continue
            try:
                then(job.result())
            except (OSError, MyQueueError) as error:
                self._next_retry_at = now + AGAIN_MS
                self._engine.report(
                    "warning",
                    "closed-group-not-noted",
                    doing=what,
                    error=str(error),
                    do="It is tried again. Free space on the disk if it is full.",
                )
        if now >= self._next_retry_at and not self._is_busy("note"):
            for one in self.closed.values():
                if not one.is_noted:
                    self._next_retry_at = now + AGAIN_MS
                    self._save_note(one)
        is_due = self._next_kept_check_at == 0 or (now >= self._next_kept_check_at and self._kept)
        if is_due and not self._is_busy("look"):
            self._next_kept_check_at = now + LOOK_MS
            self._run_in_background("look", self._engine.log.kept.all, self._set_kept)

    def _set_kept(self, kept: dict[str, dict[str, Any]]) -> None:
        self._kept = dict(sorted(kept.items()))

    # -- for people ----------------------------------------------------------------------------

    def report(self, first: int = 0) -> list[dict[str, Any]]:
        """Return rows from `first` on: closed replicas, then replaced ones with kept segments."""
        rows = []
        for one in self._all()[first : first + REPORTED_MAX]:
            if isinstance(one, ClosedReplica):
                rows.append(one.fields() | {"kept": ""})
                continue
            note = self._kept[one]
            rows.append(
                {
                    "group": _number(note, "group"),
                    "replica": _number(note, "replica"),
                    "partition": str(note.get("partition", one)),
                    "why": str(note.get("why", "")),
                    "since_ms": _number(note, "since_ms"),
                    "kept": self._engine.log.kept.folder(one),
                }
            )
        names = ("group", "replica", "partition", "why", "since_ms", "kept")
        return [
            {name: row[name][:TEXT_MAX] if type(row[name]) is str else row[name] for name in names}
            for row in rows
        ]

    def next_told(self) -> dict[str, Any]:
        """Return the next rows for a broker's heartbeat; some heartbeats report all of them."""
        total, first = self.total, self._told_from
        if first >= total:
            first = 0
        rows = self.report(first)
        self._told_from = first + len(rows)
        return {"closed": rows, "closed_from": first, "closed_total": total}

    @property
    def total(self) -> int:
        return len(self._all()) if self.closed or self._kept else 0

    def _all(self) -> list[ClosedReplica | str]:
        """Return the closed replicas, then the names of kept folders of others."""
        here = {folder_name(one.group, one.replica) for one in self.closed.values()}
        return [*self.closed.values(), *(name for name in self._kept if name not in here)]


def _number(note: dict[str, Any], name: str) -> int:
    value = note.get(name)
    return value if type(value) is int and 0 <= value < 1 << 64 else 0


def _nothing(_: Any) -> None:
    """Ignore the result of a background job."""
