"""The members of a group, and how they change: one member at a time (R14).

A configuration counts from the moment its entry is appended, and is rolled back when the entry is
truncated (R15). One change may be in flight, and none before the leader's own no-op is committed:
the published counter-examples to single-server changes need one of the two.
"""

from __future__ import annotations

import json
from operator import itemgetter

from myqueue.daemons.raft.types import CONFIG, INDEX, PAYLOAD, TYPE, Config, Entry


def encode_config(config: Config) -> bytes:
    return json.dumps([list(config.voters), list(config.learners)]).encode()


def decode_config(payload: bytes | memoryview) -> Config:
    voters, learners = json.loads(bytes(payload))
    return Config(tuple(voters), tuple(learners))


def change_problem(old: Config, new: Config) -> str:
    """Why this step is not one change; "" if it is."""
    if not new.voters:
        return "a group needs a voter"
    if len(set(new.members)) != len(new.members):
        return "a replica is named twice"
    voters = set(old.voters) ^ set(new.voters)
    learners = set(old.learners) ^ set(new.learners)
    if len(voters) > 1 or len(learners - voters) > 1 or (len(voters) == 1 and learners - voters):
        return "one member at a time"
    if not voters and not learners:
        return "nothing changes"
    for replica in voters & set(new.voters):
        if replica not in old.learners:
            return "a new member is a learner first"
    return ""


_type = itemgetter(TYPE)


class ConfigHistory:
    """The configurations that the log holds: the newest counts."""

    __slots__ = ("_history",)

    def __init__(self, index: int, config: Config) -> None:
        self._history = [(index, config)]

    @property
    def current(self) -> Config:
        return self._history[-1][1]

    @property
    def current_index(self) -> int:
        return self._history[-1][0]

    def appended(self, entries: list[Entry]) -> bool:
        """Take the configurations among new entries; True if there was one."""
        found = False
        if CONFIG not in map(_type, entries):  # nearly always; this loop runs in C
            return found
        for entry in entries:
            if entry[TYPE] == CONFIG and entry[INDEX] > self.current_index:
                self._history.append((entry[INDEX], decode_config(entry[PAYLOAD])))
                found = True
        return found

    def truncated(self, index: int) -> bool:
        """Entries from `index` on are gone, and the configurations in them."""
        found = False
        while len(self._history) > 1 and self._history[-1][0] >= index:
            self._history.pop()
            found = True
        return found

    def applied(self, index: int) -> None:
        """Forget what was in force before: neither a truncation nor a snapshot goes back there."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            del self._history[0]

    def at(self, index: int) -> Config:
        """The configuration in force at `index`, for a snapshot: committed ones only (R16)."""
        return next(config for at, config in reversed(self._history) if at <= index)

    def installed(self, index: int, config: Config) -> None:
        """A snapshot's configuration replaces all, even a stale one of a higher index (R16)."""
        self._history = [(index, config)]
