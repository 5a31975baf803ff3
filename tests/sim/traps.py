"""Traps: something goes wrong at one node just when it does something that matters.

Chance alone seldom strikes in the few milliseconds after a leader appended and before anybody else
has it, or between an acknowledgement and the next sync. A trap waits for such a moment, at
whichever node it comes, and springs within a few milliseconds: the power fails, the node is cut off
from all or all but one, pauses, is clogged, is not heard, hears old packets once more, its disk
stalls; or the power fails everywhere. Each seed knows one or two moments and one or two
consequences, so that some histories are this one thing over and over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from myqueue.daemons.raft import types as t

if TYPE_CHECKING:
    from sim.world import World

MOMENTS = (
    "leads",
    "proposes",
    "changes",
    "truncates",
    "installs",
    "acknowledges",
    "votes",
    "commits",
)
CONSEQUENCES = (
    "power",
    "power",
    "cut off",
    "cut off",
    "kill",
    "pause",
    "clog",
    "mute",
    "stall",
    "echo",
    "echo",
    "blackout",
)


class Traps:
    def __init__(self, world: World) -> None:
        self.world, random = world, world.random
        self._moments = random.choice(MOMENTS), random.choice(("leads", random.choice(MOMENTS)))
        self._consequences = random.choices(CONSEQUENCES, k=2)
        self._within_ms = random.choice((0, 5, 30, 100))
        self._armed: str | None = None

    def arm(self) -> None:
        self._armed = self.world.random.choice(self._moments)

    def notice(self, number: int, effects: t.Effects) -> None:
        """A turn of this node is over, with these effects."""
        if self._armed is not None and not self.world.quiet and self._armed in moments(effects):
            world, moment, self._armed = self.world, self._armed, None
            what = world.random.choice(self._consequences)
            world.faults[f"trap: {what}"] += 1
            world.note(f"trap: {what} at node {number}, which {moment}")
            action = getattr(self, "_" + what.replace(" ", "_"))
            world.after(0, self._within_ms, lambda: action(number))

    # -- consequences --------------------------------------------------------------------------

    def _power(self, number: int) -> None:
        self._crash(number, True)

    def _kill(self, number: int) -> None:
        self._crash(number, False)

    def _crash(self, number: int, power: bool) -> None:
        if not self.world.quiet:
            self.world.crash(number, power)
            self.world.after(50, 900, lambda: self.world.boot(number))

    def _cut_off(self, number: int) -> None:
        world = self.world
        if not world.quiet:
            friends = world.random.sample(sorted(world.slots), world.random.choice((0, 1)))
            world.network.cut(world.network.of_one(number, set(friends)), 200, 1500)

    def _pause(self, number: int) -> None:
        if not self.world.quiet:
            self.world.pause(number, self.world.random.randint(200, 1200))

    def _mute(self, number: int) -> None:
        if not self.world.quiet:
            self.world.nemesis.mute(number)

    def _clog(self, number: int) -> None:
        if not self.world.quiet:
            self.world.nemesis.clog(number)

    def _echo(self, number: int) -> None:
        if not self.world.quiet:
            self.world.network.echo(number)

    def _blackout(self, number: int) -> None:
        if not self.world.quiet:
            self.world.nemesis.blackout()

    def _stall(self, number: int) -> None:
        self.world.nemesis.stall(number)


def moments(effects: t.Effects) -> set[str]:
    return set(_moments(effects))


def _moments(effects: t.Effects) -> Iterator[str]:
    for order in effects.persist:
        if isinstance(order, t.PersistTruncate):
            yield "truncates"
        elif isinstance(order, t.PersistSnapshot):
            yield "installs"
        elif isinstance(order, t.PersistEntries) and _holds_config(order.entries):
            yield "changes"
    for message in effects.send:
        if isinstance(message, t.Append) and message.entries:
            yield "proposes"
        elif isinstance(message, t.AppendReply) and message.ok:
            yield "acknowledges"
        elif isinstance(message, t.VoteReply) and message.granted and not message.pre:
            yield "votes"
    if any(change.role == t.Role.LEADER for change in effects.changed):
        yield "leads"
    if effects.apply:
        yield "commits"


def brings_config(effects: t.Effects) -> bool:
    """Whether a change of members is among what is to be written."""
    return any(
        isinstance(order, t.PersistEntries) and _holds_config(order.entries)
        for order in effects.persist
    )


def _holds_config(entries: list[t.Entry]) -> bool:
    return any(entry[t.TYPE] == t.CONFIG for entry in entries)
