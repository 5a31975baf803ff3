"""What is wrong for long is logged again, but ever more seldom; and what is new, at once."""

from __future__ import annotations

from myqueue.daemons import repeated_warnings
from myqueue.daemons.repeated_warnings import LogPauses


def test_the_same_thing_comes_with_pauses_that_double() -> None:
    made, logged = LogPauses(1000), []
    for now in range(0, 20_000, 100):
        if times := made.due("thing", now):
            logged.append((now, times))
    assert logged == [(0, 1), (1000, 10), (3000, 20), (7000, 40), (15_000, 80)]
    assert made.due("another", 20_000) == 1
    made.forget("thing")
    assert made.due("thing", 20_001) == 1


def test_after_a_long_while_it_is_new_again() -> None:
    made = LogPauses(1000)
    assert made.due("thing", 0) and not made.due("thing", 10)
    assert made.due("thing", 1000 + repeated_warnings.PAUSE_MS_MAX + 1) == 1


def test_pauses_never_become_longer_than_the_longest() -> None:
    made, last = LogPauses(1000), 0
    for now in range(0, 20 * repeated_warnings.PAUSE_MS_MAX, 1000):
        if made.due("thing", now):
            assert now - last <= repeated_warnings.PAUSE_MS_MAX
            last = now


def test_strangers_do_not_fill_the_memory() -> None:
    made = LogPauses()
    for number in range(3 * repeated_warnings.PROBLEMS_MAX):
        assert made.due(number, 0) == 1
    assert len(made._problems) == repeated_warnings.PROBLEMS_MAX
