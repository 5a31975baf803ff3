"""What a test reports even if it passes, and at once: its seed, how far it is, what it counted."""

from __future__ import annotations

import os
import sys

import pytest


def tell(capsys: pytest.CaptureFixture[str], *lines: str, end: str = "\n") -> None:
    """A worker of a parallel run has no output of its own but the one for errors."""
    with capsys.disabled():
        file = sys.stderr if "PYTEST_XDIST_WORKER" in os.environ else sys.stdout
        print(*lines, sep="\n", end=end if lines else "", flush=True, file=file)
