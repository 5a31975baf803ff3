"""One request to the managers, repeated until one answers it or its deadline passes.

Every manager answers reads from the state it applied; only the managers' leader takes updates. A
request keeps its key through all repeats, so it is done once even if answers are lost. The next
manager to ask:

- for an update or a linearizable read: the last known leader, then all others in turn; an answer
  NOT_LEADER names the next one;
- for any other read: the connected managers in turn, so that reads spread over all of them.

A round asks each manager once; the pause between rounds doubles. At the deadline the error names
each address with its last error, because "timed out" alone does not help the operator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from myqueue.cluster.connection import Connection
from myqueue.cluster.io_thread import Timer
from myqueue.cluster.waiters import Envelope, Waiter, details_of, failure
from myqueue.errors import (
    NONE,
    MyQueueError,
    NotLeader,
    TimedOut,
    TooFewBrokers,
    UnknownPartition,
    Unreachable,
)
from myqueue.wire import protocol as words
from myqueue.wire.batch import Buffer

# A healthy manager answers a read within milliseconds, so a silent one is soon passed over. An
# update goes through the log, and only the leader can do it, so it gets more time.
READ_ATTEMPT_MS: Final = 300
LEADER_ATTEMPT_MS: Final = 1_000
ATTEMPT_MS_MAX: Final = 2_500
BRIEF_MS: Final = 100  # a shorter silence, cut by the deadline, is no finding
PAUSE_MS_MIN, PAUSE_MS_MAX = 20, 1_000


class Host(Protocol):
    """The part of a session that a request needs; all in the I/O thread."""

    def now_ms(self) -> int: ...
    def after(self, delay_ms: int, job: Callable[[], object]) -> Timer: ...
    def connection(self, address: str) -> Connection: ...


class Managers:
    """The managers' addresses, and their leader as far as known."""

    def __init__(self, addresses: Iterable[str], chance: random.Random) -> None:
        self.addresses = list(addresses)
        self.nodes: dict[str, int] = {}  # address -> node number, as reported by the managers
        self.leader: str | None = None
        self.silent: set[str] = set()  # left the last request unanswered: asked last
        self.chance = chance
        # Clients that start together should not all ask the same one first.
        self._turn = chance.randrange(len(self.addresses))

    def add(self, address: str) -> None:
        if address not in self.addresses:
            self.addresses.append(address)

    def in_turn(self) -> list[str]:
        """List all managers; each call begins with the next one."""
        self._turn = (self._turn + 1) % len(self.addresses)
        return self.addresses[self._turn :] + self.addresses[: self._turn]


def needs_leader(kind: int, fields: Sequence[Any]) -> bool:
    return kind in (words.UPDATE, words.MEMBER) or (kind == words.READ and bool(fields[3]))


class ManagerCall(Waiter):
    """A request with its attempts. `done` is called once: with the answer or the error."""

    __slots__ = (
        "_host",
        "_managers",
        "_kind",
        "_fields",
        "_frames",
        "_deadline",
        "_timeout_ms",
        "_done",
        "_said",
        "_left",
        "_at",
        "_attempt_ms",
        "_id",
        "_began",
        "_timer",
        "_pause",
        "_was_sent",
        "_unknown",
        "_hint",
    )

    def __init__(
        self,
        host: Host,
        managers: Managers,
        kind: int,
        fields: Sequence[Any],
        frames: Sequence[Buffer],
        timeout_ms: int,
        done: Callable[[Envelope | None, list[Buffer], MyQueueError | None], None],
    ) -> None:
        self._host, self._managers = host, managers
        self._kind, self._fields, self._frames = kind, fields, frames
        self._timeout_ms, self._deadline = timeout_ms, host.now_ms() + timeout_ms
        self._done = done
        self._said: dict[str, str] = {}  # address -> its last error
        self._left: list[str] = []  # to be asked in this round
        self._at: Connection | None = None
        self._id = self._began = 0
        self._timer: Timer | None = None
        self._pause = PAUSE_MS_MIN
        leader = needs_leader(kind, fields)
        self._attempt_ms = LEADER_ATTEMPT_MS if leader else READ_ATTEMPT_MS
        if kind == words.MEMBER:  # it is held until there is news
            self._attempt_ms += fields[3]
        self._was_sent = self._unknown = False
        self._hint: str | None = None  # what a manager advised, for this case alone

    def start(self) -> None:
        self._new_round()
        self._ask()

    def fail(self, error: MyQueueError) -> None:
        """End the request from outside with an error."""
        self._let_go()
        self._done(None, [], error)

    # -- whom to ask ------------------------------------------------------------------------------

    def _new_round(self) -> None:
        managers = self._managers
        order = managers.in_turn()
        if needs_leader(self._kind, self._fields):
            if managers.leader is not None:
                order = [managers.leader] + [a for a in order if a != managers.leader]
        else:
            order.sort(key=lambda address: not self._host.connection(address).is_ready)
        order.sort(key=lambda address: address in managers.silent)
        self._left = order

    def _ask(self) -> None:
        now = self._host.now_ms()
        if now >= self._deadline:
            self._give_up()
            return
        if not self._left:
            pause = round(self._pause * self._managers.chance.uniform(0.7, 1.3))
            self._pause = min(PAUSE_MS_MAX, self._pause * 2)
            self._wait(pause, self._again)
            return
        address = self._left.pop(0)
        self._at, self._began = self._host.connection(address), now
        self._id = self._at.request(self._kind, self._fields, self._frames, self)
        if self._at is not None:  # `request` may fail at once
            self._wait(self._attempt_ms, self._silent)

    def _wait(self, delay_ms: int, job: Callable[[], None]) -> None:
        left = self._deadline - self._host.now_ms()
        self._timer = self._host.after(min(delay_ms, max(0, left)), job)

    def _again(self) -> None:
        self._new_round()
        self._ask()

    # -- what became of it ------------------------------------------------------------------------

    def answered(self, envelope: Envelope, frames: list[Buffer]) -> None:
        self._was_sent = True
        at = self._let_go()
        if at is not None:
            self._managers.silent.discard(at.address)
        if envelope[words.KIND] != words.ERROR:
            if at is not None and needs_leader(self._kind, self._fields):
                self._managers.leader = at.address
            self._done(envelope, frames, None)
            return
        error = failure(envelope)
        if isinstance(error, NotLeader) and at is not None:
            self._follow(at.address, error)
        self._failed(at, error)

    def lost(self, error: MyQueueError) -> None:
        at = self._let_go()
        if at is not None and self._managers.leader == at.address:
            self._managers.leader = None
        self._failed(at, error)

    def _failed(self, at: Connection | None, error: MyQueueError) -> None:
        if error.outcome != NONE:
            self._was_sent = self._unknown = True
        if not error.retriable or isinstance(error, TooFewBrokers | UnknownPartition):
            self._done(None, [], error)
            return
        if at is not None:
            self._said[at.address] = _brief(error, at.address)
        self._hint = error.own_hint or self._hint
        retry_ms = details_of(error).get("retry_ms")
        if isinstance(retry_ms, int):
            self._pause = max(self._pause, min(retry_ms, PAUSE_MS_MAX))
        self._ask()

    def _follow(self, address: str, error: NotLeader) -> None:
        """Ask the named leader next, unless this round has asked it already."""
        leader = details_of(error).get("address")
        if self._managers.leader == address:
            self._managers.leader = None
        if isinstance(leader, str) and leader and leader != address:
            self._managers.add(leader)
            self._managers.leader = leader
            if leader in self._left:
                self._left.remove(leader)
                self._left.insert(0, leader)
            elif leader not in self._said:
                self._left.insert(0, leader)

    def _silent(self) -> None:
        """Ask the next manager. A connection on which nothing at all came is broken."""
        at, began = self._let_go(), self._began
        if at is None:
            return
        self._unknown = self._unknown or at.is_ready
        self._was_sent = self._was_sent or at.is_ready
        if self._managers.leader == at.address:
            self._managers.leader = None
        waited = self._host.now_ms() - began
        self._managers.silent.add(at.address)
        slower = min(ATTEMPT_MS_MAX, 2 * self._attempt_ms)  # all managers may be slow
        self._attempt_ms = max(self._attempt_ms, slower)
        if waited >= BRIEF_MS or at.address not in self._said:  # else its earlier error says more
            self._said[at.address] = f"no answer within {waited} ms"
            if not at.is_ready and waited:
                self._said[at.address] = (
                    f"no connection within {waited} ms (silence, or no such host)"
                )
        if at.is_ready and waited >= ATTEMPT_MS_MAX and at.silent_since(began):
            at.broke(f"no answer within {waited} ms")
        self._ask()

    def _let_go(self) -> Connection | None:
        at, self._at = self._at, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            at.forget(self._id)
        return at

    def _give_up(self) -> None:
        for address in self._managers.addresses:
            self._said.setdefault(address, "not asked")
        told = "; ".join(f"{address}: {text}" for address, text in self._said.items())
        name = words.name_of(self._kind)
        if not self._was_sent:
            text = f"no manager could be reached within {self._timeout_ms} ms. Tried {told}"
            self._done(None, [], Unreachable(text))
            return
        text = f"{name} was not done within {self._timeout_ms} ms. Tried {told}"
        error = TimedOut(text, hint=self._hint)
        if self._kind != words.UPDATE or not self._unknown:
            error.outcome = NONE
        self._done(None, [], error)


def _brief(error: MyQueueError, address: str) -> str:
    text = str(error).removeprefix(address).removeprefix(": ")
    return text if text.startswith(error.name) else f"{error.name}: {text}"
