"""Sessions of consumer group members, at the managers' leader.

Members send MEMBER again and again. Each one is a heartbeat, says which partitions the member
released, and waits here until there is news for it, so that a rebalance takes one round trip
instead of a heartbeat interval. Decisions stand in the log (`daemons/metadata/groups.py`); here is
what only a leader can know:

- *Sessions.* A member's session lasts for its session time from its last MEMBER on. A MEMBER counts
  only after a round of heartbeats that began after it came has confirmed that this manager still
  leads. A manager that is elected next begins later than that and gives every member a whole
  session. So it never ends a session before the member itself has stopped, and no clocks are
  compared.
- *Joins* are assigned partitions when no other member has joined for a moment: six members that
  start together cause one rebalance. Members that leave or expire are handled in the entry that
  says so.
- *Partitions* that were added or removed are reassigned at once.
- A *reset* that its client does not end is ended here.

All of it may be proposed twice without harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from myqueue.daemons.metadata.group_records import ConsumerGroup, GroupMember
from myqueue.errors import Busy, InvalidRequest, MyQueueError, UnknownMember
from myqueue.wire import protocol

if TYPE_CHECKING:
    from myqueue.daemons.interfaces import Client
    from myqueue.daemons.metadata.tables import Tables
    from myqueue.daemons.read_rounds import ReadRounds
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica
    from myqueue.wire.protocol import Envelope

JOIN_QUIET_MS: Final = 150  # quiet time after the last join
JOIN_GATHER_MS_MAX: Final = 1000  # from the first join
EXPIRY_CHECK_INTERVAL_MS: Final = 100  # between two checks for expired sessions
PROPOSE_RETRY_MS: Final = 2000
STALL_MS: Final = 1000  # a gap in this process: it received nothing then
RESET_MS_MAX: Final = 30_000
WAITING_MEMBERS_MAX: Final = 20_000

AssignmentRow = list[Any]


@dataclass(slots=True, eq=False)
class MemberHeartbeat:
    """A MEMBER request that is not answered yet."""

    client: Client
    request: int
    group: str
    member: int
    seen: int  # the version that the member knows
    received_at: int
    wait_ms: int


class GroupSessions:
    """Members that are alive, requests that wait for news, due rebalances and resets.

    The manager sets `engine` and `read_rounds`.
    """

    engine: Engine
    read_rounds: ReadRounds

    def __init__(
        self,
        tables: Callable[[], Tables],
        reply: Callable[..., None],
        refuse: Callable[[Client, int, MyQueueError], None],
        propose: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._tables, self._reply, self._refuse, self._propose = tables, reply, refuse, propose
        self._awaiting_confirmation: dict[MemberHeartbeat, None] = {}  # of leadership
        self._awaiting_news: dict[int, MemberHeartbeat] = {}  # by member, until there is news
        # Group uid -> version, rows by owner.
        self._assignment_cache: dict[int, tuple[int, dict[int, list[AssignmentRow]]]] = {}
        self.become_leader(0)

    def become_leader(self, now: int) -> None:
        """Begin to lead: every member gets a whole session from now on."""
        self._ticked_at = self._next_expiry_check_at = now
        # Member -> when its last MEMBER came, or when it was first seen here.
        self._last_seen: dict[int, int] = {}
        self._expiry_retry_at: dict[int, int] = {}  # member -> its next proposal
        # Group -> times of first and last join, index.
        self._pending_rebalances: dict[str, tuple[int, int, int]] = {}
        self._reset_since: dict[tuple[str, int], int] = {}  # (group, epoch) -> begin of the reset
        self._balanced_layout: tuple[Tables | None, int] = (None, 0)

    # -- members ----------------------------------------------------------------------------------

    @property
    def last_seen(self) -> Mapping[int, int]:
        """Member -> when its last MEMBER came while this manager led."""
        return self._last_seen

    def handle_member_heartbeat(self, client: Client, envelope: Envelope, replica: Replica) -> None:
        """Take a MEMBER request at the leader; it is answered when there is news."""
        _, _, request, group, member, seen, wait_ms, released = envelope
        member_row = self._get_member(group, member)
        if len(self._awaiting_confirmation) + len(self._awaiting_news) >= WAITING_MEMBERS_MAX:
            raise Busy(f"{WAITING_MEMBERS_MAX} members wait for news here already")
        if released:
            more = {"group": group, "member": member, "shares": released}
            self._propose("release_shares", more)
        wait_ms = min(wait_ms, member_row.session_ms // 2)
        beat = MemberHeartbeat(client, request, group, member, seen, self.engine.now, wait_ms)
        self.read_rounds.begin(replica, partial(self._handle_confirmed, beat))
        self._awaiting_confirmation[beat] = None

    def _get_member(self, group: str, member: int) -> GroupMember:
        team = self._tables().consumer_groups.get(group)
        member_row = team.members.get(member) if team is not None else None
        if member_row is None or member in self._expiry_retry_at:
            raise UnknownMember(f"group {group} has no member {member}, or it expired")
        return member_row

    def _handle_confirmed(self, beat: MemberHeartbeat) -> None:
        """Take a heartbeat that came while this manager certainly led."""
        del self._awaiting_confirmation[beat]
        if beat.member not in self._expiry_retry_at:
            self._last_seen[beat.member] = max(
                beat.received_at, self._last_seen.get(beat.member, 0)
            )
        before = self._awaiting_news.pop(beat.member, None)
        if before is not None:
            self._reply_assignment(before)
        if not self._reply_if_news(beat):
            self._awaiting_news[beat.member] = beat

    def reply_news(self) -> None:
        """Answer members for whom entries that were applied bring news."""
        for beat in list(self._awaiting_news.values()):
            if self._reply_if_news(beat):
                del self._awaiting_news[beat.member]

    def _reply_if_news(self, beat: MemberHeartbeat) -> bool:
        """Answer if there is news or the time is over; returns whether it was answered."""
        try:
            member_row = self._get_member(beat.group, beat.member)
        except UnknownMember as error:
            self._refuse(beat.client, beat.request, error)
            return True
        if member_row.version <= beat.seen and self.engine.now < beat.received_at + beat.wait_ms:
            return False
        self._reply_assignment(beat)
        return True

    def _reply_assignment(self, beat: MemberHeartbeat) -> None:
        try:
            member_row = self._get_member(beat.group, beat.member)
        except UnknownMember as error:
            self._refuse(beat.client, beat.request, error)
            return
        rows = self._assignment_rows(self._tables().consumer_groups[beat.group]).get(
            beat.member, []
        )
        fields = (member_row.version, member_row.session_ms, rows)
        try:
            self._reply(beat.client, protocol.MEMBERSHIP, beat.request, *fields)
        except InvalidRequest:  # more than an envelope holds
            text = f"this member has {len(rows)} partitions, more than an answer can name"
            refusal = InvalidRequest(f"{text}; add members to group {beat.group}")
            self._refuse(beat.client, beat.request, refusal)

    def _assignment_rows(self, team: ConsumerGroup) -> dict[int, list[AssignmentRow]]:
        """By owner: [raft group, topic, number, epoch, is to be released, is new to the group]."""
        version, known = self._assignment_cache.get(team.uid, (-1, {}))
        if version == team.version:
            return known
        if len(self._assignment_cache) > 1000:
            self._assignment_cache.clear()
        tables, rows = self._tables(), dict[int, list[AssignmentRow]]()
        for share in sorted(
            team.shares.values(), key=lambda share: (share.topic_uid, share.number)
        ):
            topic = tables.by_uid.get(share.topic_uid)
            if share.owner and topic is not None:
                is_new = share.number >= team.known_partition_counts.get(share.topic_uid, 0)
                rows.setdefault(share.owner, []).append(
                    [
                        share.group,
                        topic.name,
                        share.number,
                        share.epoch,
                        share.wanted != share.owner,
                        is_new,
                    ]
                )
        self._assignment_cache[team.uid] = team.version, rows
        return rows

    def fail_all(self, error: MyQueueError) -> None:
        """Refuse all waiting members: this manager no longer leads."""
        beats = [*self._awaiting_confirmation, *self._awaiting_news.values()]
        self._awaiting_confirmation.clear()
        self._awaiting_news.clear()
        for beat in beats:
            self._refuse(beat.client, beat.request, error)

    # -- due proposals ----------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Answer overdue members and propose what is due, while this manager is a ready leader."""
        if now - self._ticked_at > STALL_MS:  # members may have sent MEMBERs that were not read
            self._last_seen.clear()
        self._ticked_at = now
        self.reply_news()  # also members that waited for long enough
        self._request_rebalances(now)
        if now >= self._next_expiry_check_at:
            self._next_expiry_check_at = now + EXPIRY_CHECK_INTERVAL_MS
            self._expire_sessions(now)
            self._end_overdue_resets(now)

    def _expire_sessions(self, now: int) -> None:
        teams, last_seen = self._tables().consumer_groups, self._last_seen
        living: set[int] = set()
        for team in teams.values():
            living |= team.members.keys()
            expired = [
                one.id
                for one in team.members.values()
                if now - last_seen.setdefault(one.id, now) >= one.session_ms
                and now >= self._expiry_retry_at.get(one.id, 0)
            ]
            if expired and self._try_propose("expire_members", group=team.name, members=expired):
                self._expiry_retry_at.update(dict.fromkeys(expired, now + PROPOSE_RETRY_MS))
        self._last_seen = {one: at for one, at in last_seen.items() if one in living}
        self._expiry_retry_at = {
            one: at for one, at in self._expiry_retry_at.items() if one in living
        }

    def _request_rebalances(self, now: int) -> None:
        tables = self._tables()
        if self._balanced_layout != (tables, tables.layout_version):
            self._balanced_layout = tables, tables.layout_version
            for team in tables.consumer_groups.values():
                if team.members and not team.unbalanced and _are_partitions_outdated(tables, team):
                    self._pending_rebalances[team.name] = now - JOIN_GATHER_MS_MAX, now, -1
        for name in tables.unbalanced - self._pending_rebalances.keys():
            self._pending_rebalances[name] = now, now, tables.consumer_groups[name].unbalanced
        for name, (first, last, index) in list(self._pending_rebalances.items()):
            joined_team = tables.consumer_groups.get(name)
            if joined_team is None or (index >= 0 and not joined_team.unbalanced):
                del self._pending_rebalances[name]
                continue
            if index >= 0 and joined_team.unbalanced != index:
                last, index = now, joined_team.unbalanced
                self._pending_rebalances[name] = first, last, index
            if now - last >= JOIN_QUIET_MS or now - first >= JOIN_GATHER_MS_MAX:
                if not self._try_propose("balance_groups", groups=[name]):
                    continue
                later = now + PROPOSE_RETRY_MS
                self._pending_rebalances[name] = later, later, index
                if index < 0:
                    del self._pending_rebalances[name]

    def _end_overdue_resets(self, now: int) -> None:
        for team in self._tables().consumer_groups.values():
            if not team.reset:
                continue
            since = self._reset_since.setdefault((team.name, team.reset), now)
            if now - since >= RESET_MS_MAX:
                self._reset_since[team.name, team.reset] = now
                self._try_propose("end_reset", group=team.name, epoch=team.reset)
        if len(self._reset_since) > 1000:
            self._reset_since.clear()

    def _try_propose(self, operation: str, **arguments: Any) -> bool:
        try:
            self._propose(operation, arguments)
        except MyQueueError:
            self.engine.counts["duties_postponed_total"] += 1  # it is proposed again later
            return False
        return True


def _are_partitions_outdated(tables: Tables, team: ConsumerGroup) -> bool:
    """Whether partitions of its topics were added or removed."""
    names = {name for member in team.members.values() for name in member.topics}
    topics = [tables.topics[name] for name in names if name in tables.topics]
    there = {partition.group for topic in topics for partition in topic.partitions}
    return there != team.shares.keys()
