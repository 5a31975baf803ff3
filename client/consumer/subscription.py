"""The partitions that a consumer reads, where each one starts, what may be committed. Pure.

Comes in: routes, answers, failures, calls of the application, and the time (`now`, in ms). Goes
out: requests, messages, changes to report to callbacks. Nothing here waits, locks or sends:
`fetcher.py` and `consumer.py` do, and they call from one thread at a time, under one lock.

    routes ─▶ Subscription ─┬─ PartitionState, one a partition: offsets, buffered batches
                            ├─ FetchPlan: what to ask whom, what answers mean
                            └─ RoundRobin: whose messages are handed out next

Without a consumer group, a consumer reads all partitions of its topics; with one, those of its
`assignment`. A partition that is added to a topic later is read from its offset 0, so that no
message in it is missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from myqueue.consumer.assignment import Assignment
from myqueue.consumer.fetch_plan import FetchLimits, FetchPlan
from myqueue.consumer.message import Message, TopicPartition
from myqueue.consumer.partition_state import (
    Ownership,
    PartitionState,
    SkippedBatches,
    StartRule,
)
from myqueue.consumer.round_robin import RoundRobin
from myqueue.errors import Fenced, Internal, MisuseError, MyQueueError, TopicDeleted, error_of

STARTS: Final = ("earliest", "latest", "committed")
POLICIES: Final = ("error", "earliest", "latest")
POLL_HINT: Final = "Go on with poll(): the partition's owner gets again what was not committed."
OFFSET_MAX: Final = (1 << 63) - 1


class PartitionRoute(NamedTuple):
    """One partition as the newest routes name it."""

    number: int
    group: int
    leader: str  # address; "": not known now


class CommitRequest(NamedTuple):
    """A COMMIT to send to `address`, for positions under the name `committer`."""

    address: str
    committer: str
    partitions: list[PartitionState]
    parts: list[list[int]]  # [group, offset, member epoch, assignment epoch]


def _add_if_uncommitted(
    commits: dict[tuple[str, str], CommitRequest], partition: PartitionState, part: list[int]
) -> None:
    if partition.committed is None or part[1] > partition.committed:
        key = (partition.commit_address, partition.committer)
        commit = commits.setdefault(key, CommitRequest(*key, [], []))
        commit.partitions.append(partition)
        commit.parts.append(part)


def lost_error(names: Iterable[TopicPartition]) -> Fenced:
    """Make the error for messages that were returned and whose partitions others own now."""
    listed = ", ".join(str(name) for name in sorted(set(names))[:20])
    return Fenced(f"lost before this could be committed: {listed}", hint=POLL_HINT)


class _Incarnations:
    """Which topics were deleted, or deleted and created again, while they are read."""

    def __init__(self) -> None:
        self.deleted: set[str] = set()  # and not created again so far
        self.recreated: set[str] = set()
        self.unreported: dict[str, str] = {}  # topic -> text of an error not raised so far
        self._uids: dict[str, int] = {}  # of the newest incarnation of each topic

    def note_routes(self, topic: str, uid: int) -> bool:
        """Note that the topic exists; return whether these are its first routes."""
        is_first = topic not in self._uids
        if self._uids.setdefault(topic, uid) != uid:
            self._uids[topic] = uid
            self.recreated.add(topic)
            if topic in self.unreported or topic not in self.deleted:
                self.unreported[topic] = f"the topic {topic!r} was deleted and made again"
        elif topic in self.deleted:
            self.unreported.pop(topic, None)  # the same topic is there again
        self.deleted.discard(topic)
        return is_first

    def mark_deleted(self, topic: str) -> None:
        if topic not in self.deleted:
            self.deleted.add(topic)
            self.unreported[topic] = f"the topic {topic!r} was deleted"


class Subscription:
    """The partitions of some topics.

    `topics` maps each topic to the name that its positions are committed under; "" commits none.

    >>> subscription = Subscription({"orders": ""})
    >>> subscription.set_routes("orders", 7, [PartitionRoute(0, 41, "tcp://127.0.0.1:9292")])
    >>> [request.fields for request in subscription.fetch_plan.requests(now=0)]  # the start
    [(None, None, [41])]
    """

    def __init__(
        self,
        topics: Mapping[str, str],
        *,
        start: str = "earliest",
        on_out_of_range: str = "error",
        on_damaged: str = "raise",
        limits: FetchLimits | None = None,
        assignment: Assignment | None = None,
    ) -> None:
        if start not in STARTS:
            raise MisuseError(f"start={start!r}: one of {', '.join(STARTS)}")
        if on_out_of_range not in POLICIES:
            raise MisuseError(f"on_out_of_range={on_out_of_range!r}: one of {', '.join(POLICIES)}")
        self.topics = dict(topics)
        self.skips = SkippedBatches(on_damaged == "skip")
        self.partitions: dict[int, PartitionState] = {}  # by group
        self.round_robin = RoundRobin()
        self.fetch_plan = FetchPlan(
            self.partitions, self.round_robin, limits or FetchLimits(), on_out_of_range
        )
        # (added, removed) partitions that callbacks were not called with so far
        self.changes: list[tuple[list[TopicPartition], list[TopicPartition]]] = []
        self.assignment = assignment
        self.lost_partitions: list[TopicPartition] = []  # that we did not release
        self.uncommitted: list[TopicPartition] = []  # lost ones with uncommitted messages
        # Partitions were lost or are wanted back: report that before the next message.
        self.has_withdrawals = False
        self.failure: MyQueueError | None = None  # the last attempt to join the group failed
        self.is_closed = False
        self._start = start
        self._names: dict[TopicPartition, PartitionState] = {}
        self._incarnations = _Incarnations()

    # -- partitions -------------------------------------------------------------------------------

    def set_routes(
        self, topic: str, now: int, routes: Iterable[PartitionRoute], uid: int = 0
    ) -> None:
        """Take over a topic's routes from the managers.

        `uid` differs when the topic was deleted and created again.
        """
        is_first = self._incarnations.note_routes(topic, uid)
        start = self._start if is_first or self._start != "latest" else "earliest"
        wanted = [
            route for route in routes if self.assignment is None or self.assignment.has(route.group)
        ]
        removed = self._remove_deleted(topic, keep={route.group for route in wanted})
        added = []
        for number, group, leader in wanted:
            partition = self.partitions.get(group)
            if partition is None:
                name = TopicPartition(topic, number)
                partition = self._new_partition(name, group, start)
                self.partitions[group] = self._names[name] = partition
                added.append(name)
            self.fetch_plan.set_leader(partition, leader, now)
        if added or removed:
            self.changes.append((added, removed))
        for name in tuple(added):
            self._want_back_if_revoked(self._names[name])

    def _new_partition(self, name: TopicPartition, group: int, start: str) -> PartitionState:
        if self.assignment is None:
            return PartitionState(
                name, group, self.topics[name.topic], StartRule(start), self.skips
            )
        assigned = self.assignment.by_group[group]
        resumes = self._start == "latest" and not assigned.is_new
        rule = StartRule("resumed" if resumes else "committed")
        return PartitionState(
            name,
            group,
            self.topics[name.topic],
            rule,
            self.skips,
            member=self.assignment.member,
            epoch=assigned.epoch,
        )

    def mark_deleted(self, topic: str) -> None:
        """Stop reading a topic: the managers say that it does not exist."""
        self._incarnations.mark_deleted(topic)
        removed = self._remove_deleted(topic, keep=set())
        if removed:
            self.changes.append(([], removed))

    def _remove_deleted(self, topic: str, keep: set[int]) -> list[TopicPartition]:
        """Remove the topic's partitions that are not among these raft groups.

        A topic that was created again has other raft groups: no fetched message of the deleted
        topic may be handed out as one of the new topic.
        """
        return self._remove(
            [
                partition
                for partition in self.partitions.values()
                if partition.name.topic == topic and partition.group not in keep
            ]
        )

    def _remove(self, removed: list[PartitionState]) -> list[TopicPartition]:
        """Remove partitions; return the names of those that on_assign was called with."""
        names = []
        for partition in removed:
            if partition.is_known_to_application:
                names.append(partition.name)
            else:
                self._withdraw(partition)
            partition.remove()
            del self.partitions[partition.group], self._names[partition.name]
        return names

    # -- the assignment of a group's member -------------------------------------------------------

    def set_assignment(self, version: int, rows: Sequence[Sequence[Any]]) -> None:
        """Take over an assignment from the managers.

        Partitions that are not assigned any more are lost; revoked ones are leaving from now on.
        Call `set_routes` after it, which adds the new ones.
        """
        assignment = self.assignment
        if assignment is None or not assignment.update(version, rows):
            return
        lost = []
        for partition in self.partitions.values():
            assigned = assignment.by_group.get(partition.group)
            if assigned is None or assigned.epoch != partition.epoch:
                lost.append(partition)
            else:
                self._want_back_if_revoked(partition)
        self._lose(lost)

    def _want_back_if_revoked(self, partition: PartitionState) -> None:
        if self.assignment is None or partition.is_wanted_back:
            return
        assigned = self.assignment.by_group.get(partition.group)
        if assigned is None or not assigned.is_revoked:
            return
        self.has_withdrawals = True
        partition.want_back()
        if not partition.is_known_to_application:
            self._withdraw(partition)

    def _withdraw(self, partition: PartitionState) -> None:
        """Forget to announce a partition that was added."""
        for added, _ in self.changes:
            if partition.name in added:
                added.remove(partition.name)

    def end_session(self) -> None:
        """Lose all partitions: the member's session is over."""
        if self.assignment is not None:
            self.assignment.clear()
            self._lose(list(self.partitions.values()))

    def _lose(self, lost: list[PartitionState]) -> None:
        self.uncommitted += [partition.name for partition in lost if partition.is_unsaved]
        self.lost_partitions += self._remove(lost)
        self.has_withdrawals = self.has_withdrawals or bool(self.lost_partitions)

    def take_withdrawals(self) -> tuple[list[TopicPartition], list[PartitionState]]:
        """Return (lost, leaving) once: the application must learn of both before its next message.

        Leaving partitions are released when the application is done with their messages.
        """
        lost, self.lost_partitions, self.uncommitted = self.lost_partitions, [], []
        self.has_withdrawals = False
        return lost, [state for state in self.partitions.values() if state.is_wanted_back]

    def take_changes(self) -> list[tuple[list[TopicPartition], list[TopicPartition]]]:
        """Return (added, removed) partitions once; call `admit` when callbacks have returned."""
        changes, self.changes = self.changes, []
        for partition in self.partitions.values():
            if partition.ownership is Ownership.ADDED:
                partition.announce()
        return changes

    def admit(self) -> None:
        """Hand out messages of announced partitions from now on: callbacks have had their seeks."""
        for partition in self.partitions.values():
            if partition.ownership is Ownership.ANNOUNCED:
                partition.admit()
                self._want_back_if_revoked(partition)
                self.round_robin.add(partition)

    def release(self, partitions: Iterable[PartitionState]) -> None:
        """Give partitions back to the managers: the application is done with them."""
        if self.assignment is not None:
            ours = [state for state in partitions if state.ownership is not Ownership.REMOVED]
            self.assignment.released.update({state.group: state.epoch for state in ours})
            self._remove(ours)

    def partition(self, name: TopicPartition) -> PartitionState:
        """Return this partition; TopicDeleted or MisuseError if it is not read."""
        partition = self._names.get(name)
        if partition is None and name.topic in self._incarnations.deleted:
            raise TopicDeleted(f"{name} does not exist: its topic was deleted")
        if partition is None:
            raise MisuseError(f"{name} is not among the partitions that are read")
        return partition

    def select(self, names: Iterable[TopicPartition] | str | None) -> list[PartitionState]:
        """Return these partitions, those of a topic, or (None) all."""
        if names is None:
            return list(self._names.values())
        if isinstance(names, str):
            if names not in self.topics:
                raise MisuseError(f"{names!r} is not among the topics that are read")
            return [partition for name, partition in self._names.items() if name.topic == names]
        return [self.partition(TopicPartition(*name)) for name in names]

    # -- what the application wants ---------------------------------------------------------------

    def seek(self, name: TopicPartition, where: int | StartRule) -> PartitionState:
        """Go on from an offset, or from one that a rule finds; drop what was fetched."""
        partition = self.partition(name)
        if isinstance(where, StartRule):
            partition.look_up(where)
        elif not 0 <= where <= OFFSET_MAX:
            raise MisuseError(f"seek to {where}: offsets count from 0 to 2^63 - 1")
        else:
            partition.move_to(where)
        return partition

    def pause(self, name: TopicPartition) -> None:
        """Hand out and fetch nothing of this partition; keep what was fetched."""
        partition = self.partition(name)
        if not partition.is_paused:
            partition.is_paused = True
            partition.buffer.detach_iterator()

    def resume(self, name: TopicPartition) -> None:
        partition = self.partition(name)
        partition.is_paused = False
        self.round_robin.add(partition)

    def close(self) -> None:
        """Hand out nothing more; a loop over the messages of a batch ends."""
        self.is_closed = True
        for partition in self.partitions.values():
            partition.drop_fetched()

    def next_run(self, now: int) -> Iterator[Message] | None:
        """Return the next messages, see `RoundRobin.next_run`; None if there are none.

        Raises TopicDeleted first, and once for each deletion: messages of a new topic with this
        name must not be taken for those of the deleted one.
        """
        deletions = self._incarnations.unreported
        if deletions:
            raise TopicDeleted(deletions.pop(min(deletions)), component="manager")
        run = self.round_robin.next_run(now)
        error = self.failure
        if run is None and error is not None:
            self.failure = None  # the next failed attempt to join sets it again
            raise error
        return run

    @property
    def may_fetch_more(self) -> bool:
        """After `next_run`: did it make room in a buffer, so that more can be fetched?"""
        current = self.round_robin.current
        has_room = current is not None and self.fetch_plan.has_room_for(current)
        return has_room or self.round_robin.has_dropped_batches

    @property
    def has_news(self) -> bool:
        """Would `next_run` return or raise something, or must a callback be called?"""
        events = self.changes or self._incarnations.unreported or self.failure
        return bool(events) or self.has_withdrawals or self.round_robin.has_news

    # -- committing -------------------------------------------------------------------------------

    def mark_handled(self) -> None:
        """Note that the application asks for more, so it has handled what it got before."""
        for partition in self.partitions.values():
            partition.handled_position = partition.position

    def commits(
        self,
        *,
        handled_only: bool = False,
        only: Mapping[TopicPartition, int] | None = None,
        of: Iterable[TopicPartition] | None = None,
    ) -> list[CommitRequest]:
        """Return a request per broker and name, with the positions that are not committed yet.

        `handled_only` commits what earlier calls returned, `only` these positions, `of` these
        partitions.
        """
        out: dict[tuple[str, str], CommitRequest] = {}
        for partition in self.select(of if only is None else only):
            offset = partition.handled_position if handled_only else partition.position
            if only is not None:
                offset = only[partition.name]
                if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                    raise MisuseError(f"commit of {offset!r}: offsets count from 0 to 2^63 - 1")
            if partition.committer and offset is not None:
                part = [partition.group, offset, partition.member, partition.epoch]
                _add_if_uncommitted(out, partition, part)
        return list(out.values())

    def check_returned(self, upto: Message | Mapping[TopicPartition, int]) -> None:
        """Raise Fenced for a position that this member may not commit.

        A member commits only what it got since the partition was last assigned to it. In between
        another member may have moved the position back.
        """
        names = [TopicPartition(upto.topic, upto.partition)] if isinstance(upto, Message) else upto
        for name in names:
            if TopicPartition(*name).topic in self._incarnations.deleted:
                self.partition(TopicPartition(*name))
            partition = self._names.get(TopicPartition(*name))
            if partition is None:
                raise Fenced(f"{name} is not this member's, or not any more", hint=POLL_HINT)
            is_older = isinstance(upto, Message) and upto.offset >= partition.furthest
            if is_older or not partition.is_known_to_application:
                raise Fenced(f"{name} was lost and came back since then", hint=POLL_HINT)

    def check_topic(self, upto: Message | Mapping[TopicPartition, int]) -> None:
        """Raise TopicDeleted for a message of a deleted topic: a new topic has its name now."""
        if not isinstance(upto, Message):
            return
        partition = self.partition(TopicPartition(upto.topic, upto.partition))
        is_recreated = partition.name.topic in self._incarnations.recreated
        if is_recreated and upto.offset >= partition.furthest:
            raise TopicDeleted(f"{partition.name} was deleted and made again since this message")

    def remaining(
        self, commits: Iterable[CommitRequest]
    ) -> tuple[list[CommitRequest], list[TopicPartition]]:
        """Return (requests for what is still uncommitted, at the newest leaders; lost partitions).

        A partition that was lost and assigned again counts as lost: its epoch is another one.
        """
        out: dict[tuple[str, str], CommitRequest] = {}
        lost = []
        for commit in commits:
            for partition, part in zip(commit.partitions, commit.parts, strict=True):
                if partition.ownership is Ownership.REMOVED:
                    lost.append(partition.name)
                else:
                    _add_if_uncommitted(out, partition, part)
        return list(out.values()), lost

    def on_committed(
        self, commit: CommitRequest, parts: Sequence[Sequence[Any]]
    ) -> MyQueueError | None:
        """Take over the answer to a COMMIT; return an error if something was not committed."""
        rows = {row[0]: row[1:] for row in parts}
        failure: MyQueueError | None = None
        for partition in commit.partitions:
            code, offset, _ = rows.get(partition.group, (Internal.code, 0, None))
            if code:
                text = f"the position of {partition.name} was not committed"
                failure = error_of(code, text, commit.address)
                self.fetch_plan.routes_wanted = True
            else:
                partition.committed = max(offset, partition.committed or 0)
        return failure
