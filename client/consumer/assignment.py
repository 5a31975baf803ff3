"""What a member of a group may read, as it knows from the managers; and until when. Pure.

A share is a partition with the epoch under which it is ours. Managers name all of them in each
answer, so nothing is lost with an answer that is. What they want back is *leaving*: nothing of it
is handed out any more, and when the application is done with what it got, it is *released*, which
is told until the managers know it.

The session ends by our own clock at the latest: it counts from when a request was sent that was
answered, the managers' clock from when it came. So it ends here first, and what was ours is lost
before anybody else may have it (C8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class AssignedPartition(NamedTuple):
    topic: str
    number: int
    epoch: int
    is_revoked: bool
    is_new: bool  # it was added to its topic when the group read it already


class Assignment:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.member = 0  # 0: not in the group
        self.version = 0
        self.ends_at = 0  # of the session
        self.by_group: dict[int, AssignedPartition] = {}
        self.released: dict[int, int] = {}  # group -> epoch

    def begin(self, member: int, ends_at: int) -> None:
        self.clear()
        self.member, self.ends_at = member, ends_at

    def clear(self) -> None:
        """The session is over, or its end is feared."""
        self.member = self.version = self.ends_at = 0
        self.by_group, self.released = {}, {}

    def update(self, version: int, rows: Sequence[Sequence[Any]]) -> bool:
        """What the managers say; False: it is older than what is known."""
        if version < self.version:
            return False
        self.version = version
        self.by_group = {group: AssignedPartition(*rest) for group, *rest in rows}
        self.released = {
            group: epoch for group, epoch in self.released.items()
            if group in self.by_group and self.by_group[group].epoch == epoch
        }  # fmt: skip
        return True

    def has(self, group: int) -> bool:
        return group in self.by_group and group not in self.released

    def has_ended(self, now: int) -> bool:
        return now >= self.ends_at
