"""ORDERS as managers send them, and the beats of the broker that gets them."""

from __future__ import annotations

from typing import Any

from support.broker_seam import World

from myqueue.wire import protocol


def orders(**more: Any) -> dict[str, Any]:
    empty = {"version": 0, "life": 5, "life_from": 0, "more": False, "wanted": None, "gone": []}
    return {**empty, "transfers": [], "brokers": None, **more}


def wanted_row(
    group: int,
    replicas: list[list[int]],
    settings: dict[str, int] | None = None,
    leaving: list[list[int]] | None = None,
    moved: int = 0,
) -> list[Any]:
    return [group, "events", 2, 40, replicas, settings or {}, leaving or [], moved]


def answer(world: World, state: dict[str, Any], manager: int = 1, beat: int = 0) -> None:
    envelope = protocol.decode(protocol.encode(protocol.ORDERS, beat, state))
    world.broker.handle_peer_reply(("manager", manager), envelope)


def beats(world: World) -> list[tuple[int, int, dict[str, Any]]]:
    """Return the heartbeats since the last call: (manager, number, state)."""
    sent, world.engine.beats = world.engine.beats, []
    return [(peer[1], envelope[2], envelope[3]) for peer, envelope in sent]


def later(world: World, ms: int = 450) -> list[tuple[int, int, dict[str, Any]]]:
    world.engine.now += ms
    world.turn()
    return beats(world)
