"""The last answer of each manager to this broker, and the conclusions from all of them together.

A majority decides: whether the orders that this broker follows are what the managers have
committed, and whether they *reject* this broker. A manager may answer with an error instead of
orders; with one, IDENTITY_MISMATCH, it rejects: the broker was removed, or another one has its
number now.

A broker has joined when a manager answers its heartbeats with orders for this life. Until then no
client uses it, so "ready" would be wrong. As long as it has not joined, it logs `not-joined` with
the state of each manager, after five seconds and then ever more seldom
(`daemons/repeated_warnings.py`): no answer, keys that do not fit, another cluster, an error, or
orders for another life. It also logs managers that the managers name and its settings do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from myqueue.daemons.repeated_warnings import LogPauses
from myqueue.errors import IdentityMismatch

if TYPE_CHECKING:
    from myqueue.daemons.broker.orders import OrdersMessage
    from myqueue.daemons.replication.engine import Engine

ANSWER_CURRENT_MS: Final = 5000  # an answer older than that may be of another time
_IDENTITY_MISMATCH: Final = IdentityMismatch.code
LOG_AFTER_MS: Final = 5000
_NOT_JOINED_HINT: Final = (
    "Compare --cluster, --keys and --managers of this broker with those of the managers;"
    " the managers' logs name what they refused."
)
_UNCONFIGURED_HINT: Final = "Name all managers by --managers at this broker, and start it again."
_REJECTED_HINT: Final = (
    "If this broker's disk was replaced, wait: it is accepted once the old one was silent for ten"
    " seconds. If it was removed, or another broker has its number, stop it. Until then it leads"
    " nothing."
)


class _Answers:
    """The last answers of one manager."""

    __slots__ = (
        "problem",
        "last_seen_at",
        "followed_at",
        "wall_ms",
        "rejected_at",
        "unconfigured_managers",
    )

    def __init__(self) -> None:
        self.problem = ""  # with its last answer, for people; "" if there was none
        self.last_seen_at = -ANSWER_CURRENT_MS  # when orders came last, for whatever life
        self.followed_at = -ANSWER_CURRENT_MS  # when orders for this life came last
        self.wall_ms = 0  # its clock at `followed_at`; 0: the manager did not send it
        self.rejected_at = -ANSWER_CURRENT_MS  # when it rejected us, unless orders came since
        self.unconfigured_managers: list[int] = []  # managers that it names and our settings do not


class ManagerAnswers:
    """Keep the last answers. `managers`: number and address of each manager in the settings."""

    def __init__(self, engine: Engine, managers: tuple[tuple[int, str], ...]) -> None:
        self._engine, self.managers = engine, managers
        self._answers = {node: _Answers() for node, _ in managers}
        self.rejection_reason = ""  # the text of the last manager that rejected this broker

    def note_error(self, node: int, code: int, text: str) -> None:
        answers = self._answers[node]
        answers.problem = f"it refuses this broker: {text}"
        if code == _IDENTITY_MISMATCH:
            answers.rejected_at, self.rejection_reason = self._engine.now, text

    def note_orders(self, node: int) -> None:
        """Note that this manager answered with orders, whatever they say."""
        answers = self._answers[node]
        answers.rejected_at, answers.problem = -ANSWER_CURRENT_MS, ""
        answers.last_seen_at = self._engine.now

    def note_malformed_orders(self, node: int, text: str) -> None:
        self._answers[node].problem = f"orders not understood: {text}"

    def note_contents(self, node: int, message: OrdersMessage) -> None:
        """Note what these orders say of the managers, and whether they are for this life."""
        answers, known = self._answers[node], self._answers
        answers.unconfigured_managers = [other for other in message.managers if other not in known]
        if message.life == self._engine.incarnation:
            answers.followed_at, answers.wall_ms = self._engine.now, message.wall_ms

    def has_current_orders(self, now: int) -> bool:
        """True if a majority of the managers knows this life and answered lately.

        The orders that this broker follows are then what the managers have committed.
        """
        return len(self.managers_knowing_us(now)) > len(self._answers) // 2

    def managers_knowing_us(self, now: int) -> list[int]:
        """Return the managers whose orders for this life came lately."""
        return [
            node
            for node, answers in self._answers.items()
            if now - answers.followed_at < ANSWER_CURRENT_MS
        ]

    def has_recent_reply(self, node: int, now: int) -> bool:
        """True if this manager sends orders, even for an earlier life or for none."""
        return now - self._answers[node].last_seen_at < ANSWER_CURRENT_MS

    def problem_of(self, node: int) -> str:
        """Return what is wrong with this manager's last answer; "" if nothing is."""
        return self._answers[node].problem

    def unconfigured_managers(self) -> list[int]:
        """Return managers that other managers name and our settings do not."""
        return sorted(
            {node for answers in self._answers.values() for node in answers.unconfigured_managers}
        )

    def agreed_wall_ms(self, now: int) -> int:
        """Return ms since 1970 by this machine's clock, but not ahead of the managers' clocks.

        Their time is the lower median of those that answered lately, so one wrong clock can't
        advance it.
        """
        clocks = sorted(
            answers.wall_ms + now - answers.followed_at
            for answers in self._answers.values()
            if answers.wall_ms and now - answers.followed_at < ANSWER_CURRENT_MS
        )
        own = self._engine.wall_ms()
        return min(own, clocks[(len(clocks) - 1) // 2]) if clocks else own

    def is_rejected(self, now: int) -> bool:
        """True if a majority of managers rejects this broker.

        It was removed, or another broker has its number now. No client is sent here, and no orders
        come.
        """
        rejecting = sum(
            now - answers.rejected_at < ANSWER_CURRENT_MS for answers in self._answers.values()
        )
        return rejecting > len(self._answers) // 2


class JoinStatus:
    """Watch whether the managers know this broker or reject it, and log it."""

    def __init__(
        self, engine: Engine, answers: ManagerAnswers, log_event: Callable[..., None]
    ) -> None:
        self._engine, self._answers, self._log_event = engine, answers, log_event
        self._pauses = LogPauses()
        self._unknown_since = -1  # -1: not checked yet
        self.has_joined = False
        self._was_ready = False
        self.is_rejected = False

    def tick(self, now: int) -> None:
        self._check_rejected(now)
        self._check_joined(now)
        unconfigured = self._answers.unconfigured_managers()
        if unconfigured and self._pauses.due("unnamed", now):
            managers = ", ".join(map(str, unconfigured))
            self._log_event("warning", "managers-unnamed", managers=managers, do=_UNCONFIGURED_HINT)

    def _check_rejected(self, now: int) -> None:
        """Log once if the managers reject this broker: its groups have no reachable leader then."""
        before, self.is_rejected = self.is_rejected, self._answers.is_rejected(now)
        if self.is_rejected and not before:
            self._log_event(
                "error",
                "rejected-by-managers",
                why=self._answers.rejection_reason,
                do=_REJECTED_HINT,
            )

    def _check_joined(self, now: int) -> None:
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
                self._log_event("warning", "not-joined", why=self.why(now), do=_NOT_JOINED_HINT)

    def why(self, now: int) -> str:
        """Return for each manager why this broker has not joined by its answers."""
        return "; ".join(
            f"manager {node} at {address}: {self._problem_with(node, now)}"
            for node, address in self._answers.managers
        )

    def _problem_with(self, node: int, now: int) -> str:
        problem = self._answers.problem_of(node) or self._engine.peer_problem(("manager", node))
        if problem:
            return problem
        if self._answers.has_recent_reply(node, now):
            return "it answers, but no leader of the managers has let this broker join"
        return "it does not answer"
