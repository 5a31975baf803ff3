"""The partitions assigned to a member of a consumer group, and until when they are its own. Pure.

Each answer of the managers names all assigned partitions with their epochs, so a lost answer does
no harm. A partition that the managers want back is *revoked*: nothing of it is handed out any more.
When the application is done with its messages it is *released*, and each heartbeat reports that
until the managers' answer leaves it out.

The member's session ends by our own clock first: it counts from the moment when an answered request
was sent, the managers' clock from the moment when it arrived. So we lose a partition before another
member can get it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class AssignedPartition(NamedTuple):
    """A partition of ours, as the managers name it."""

    topic: str
    number: int
    epoch: int
    is_revoked: bool
    is_new: bool  # it was added to its topic after the group began to read that


class Assignment:
    """The partitions that the managers assigned to this member. The consumer's lock guards it."""

    def __init__(self) -> None:
        self.member = 0  # number of this member; 0: not in the group
        self.version = 0  # of the newest answer
        self.ends_at = 0  # of the session, ms
        self.by_group: dict[int, AssignedPartition] = {}
        self.released: dict[int, int] = {}  # raft group -> epoch, not confirmed by the managers

    def begin(self, member: int, ends_at: int) -> None:
        self.clear()
        self.member, self.ends_at = member, ends_at

    def clear(self) -> None:
        """End the session: nothing is assigned any more."""
        self.member = self.version = self.ends_at = 0
        self.by_group, self.released = {}, {}

    def update(self, version: int, rows: Sequence[Sequence[Any]]) -> bool:
        """Take over an answer of the managers; False: it is older than the newest one."""
        if version < self.version:
            return False
        self.version = version
        self.by_group = {group: AssignedPartition(*rest) for group, *rest in rows}
        self.released = {
            group: epoch
            for group, epoch in self.released.items()
            if group in self.by_group and self.by_group[group].epoch == epoch
        }
        return True

    def has(self, group: int) -> bool:
        return group in self.by_group and group not in self.released

    def has_ended(self, now: int) -> bool:
        return now >= self.ends_at
