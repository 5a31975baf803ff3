"""`Admin`, the part about consumer groups: who is in, how far they are, and setting it back.

Managers know members and who has which partition; positions are with the partitions' leaders. A
reset takes both: the managers give it an epoch above all owners' and let nobody read meanwhile;
under it the positions are set to anything; then members go on, from there. So nobody's commit of
before can undo it, and a reset that is lost half-way is ended by the managers after a while. To
delete a group is to forget its positions in the same way, and then the group.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from myqueue.admin.calls import Limit, public
from myqueue.cluster.offset_queries import Offsets
from myqueue.cluster.session import Answer, Session
from myqueue.consumer.message import TopicPartition
from myqueue.errors import GroupInUse, MisuseError, MyQueueError, TimedOut, UnknownGroup, error_of
from myqueue.wire import protocol as words

PAUSE_S: Final = 0.05
ATTEMPT_MS: Final = 3_000
END_S: Final = 1.0  # to end what was begun, though the time of the call is over

Facts = dict[str, Any]


@public
class GroupAdmin(ABC):
    """See the chapter's head."""

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
        """`{"group", "state", "members", "topics", "partitions"}` of each; the state is stable,
        moving (partitions go from member to member), empty or resetting.
        """
        return list(self._read("groups")["groups"])

    def describe_group(self, group: str) -> Facts:
        """Members, and of each partition of its topics the member that has it (0: nobody),
        position (None: nothing committed), start, end and lag. Where no leader answers these are
        None, and so is the lag of all.
        """
        found = self._read("group", group=group)
        owners = {(row["topic"], row["partition"]): row for row in found["partitions"]}
        rows = []
        for topic in self._existing(found["topics"]):
            for name, at in sorted(self._known_offsets(topic, f"group/{group}").items()):
                known = owners.get((name.topic, name.partition), {})
                rows.append({
                    "topic": name.topic, "partition": name.partition,
                    "member": known.get("member", 0), "wanted": known.get("wanted", 0),
                    "epoch": known.get("epoch", 0), "position": at and at.position,
                    "start": at and at.start, "end": at and at.end, "lag": at and _lag(at),
                })  # fmt: skip
        lags = [row["lag"] for row in rows]
        return {**found, "partitions": rows, "lag": None if None in lags else sum(lags)}

    def _existing(self, topics: Iterable[str]) -> list[str]:
        there = set(self._read("topics")["topics"])
        return sorted(there.intersection(topics))

    def reset_group(
        self, group: str, *, to: str | None = None, offset: int | None = None,
        time_ms: int | None = None, shift: int | None = None,
        topics: Iterable[str] | None = None, partitions: Iterable[TopicPartition] | None = None,
        force: bool = False, execute: bool = True,
    ) -> list[Facts]:  # fmt: skip
        """Sets a group's positions: `to` "earliest" or "latest", to an `offset`, to the first
        message of a time, or by `shift` messages; never outside of what is there.

        Of these topics (by default all that it reads), or partitions. Returns
        `{"topic", "partition", "position", "new"}` of each; without `execute` nothing is changed.
        GroupInUse if it has members, unless `force`: they go on from the new positions.
        """
        given = [one for one in (to, offset, time_ms, shift) if one is not None]
        if len(given) != 1 or to not in (None, "earliest", "latest") or (offset or 0) < 0:
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

        rows = plan()  # whatever is wrong with it is said before anybody has to stop
        if not execute:
            return rows
        asked = {"group": group, "force": force, "topics": names}
        epoch = self._update("begin_reset", **asked)["epoch"]
        try:
            rows = plan()
            self._set_positions(group, epoch, rows)
        finally:
            with self._limit.at_least(END_S):
                self._update("end_reset", group=group, epoch=epoch)
        return rows

    def delete_group(self, group: str) -> None:
        """Forgets it and its positions: who joins it later begins as in a new one. GroupInUse if it
        has members. What fails half-way may be repeated.
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
                error.hint = "Somebody joined meanwhile: it stays, and its positions are forgotten."
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
        """At the leaders of the partitions, again until the deadline."""
        left = {(row["topic"], row["partition"]): row["new"] for row in rows}
        last = "no leader is known"
        while True:
            last = self._try_to_set(f"group/{group}", epoch, left) or last
            if not left:
                return
            if self._limit.is_over:
                raise TimedOut(f"{len(left)} positions could not be set: {last}")
            self._session.refresh({topic for topic, _ in left})
            time.sleep(PAUSE_S)

    def _try_to_set(self, who: str, epoch: int, left: dict[tuple[str, int], int]) -> str:
        """Takes out of `left` what was set; says what went wrong."""
        routes, now = self._session.routes, self._session.now_ms()
        groups: dict[int, tuple[str, int]] = {}
        asked: dict[str, list[list[int]]] = {}
        for (topic, number), offset in left.items():
            known = routes.topic(topic)
            if known is None or number >= len(known.partitions):
                continue  # the routes are not the newest
            group = known.partitions[number].group
            address = routes.leader(group, now)
            if address is not None:
                groups[group] = (topic, number)
                asked.setdefault(address, []).append([group, offset, 0, epoch])
        calls = [
            self._session.call(
                address, words.COMMIT, (who, parts), timeout_ms=min(ATTEMPT_MS, self._limit.left_ms)
            )
            for address, parts in asked.items()
        ]
        said = ""
        for call in calls:
            for group, code in self._codes(call).items():
                if not code:
                    left.pop(groups[group], None)
                elif not (refusal := error_of(code, f"of {who}: {groups[group]}")).retriable:
                    raise refusal
                else:
                    said = str(refusal)
        return said

    def _codes(self, call: Future[Answer]) -> Mapping[int, int]:
        try:
            return {row[0]: row[1] for row in self._wait(call).fields[0]}
        except MyQueueError as error:
            if not error.retriable:
                raise
            return {}


def _lag(at: Offsets) -> int:
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
