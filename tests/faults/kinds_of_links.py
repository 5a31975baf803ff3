"""Kinds of faults of networks, between hosts that are namespaces (`support/hosts.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from faults.nemesis import GENTLE, ROUGH, Fault, Kind, Nemesis
from support.hosts import CLIENTS, Direction, host_of
from support.processes import Name

CUT_S = (1.0, 7.0)
KBIT_S = (128, 512)


def cut(
    nemesis: Nemesis, victims: Iterable[Name], directions: Iterable[Direction], keeps: bool = True
) -> Fault:
    network, lost = nemesis.hosts.network, set(directions)
    return Fault(
        tuple(victims), partial(network.cut, lost), partial(network.heal, lost), CUT_S, keeps
    )


def others(nemesis: Nemesis, name: Name, clients: bool) -> list[str]:
    names = [CLIENTS] if clients else []
    return [*names, *(host for host in nemesis.hosts.network.hosts if host != host_of(name))]


def silenced(nemesis: Nemesis) -> Fault | None:
    """It hears everybody, and nobody hears it: a leader that is deposed without knowing."""
    name = nemesis.anyone()
    if name is None:
        return None
    to = others(nemesis, name, nemesis.random.random() < 0.5)
    return cut(nemesis, [name], {(host_of(name), other) for other in to})


def deafened(nemesis: Nemesis) -> Fault | None:
    """Everybody hears it, and it hears nobody: it would stand for election for ever (R12)."""
    name = nemesis.anyone()
    if name is None:
        return None
    from_ = others(nemesis, name, nemesis.random.random() < 0.5)
    return cut(nemesis, [name], {(other, host_of(name)) for other in from_})


def isolated(nemesis: Nemesis) -> Fault | None:
    """From all other daemons, or from clients as well."""
    name = nemesis.anyone()
    if name is None:
        return None
    away = others(nemesis, name, nemesis.random.random() < 0.5)
    return cut(nemesis, [name], both_ways({host_of(name)}, away))


def both_ways(some: Iterable[str], others: Iterable[str]) -> set[Direction]:
    pairs = {(a, b) for a in some for b in others}
    return pairs | {(b, a) for a, b in pairs}


def hidden(nemesis: Nemesis) -> Fault | None:
    """From clients alone, one way or both. Its peers see nothing wrong, so it goes on to lead, and
    who wants something of its partitions has to wait.
    """
    name = nemesis.anyone()
    if name is None:
        return None
    pairs = sorted(both_ways([host_of(name)], [CLIENTS]))
    return cut(nemesis, [name], nemesis.random.sample(pairs, nemesis.random.choice((1, 2))), False)


def unmanaged(nemesis: Nemesis) -> Fault | None:
    """A broker that no manager reaches; its groups go on."""
    name = nemesis.anyone("broker")
    if name is None:
        return None
    managers = [host_of(one) for one in nemesis.cluster.names if one[0] == "manager"]
    return cut(nemesis, [name], both_ways([host_of(name)], managers))


def one_pair(nemesis: Nemesis) -> Fault | None:
    """Two brokers, or two managers, that do not see each other, or only one the other."""
    first = nemesis.anyone()
    if first is None:
        return None
    peers = [name for name in nemesis.daemons(first[0]) if name != first]
    if not peers:
        return None
    pairs = sorted(both_ways([host_of(first)], [host_of(nemesis.random.choice(peers))]))
    return cut(nemesis, [first], nemesis.random.sample(pairs, nemesis.random.choice((1, 2))))


def slow(nemesis: Nemesis) -> Fault | None:
    """Its link carries a fraction of what it has to: all it says and hears is old."""
    name = nemesis.anyone()
    if name is None:
        return None
    network, kbit_s = nemesis.hosts.network, nemesis.random.randint(*KBIT_S)
    return Fault(
        (name,),
        partial(network.slow, host_of(name), kbit_s),
        partial(network.speed_up, host_of(name)),
        CUT_S,
    )


def halves(nemesis: Nemesis) -> Fault | None:
    """Two sides, each with some of all; clients see one of them, or both."""
    hosts = nemesis.hosts.network.hosts
    side = set(nemesis.random.sample(hosts, nemesis.random.randint(2, len(hosts) - 2)))
    rest = [host for host in hosts if host not in side]
    if nemesis.random.random() < 0.5:
        rest.append(CLIENTS)
    return cut(nemesis, [], both_ways(side, rest), keeps=False)


def ring(nemesis: Nemesis) -> Fault | None:
    """Everybody sees two neighbours of its kind: majorities that overlap, none that agree."""
    lost: set[Direction] = set()
    for kind in ("broker", "manager"):
        hosts = [host_of(name) for name in nemesis.cluster.names if name[0] == kind]
        nemesis.random.shuffle(hosts)
        near = {
            (host, other)
            for at, host in enumerate(hosts)
            for other in (hosts[at - 1], hosts[(at + 1) % len(hosts)])
        }
        if len(hosts) == 3:  # else all would be neighbours of all
            near -= both_ways([hosts[0]], [hosts[2]])
        lost |= {(a, b) for a in hosts for b in hosts if a != b} - near
    return cut(nemesis, [], lost, keeps=False)


LINKS = [
    Kind("silenced", GENTLE, 3, silenced), Kind("deafened", GENTLE, 3, deafened),
    Kind("isolated", GENTLE, 2, isolated), Kind("hidden from clients", ROUGH, 2, hidden),
    Kind("unmanaged", GENTLE, 1, unmanaged), Kind("one pair", GENTLE, 2, one_pair),
    Kind("slow link", GENTLE, 2, slow), Kind("halves", ROUGH, 4, halves),
    Kind("ring", ROUGH, 3, ring),
]  # fmt: skip
