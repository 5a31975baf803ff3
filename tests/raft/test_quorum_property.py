"""Majorities and members against brute force and a naive replay."""

from hypothesis import given
from hypothesis import strategies as st

from myqueue.daemons.raft.membership import (
    ConfigHistory,
    change_problem,
    decode_config,
    encode_config,
)
from myqueue.daemons.raft.quorum import committed_index, majority, vote_result
from myqueue.daemons.raft.types import CONFIG, DATA, Config, Entry

matches = st.lists(st.integers(0, 9), min_size=1, max_size=7)
configs = st.builds(
    lambda replicas, voters: Config(tuple(replicas[:voters]), tuple(replicas[voters:])),
    st.lists(st.integers(1, 7), unique=True, min_size=1),
    st.integers(1, 7),
)


@given(matches)
def test_r5_committed_is_the_highest_index_that_a_majority_has(values: list[int]) -> None:
    naive = max(i for i in range(10) if sum(v >= i for v in values) * 2 > len(values))
    assert committed_index(values) == naive


def test_nobody_commits_nothing() -> None:
    assert committed_index([]) == 0


@given(matches, matches)
def test_two_majorities_share_a_member(some: list[int], _: list[int]) -> None:
    count = len(some)
    assert 2 * majority(count) > count >= majority(count)


@given(st.integers(1, 7), st.dictionaries(st.integers(1, 9), st.booleans()))
def test_a_vote_is_decided_when_nothing_can_change_it(voters: int, votes: dict[int, bool]) -> None:
    """Votes of strangers (8, 9, or beyond the voters) count for nothing (R8)."""
    members = range(1, voters + 1)
    missing = [voter for voter in members if voter not in votes]
    yes = sum(votes.get(voter, False) for voter in members)
    needed = majority(voters)
    expected = True if yes >= needed else None if yes + len(missing) >= needed else False
    assert vote_result(members, votes) is expected


# -- members ---------------------------------------------------------------------------------------


@given(configs)
def test_a_configuration_survives_its_entry(config: Config) -> None:
    assert decode_config(encode_config(config)) == config
    assert decode_config(memoryview(encode_config(config))) == config


@given(configs, configs)
def test_r14_every_allowed_step_keeps_a_common_majority(old: Config, new: Config) -> None:
    """Any majority of the one meets any majority of the other; that is all that R14 is for."""
    if change_problem(old, new):
        return
    common = len(set(old.voters) & set(new.voters))
    union = len(set(old.voters) | set(new.voters))
    assert majority(len(old.voters)) + majority(len(new.voters)) > union
    assert union - common <= 1
    fresh = set(new.voters) - set(old.voters)
    assert fresh <= set(old.learners), "a learner first (R18)"


def entry(index: int, config: Config | None) -> Entry:
    kind, payload = (CONFIG, encode_config(config)) if config else (DATA, b"")
    return (index, 1, 0, 0, 0, kind, 0, payload)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.none() | configs, min_size=1, max_size=4)),
        st.tuples(st.just("truncate"), st.integers(0, 9)),
        st.tuples(st.just("applied"), st.integers(0, 9)),
    ),
    max_size=12,
)


@given(steps)
def test_r15_configurations_follow_the_log(plan: list[tuple[str, object]]) -> None:
    """Appended, they count at once; truncated, the one before does; applied, they stay known."""
    first = Config((1,))
    history = ConfigHistory(0, first)
    log: list[Config | None] = []  # entry i + 1
    applied = 0
    for verb, value in plan:
        if verb == "append":
            assert isinstance(value, list)
            some = [entry(len(log) + 1 + at, config) for at, config in enumerate(value)]
            assert history.appended(some) == any(value)
            log += value
        elif verb == "truncate" and applied < len(log):
            index = min(len(log), applied + 1 + int(str(value)))
            assert history.truncated(index) == any(log[index - 1 :])
            del log[index - 1 :]
        elif verb == "applied":
            applied = max(applied, min(len(log), int(str(value))))
            history.applied(applied)
        naive = [(0, first)] + [(i, config) for i, config in enumerate(log, 1) if config]
        assert (history.current_index, history.current) == naive[-1]
        assert history.at(applied) == [config for i, config in naive if i <= applied][-1]


@given(configs, configs)
def test_r16_an_installed_configuration_replaces_all(stale: Config, new: Config) -> None:
    history = ConfigHistory(0, Config((1,)))
    history.appended([entry(50, stale)])
    history.installed(20, new)
    assert (history.current_index, history.current) == (20, new)
    assert history.appended([entry(15, stale)]) is False, "it is part of the state already"
