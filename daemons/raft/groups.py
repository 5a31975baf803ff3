"""All groups of one process: their messages travel together, and quiet ones cost nothing.

Being alive is a matter of *nodes*, not of groups: one small beat goes to each peer at each
interval, however many groups the two share. A follower believes in its leader while the leader's
node beats and says that it leads. That saying is compressed: a beat carries how many of the
groups shared with the peer its sender leads, and a digest of (group, term, leader) over them. The
receiver keeps the same for what it follows. Twice unequal, and it asks for the list; what it
follows and the list does not name has lost its leader, what the list names and it did not know
has found one.

So no timer runs for a group that has nothing to do. Only groups with a deadline (an election, an
answer that is waited for) are looked at, at each tick.

Commits that no message carried yet go with the next beat, until that beat is answered.

A group whose invariants are broken ends alone: nothing of what it did in that turn leaves the host,
it is no group of this host from then on, and the caller finds it in `broken`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from myqueue.daemons.raft.node import RaftNode
from myqueue.daemons.raft.suspicion import Suspicion
from myqueue.daemons.raft.types import (
    NEVER,
    NOBODY,
    Config,
    Effects,
    InvariantBroken,
    Message,
    RaftSettings,
    Role,
    node_of,
)

_MASK = 2**64 - 1


def _mix(group: int, term: int, leader: int) -> int:
    """Spread over 64 bits, so that sums of different sets differ."""
    value = (group * 0x9E3779B97F4A7C15 + term * 0xC2B2AE3D27D4EB4F + leader) & _MASK
    value ^= value >> 29
    return (value * 0xBF58476D1CE4E5B9) & _MASK


@dataclass(slots=True)
class NodeHeartbeat:
    """I am alive; this is what I lead among the groups that we share."""

    incarnation: int
    number: int
    leads: int
    digest: int
    commits: list[tuple[int, int, int, int]]  # (group, leader's replica, term, commit)


@dataclass(slots=True)
class NodeHeartbeatReply:
    number: int
    ask: bool  # what you say you lead is not what I follow: send the list


@dataclass(slots=True)
class LeaderList:
    """The list behind the digest: (group, leader's replica, the receiver's replica, term)."""

    groups: list[tuple[int, int, int, int]]


@dataclass(slots=True)
class Packet:
    """All that one node sends to another at the end of a turn."""

    messages: list[Message] = field(default_factory=list)
    beats: list[NodeHeartbeat | NodeHeartbeatReply | LeaderList] = field(default_factory=list)
    repair_messages: list[Any] = field(
        default_factory=list
    )  # not for the core (`daemons/repair/coordinator`)


class _Peer:
    """State that is kept about another node."""

    __slots__ = (
        "alive",
        "answered",
        "beat",
        "commits",
        "followed",
        "followed_digest",
        "incarnation",
        "leads",
        "leads_digest",
        "mismatches",
        "replies",
    )

    def __init__(self) -> None:
        self.alive = False
        self.incarnation = 0
        self.beat = self.answered = 0  # numbers of our beats: last sent, last answered
        self.leads = self.leads_digest = 0  # what we lead and share with it
        self.followed = self.followed_digest = 0  # what we follow and it leads
        self.mismatches = 0
        self.commits: dict[int, tuple[int, int]] = {}  # group -> (commit, first beat with it)
        self.replies: list[NodeHeartbeatReply | LeaderList] = []


class _Known:
    """The last contribution of a group to the digests."""

    __slots__ = ("config", "leader", "peers", "term")

    def __init__(self) -> None:
        self.term, self.leader = 0, NOBODY
        self.config: Config | None = None
        self.peers: tuple[int, ...] = ()  # nodes whose digest of ours this group is part of


class RaftGroups:
    """The groups of one node. All calls come from one thread."""

    def __init__(self, node: int, incarnation: int, settings: RaftSettings) -> None:
        self.node, self.incarnation, self.settings = node, incarnation, settings
        self.groups: dict[int, RaftNode] = {}
        self.suspicion = Suspicion(settings.election_timeout_ms_min)
        self.late_turns = self.silences = 0  # of this process; of other nodes that were noticed
        self._turn_at = NEVER  # the begin of the last turn
        self._peers: dict[int, _Peer] = {}
        self._known: dict[int, _Known] = {}
        self._dirty: dict[int, None] = {}  # groups that this turn touched, in order
        self._timed: dict[int, None] = {}  # groups with a deadline
        self._next_beat = 0
        self.broken: dict[int, InvariantBroken] = {}  # groups that ended, for the caller to take
        self.out = Effects()

    # -- groups --------------------------------------------------------------------------------

    def add(self, node: RaftNode) -> None:
        self.groups[node.group] = node
        self._known[node.group] = _Known()
        self._touch(node)

    def remove(self, group: int) -> None:
        node = self.groups.pop(group)
        self._retract(self._known.pop(group), node)
        self._dirty.pop(group, None)
        self._timed.pop(group, None)

    def peer(self, number: int) -> _Peer:
        found = self._peers.get(number)
        if found is None:
            found = self._peers[number] = _Peer()
        return found

    def touch(self, group: int) -> RaftNode | None:
        """The group, which is looked at again when the turn ends; for every call on it."""
        node = self.groups.get(group)
        if node is None or group in self.broken:
            return None
        self._dirty[group] = None
        return node

    def mark_broken(self, group: int, error: InvariantBroken) -> None:
        """An invariant of this group does not hold; it ends with this turn, the others go on."""
        self.broken.setdefault(group, error)
        self._dirty.pop(group, None)

    def call(self, group: int, method: Callable[..., None], *arguments: Any) -> None:
        """A call on one of our groups, which is looked at again when the turn ends."""
        node = self.touch(group)
        if node is not None:
            try:
                method(node, *arguments)
            except InvariantBroken as error:
                self.mark_broken(group, error)

    def _touch(self, node: RaftNode) -> None:
        self._dirty[node.group] = None

    # -- a turn --------------------------------------------------------------------------------

    def begin_turn(self, now: int, wait_ms: int) -> int:
        """A turn begins, after the last one and a wait for events of `wait_ms` at most.

        Return by how much it is late, if that is so much that others must not be blamed for it.
        """
        late_ms = now - self._turn_at - wait_ms
        self._turn_at = now
        if not self.suspicion.note_late(late_ms):
            return 0
        self.late_turns += 1
        return late_ms

    def receive(self, source: int, packet: Packet, now: int) -> None:
        self._hear(source, now)
        for beat in packet.beats:
            if isinstance(beat, NodeHeartbeat):
                self._recognise(source, beat.incarnation, now)
        out = self.out
        for message in packet.messages:
            node = self.touch(message.group)
            if node is not None:
                try:
                    node.step(message, now, out)
                except InvariantBroken as error:
                    self.mark_broken(message.group, error)
        for beat in packet.beats:
            if isinstance(beat, NodeHeartbeat):
                self._beat(source, beat, now)
            elif isinstance(beat, NodeHeartbeatReply):
                self._beat_reply(source, beat)
            else:
                self._leads(source, beat, now)

    def tick(self, now: int) -> None:
        """Time passed: deadlines, silent peers, and the next beat."""
        for number, peer in sorted(self._peers.items()):
            if peer.alive and not self.suspicion.is_alive(number, now):
                peer.alive = False
                self.silences += 1
                self._silent(number, now)
        for group in list(self._timed):
            if self.groups[group].deadline <= now:
                self.call(group, RaftNode.tick, now, self.out)

    def disconnected(self, number: int, now: int) -> None:
        """The connection to another node broke: it is as if it had been silent for long enough.

        A hint, never a proof: followers that still receive from the leader refuse pre-votes,
        so one broken connection deposes no leader. A process that ended is noticed at once.
        """
        peer = self.peer(number)
        self.suspicion.end(number)
        if peer.alive:
            peer.alive = False
            self._silent(number, now)

    def connected(self, number: int, now: int) -> None:
        """Another node can be reached from now on."""
        for group, node in self.groups.items():
            if node.leader == NOBODY and any(node_of(one) == number for one in node.config.voters):
                self.call(group, RaftNode.reaches, now)

    def end_turn(self, now: int) -> tuple[Effects, dict[int, Packet]]:
        """Everything that has to be done, and a packet for each node that gets one."""
        out = self.out
        for group in list(self._dirty):
            node = self.groups[group]
            try:
                node.flush(now, out)
                self._account(node)
            except InvariantBroken as error:
                self.mark_broken(group, error)
                continue
            if node.deadline == NEVER:
                self._timed.pop(group, None)
            else:
                self._timed[group] = None
        self._dirty.clear()
        if self.broken:
            self.leave_out(out, {})
        packets: dict[int, Packet] = {}
        for message in out.send:
            number = node_of(message.target)
            packet = packets.get(number)
            if packet is None:
                packet = packets[number] = Packet()
            packet.messages.append(message)
        self._add_beats(packets, now)
        self.out = Effects()
        return out, packets

    def leave_out(self, out: Effects, packets: dict[int, Packet]) -> None:
        """Drop the effects and messages of groups that broke in this turn."""
        broken = self.broken
        for packet in packets.values():
            packet.messages = [one for one in packet.messages if one.group not in broken]
        for group in broken:
            if group in self.groups:
                self.remove(group)
        out.persist = [one for one in out.persist if one.group not in broken]
        out.send = [one for one in out.send if one.group not in broken]
        out.apply = [one for one in out.apply if one.group not in broken]
        out.fetch = [one for one in out.fetch if one.group not in broken]
        out.reads = [one for one in out.reads if one.group not in broken]
        out.dropped = [one for one in out.dropped if one.group not in broken]
        out.changed = [one for one in out.changed if one.group not in broken]

    @property
    def is_quiet(self) -> bool:
        """No group has a deadline; beats are all that time brings."""
        return not self._timed

    @property
    def is_stirred(self) -> bool:
        """Something is left for another turn, which need not wait for an event."""
        out = self.out
        return bool(
            self._dirty or out.send or out.persist or out.apply or out.changed or self.broken
        )

    # -- beats ---------------------------------------------------------------------------------

    def _hear(self, source: int, now: int) -> None:
        peer, was_alive = self.peer(source), self.suspicion.is_alive(source, now)
        self.suspicion.hear(source, now)
        # Nothing was sent to it since, even if no tick came to notice its silence.
        if not peer.alive or not was_alive:
            peer.alive = True
            for group, known in self._known.items():
                if source in known.peers:
                    self.call(group, RaftNode.peer_is_back, source, now, self.out)

    def _recognise(self, source: int, incarnation: int, now: int) -> None:
        """A restarted process leads nothing that it led before. What it says in the same packet
        comes after that, so this is looked at first; and at the first contact nothing is lost.
        """
        peer = self.peer(source)
        known, peer.incarnation = peer.incarnation, incarnation
        if known not in (0, incarnation):
            self.suspicion.end(source)  # how long it was away says nothing about its pace
            self.suspicion.hear(source, now)
            self._silent(source, now)

    def _silent(self, number: int, now: int) -> None:
        """Its groups lost their leader; ours that need it may have lost their majority."""
        for group, known in self._known.items():
            if node_of(known.leader) == number:
                self.call(group, RaftNode.leader_lost, now, self.out)
            elif number in known.peers:
                self.call(group, RaftNode.check_quorum, now, self.out)

    def _add_beats(self, packets: dict[int, Packet], now: int) -> None:
        due = now >= self._next_beat
        if due:
            self._next_beat = now + self.settings.heartbeat_ms
        for number, peer in self._peers.items():
            if not due and not peer.replies:
                continue
            packet = packets.setdefault(number, Packet())
            packet.beats += peer.replies
            peer.replies = []
            if due:
                packet.beats.append(self._make_beat(peer))

    def _make_beat(self, peer: _Peer) -> NodeHeartbeat:
        peer.beat += 1
        commits = []
        for group, (commit, first_beat) in list(peer.commits.items()) if peer.alive else ():
            node = self.groups.get(group)
            if node is None or node.role != Role.LEADER or commit != node.commit_index:
                del peer.commits[group]
                if node is None or node.role != Role.LEADER:
                    continue
                commit, first_beat = node.commit_index, 0
            peer.commits[group] = (commit, first_beat or peer.beat)
            commits.append((group, node.replica, node.term, commit))
        return NodeHeartbeat(self.incarnation, peer.beat, peer.leads, peer.leads_digest, commits)

    def _beat(self, source: int, beat: NodeHeartbeat, now: int) -> None:
        peer = self.peer(source)
        for group, leader, term, commit in beat.commits:
            self.call(group, RaftNode.commit_hint, leader, term, commit, self.out)
        same = (beat.leads, beat.digest) == (peer.followed, peer.followed_digest)
        peer.mismatches = 0 if same else peer.mismatches + 1
        ask = peer.mismatches >= 2
        if ask:
            peer.mismatches = 0
        if ask or beat.commits:  # else there is nothing that an answer would settle
            peer.replies.append(NodeHeartbeatReply(beat.number, ask))

    def _beat_reply(self, source: int, reply: NodeHeartbeatReply) -> None:
        peer = self.peer(source)
        peer.answered = max(peer.answered, reply.number)
        for group, (_, first_beat) in list(peer.commits.items()):
            if 0 < first_beat <= peer.answered:
                del peer.commits[group]
        if reply.ask:
            peer.replies.append(LeaderList(self._list_for(source)))

    def _list_for(self, number: int) -> list[tuple[int, int, int, int]]:
        rows = []
        for group, known in self._known.items():
            if number in known.peers and group not in self.broken:
                node = self.groups[group]
                if node.role != Role.LEADER or node.term != known.term:
                    continue  # it stopped leading in this turn: it never led in its new term (R30)
                rows += [
                    (group, node.replica, member, node.term)
                    for member in node.config.members
                    if node_of(member) == number
                ]
        return rows

    def _leads(self, source: int, leads: LeaderList, now: int) -> None:
        named = {group: (leader, target, term) for group, leader, target, term in leads.groups}
        for group, known in self._known.items():
            node = self.groups[group]
            leader, _, term = named.get(group, (0, 0, 0))
            said = (leader, term) == (known.leader, known.term)
            if node_of(known.leader) == source and node.role != Role.LEADER and not said:
                self.call(group, RaftNode.leader_lost, now, self.out)
        for group, (leader, target, term) in named.items():
            node_or_none = self.groups.get(group)
            if node_or_none is not None and node_or_none.replica == target:
                self.call(group, RaftNode.leader_announced, leader, term, now, self.out)

    # -- digests -------------------------------------------------------------------------------

    def _account(self, node: RaftNode) -> None:
        """Bring the digests up to date with what a group has become; note commits to be told."""
        known = self._known[node.group]
        changed = known.term != node.term or known.leader != node.leader
        if changed or known.config is not node.configs.current:
            self._retract(known, node)
            self._contribute(known, node)
        if node.role != Role.LEADER:
            return
        commit = node.commit_index
        for replica, follower in node.leading.followers.items():
            if follower.sent_commit < commit:
                follower.sent_commit = commit
                self.peer(node_of(replica)).commits[node.group] = (commit, 0)

    def _contribute(self, known: _Known, node: RaftNode) -> None:
        known.term, known.leader, known.config = node.term, node.leader, node.configs.current
        members = node.configs.current.members
        for member in members:
            if node_of(member) != self.node:
                self.peer(node_of(member))
        if node.leader == NOBODY:
            return
        value = _mix(node.group, node.term, node.leader)
        if node.leader == node.replica:
            nodes = {node_of(member) for member in members} - {self.node}
            known.peers = tuple(sorted(nodes))
            for number in known.peers:
                peer = self.peer(number)
                peer.leads += 1
                peer.leads_digest = (peer.leads_digest + value) & _MASK
        else:
            peer = self.peer(node_of(node.leader))
            peer.followed += 1
            peer.followed_digest = (peer.followed_digest + value) & _MASK

    def _retract(self, known: _Known, node: RaftNode) -> None:
        if known.leader == NOBODY:
            return
        value = _mix(node.group, known.term, known.leader)
        for number in known.peers:
            peer = self.peer(number)
            peer.leads -= 1
            peer.leads_digest = (peer.leads_digest - value) & _MASK
        if known.leader != node.replica:
            peer = self.peer(node_of(known.leader))
            peer.followed -= 1
            peer.followed_digest = (peer.followed_digest - value) & _MASK
        known.peers, known.leader = (), NOBODY
