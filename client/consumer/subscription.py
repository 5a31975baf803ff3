"""What a consumer reads: which partitions there are, from where on, and what may be committed.

The pure heart of a consumer: events in (routes, answers, failures, what the application wants),
requests and messages out; `now` is given, in ms. Nothing here waits, locks or sends: that is for
`fetcher.py` and `consumer.py`, and they may call from one thread at a time only.

    routes ─▶ Subscription ─┬─ Reading, one for each partition: offsets and what is buffered
                            ├─ Prefetch: what to ask whom, what answers mean
                            └─ Turns: whose messages are handed out next

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
    who: str
    readings: list[PartitionState]
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
    >>> subscription.routed("orders", 7, [PartitionRoute(0, 41, "tcp://127.0.0.1:9292")])
    >>> [request.fields for request in subscription.prefetch.requests(now=0)]  # where does it begin?
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
        self.readings: dict[int, PartitionState] = {}  # by group
        self.turns = RoundRobin()
        self.prefetch = FetchPlan(
            self.readings, self.turns, limits or FetchLimits(), on_out_of_range
        )
        self.news: list[tuple[list[TopicPartition], list[TopicPartition]]] = []  # (new, gone)
        self.shares = shares
        self.lost: list[TopicPartition] = []  # shares that are others' without a word of ours
        self.unsaved: list[TopicPartition] = []  # those of them that have messages not committed
        self.has_word = False  # some are lost or wanted back: the application has to hear it first
        self.failure: MyQueueError | None = None  # why it can't be a member
        self._start = start
        self._names: dict[TopicPartition, PartitionState] = {}
        self._uids: dict[str, int] = {}  # of the topics that are read, while they exist
        self._seen: set[str] = set()
        self._made_again: set[str] = set()  # topics that took the place of one that was read
        self._deleted: set[str] = set()  # and not made again so far
        self._ends: dict[str, str] = {}  # topic -> what became of it; the application hears it once

    # -- partitions -------------------------------------------------------------------------------

    def routed(self, topic: str, now: int, places: Iterable[PartitionRoute], uid: int = 0) -> None:
        """What managers say of a topic. `uid` tells one that was made again from the one before."""
        grown = topic in self._seen
        start = "earliest" if grown and self._start == "latest" else self._start
        self._seen.add(topic)
        if self._uids.setdefault(topic, uid) != uid:
            self._uids[topic] = uid
            self._made_again.add(topic)
            if topic in self._ends or topic not in self._deleted:
                self._ends[topic] = f"the topic {topic!r} was deleted and made again"
        elif topic in self._deleted:
            self._ends.pop(topic, None)  # it is there, as it was
        self._deleted.discard(topic)
        places = [one for one in places if self.shares is None or self.shares.has(one.group)]
        removed = self._remove(topic, keep={place.group for place in places})
        added = []
        for number, group, leader in places:
            reading = self.readings.get(group)
            if reading is None:
                name = TopicPartition(topic, number)
                reading = self._new_reading(name, group, start)
                reading.is_next = topic in self._made_again
                self.readings[group] = self._names[name] = reading
                added.append(name)
            self.prefetch.led(reading, leader, now)
        if added or removed:
            self.news.append((added, removed))

    def _new_reading(self, name: TopicPartition, group: int, start: str) -> PartitionState:
        if self.shares is None:
            return PartitionState(
                name, group, self.topics[name.topic], StartRule(start), self.skips
            )
        share = self.shares.by_group[group]
        resumes = self._start == "latest" and not share.is_new
        find = StartRule("resumed" if resumes else "committed")
        reading = PartitionState(name, group, self.topics[name.topic], find, self.skips)
        reading.member, reading.epoch = self.shares.member, share.epoch
        reading.fenced, reading.leaving = False, share.to_let_go
        reading.told = reading.ready = False
        self.has_word = self.has_word or share.to_let_go
        return reading

    def unknown(self, topic: str) -> None:
        """Managers say that there is no such topic (any more)."""
        if topic not in self._deleted:
            self._deleted.add(topic)
            self._ends[topic] = f"the topic {topic!r} was deleted"
        removed = self._remove(topic, keep=set())
        if removed:
            self.news.append(([], removed))

    def _remove(self, topic: str, keep: set[int]) -> list[TopicPartition]:
        """Partitions of deleted incarnations go, with what was fetched of them (C10)."""
        gone = [r for r in self.readings.values() if r.name.topic == topic and r.group not in keep]
        return self._drop(gone)

    def _drop(self, gone: list[PartitionState]) -> list[TopicPartition]:
        """Those that the application knows of."""
        for reading in gone:
            reading.gone = True
            reading.forget()
            del self.readings[reading.group], self._names[reading.name]
            if not reading.told:
                _withdraw(self.news, reading.name)
        return [reading.name for reading in gone if reading.told]

    # -- shares of a group ------------------------------------------------------------------------

    def shared(self, version: int, rows: Sequence[Sequence[Any]]) -> None:
        """The managers' answer; `routed` has to follow, for what is new."""
        shares = self.shares
        if shares is None or not shares.take(version, rows):
            return
        gone = []
        for reading in self.readings.values():
            share = shares.by_group.get(reading.group)
            if share is None or share.epoch != reading.epoch:
                gone.append(reading)
            elif share.to_let_go and not reading.leaving:
                reading.leaving = self.has_word = True
                reading.hold()
        self._lose(gone)

    def session_ended(self) -> None:
        """All shares are lost, and so is the way to them."""
        if self.shares is not None:
            self.shares.forget()
            self._lose(list(self.readings.values()))

    def _lose(self, gone: list[PartitionState]) -> None:
        self.unsaved += [reading.name for reading in gone if reading.is_unsaved]
        self.lost += self._drop(gone)
        self.has_word = self.has_word or bool(self.lost)

    def take_word(self) -> tuple[list[TopicPartition], list[PartitionState]]:
        """What was lost, and what waits for the application to be done with what it got."""
        lost, self.lost, self.unsaved, self.has_word = self.lost, [], [], False
        return lost, [reading for reading in self.readings.values() if reading.leaving]

    def take_news(self) -> list[tuple[list[TopicPartition], list[TopicPartition]]]:
        """(new, gone). When the application has heard it, `admit` what is new. What is wanted back
        by now it never hears of.
        """
        news, self.news = self.news, []
        for reading in self.readings.values():
            if not reading.told and reading.leaving:
                _withdraw(news, reading.name)
            else:
                reading.told = True
        return news

    def admit(self) -> None:
        """What was told is handed out from now on, from where the application wants it."""
        for reading in self.readings.values():
            if reading.told and not reading.ready:
                reading.ready = True
                self.turns.add(reading)

    def release(self, readings: Iterable[PartitionState]) -> None:
        """The application is done with them."""
        if self.shares is not None:
            left = [one for one in readings if self.readings.get(one.group) is one]
            self.shares.released.update({one.group: one.epoch for one in left})
            self._drop(left)

    def named(self, name: TopicPartition) -> PartitionState:
        reading = self._names.get(name)
        if reading is None and name.topic in self._deleted:
            raise TopicDeleted(f"{name} is no more: the topic was deleted")
        if reading is None:
            raise MisuseError(f"{name} is not among the partitions that are read")
        return reading

    def chosen(self, names: Iterable[TopicPartition] | str | None) -> list[PartitionState]:
        """These partitions, those of a topic, or all."""
        if names is None:
            return list(self._names.values())
        if isinstance(names, str):
            if names not in self.topics:
                raise MisuseError(f"{names!r} is not among the topics that are read")
            return [reading for name, reading in self._names.items() if name.topic == names]
        return [self.named(TopicPartition(*name)) for name in names]

    # -- what the application wants ---------------------------------------------------------------

    def seek(self, name: TopicPartition, where: int | StartRule) -> PartitionState:
        """Goes on from an offset, or from one that is looked up; what was fetched is dropped."""
        reading = self.named(name)
        if isinstance(where, StartRule):
            reading.search(where)
        elif not 0 <= where <= OFFSET_MAX:
            raise MisuseError(f"seek to {where}: offsets count from 0 to 2^63 - 1")
        else:
            reading.place(where)
        reading.retry_at = 0
        return reading

    def pause(self, name: TopicPartition) -> None:
        """Hands out nothing of it and fetches nothing more; what came is kept."""
        reading = self.named(name)
        if not reading.paused:
            reading.paused = True
            reading.hold()

    def resume(self, name: TopicPartition) -> None:
        reading = self.named(name)
        reading.paused = False
        self.turns.add(reading)

    def close(self) -> None:
        """Hands out nothing more, not even to who is in a loop over messages of a batch."""
        for reading in self.readings.values():
            reading.stop()

    def next_run(self, now: int) -> Iterator[Message] | None:
        """See Turns. The end of a topic comes first, and once: messages of the next topic of this
        name must not be taken for its own.
        """
        if self._ends:
            raise TopicDeleted(self._ends.pop(min(self._ends)), component="manager")
        run = self.turns.next_run(now)
        error = self.failure
        if run is None and error is not None:
            self.failure = None  # the next attempt to join says so again
            raise error
        return run

    @property
    def is_hungry(self) -> bool:
        """After `next_run`: may there be room now for what nobody asked for so far?"""
        current = self.turns.current
        wants = current is not None and self.prefetch.wants(current)
        return wants or self.turns.dropped

    @property
    def has_news(self) -> bool:
        """Would `next_run` give or raise something, or is there news of partitions?"""
        told = self.news or self._ends or self.failure
        return bool(told) or self.has_word or self.turns.has_news

    # -- committing -------------------------------------------------------------------------------

    def mark_handled(self) -> None:
        """The application asks for more: what it got before is handled (C9)."""
        for reading in self.readings.values():
            reading.handled = reading.position

    def commits(
        self, *, handled_only: bool = False, only: Mapping[TopicPartition, int] | None = None,
        of: Iterable[TopicPartition] | None = None,
    ) -> list[CommitRequest]:  # fmt: skip
        """Positions that moved forward since they were committed, by broker and name; or `only`
        these, or those `of` some partitions.
        """
        out: dict[tuple[str, str], CommitRequest] = {}
        for reading in self.chosen(of if only is None else only):
            offset = reading.handled if handled_only else reading.position
            if only is not None:
                offset = only[reading.name]
                if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                    raise MisuseError(f"commit of {offset!r}: offsets count from 0 to 2^63 - 1")
            if not reading.who or offset is None:
                continue
            if reading.committed is None or offset > reading.committed:
                key = (reading.keeper, reading.who)
                commit = out.setdefault(key, CommitRequest(*key, [], []))
                commit.readings.append(reading)
                commit.parts.append([reading.group, offset, reading.member, reading.epoch])
        return list(out.values())

    def check_returned(self, upto: Message | Mapping[TopicPartition, int]) -> None:
        """A member may commit what it got since the partition is its own, and nothing that it got
        before it was lost and came back: another one may have set it back meanwhile (C7).
        """
        names = [TopicPartition(upto.topic, upto.partition)] if isinstance(upto, Message) else upto
        for name in names:
            if TopicPartition(*name).topic in self._deleted:
                self.named(TopicPartition(*name))
            reading = self._names.get(TopicPartition(*name))
            if reading is None:
                raise Fenced(f"{name} is not this member's, or not any more", hint=POLL_HINT)
            late = isinstance(upto, Message) and upto.offset >= reading.furthest
            if late or not reading.told:
                raise Fenced(f"{name} was lost and came back since then", hint=POLL_HINT)

    def check_topic(self, upto: Message | Mapping[TopicPartition, int]) -> None:
        """Offsets of a topic that was deleted mean nothing in the next one of its name."""
        if not isinstance(upto, Message):
            return
        reading = self.named(TopicPartition(upto.topic, upto.partition))
        if reading.is_next and upto.offset >= reading.furthest:
            raise TopicDeleted(f"{reading.name} was deleted and made again since this message")

    def again(
        self, commits: Iterable[CommitRequest]
    ) -> tuple[list[CommitRequest], list[TopicPartition]]:
        """What of these is still to be committed, at the leaders of now; and what is gone. By the
        reading, not by its name: what came back meanwhile is another one, under another epoch.
        """
        out: dict[tuple[str, str], CommitRequest] = {}
        gone = []
        for commit in commits:
            for reading, part in zip(commit.readings, commit.parts, strict=True):
                if reading.gone:
                    gone.append(reading.name)
                elif reading.committed is None or part[1] > reading.committed:
                    key = (reading.keeper, reading.who)
                    later = out.setdefault(key, CommitRequest(*key, [], []))
                    later.readings.append(reading)
                    later.parts.append(part)
        return list(out.values()), gone

    def committed(
        self, commit: CommitRequest, parts: Sequence[Sequence[Any]]
    ) -> MyQueueError | None:
        """The answer to a COMMIT; an error if something was not committed."""
        rows = {row[0]: row[1:] for row in parts}
        failure: MyQueueError | None = None
        for reading in commit.readings:
            code, offset, _ = rows.get(reading.group, (Internal.code, 0, None))
            if code:
                text = f"the position of {reading.name} was not committed"
                failure = error_of(code, text, commit.address)
                self.prefetch.routes_wanted = True
            else:
                reading.committed = max(offset, reading.committed or 0)
        return failure
