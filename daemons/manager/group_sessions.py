"""The leader's half of consumer groups: sessions of members, and when something has to be decided.

Members send MEMBER again and again; each is a sign of life, says what the member let go of, and
waits here until there is news for it, so that a rebalance takes one round trip and not a beat. What
is decided stands in the log (`daemons/metadata/groups.py`); here is what only a leader can know:

- *Sessions.* A member lives for its session's time from when its last MEMBER came. It counts only
  when a round of heartbeats, begun after it came, showed that this manager still leads (R10). So
  whoever is elected next begins later, and by giving every member a whole session from then on
  it never ends one before the member itself has stopped (C8): no clocks are compared.
- *Joins* are dealt out when no more came for a moment: members that start together are no six
  rebalances. Who leaves or dies is dealt with at once, by the entry that says so.
- *Partitions* that came or went are dealt out at once too.
- A *reset* that nobody ended is ended.

All of it may be proposed twice without harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from myqueue.daemons.metadata.group_records import ConsumerGroup, GroupMember
from myqueue.errors import Busy, InvalidRequest, MyQueueError, UnknownMember
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.interfaces import Client
    from myqueue.daemons.metadata.tables import Tables
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica
    from myqueue.wire.protocol import Envelope

QUIET_MS: Final = 150  # without another join
GATHER_MS_MAX: Final = 1000  # from the first one
LOOK_MS: Final = 100  # between two looks for sessions that ended
ASK_AGAIN_MS: Final = 2000
STALL_MS: Final = 1000  # of this process: it heard nobody meanwhile
RESET_MS_MAX: Final = 30_000
WAITING_MAX: Final = 20_000
_CONTEXTS: Final = 1 << 62  # those of reads count from 1

Row = list[Any]


@dataclass(slots=True)
class Beat:
    """A MEMBER that is not answered yet."""

    client: Client
    request: int
    group: str
    member: int
    seen: int  # version of what the member knows
    came_at: int
    wait_ms: int
    confirmed: bool = False  # this manager led when it came


class Coordinator:
    """See the module's docstring. `engine` is set when the manager has it."""

    engine: Engine

    def __init__(
        self,
        tables: Callable[[], Tables],
        reply: Callable[..., None],
        refuse: Callable[[Client, int, MyQueueError], None],
        propose: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._tables, self._reply, self._refuse, self._propose = tables, reply, refuse, propose
        self._rounds: dict[int, Beat] = {}  # by context: until leadership is confirmed
        self._waiting: dict[int, Beat] = {}  # by member: until there is news
        self._contexts = _CONTEXTS
        self._rows: dict[int, tuple[int, dict[int, list[Row]]]] = {}  # team -> version, by owner
        self.begin(0)

    def begin(self, now: int) -> None:
        """This manager became the leader: every member has a whole session from now on (C8)."""
        self._ticked_at = self._look_at = now
        # Member -> when its last beat came, or when it was first seen here.
        self._heard: dict[int, int] = {}
        self._ended: dict[int, int] = {}  # member -> when its end may be proposed again
        self._joins: dict[str, tuple[int, int, int]] = {}  # group -> first, last join, its index
        self._resets: dict[tuple[str, int], int] = {}  # (group, epoch) -> since when
        self._layout: tuple[Tables | None, int] = (None, 0)

    # -- members ----------------------------------------------------------------------------------

    @property
    def heard(self) -> Mapping[int, int]:
        """Member -> when its last beat came, as far as this manager has led since."""
        return self._heard

    def request(self, client: Client, envelope: Envelope, replica: Replica) -> None:
        """MEMBER, at a leader."""
        _, _, request, group, member, seen, wait_ms, released = envelope
        found = self._member(group, member)
        if len(self._rounds) + len(self._waiting) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} members wait here already")
        if released:
            more = {"group": group, "member": member, "shares": released}
            self._propose("release_shares", more)
        wait_ms = min(wait_ms, found.session_ms // 2)
        beat = Beat(client, request, group, member, seen, self.engine.now, wait_ms)
        self._contexts += 1
        self._rounds[self._contexts] = beat
        try:
            self.engine.read(replica, self._contexts)
        except MyQueueError:
            self._rounds.pop(self._contexts, None)
            raise

    def _member(self, group: str, member: int) -> GroupMember:
        team = self._tables().consumer_groups.get(group)
        found = team.members.get(member) if team is not None else None
        if found is None or member in self._ended:
            raise UnknownMember(f"group {group} has no member {member}, or no more")
        return found

    def read_ready(self, context: int) -> bool:
        """Whether it was one of ours; leadership is confirmed then."""
        beat = self._rounds.pop(context, None)
        if beat is None:
            return context > _CONTEXTS
        if beat.member not in self._ended:
            self._heard[beat.member] = max(beat.came_at, self._heard.get(beat.member, 0))
        before = self._waiting.pop(beat.member, None)
        if before is not None:
            self._answer(before)
        if not self._answer_news(beat):
            self._waiting[beat.member] = beat
        return True

    def news(self) -> None:
        """Something was applied: whom does it concern?"""
        for beat in list(self._waiting.values()):
            if self._answer_news(beat):
                del self._waiting[beat.member]

    def _answer_news(self, beat: Beat) -> bool:
        """Answered, if there is news for this member."""
        try:
            found = self._member(beat.group, beat.member)
        except UnknownMember as error:
            self._refuse(beat.client, beat.request, error)
            return True
        if found.version <= beat.seen and self.engine.now < beat.came_at + beat.wait_ms:
            return False
        self._answer(beat)
        return True

    def _answer(self, beat: Beat) -> None:
        try:
            found = self._member(beat.group, beat.member)
        except UnknownMember as error:
            self._refuse(beat.client, beat.request, error)
            return
        rows = self._rows_of(self._tables().consumer_groups[beat.group]).get(beat.member, [])
        fields = (found.version, found.session_ms, rows)
        try:
            self._reply(beat.client, protocol.MEMBERSHIP, beat.request, *fields)
        except InvalidRequest:  # more than an envelope holds
            text = f"this member has {len(rows)} partitions, more than an answer can name"
            refusal = InvalidRequest(f"{text}; add members to group {beat.group}")
            self._refuse(beat.client, beat.request, refusal)

    def _rows_of(self, team: ConsumerGroup) -> dict[int, list[Row]]:
        """By owner: [group, topic, number, epoch, to let go?, new to all?]."""
        version, known = self._rows.get(team.uid, (-1, {}))
        if version == team.version:
            return known
        if len(self._rows) > 1000:
            self._rows.clear()
        tables, rows = self._tables(), dict[int, list[Row]]()
        for one in sorted(team.shares.values(), key=lambda one: (one.topic_uid, one.number)):
            topic = tables.by_uid.get(one.topic_uid)
            if one.owner and topic is not None:
                is_new = one.number >= team.known_partition_counts.get(one.topic_uid, 0)
                rows.setdefault(one.owner, []).append(
                    [one.group, topic.name, one.number, one.epoch, one.wanted != one.owner, is_new]
                )
        self._rows[team.uid] = team.version, rows
        return rows

    def lost(self, error: MyQueueError) -> None:
        """This manager leads no more."""
        beats = [*self._rounds.values(), *self._waiting.values()]
        self._rounds.clear()
        self._waiting.clear()
        for beat in beats:
            self._refuse(beat.client, beat.request, error)

    # -- what is due ------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Called while this manager leads and is ready."""
        if now - self._ticked_at > STALL_MS:  # who knows what it missed
            self._heard.clear()
        self._ticked_at = now
        self.news()  # and whoever waited for long enough
        self._balance(now)
        if now >= self._look_at:
            self._look_at = now + LOOK_MS
            self._expire(now)
            self._end_resets(now)

    def _expire(self, now: int) -> None:
        teams, heard = self._tables().consumer_groups, self._heard
        living: set[int] = set()
        for team in teams.values():
            living |= team.members.keys()
            over = [
                one.id for one in team.members.values()
                if now - heard.setdefault(one.id, now) >= one.session_ms
                and now >= self._ended.get(one.id, 0)
            ]  # fmt: skip
            if over and self._ask("expire_members", group=team.name, members=over):
                self._ended.update(dict.fromkeys(over, now + ASK_AGAIN_MS))
        self._heard = {one: at for one, at in heard.items() if one in living}
        self._ended = {one: at for one, at in self._ended.items() if one in living}

    def _balance(self, now: int) -> None:
        tables = self._tables()
        if self._layout != (tables, tables.layout_version):
            self._layout = tables, tables.layout_version
            for team in tables.consumer_groups.values():
                if team.members and not team.unbalanced and _is_outdated(tables, team):
                    self._joins[team.name] = now - GATHER_MS_MAX, now, -1
        for name in tables.unbalanced - self._joins.keys():
            self._joins[name] = now, now, tables.consumer_groups[name].unbalanced
        for name, (first, last, index) in list(self._joins.items()):
            found = tables.consumer_groups.get(name)
            if found is None or (index >= 0 and not found.unbalanced):
                del self._joins[name]
                continue
            if index >= 0 and found.unbalanced != index:
                last, index = now, found.unbalanced
                self._joins[name] = first, last, index
            if now - last >= QUIET_MS or now - first >= GATHER_MS_MAX:
                if not self._ask("balance_groups", groups=[name]):
                    continue
                later = now + ASK_AGAIN_MS
                self._joins[name] = later, later, index
                if index < 0:
                    del self._joins[name]

    def _end_resets(self, now: int) -> None:
        for team in self._tables().consumer_groups.values():
            if not team.reset:
                continue
            since = self._resets.setdefault((team.name, team.reset), now)
            if now - since >= RESET_MS_MAX:
                self._resets[team.name, team.reset] = now
                self._ask("end_reset", group=team.name, epoch=team.reset)
        if len(self._resets) > 1000:
            self._resets.clear()

    def _ask(self, operation: str, **arguments: Any) -> bool:
        try:
            self._propose(operation, arguments)
        except MyQueueError:
            self.engine.counts["duties_postponed_total"] += 1  # it comes again
            return False
        return True


def _is_outdated(tables: Tables, team: ConsumerGroup) -> bool:
    """Partitions of its topics came or went."""
    names = {name for member in team.members.values() for name in member.topics}
    topics = [tables.topics[name] for name in names if name in tables.topics]
    there = {partition.group for topic in topics for partition in topic.partitions}
    return there != team.shares.keys()
