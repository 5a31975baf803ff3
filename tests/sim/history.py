"""Random but lawful work for a journal: what a daemon with a few Raft groups may do, in any order.

`act` does one thing to a `Rig`; a seed makes a whole history that can be repeated. Every call is
one that the journal must accept, so a refusal fails the test.
"""

from random import Random

from sim.rig import Rig

GROUPS_MAX = 4
SIZES = (0, 1, 40, 100, 300, 900)


def act(rig: Rig, rng: Random) -> str:
    """One step; returns what it was."""
    groups = sorted(rig.groups.by_uid)
    if not groups or (len(groups) < GROUPS_MAX and rng.random() < 0.05):
        uid = rng.getrandbits(63) | 1
        rig.journal.create_group(uid, rng.randbytes(rng.randrange(40)))
        return "create"
    uid = rng.choice(groups)
    name, action = rng.choices(ACTIONS, WEIGHTS)[0]
    action(rig, rng, uid)
    return name


def play(rig: Rig, rng: Random, steps: int) -> None:
    for _ in range(steps):
        act(rig, rng)


def _append(rig: Rig, rng: Random, uid: int) -> None:
    term = rig.group(uid).last_term + rng.choice((0, 0, 0, 1))
    rig.append(uid, *(rng.choice(SIZES) for _ in range(rng.randint(1, 5))), term=term)


def _truncate(rig: Rig, rng: Random, uid: int) -> None:
    group = rig.group(uid)
    if group.first_index <= group.last_index:
        rig.truncate(uid, rng.randint(group.first_index, group.last_index))


def _hard_state(rig: Rig, rng: Random, uid: int) -> None:
    rig.journal.hard_state(uid, rig.group(uid).term + rng.randrange(2), rng.randrange(4))


def _commit(rig: Rig, rng: Random, uid: int) -> None:
    rig.journal.commit_hint(uid, rng.randint(0, rig.group(uid).last_index))


def _start(rig: Rig, rng: Random, uid: int) -> None:
    group = rig.group(uid)
    index = rng.randint(group.first_index, group.last_index + 1)
    rig.start(uid, index)


def _reset(rig: Rig, rng: Random, uid: int) -> None:
    group = rig.group(uid)
    index = group.last_index + rng.randint(1, 50)
    rig.journal.start(uid, index, group.last_term + 1, rng.getrandbits(20), 5, reset=True)


def _snapshot(rig: Rig, rng: Random, uid: int) -> None:
    group = rig.group(uid)
    parts = [rng.randbytes(rng.choice(SIZES)) for _ in range(rng.randint(1, 4))]
    rig.journal.snapshot(uid, group.last_index, group.last_term, parts)


def _relocate(rig: Rig, rng: Random, uid: int) -> None:
    group = rig.group(uid)
    if group.first_index <= group.last_index:
        first = rng.randint(group.first_index, group.last_index)
        last = min(group.last_index, first + rng.randrange(3))
        entries = [rig.entries[uid, index] for index in range(first, last + 1)]
        rig.journal.append(uid, entries, relocated=True)


def _remove(rig: Rig, rng: Random, uid: int) -> None:
    rig.journal.remove_group(uid)


def _submit(rig: Rig, rng: Random, uid: int) -> None:
    rig.journal.submit()


def _step(rig: Rig, rng: Random, uid: int) -> None:
    rig.journal.writer.step()
    rig.poll()


def _settle(rig: Rig, rng: Random, uid: int) -> None:
    rig.settle()


def _spare(rig: Rig, rng: Random, uid: int) -> None:
    rig.journal.spares.step()


_WEIGHTED = (
    (30, _append), (4, _truncate), (8, _hard_state), (4, _commit), (3, _start), (1, _reset),
    (2, _snapshot), (2, _relocate), (0.3, _remove), (12, _submit), (16, _step), (3, _settle),
    (4, _spare),
)  # fmt: skip
WEIGHTS = [weight for weight, _ in _WEIGHTED]
ACTIONS = [(action.__name__[1:], action) for _, action in _WEIGHTED]
