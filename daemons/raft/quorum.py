"""Arithmetic of majorities. Pure functions of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def majority(voters: int) -> int:
    return voters // 2 + 1


def committed_index(matches: Sequence[int]) -> int:
    """The highest index that a majority of voters has; one number for each voter."""
    if not matches:
        return 0
    return sorted(matches, reverse=True)[majority(len(matches)) - 1]


def vote_result(voters: Iterable[int], votes: dict[int, bool]) -> bool | None:
    """True: won, False: cannot be won any more, None: not decided."""
    members = list(voters)
    needed = majority(len(members))
    granted = sum(1 for voter in members if votes.get(voter) is True)
    refused = sum(1 for voter in members if votes.get(voter) is False)
    if granted >= needed:
        return True
    return False if refused > len(members) - needed else None
