"""Two processes with one number: which of them the peer listener accepts.

The first that greeted is accepted while its connection stands (`loop.py`). The loop probes that
connection by sending to it, at most once in `PROBE_MS` for each of two reasons:

- another process (another incarnation) greets: it is a *rival*, and `myq health` reports it;
- the same process greets: its connection broke, and it connects again. It is never a rival, however
  recently one greeted.

A process whose connection ended while there is a rival has `HOLD_MS` to come back. Otherwise a
short break would give its number, and its orders, to the copy. Without a rival no number is held,
so a restarted daemon is accepted at once. Rivals that stop greeting are forgotten.
"""

from __future__ import annotations

from typing import Final

from myqueue.daemons.interfaces import RIVAL_MS, DuplicateDaemon, Peer

PROBE_MS: Final = 100  # between probes of the connected process
HOLD_MS: Final = 3000
Number = tuple[str, int]  # kind and node


class Rivals:
    """Rivals and held numbers. `seen` is `engine.rivals`, which health reports."""

    def __init__(self, seen: dict[Number, DuplicateDaemon]) -> None:
        self._seen = seen
        self._probed: dict[Number, int] = {}  # because the same process connects again
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
        """Note a rival that greeted while another process is connected."""
        self._seen[new.kind, new.node] = DuplicateDaemon(new.address, connected.address, now)

    def ended(self, peer: Peer, now: int) -> None:
        """Hold the number of a process whose connection ended, if it has a rival."""
        number = peer.kind, peer.node
        if number in self._seen:
            self._held[number] = peer.incarnation, now + HOLD_MS

    def is_held(self, new: Peer, now: int) -> bool:
        """Whether the number is held for another process."""
        incarnation, until = self._held.get((new.kind, new.node), (new.incarnation, 0))
        return incarnation != new.incarnation and now < until

    def tick(self, now: int) -> None:
        for number in [one for one, it in self._seen.items() if now - it.seen_at > RIVAL_MS]:
            del self._seen[number]
        self._probed = {one: at for one, at in self._probed.items() if now - at < PROBE_MS}
        self._held = {one: it for one, it in self._held.items() if now < it[1]}
