"""Whether this broker has joined its cluster, and if not, why; logged until an operator mends it.

A broker has joined when a manager answers its heartbeats with orders for this life of its process:
then it is registered. Until then no client uses it, so "ready" would be wrong. As long as no
manager knows it, it logs `not-joined` with the state of each manager, after five seconds and then
ever more seldom (`daemons/repeated_warnings.py`): no answer, keys that do not fit, another cluster,
an error, or no registration. It also logs managers that the managers name and its settings do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from myqueue.daemons.repeated_warnings import LogPauses

if TYPE_CHECKING:
    from myqueue.daemons.broker.manager_answers import ManagerAnswers
    from myqueue.daemons.replication.engine import Engine

LOG_AFTER_MS: Final = 5000
_HINT: Final = (
    "Compare --cluster, --keys and --managers of this broker with those of the managers;"
    " the managers' logs name what they refused."
)
_UNCONFIGURED_HINT: Final = "Name all managers by --managers at this broker, and start it again."


class JoinStatus:
    """Watch whether managers know this broker, and log it."""

    def __init__(
        self, engine: Engine, answers: ManagerAnswers, log_event: Callable[..., None]
    ) -> None:
        self._engine, self._answers, self._log_event = engine, answers, log_event
        self._pauses = LogPauses()
        self._unknown_since = -1  # -1: not checked yet
        self.has_joined = False
        self._was_ready = False

    def tick(self, now: int) -> None:
        if self._answers.managers_knowing_us(now):
            if not self.has_joined:
                self._log_event("info", "joined-again" if self._was_ready else "ready")
            self.has_joined = self._was_ready = True
            self._unknown_since = now
            self._pauses.forget("alone")
        elif self._unknown_since < 0:
            self._unknown_since = now
        elif now - self._unknown_since >= LOG_AFTER_MS:
            self.has_joined = False
            if self._pauses.due("alone", now):
                self._log_event("warning", "not-joined", why=self.why(now), do=_HINT)
        unnamed = self._answers.unconfigured_managers()
        if unnamed and self._pauses.due("unnamed", now):
            named = ", ".join(map(str, unnamed))
            self._log_event("warning", "managers-unnamed", managers=named, do=_UNCONFIGURED_HINT)

    def why(self, now: int) -> str:
        """Return for each manager why it has not registered this broker."""
        return "; ".join(
            f"manager {node} at {address}: {self._problem_with(node, now)}"
            for node, address in self._answers.managers
        )

    def _problem_with(self, node: int, now: int) -> str:
        error = self._answers.error_of(node)
        if error:
            return f"it refuses this broker: {error}"
        problem = self._engine.peer_problem(("manager", node))
        if problem:
            return problem
        if self._answers.has_recent_reply(node, now):
            return "it answers, but no leader of the managers has registered this broker"
        return "it does not answer"
