"""What is uneven between brokers, and the next step that makes it less so. Pure arithmetic.

Even means: every broker within 10 % of the mean, or within 1. Smaller differences are left: each
move copies data, and the next topic changes the picture anyway.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

GroupReplicas = Iterable[tuple[int, list[int]]]  # (group, its nodes, the preferred leader first)


def is_uneven(most: int, least: int, mean: float) -> bool:
    """Whether the fullest and the emptiest broker differ by more than 1 and by 10 % of the mean."""
    return most - least > 1 and (most > 1.1 * mean or least < 0.9 * mean)


def next_move(
    groups_on: Callable[[int], GroupReplicas],
    held: Mapping[int, int],
    hosts: Mapping[int, str],
    nodes: Sequence[int],
    takers: Sequence[int],
) -> tuple[int, int, int] | None:
    """(group, from, to): the fullest broker gives a replica to the emptiest one that can take it.

    `groups_on` names groups with a replica on a broker; few of them are looked at. `takers` are
    those of all `nodes` that have room. None: no step makes it more even.
    """
    mean = sum(held[node] for node in nodes) / len(nodes)
    for giver in sorted(nodes, key=lambda one: (-held[one], one)):
        seen: list[tuple[int, Sequence[int]]] = []
        unseen = iter(groups_on(giver))
        for taker in sorted(takers, key=lambda one: (held[one], one)):
            if not is_uneven(held[giver], held[taker], mean):
                break
            for group, members in chain(seen, _noting(unseen, seen)):
                if giver in members and taker not in members:
                    others = [hosts.get(one, "") for one in members if one != giver]
                    if hosts[taker] not in others or hosts[giver] in others:
                        return group, giver, taker
    return None


def _noting(
    groups: Iterator[tuple[int, Sequence[int]]], seen: list[tuple[int, Sequence[int]]]
) -> Iterator[tuple[int, Sequence[int]]]:
    for one in groups:
        seen.append(one)
        yield one


def better_leaders(
    groups: GroupReplicas, nodes: Sequence[int], most: int | None = None
) -> list[tuple[int, int]]:
    """(group, new preferred leader): all steps until no broker leads 2 more than another.

    `most`: so many are enough; each step looks at all groups.

    A broker with too many may share no partition with one that has too few. Then the step goes
    over brokers between them.
    """
    order = {group: list(members) for group, members in groups}
    led = Counter(dict.fromkeys(nodes, 0))
    led.update(members[0] for members in order.values())
    out: dict[int, int] = {}
    for _ in range(len(order)):
        if most is not None and len(out) >= most:
            break
        path = _find_chain(order, led, nodes)
        if not path:
            break
        for group, giver, taker in path:
            order[group].remove(taker)
            order[group].insert(0, taker)
            led[giver] -= 1
            led[taker] += 1
            out[group] = taker
    return list(out.items())


def _find_chain(
    order: Mapping[int, list[int]], led: Mapping[int, int], nodes: Sequence[int]
) -> list[tuple[int, int, int]]:
    """The shortest path from the broker that leads most to one that leads at least 2 fewer."""
    by_leader: dict[int, list[int]] = {}
    for group, members in order.items():
        by_leader.setdefault(members[0], []).append(group)
    for start in sorted(led, key=lambda one: (-led[one], one)):
        came: dict[int, tuple[int, int]] = {}  # node -> (group, node before)
        queue = deque([start])
        while queue:
            at = queue.popleft()
            if at != start and led[at] + 2 <= led[start]:
                return _path(came, start, at)
            for group in by_leader.get(at, ()):
                for node in order[group][1:]:
                    if node in nodes and node not in came and node != start:
                        came[node] = (group, at)
                        queue.append(node)
    return []


def _path(came: Mapping[int, tuple[int, int]], start: int, end: int) -> list[tuple[int, int, int]]:
    way = []
    while end != start:
        group, before = came[end]
        way.append((group, before, end))
        end = before
    return way[::-1]
