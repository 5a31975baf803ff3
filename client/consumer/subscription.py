"""What a consumer reads: which partitions there are, from where on, and what may be committed.

The pure heart of a consumer: events in (routes, answers, failures, what the application wants),
requests and messages out; `now` is given, in ms. Nothing here waits, locks or sends: that is for
`fetcher.py` and `consumer.py`, and they may call from one thread at a time only.

    routes ─▶ Subscription ─┬─ PartitionState, one a partition: offsets, buffered batches
                            ├─ FetchPlan: what to ask whom, what answers mean
                            └─ RoundRobin: whose messages are handed out next

Without a group, a consumer reads all partitions of its topics; with one, those of its `shares`. A
partition that is added to a topic later is read from its offset 0: nothing that was written to it
is missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from myqueue.consumer.assignment import Assignment
from myqueue.consumer.fetch_plan import FetchLimits, FetchPlan
from myqueue.consumer.message import Message, TopicPartition
from myqueue.consumer.partition_state import PartitionState, SkippedBatches, StartRule
from myqueue.consumer.round_robin import RoundRobin
from myqueue.errors import Fenced, Internal, MisuseError, MyQueueError, TopicDeleted, error_of

STARTS: Final = ("earliest", "latest", "committed")
POLICIES: Final = ("error", "earliest", "latest")
POLL_HINT: Final = "Go on with poll(): what was not committed comes again, to whoever has it now."
OFFSET_MAX: Final = (1 << 63) - 1


class PartitionRoute(NamedTuple):
    """Where routes say that a partition is."""

    number: int
    group: int
    leader: str  # address; "": not known now


class CommitRequest(NamedTuple):
    """A COMMIT to send to `address`, under the name `who`."""

    address: str
    committer: str
    partitions: list[PartitionState]
    parts: list[list[int]]  # [group, offset, member epoch, assignment epoch]


def _withdraw(news: list[tuple[list[TopicPartition], list[TopicPartition]]], name: Any) -> None:
    for added, _ in news:
        if name in added:
            added.remove(name)


def lost_error(names: Iterable[TopicPartition]) -> Fenced:
    """Messages of these were returned, and others have the partitions by now."""
    listed = ", ".join(str(name) for name in sorted(set(names))[:20])
    return Fenced(f"lost before this could be committed: {listed}", hint=POLL_HINT)


class Subscription:
    """The partitions of some topics. `topics` says under whose name each one's positions are
    committed ("": nobody's).

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
        shares: Assignment | None = None,
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
        self.changes: list[tuple[list[TopicPartition], list[TopicPartition]]] = []  # (new, gone)
        self.assignment = shares
        self.lost_partitions: list[
            TopicPartition
        ] = []  # shares that are others' without a word of ours
        self.uncommitted: list[
            TopicPartition
        ] = []  # those of them that have messages not committed
        self.has_withdrawals = (
            False  # some are lost or wanted back: the application has to hear it first
        )
        self.failure: MyQueueError | None = None  # why it can't be a member
        self._start = start
        self._names: dict[TopicPartition, PartitionState] = {}
        self._uids: dict[str, int] = {}  # of the topics that are read, while they exist
        self._routed_topics: set[str] = set()
        self._recreated: set[str] = set()  # topics that took the place of one that was read
        self._deleted: set[str] = set()  # and not made again so far
        self._deletions: dict[
            str, str
        ] = {}  # topic -> what became of it; the application hears it once

    # -- partitions -------------------------------------------------------------------------------

    def set_routes(
        self, topic: str, now: int, places: Iterable[PartitionRoute], uid: int = 0
    ) -> None:
        """What managers say of a topic. `uid` tells one that was made again from the one before."""
        grown = topic in self._routed_topics
        start = "earliest" if grown and self._start == "latest" else self._start
        self._routed_topics.add(topic)
        if self._uids.setdefault(topic, uid) != uid:
            self._uids[topic] = uid
            self._recreated.add(topic)
            if topic in self._deletions or topic not in self._deleted:
                self._deletions[topic] = f"the topic {topic!r} was deleted and made again"
        elif topic in self._deleted:
            self._deletions.pop(topic, None)  # it is there, as it was
        self._deleted.discard(topic)
        places = [
            one for one in places if self.assignment is None or self.assignment.has(one.group)
        ]
        removed = self._remove_deleted(topic, keep={place.group for place in places})
        added = []
        for number, group, leader in places:
            partition = self.partitions.get(group)
            if partition is None:
                name = TopicPartition(topic, number)
                partition = self._new_partition(name, group, start)
                partition.is_recreated = topic in self._recreated
                self.partitions[group] = self._names[name] = partition
                added.append(name)
            self.fetch_plan.set_leader(partition, leader, now)
        if added or removed:
            self.changes.append((added, removed))

    def _new_partition(self, name: TopicPartition, group: int, start: str) -> PartitionState:
        if self.assignment is None:
            return PartitionState(
                name, group, self.topics[name.topic], StartRule(start), self.skips
            )
        share = self.assignment.by_group[group]
        resumes = self._start == "latest" and not share.is_new
        find = StartRule("resumed" if resumes else "committed")
        partition = PartitionState(name, group, self.topics[name.topic], find, self.skips)
        partition.member, partition.epoch = self.assignment.member, share.epoch
        partition.is_fenced, partition.is_leaving = False, share.is_revoked
        partition.is_announced = partition.is_admitted = False
        self.has_withdrawals = self.has_withdrawals or share.is_revoked
        return partition

    def mark_deleted(self, topic: str) -> None:
        """Managers say that there is no such topic (any more)."""
        if topic not in self._deleted:
            self._deleted.add(topic)
            self._deletions[topic] = f"the topic {topic!r} was deleted"
        removed = self._remove_deleted(topic, keep=set())
        if removed:
            self.changes.append(([], removed))

    def _remove_deleted(self, topic: str, keep: set[int]) -> list[TopicPartition]:
        """Partitions of deleted incarnations go, with what was fetched of them (C10)."""
        gone = [
            r for r in self.partitions.values() if r.name.topic == topic and r.group not in keep
        ]
        return self._remove(gone)

    def _remove(self, gone: list[PartitionState]) -> list[TopicPartition]:
        """Those that the application knows of."""
        for partition in gone:
            partition.is_removed = True
            partition.drop_fetched()
            del self.partitions[partition.group], self._names[partition.name]
            if not partition.is_announced:
                _withdraw(self.changes, partition.name)
        return [partition.name for partition in gone if partition.is_announced]

    # -- shares of a group ------------------------------------------------------------------------

    def set_assignment(self, version: int, rows: Sequence[Sequence[Any]]) -> None:
        """The managers' answer; `routed` has to follow, for what is new."""
        shares = self.assignment
        if shares is None or not shares.update(version, rows):
            return
        gone = []
        for partition in self.partitions.values():
            share = shares.by_group.get(partition.group)
            if share is None or share.epoch != partition.epoch:
                gone.append(partition)
            elif share.is_revoked and not partition.is_leaving:
                partition.is_leaving = self.has_withdrawals = True
                partition.detach_iterator()
        self._lose(gone)

    def end_session(self) -> None:
        """All shares are lost, and so is the way to them."""
        if self.assignment is not None:
            self.assignment.clear()
            self._lose(list(self.partitions.values()))

    def _lose(self, gone: list[PartitionState]) -> None:
        self.uncommitted += [partition.name for partition in gone if partition.is_unsaved]
        self.lost_partitions += self._remove(gone)
        self.has_withdrawals = self.has_withdrawals or bool(self.lost_partitions)

    def take_withdrawals(self) -> tuple[list[TopicPartition], list[PartitionState]]:
        """What was lost, and what waits for the application to be done with what it got."""
        lost, self.lost_partitions, self.uncommitted, self.has_withdrawals = (
            self.lost_partitions,
            [],
            [],
            False,
        )
        return lost, [partition for partition in self.partitions.values() if partition.is_leaving]

    def take_changes(self) -> list[tuple[list[TopicPartition], list[TopicPartition]]]:
        """(new, gone). When the application has heard it, `admit` what is new. What is wanted back
        by now it never hears of.
        """
        news, self.changes = self.changes, []
        for partition in self.partitions.values():
            if not partition.is_announced and partition.is_leaving:
                _withdraw(news, partition.name)
            else:
                partition.is_announced = True
        return news

    def admit(self) -> None:
        """What was told is handed out from now on, from where the application wants it."""
        for partition in self.partitions.values():
            if partition.is_announced and not partition.is_admitted:
                partition.is_admitted = True
                self.round_robin.add(partition)

    def release(self, partitions: Iterable[PartitionState]) -> None:
        """The application is done with them."""
        if self.assignment is not None:
            left = [one for one in partitions if self.partitions.get(one.group) is one]
            self.assignment.released.update({one.group: one.epoch for one in left})
            self._remove(left)

    def partition(self, name: TopicPartition) -> PartitionState:
        partition = self._names.get(name)
        if partition is None and name.topic in self._deleted:
            raise TopicDeleted(f"{name} is no more: the topic was deleted")
        if partition is None:
            raise MisuseError(f"{name} is not among the partitions that are read")
        return partition

    def select(self, names: Iterable[TopicPartition] | str | None) -> list[PartitionState]:
        """These partitions, those of a topic, or all."""
        if names is None:
            return list(self._names.values())
        if isinstance(names, str):
            if names not in self.topics:
                raise MisuseError(f"{names!r} is not among the topics that are read")
            return [partition for name, partition in self._names.items() if name.topic == names]
        return [self.partition(TopicPartition(*name)) for name in names]

    # -- what the application wants ---------------------------------------------------------------

    def seek(self, name: TopicPartition, where: int | StartRule) -> PartitionState:
        """Goes on from an offset, or from one that is looked up; what was fetched is dropped."""
        partition = self.partition(name)
        if isinstance(where, StartRule):
            partition.look_up(where)
        elif not 0 <= where <= OFFSET_MAX:
            raise MisuseError(f"seek to {where}: offsets count from 0 to 2^63 - 1")
        else:
            partition.move_to(where)
        partition.retry_at = 0
        return partition

    def pause(self, name: TopicPartition) -> None:
        """Hands out nothing of it and fetches nothing more; what came is kept."""
        partition = self.partition(name)
        if not partition.is_paused:
            partition.is_paused = True
            partition.detach_iterator()

    def resume(self, name: TopicPartition) -> None:
        partition = self.partition(name)
        partition.is_paused = False
        self.round_robin.add(partition)

    def close(self) -> None:
        """Hands out nothing more, not even to who is in a loop over messages of a batch."""
        for partition in self.partitions.values():
            partition.stop_output()

    def next_run(self, now: int) -> Iterator[Message] | None:
        """See Turns. The end of a topic comes first, and once: messages of the next topic of this
        name must not be taken for its own.
        """
        if self._deletions:
            raise TopicDeleted(self._deletions.pop(min(self._deletions)), component="manager")
        run = self.round_robin.next_run(now)
        error = self.failure
        if run is None and error is not None:
            self.failure = None  # the next attempt to join says so again
            raise error
        return run

    @property
    def may_fetch_more(self) -> bool:
        """After `next_run`: may there be room now for what nobody asked for so far?"""
        current = self.round_robin.current
        wants = current is not None and self.fetch_plan.has_room_for(current)
        return wants or self.round_robin.has_dropped_batches

    @property
    def has_news(self) -> bool:
        """Would `next_run` give or raise something, or is there news of partitions?"""
        told = self.changes or self._deletions or self.failure
        return bool(told) or self.has_withdrawals or self.round_robin.has_news

    # -- committing -------------------------------------------------------------------------------

    def mark_handled(self) -> None:
        """The application asks for more: what it got before is handled (C9)."""
        for partition in self.partitions.values():
            partition.handled_position = partition.position

    def commits(
        self, *, handled_only: bool = False, only: Mapping[TopicPartition, int] | None = None,
        of: Iterable[TopicPartition] | None = None,
    ) -> list[CommitRequest]:  # fmt: skip
        """Positions that moved forward since they were committed, by broker and name; or `only`
        these, or those `of` some partitions.
        """
        out: dict[tuple[str, str], CommitRequest] = {}
        for partition in self.select(of if only is None else only):
            offset = partition.handled_position if handled_only else partition.position
            if only is not None:
                offset = only[partition.name]
                if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                    raise MisuseError(f"commit of {offset!r}: offsets count from 0 to 2^63 - 1")
            if not partition.committer or offset is None:
                continue
            if partition.committed is None or offset > partition.committed:
                key = (partition.commit_address, partition.committer)
                commit = out.setdefault(key, CommitRequest(*key, [], []))
                commit.partitions.append(partition)
                commit.parts.append([partition.group, offset, partition.member, partition.epoch])
        return list(out.values())

    def check_returned(self, upto: Message | Mapping[TopicPartition, int]) -> None:
        """A member may commit what it got since the partition is its own, and nothing that it got
        before it was lost and came back: another one may have set it back meanwhile (C7).
        """
        names = [TopicPartition(upto.topic, upto.partition)] if isinstance(upto, Message) else upto
        for name in names:
            if TopicPartition(*name).topic in self._deleted:
                self.partition(TopicPartition(*name))
            partition = self._names.get(TopicPartition(*name))
            if partition is None:
                raise Fenced(f"{name} is not this member's, or not any more", hint=POLL_HINT)
            late = isinstance(upto, Message) and upto.offset >= partition.furthest
            if late or not partition.is_announced:
                raise Fenced(f"{name} was lost and came back since then", hint=POLL_HINT)

    def check_topic(self, upto: Message | Mapping[TopicPartition, int]) -> None:
        """Offsets of a topic that was deleted mean nothing in the next one of its name."""
        if not isinstance(upto, Message):
            return
        partition = self.partition(TopicPartition(upto.topic, upto.partition))
        if partition.is_recreated and upto.offset >= partition.furthest:
            raise TopicDeleted(f"{partition.name} was deleted and made again since this message")

    def remaining(
        self, commits: Iterable[CommitRequest]
    ) -> tuple[list[CommitRequest], list[TopicPartition]]:
        """What of these is still to be committed, at the leaders of now; and what is gone. By the
        partition, not by its name: what came back meanwhile is another one, under another epoch.
        """
        out: dict[tuple[str, str], CommitRequest] = {}
        gone = []
        for commit in commits:
            for partition, part in zip(commit.partitions, commit.parts, strict=True):
                if partition.is_removed:
                    gone.append(partition.name)
                elif partition.committed is None or part[1] > partition.committed:
                    key = (partition.commit_address, partition.committer)
                    later = out.setdefault(key, CommitRequest(*key, [], []))
                    later.partitions.append(partition)
                    later.parts.append(part)
        return list(out.values()), gone

    def on_committed(
        self, commit: CommitRequest, parts: Sequence[Sequence[Any]]
    ) -> MyQueueError | None:
        """The answer to a COMMIT; an error if something was not committed."""
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
