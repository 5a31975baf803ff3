"""Where partitions are: what this process knows of topics, leaders and brokers' addresses.

A cache, and nothing else: answers of managers and hints of brokers go in, look-ups come out. What
may be wrong with what it is told, and what it does about it:

- Managers answer from what each of them applied, so a later answer may be older. What is *held* (a
  topic, its partitions and their groups) is taken only from an answer that applied at least as
  much as the one it is known from.
- This session's own changes are *since*: what was known of a topic before it made or deleted it is
  of another topic of that name, and an older answer tells of that one.
- Who *leads* is soft state and ordered by term: only a newer term replaces a known leader, whoever
  says so and whenever.
- A broker's hint (NOT_LEADER) has no term. It is believed for now, beside what is known, until
  news of a newer term comes or the hinted broker does not lead either.
- A leader that says that it is none is not asked again until there is news: the same answer of a
  manager that has not noticed yet is no news, but after a while it is, because leaders do come
  back. One that can't be reached stays the leader until another is named: there is nobody else.

Topics and partitions are values that are replaced, never changed, so that any thread may look.
Only the I/O thread writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

# After so long a failed leader is believed again if managers still name it.
FAILED_MS: Final = 500


@dataclass(frozen=True, slots=True)
class Broker:
    node: int
    address: str
    host: str
    alive: bool


@dataclass(frozen=True, slots=True)
class Partition:
    topic: str
    number: int
    group: int
    leader: int  # node; 0: none known
    term: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    uid: int
    settings: dict[str, Any]
    partitions: tuple[Partition, ...]  # by number: partitions[i].number == i
    applied: int  # the managers' index that this is from


class Routes:
    """See the chapter's head."""

    def __init__(self) -> None:
        self.applied = 0
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self._unknown: dict[str, int] = {}  # name -> applied index at which it did not exist
        self._since: dict[str, int] = {}  # name -> index at which this session changed it
        self._groups: dict[int, tuple[str, int]] = {}
        self._hints: dict[int, str] = {}
        self._failed: dict[int, tuple[str, int]] = {}  # group -> (address, believed again at)

    # -- look-ups, any thread ---------------------------------------------------------------------

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def is_unknown(self, name: str) -> bool:
        """A manager said that there is no such topic, and none said otherwise later."""
        return name in self._unknown

    def partition(self, group: int) -> Partition | None:
        topic_name, number = self._groups.get(group, ("", 0))
        topic = self.topics.get(topic_name)
        if topic is None or number >= len(topic.partitions):
            return None  # it was told of a moment ago, in the I/O thread
        return topic.partitions[number]

    def leader(self, group: int, now: int) -> str | None:
        """Address of who leads this group, as far as known; None: ask the managers again."""
        hint = self._hints.get(group)
        if hint is not None:
            return hint
        partition = self.partition(group)
        broker = self.brokers.get(partition.leader) if partition is not None else None
        if broker is None or not broker.address:
            return None
        failed, until = self._failed.get(group, ("", 0))
        return None if broker.address == failed and now < until else broker.address

    # -- news, I/O thread -------------------------------------------------------------------------

    def learn(self, fields: list[Any], asked_all: bool = False) -> bool:
        """The fields of a ROUTES answer. True if anything changed."""
        applied, brokers, topics, unknown = fields
        before = (self.brokers, self.topics, dict(self._unknown), dict(self._hints))
        if applied >= self.applied:
            self.applied = applied
            self.brokers = {row[0]: Broker(*row) for row in brokers}
        else:
            # An older answer may still tell of brokers that nobody named so far.
            self.brokers = {row[0]: Broker(*row) for row in brokers} | self.brokers
        known = dict(self.topics)
        for row in topics:
            self._learn_topic(known, applied, row)
        gone = [name for name in unknown if self._is_gone(known, name, applied)]
        if asked_all:
            named = {row[0] for row in topics}
            gone += [n for n in known if n not in named and self._is_gone(known, n, applied)]
        for name in gone:
            self._unknown[name] = applied
            self._forget(known.pop(name, None))
        self.topics = known
        return before != (self.brokers, self.topics, self._unknown, self._hints)

    def changed(self, name: str, applied: int) -> None:
        """This session made, deleted or grew this topic, with that index."""
        self._since[name] = max(applied, self._since.get(name, 0))
        old = self.topics.get(name)
        if old is not None and old.applied < applied:
            self.topics = {other: topic for other, topic in self.topics.items() if other != name}
            self._forget(old)

    def _is_older(self, name: str, applied: int) -> bool:
        """Than what this session did to it."""
        if applied < self._since.get(name, 0):
            return True
        self._since.pop(name, None)
        return False

    def _is_gone(self, known: dict[str, Topic], name: str, applied: int) -> bool:
        if self._is_older(name, applied):
            return False
        return name not in known or known[name].applied <= applied

    def _learn_topic(self, known: dict[str, Topic], applied: int, row: list[Any]) -> None:
        name, uid, settings, rows = row
        old = known.get(name)
        if self._is_older(name, applied) or self._unknown.get(name, -1) > applied:
            return  # deleted since
        self._unknown.pop(name, None)
        if old is not None and old.applied > applied:
            if old.uid == uid:
                known[name] = self._with_leaders(old, rows)
            return
        if old is not None and (old.uid != uid or len(old.partitions) > len(rows)):
            self._forget(old)
            old = None
        partitions = tuple(
            self._newer(old.partitions[at] if old and at < len(old.partitions) else None,
                        Partition(name, number, group, leader, term, tuple(replicas)))
            for at, (number, group, leader, term, replicas) in enumerate(sorted(rows))
        )  # fmt: skip
        if [p.number for p in partitions] != list(range(len(partitions))):
            return  # half of a topic is none; the next answer will be whole
        for partition in partitions:
            self._groups[partition.group] = (name, partition.number)
        known[name] = Topic(name, uid, settings, partitions, applied)

    def _with_leaders(self, topic: Topic, rows: list[Any]) -> Topic:
        """An older answer: what is held stays, but its leaders may be newer all the same."""
        seen = {row[1]: (row[2], row[3]) for row in rows}
        partitions = tuple(
            self._newer(p, Partition(p.topic, p.number, p.group, *seen[p.group], p.replicas))
            if p.group in seen else p
            for p in topic.partitions
        )  # fmt: skip
        return Topic(topic.name, topic.uid, topic.settings, partitions, topic.applied)

    def _newer(self, old: Partition | None, new: Partition) -> Partition:
        """Replicas of the new one; leader of the higher term."""
        if old is None or old.group != new.group:
            return new
        if new.term > old.term or (new.term == old.term and new.leader and not old.leader):
            self._hints.pop(new.group, None)
            self._failed.pop(new.group, None)
            return new
        return Partition(new.topic, new.number, new.group, old.leader, old.term, new.replicas)

    def _forget(self, topic: Topic | None) -> None:
        for partition in topic.partitions if topic is not None else ():
            for table in (self._groups, self._hints, self._failed):
                table.pop(partition.group, None)

    def hint(self, group: int, details: dict[str, Any]) -> bool:
        """A broker does not lead and says who does. True if that is somebody to ask."""
        node, address = details.get("leader"), details.get("address")
        broker = self.brokers.get(node) if type(node) is int else None
        if not isinstance(address, str) or not address:
            address = broker.address if broker is not None else ""
        if not address or group not in self._groups:
            self._hints.pop(group, None)
            return False
        failed, _ = self._failed.get(group, ("", 0))
        if address == failed:
            return False
        self._hints[group] = address
        return True

    def unreachable(self, group: int, address: str) -> None:
        """No connection to this address. A hint is not worth waiting for; a known leader is."""
        if self._hints.get(group) == address:
            del self._hints[group]

    def fail(self, group: int, address: str, now: int) -> None:
        """This address says that it does not lead the group."""
        self.unreachable(group, address)
        if group in self._groups:
            self._failed[group] = (address, now + FAILED_MS)
