"""When a manager with a new disk may found the metadata: only together with all managers.

A manager whose log is empty cannot know whether its disk is new because the cluster is, or because
the old one was lost. Were a majority of such managers enough, one that lost its disk and one that
never joined could found the metadata a second time while the third one, which has it, is away. So
no manager stands, and none votes for one that stands, *with an empty log*, unless every manager
that is named in its configuration says in its beats, now, that its log is empty, too. As soon as
there is one entry, all is as ever: a manager that joins later, or late, follows and votes for those
that have entries.

Both sides look for themselves, at what they heard since they were started. So a second foundation
takes that no log of any manager has an entry any more: then there is nothing to lose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from myqueue.daemons.manager.cluster_view import Liveness
    from myqueue.daemons.replication.replica import Replica

BEAT_MS: Final = 100  # to the other managers, until there is an entry
TOLD_MS: Final = 2_000  # of waiting, before people are told; again after fifteen times as long


class Founding:
    """See the module's docstring. Called by the manager, at each tick."""

    def __init__(self, own: int, managers: list[int], tell: Callable[..., None]) -> None:
        self._others = [node for node in managers if node != own]
        self._tell = tell
        self._tell_at = 0
        self.waits_for: list[int] = []  # managers that are not known to be new as well

    def look(self, replica: Replica, liveness: Liveness, now: int) -> None:
        if not is_blank(replica):
            replica.node.may_found, self.waits_for = True, []
            return
        self.waits_for = [
            node for node in self._others
            if not (liveness.manager_alive(node, now) and liveness.managers[node].blank)
        ]  # fmt: skip
        replica.node.may_found = not self.waits_for
        self._tell_at = self._tell_at or now + TOLD_MS
        if self.waits_for and now >= self._tell_at:
            self._tell_at = now + 15 * TOLD_MS
            self._tell("warning", "waits-for-managers", why=self.why)

    @property
    def why(self) -> str:
        names = ", ".join(map(str, self.waits_for))
        return (
            f"this manager's log is empty, and it founds the metadata only together with all"
            f" managers; it waits for {names}: start them. If the metadata is there already, one of"
            " them that has it leads, and this one follows"
        )


def is_blank(replica: Replica) -> bool:
    """It has no entry, and never had one."""
    return replica.node.log.last_index == 0 and not replica.node.recovering
