"""Routes: this process's cache of topics, partitions, leaders and brokers' addresses.

Comes in: managers' answers and brokers' hints. Goes out: look-ups. Answers arrive out of order and
may be stale, so each kind of fact has a rule:

- *Topics and their partitions*: each manager answers from its own applied index, so a later answer
  may be older. A topic is replaced only by an answer with at least the same applied index.
- *This session's own changes*: after it creates or deletes a topic, an answer with an older index
  describes another topic of that name and is ignored.
- *Leaders* are ordered by term: only a newer term replaces a known leader, from any source.
- *A hint* (NOT_LEADER) has no term. It overrides the known leader until a newer term arrives or the
  hinted broker does not lead either.
- *A failed leader*, which said that it does not lead, is not asked again for a while, unless a
  newer term arrives; after FAILED_MS managers are believed again, because leaders do come back. An
  unreachable leader stays the leader until another one is named.

Topics and partitions are values that are replaced, never changed, so any thread may read them.
Only the I/O thread writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

# After this time a failed leader is asked again if managers still name it.
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
    applied: int  # the managers' log index of this state


class Routes:
    """The cache: look-ups from any thread, changes in the I/O thread."""

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
        """Did a manager say that there is no such topic, and no later answer otherwise?"""
        return name in self._unknown

    def partition(self, group: int) -> Partition | None:
        topic_name, number = self._groups.get(group, ("", 0))
        topic = self.topics.get(topic_name)
        if topic is None or number >= len(topic.partitions):
            return None  # the I/O thread is about to add it
        return topic.partitions[number]

    def leader(self, group: int, now: int) -> str | None:
        """The address of the group's leader, as far as known; None: ask the managers again."""
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
        """Take in the fields of a ROUTES answer. True if it changed anything."""
        applied, brokers, topics, unknown = fields
        before = (self.brokers, self.topics, dict(self._unknown), dict(self._hints))
        if applied >= self.applied:
            self.applied = applied
            self.brokers = {row[0]: Broker(*row) for row in brokers}
        else:
            # An older answer may still name brokers that are not in the cache.
            self.brokers = {row[0]: Broker(*row) for row in brokers} | self.brokers
        topics_now = dict(self.topics)
        for row in topics:
            self._learn_topic(topics_now, applied, row)
        gone = [name for name in unknown if self._is_gone(topics_now, name, applied)]
        if asked_all:
            named = {row[0] for row in topics}
            gone += [
                n for n in topics_now if n not in named and self._is_gone(topics_now, n, applied)
            ]
        for name in gone:
            self._unknown[name] = applied
            self._forget(topics_now.pop(name, None))
        self.topics = topics_now
        return before != (self.brokers, self.topics, self._unknown, self._hints)

    def drop(self, names: Iterable[str]) -> None:
        """Forget topics that nobody uses, so they are asked for again when somebody does."""
        unused = set(names)
        for name in unused:
            self._forget(self.topics.get(name))
        self.topics = {name: topic for name, topic in self.topics.items() if name not in unused}

    def changed(self, name: str, applied: int) -> None:
        """Note that this session created, deleted or grew a topic, at this log index."""
        self._since[name] = max(applied, self._since.get(name, 0))
        old = self.topics.get(name)
        if old is not None and old.applied < applied:
            self.topics = {other: topic for other, topic in self.topics.items() if other != name}
            self._forget(old)

    def _is_older(self, name: str, applied: int) -> bool:
        """Is this index older than the session's own change of the topic?"""
        if applied < self._since.get(name, 0):
            return True
        self._since.pop(name, None)
        return False

    def _is_gone(self, topics_now: dict[str, Topic], name: str, applied: int) -> bool:
        if self._is_older(name, applied):
            return False
        return name not in topics_now or topics_now[name].applied <= applied

    def _learn_topic(self, topics_now: dict[str, Topic], applied: int, row: list[Any]) -> None:
        name, uid, settings, rows = row
        old = topics_now.get(name)
        if self._is_older(name, applied) or self._unknown.get(name, -1) > applied:
            return  # deleted since
        self._unknown.pop(name, None)
        if old is not None and old.applied > applied:
            if old.uid == uid:
                topics_now[name] = self._with_leaders(old, rows)
            return
        if old is not None and (old.uid != uid or len(old.partitions) > len(rows)):
            self._forget(old)
            old = None
        partitions = tuple(
            self._newer(
                old.partitions[at] if old and at < len(old.partitions) else None,
                Partition(name, number, group, leader, term, tuple(replicas)),
            )
            for at, (number, group, leader, term, replicas) in enumerate(sorted(rows))
        )
        if [p.number for p in partitions] != list(range(len(partitions))):
            return  # incomplete; the next answer will have all partitions
        for partition in partitions:
            self._groups[partition.group] = (name, partition.number)
        topics_now[name] = Topic(name, uid, settings, partitions, applied)

    def _with_leaders(self, topic: Topic, rows: list[Any]) -> Topic:
        """Keep a topic, but take newer leaders from an older answer."""
        seen = {row[1]: (row[2], row[3]) for row in rows}
        partitions = tuple(
            self._newer(p, Partition(p.topic, p.number, p.group, *seen[p.group], p.replicas))
            if p.group in seen
            else p
            for p in topic.partitions
        )
        return Topic(topic.name, topic.uid, topic.settings, partitions, topic.applied)

    def _newer(self, old: Partition | None, new: Partition) -> Partition:
        """Merge two states: the replicas of the new one, the leader of the higher term."""
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

    def hint(self, group: int, details: Mapping[str, Any]) -> bool:
        """Take in a NOT_LEADER's details. True if they name another address to ask."""
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
        """Drop a hint whose address cannot be connected; a topics_now leader stays."""
        if self._hints.get(group) == address:
            del self._hints[group]

    def fail(self, group: int, address: str, now: int) -> None:
        """Note that this address said that it does not lead the group."""
        self.unreachable(group, address)
        if group in self._groups:
            self._failed[group] = (address, now + FAILED_MS)
