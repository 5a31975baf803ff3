"""`verify` without a JVM, and the partitions of the cluster that its tests look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kit.plain_spread import PlainSpread

from myqueue.analytics.report import Report
from myqueue.analytics.verify import Asked, verify

A, B, C = 100, 101, 102  # groups of `some_topics`: a/0, a/1, b/0


def verified(cluster: Path, scratch: Path, *, stores: bool = False, **asked: Any) -> Report:
    wanted = Asked([str(cluster)], with_stores=stores, **asked)
    return verify(wanted, PlainSpread(), scratch)
