"""What a benchmark found, and the small arithmetic it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Row:
    """One measured figure; `better` is +1 if more is better, -1 if less is."""

    what: str
    value: float
    unit: str
    bare: str = ""
    goal: float | None = None
    better: int = 1

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        met = self.value >= self.goal if self.better > 0 else self.value <= self.goal
        sign = ">=" if self.better > 0 else "<="
        return f"{'met' if met else 'MISSED'} ({sign} {self.goal:g})"


ROWS: list[Row] = []


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)
