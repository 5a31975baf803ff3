"""One request to the managers, repeated until one answers it or its deadline passes.

Every manager answers reads from the state it applied; only the managers' leader takes updates. A
request keeps its key through all repeats, so it is done once even if answers are lost. The next
manager to ask:

- for an update or a linearizable read: the last known leader, then all others in turn; an answer
  NOT_LEADER names the next one;
- for any other read: the connected managers in turn, so that reads spread over all of them.

A round asks each manager once; the pauses are between rounds. At the deadline the error names each
address with its last error, because "timed out" alone does not help the operator.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from myqueue.cluster.connection import Connection
from myqueue.cluster.repeats import MANAGERS, with_outcome
from myqueue.cluster.request import RetryingRequest
from myqueue.cluster.waiters import Envelope
from myqueue.errors import NONE, MyQueueError, NotLeader, TimedOut, Unreachable
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer

if TYPE_CHECKING:
    from myqueue.cluster.session import SessionCore

# A healthy manager answers a read within milliseconds, so a silent one is soon passed over. An
# update goes through the log, and only the leader can do it, so it gets more time.
READ_ATTEMPT_MS: Final = 300
LEADER_ATTEMPT_MS: Final = 1_000
ATTEMPT_MS_MAX: Final = 2_500
BRIEF_MS: Final = 100  # a shorter silence, cut by the deadline, is no finding


class Managers:
    """The managers' addresses, and their leader as far as known."""

    def __init__(self, addresses: Iterable[str], chance: random.Random) -> None:
        self.addresses = list(addresses)
        self.nodes: dict[str, int] = {}  # address -> node number, as reported by the managers
        self.leader: str | None = None
        self.silent: set[str] = set()  # left the last request unanswered: asked last
        # Clients that start together should not all ask the same one first.
        self._turn = chance.randrange(len(self.addresses))

    def add(self, address: str) -> None:
        if address not in self.addresses:
            self.addresses.append(address)

    def in_turn(self) -> list[str]:
        """List all managers; each call begins with the next one."""
        self._turn = (self._turn + 1) % len(self.addresses)
        return self.addresses[self._turn :] + self.addresses[: self._turn]


class ManagerRequest(RetryingRequest):
    """A request with its attempts, in rounds over all managers. The future is an Answer."""

    __slots__ = (
        "_hint",
        "_limit_ms",
        "_managers",
        "_needs_leader",
        "_said",
        "_unasked",
        "_was_sent",
    )
    rule = MANAGERS
    silence_ms: ClassVar[int] = ATTEMPT_MS_MAX

    def __init__(
        self,
        session: SessionCore,
        managers: Managers,
        kind: int,
        fields: Sequence[Any],
        frames: Sequence[Buffer],
        timeout_ms: int,
    ) -> None:
        super().__init__(session, kind, fields, frames, timeout_ms)
        self._managers = managers
        self._needs_leader = kind in (words.UPDATE, words.MEMBER) or (
            kind == words.READ and bool(fields[3])
        )
        self._said: dict[str, str] = {}  # address -> its last error
        self._unasked: list[str] | None = None  # in this round; None: a round begins
        self._limit_ms = LEADER_ATTEMPT_MS if self._needs_leader else READ_ATTEMPT_MS
        if kind == words.MEMBER:  # it is held until there is news
            self._limit_ms += fields[3]
        self._was_sent = False
        self._hint: str | None = None  # what a manager advised, for this case alone

    def _attempt_ms(self) -> int:
        return self._limit_ms

    def _next_address(self, now: int) -> str | None:
        if self._unasked is None:
            self._unasked = self._round()
        if not self._unasked:
            self._unasked = None
            return None
        return self._unasked.pop(0)

    def _round(self) -> list[str]:
        managers = self._managers
        order = managers.in_turn()
        if not self._needs_leader:
            order.sort(key=lambda address: not self._session.connection(address).is_ready)
        elif managers.leader is not None:
            order = [managers.leader] + [a for a in order if a != managers.leader]
        order.sort(key=lambda address: address in managers.silent)
        return order

    def answered(self, envelope: Envelope, frames: list[Buffer]) -> None:
        self._was_sent = True
        if self._at is not None:
            self._managers.silent.discard(self._at.address)
            if self._needs_leader and envelope[words.KIND] != words.ERROR:
                self._managers.leader = self._at.address
        super().answered(envelope, frames)

    def _goes_on_at_once(self, at: Connection, error: MyQueueError, is_silent: bool) -> bool:
        managers, address = self._managers, at.address
        is_leader = managers.leader == address
        if is_leader and (is_silent or not at.is_ready or isinstance(error, NotLeader)):
            managers.leader = None
        if is_silent:
            managers.silent.add(address)
            self._limit_ms = max(self._limit_ms, min(ATTEMPT_MS_MAX, 2 * self._limit_ms))
        elif isinstance(error, NotLeader):
            self._follow(address, error.details.get("address"))
        self._was_sent = self._was_sent or error.outcome != NONE
        self._hint = error.own_hint or self._hint
        is_brief = is_silent and self._session.now_ms() - self._began < BRIEF_MS
        if not (is_brief and address in self._said):  # else its earlier error says more
            self._said[address] = _brief(error, address)
        return True

    def _follow(self, address: str, leader: Any) -> None:
        """Ask the named leader next, unless this round has asked it already."""
        unasked = self._unasked or []
        if not isinstance(leader, str) or leader in ("", address):
            return
        self._managers.add(leader)
        self._managers.leader = leader
        if leader in unasked or leader not in self._said:
            self._unasked = [leader] + [a for a in unasked if a != leader]

    @property
    def _may_be_done(self) -> bool:
        return self._kind == words.UPDATE and self._attempts.is_unknown  # a read changes nothing

    def _too_late(self) -> MyQueueError:
        said = dict.fromkeys(self._managers.addresses, "not asked") | self._said
        tried = "; ".join(f"{address}: {text}" for address, text in said.items())
        if not self._was_sent:
            return Unreachable(
                f"no manager could be reached within {self._timeout_ms} ms. Tried {tried}"
            )
        name = words.name_of(self._kind)
        text = f"{name} was not done within {self._timeout_ms} ms. Tried {tried}"
        return with_outcome(TimedOut(text, hint=self._hint), self._may_be_done)


def _brief(error: MyQueueError, address: str) -> str:
    text = str(error).removeprefix(address).removeprefix(": ")
    is_plain = isinstance(error, TimedOut) or text.startswith(error.name)
    return text if is_plain else f"{error.name}: {text}"
