"""The half of `Admin` for consumer groups: list, describe, reset and delete them.

Managers hold a group's members and assignment; the partitions' leaders hold its positions. A reset
needs both. The managers give it an epoch above that of every owner and assign no partition until it
ends. Under that epoch the leaders set the positions; then the members continue from there. So a
commit from before the reset cannot undo it. If the client fails during a reset, the managers end it
after a while. Deleting a group removes its positions in the same way, and then the group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from myqueue.admin.calls import Limit, public
from myqueue.cluster.offset_queries import Offsets, ask_leaders
from myqueue.cluster.session import Session
from myqueue.consumer.message import TopicPartition
from myqueue.errors import (
    GroupInUse,
    MisuseError,
    MyQueueError,
    TimedOut,
    TopicDeleted,
    UnknownGroup,
)
from myqueue.wire import protocol as words

END_S: Final = 1.0  # to end a reset that was begun, even after the deadline of the call

Facts = dict[str, Any]


@public
class GroupAdmin(ABC):
    """The methods of `Admin` for consumer groups; `Admin` implements the abstract ones."""

    _session: Session
    _limit: Limit

    @abstractmethod
    def _read(self, query: str, **arguments: Any) -> Facts: ...

    @abstractmethod
    def _update(self, operation: str, **arguments: Any) -> Facts: ...

    @abstractmethod
    def _wait(self, future: Any) -> Any: ...

    @abstractmethod
    def _offsets(
        self, topic: str, who: str | None, time_ms: int | None
    ) -> dict[TopicPartition, Offsets]: ...

    @abstractmethod
    def _known_offsets(self, topic: str, who: str) -> dict[TopicPartition, Offsets | None]: ...

    def groups(self) -> list[Facts]:
        """List the consumer groups: `{"group", "state", "members", "topics", "partitions"}`.

        The state is stable, moving (partitions go from member to member), empty or resetting.
        """
        return list(self._read("groups")["groups"])

    def describe_group(self, group: str) -> Facts:
        """Describe a group: its members, and each partition of its topics.

        A partition has its member (0: none), position (None: nothing committed), start, end and
        lag. Where no leader answers, these are None, and so is the lag of the group. Raises
        UnknownGroup.
        """
        facts = self._read("group", group=group)
        owners = {(row["topic"], row["partition"]): row for row in facts["partitions"]}
        rows = []
        for topic in self._existing(facts["topics"]):
            for name, at in sorted(self._known_offsets(topic, f"group/{group}").items()):
                owner = owners.get((name.topic, name.partition), {})
                rows.append(
                    {
                        "topic": name.topic,
                        "partition": name.partition,
                        "member": owner.get("member", 0),
                        "wanted": owner.get("wanted", 0),
                        "epoch": owner.get("epoch", 0),
                        "position": at and at.position,
                        "start": at and at.start,
                        "end": at and at.end,
                        "lag": at and lag_of(at),
                    }
                )
        lags = [row["lag"] for row in rows]
        return {**facts, "partitions": rows, "lag": None if None in lags else sum(lags)}

    def _existing(self, topics: Iterable[str]) -> list[str]:
        existing = set(self._read("topics")["topics"])
        return sorted(existing.intersection(topics))

    def reset_group(
        self,
        group: str,
        *,
        to: str | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        shift: int | None = None,
        topics: Iterable[str] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        force: bool = False,
        execute: bool = True,
    ) -> list[Facts]:
        """Set a group's positions, always between start and end of each partition.

        Give exactly one of `to` ("earliest" or "latest"), `offset`, `time_ms` (the first message of
        that time or later, ms since 1970) and `shift` (so many messages forward, or back if
        negative). `topics` or `partitions` choose which ones; by default all that it reads.

        Returns `{"topic", "partition", "position", "new"}` for each; without `execute` nothing is
        changed. Raises GroupInUse if the group has members, unless `force`: then they continue
        from the new positions. Raises UnknownGroup if it never had a member and no `topics` are
        given.
        """
        targets = [target for target in (to, offset, time_ms, shift) if target is not None]
        if len(targets) != 1 or to not in (None, "earliest", "latest") or (offset or 0) < 0:
            raise MisuseError('one of to="earliest" or "latest", offset=, time_ms=, shift=')
        wanted = None if partitions is None else set(partitions)
        names = self._topics_of(group, topics, wanted)

        def plan() -> list[Facts]:
            rows = []
            for topic in names:
                for name, at in sorted(self._offsets(topic, f"group/{group}", time_ms).items()):
                    if wanted is None or name in wanted:
                        new = _target(at, to, offset, time_ms, shift)
                        rows.append({**name._asdict(), "position": at.position, "new": new})
            missing = (wanted or set()) - {(row["topic"], row["partition"]) for row in rows}
            if missing:
                raise MisuseError(f"there is no partition {min(missing)}")
            return rows

        rows = plan()  # an error shows before any member has to stop
        if not execute:
            return rows
        epoch = self._update("begin_reset", group=group, force=force, topics=names)["epoch"]
        try:
            rows = plan()
            self._set_positions(group, epoch, rows)
        finally:
            with self._limit.at_least(END_S):
                self._update("end_reset", group=group, epoch=epoch)
        return rows

    def delete_group(self, group: str) -> None:
        """Delete a group and its positions; a later member begins as in a new group.

        Raises UnknownGroup, and GroupInUse if it has members. After another error repeat it.
        """
        topics = self._existing(self._read("group", group=group)["topics"])
        try:
            epoch = self._update("begin_reset", group=group)["epoch"]
        except GroupInUse as error:
            error.hint = "Stop its members first: a group that has some is not deleted."
            raise
        try:
            names = [name for topic in topics for name in self._offsets(topic, None, None)]
            self._set_positions(group, epoch, [{**n._asdict(), "new": words.FORGET} for n in names])
            try:
                self._update("remove_group", group=group, epoch=epoch)
            except GroupInUse as error:
                error.hint = "A member joined: the group stays, and its positions are deleted."
                raise
        except BaseException:
            with suppress(MyQueueError), self._limit.at_least(END_S):  # or the managers end it
                self._update("end_reset", group=group, epoch=epoch)
            raise

    def _topics_of(
        self, group: str, topics: Iterable[str] | None, wanted: set[TopicPartition] | None
    ) -> list[str]:
        if wanted is not None:
            return sorted({name.topic for name in wanted})
        if topics is not None:
            return sorted(set(topics))
        try:
            return self._existing(self._read("group", group=group)["topics"])
        except UnknownGroup as error:
            error.hint = "Name the topics whose positions are to be set."
            raise

    def _set_positions(self, group: str, epoch: int, rows: list[Facts]) -> None:
        """Set the positions at the partitions' leaders; repeat until the deadline."""
        new = {self._group_of(row["topic"], row["partition"]): row["new"] for row in rows}

        def fields(some: list[int]) -> tuple[Any, ...]:
            return f"group/{group}", [[number, new[number], 0, epoch] for number in some]

        done, last = ask_leaders(self._session, new, words.COMMIT, fields, self._limit.left_ms)
        if len(done) < len(new):
            raise TimedOut(f"{len(new) - len(done)} positions could not be set: {last}")

    def _group_of(self, topic: str, partition: int) -> int:
        route = self._session.routes.topic(topic)  # known: its offsets were read just now
        if route is None or partition >= len(route.partitions):
            raise TopicDeleted(f"the topic {topic!r} was deleted")
        return route.partitions[partition].group


def lag_of(at: Offsets) -> int:
    """Count the messages after the committed position."""
    return max(0, at.end - max(at.start, at.position or 0))


def _target(
    at: Offsets, to: str | None, offset: int | None, time_ms: int | None, shift: int | None
) -> int:
    if to is not None:
        return at.start if to == "earliest" else at.end
    if time_ms is not None:
        return at.end if at.at_time is None else at.at_time
    if shift is not None:
        offset = (at.start if at.position is None else at.position) + shift
    return min(max(offset or 0, at.start), at.end)
