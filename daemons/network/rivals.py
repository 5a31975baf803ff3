"""Two processes under one number: which of them the peers' door hears.

The first that greeted is heard as long as its connection stands (`loop.py`). Whether it stands is
found out by sending to it, at most once in `PROBE_MS` for each of two reasons:

- another process (another incarnation) knocks: it is a *rival*, which people are told of;
- the same process knocks: its link broke, and it connects again. It is never called a rival,
  however lately one knocked.

A process whose connection ended while a rival knocks has `HOLD_MS` to come back: else a link that
breaks for a moment would give its number, and its orders, to the copy. Without a rival nothing is
held, so that a daemon that is started again is heard at once. Rivals that fell silent are
forgotten.
"""

from __future__ import annotations

from typing import Final

from myqueue.daemons.interfaces import RIVAL_MS, DuplicateDaemon, Peer

PROBE_MS: Final = 100  # between looks whether the one that is connected still is
HOLD_MS: Final = 3000
Number = tuple[str, int]  # kind and node


class Rivals:
    """See the module's docstring. `seen` is the engine's, for people."""

    def __init__(self, seen: dict[Number, DuplicateDaemon]) -> None:
        self._seen = seen
        self._probed: dict[Number, int] = {}  # for the process itself, that comes again
        self._held: dict[Number, tuple[int, int]] = {}  # incarnation, and until when

    def is_probe_due(self, new: Peer, connected: Peer, now: int) -> bool:
        number = new.kind, new.node
        if new.incarnation != connected.incarnation:
            known = self._seen.get(number)
            return known is None or now - known.seen_at >= PROBE_MS
        if now - self._probed.get(number, -PROBE_MS) < PROBE_MS:
            return False
        self._probed[number] = now
        return True

    def knocked(self, new: Peer, connected: Peer, now: int) -> None:
        """A rival, while the other one is connected."""
        self._seen[new.kind, new.node] = DuplicateDaemon(new.address, connected.address, now)

    def ended(self, peer: Peer, now: int) -> None:
        """The connection of this one does not stand any more."""
        number = peer.kind, peer.node
        if number in self._seen:
            self._held[number] = peer.incarnation, now + HOLD_MS

    def is_held(self, new: Peer, now: int) -> bool:
        """The number is kept for another process than this one."""
        incarnation, until = self._held.get((new.kind, new.node), (new.incarnation, 0))
        return incarnation != new.incarnation and now < until

    def tick(self, now: int) -> None:
        for number in [one for one, it in self._seen.items() if now - it.seen_at > RIVAL_MS]:
            del self._seen[number]
        self._probed = {one: at for one, at in self._probed.items() if now - at < PROBE_MS}
        self._held = {one: it for one, it in self._held.items() if now < it[1]}
