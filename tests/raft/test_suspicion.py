"""A slow node is not taken for a dead one (R33), and a dead one is noticed as soon as ever."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from raft.flock import Flock

from myqueue.daemons.raft.groups import NodeHeartbeat, Packet
from myqueue.daemons.raft.suspicion import LAPSES_MAX, STRETCH_MAX, WINDOW_MS, Suspicion

TIMEOUT_MS = 500
BEAT_MS = 150
NODE = 2


class Watch:
    """One node, and the packets that come from it."""

    def __init__(self) -> None:
        self.suspicion, self.now = Suspicion(TIMEOUT_MS), 1000
        self.suspicion.hear(NODE, self.now)

    def hear(self, gaps: Iterable[int]) -> None:
        for gap in gaps:
            self.now += gap
            self.suspicion.hear(NODE, self.now)

    @property
    def patience_ms(self) -> int:
        """For how long it may be silent from now on."""
        return max(0, self.suspicion.alive_until.get(NODE, 0) - self.now)


def test_a_node_that_was_never_heard_is_not_alive() -> None:
    assert not Suspicion(TIMEOUT_MS).is_alive(NODE, 0)


def test_heartbeats_that_come_as_they_should_leave_the_timeout_as_it_is() -> None:
    watch = Watch()
    watch.hear([BEAT_MS, 20, 1, 0, BEAT_MS + 50] * 100)
    assert watch.patience_ms == TIMEOUT_MS


@pytest.mark.parametrize(("gap", "patience"), [(250, 500), (300, 700), (450, 1300), (900, 3100)])
def test_r33_a_long_gap_teaches_patience_before_it_is_needed(gap: int, patience: int) -> None:
    watch = Watch()
    watch.hear([BEAT_MS, gap, BEAT_MS])
    assert watch.patience_ms == patience > 1.5 * gap


def test_patience_has_an_end() -> None:
    watch = Watch()
    watch.hear([1000, 2000, 3999] * 5)
    assert watch.patience_ms == STRETCH_MAX * TIMEOUT_MS


def test_a_node_that_was_away_was_not_slow() -> None:
    watch = Watch()
    watch.hear([BEAT_MS, STRETCH_MAX * TIMEOUT_MS + 1, BEAT_MS])
    assert watch.patience_ms == TIMEOUT_MS


def test_patience_is_forgotten_within_two_windows() -> None:
    watch = Watch()
    watch.hear([900])
    began = watch.now
    patience = []
    for _ in range(2 * WINDOW_MS // BEAT_MS + 1):
        patience.append((watch.patience_ms, watch.now - began))
        watch.hear([BEAT_MS])
    assert watch.patience_ms == TIMEOUT_MS
    stretched = [at for found, at in patience if found > TIMEOUT_MS]
    assert {found for found, _ in patience} == {3100, TIMEOUT_MS}, "not bit by bit"
    assert WINDOW_MS - 1000 <= stretched[-1] <= 2 * WINDOW_MS


@pytest.mark.parametrize("late_ms", [101, 600, 60_000])
def test_r33_a_late_turn_is_no_silence_of_others(late_ms: int) -> None:
    watch = Watch()
    watch.hear([BEAT_MS])
    watch.now += BEAT_MS + late_ms  # our own turn should have come after 150 ms
    assert watch.suspicion.note_late(late_ms)
    assert watch.patience_ms == TIMEOUT_MS - BEAT_MS, "as if the lapse had not been"
    watch.hear([10])
    assert watch.patience_ms == TIMEOUT_MS, "and it is no gap of the other node"


def test_a_turn_that_is_a_little_late_is_like_any_other() -> None:
    watch = Watch()
    assert not any(watch.suspicion.note_late(late_ms) for late_ms in (-150, 0, 1, 100))
    assert watch.patience_ms == TIMEOUT_MS


def test_what_was_silent_before_the_lapse_stays_silent() -> None:
    watch = Watch()
    watch.now += TIMEOUT_MS + 300
    watch.suspicion.note_late(299)
    assert not watch.suspicion.is_alive(NODE, watch.now)


def test_always_late_is_no_excuse_for_ever() -> None:
    """A dead node is noticed by one whose every turn comes late."""
    watch = Watch()
    alive = []
    for _ in range(2 * LAPSES_MAX):
        watch.now += 400
        watch.suspicion.note_late(400)
        alive.append(watch.suspicion.is_alive(NODE, watch.now))
    assert alive.count(True) == alive.index(False) == LAPSES_MAX + TIMEOUT_MS // 400


def test_a_connection_that_breaks_ends_all_patience() -> None:
    watch = Watch()
    watch.hear([900, 900])
    watch.suspicion.end(NODE)
    assert watch.patience_ms == 0
    watch.hear([5])  # it was under way
    assert watch.patience_ms == TIMEOUT_MS


# -- all groups of a process ----------------------------------------------------------------------


def led(flock: Flock) -> dict[int, tuple[int, int]]:
    """Group -> leader and term."""
    found = {group: flock.leader(group) for group in flock.all_groups()}
    return {group: (node.replica, node.term) for group, node in found.items() if node is not None}


@pytest.fixture
def flock() -> Flock:
    made = Flock(groups=range(1, 10))
    made.elect_all()
    made.elapse(300)
    return made


def be_slow(flock: Flock, number: int) -> None:
    """A node speaks with longer and longer gaps; it goes on for a while."""
    for gap_ms in (300, 500, 700, 900, 900):
        flock.cut = {number}
        flock.elapse(gap_ms)
        flock.cut = set()
        flock.elapse(100)


def test_r33_a_slow_leader_is_not_deposed(flock: Flock) -> None:
    before = led(flock)
    be_slow(flock, flock.leader_at(1))
    flock.elapse(2000)
    assert led(flock) == before
    assert all(host.silences == 0 for host in flock.hosts.values())


def test_a_slow_leader_that_is_killed_is_replaced_at_once(flock: Flock) -> None:
    victim = flock.leader_at(1)
    be_slow(flock, victim)
    flock.cut = {victim}
    for number, host in flock.hosts.items():
        if number != victim:
            host.disconnected(victim, flock.now)
    flock.elapse(1500)
    assert victim not in {leader >> 32 for leader, _ in led(flock).values()}


def test_a_slow_leader_that_vanishes_is_replaced_a_little_later(flock: Flock) -> None:
    """Its machine lost power: no connection breaks."""
    victim = flock.leader_at(1)
    be_slow(flock, victim)
    before, flock.cut = led(flock), {victim}
    flock.elapse(1000)
    assert led(flock) == before
    flock.elapse(STRETCH_MAX * TIMEOUT_MS + 1500)
    assert victim not in {leader >> 32 for leader, _ in led(flock).values()}


def test_a_process_that_is_started_again_is_not_the_slow_one(flock: Flock) -> None:
    """How long it was away says nothing about its pace."""
    host, other = flock.hosts[1], 2
    flock.cut = {other}
    flock.elapse(2000)
    beat = NodeHeartbeat(incarnation=99, number=1, leads=0, digest=0, commits=[])
    host.receive(other, Packet(beats=[beat]), flock.now)
    assert host.suspicion.alive_until[other] == flock.now + TIMEOUT_MS


def test_r33_a_machine_that_stood_still_deposes_nobody(flock: Flock) -> None:
    before = led(flock)
    assert len(before) == 9
    for host in flock.hosts.values():
        host.begin_turn(flock.now, 50)
    flock.now += 5000
    for host in flock.hosts.values():
        host.begin_turn(flock.now, 50)
        host.tick(flock.now)  # before anything is read
    flock.elapse(2000)
    assert led(flock) == before
    assert [host.silences for host in flock.hosts.values()] == [0, 0, 0]
    assert [host.late_turns for host in flock.hosts.values()] == [1, 1, 1]
