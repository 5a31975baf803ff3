"""How long a request may take at most, and what is logged about one that took longer.

Everything that a request waits for has a deadline of its own, so a request exceeds this limit only
because of a defect in this program. Then its client must not wait forever, and the log needs the
stack of every thread to find the defect.
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from typing import Final

from myqueue.gateway.settings import GatewayConfig

SPARE_S: Final = 60.0
STEPS: Final = 10  # requests to the cluster that one HTTP request may need
FRAMES: Final = 12  # newest stack frames shown of each thread


def request_limit_ms(config: GatewayConfig) -> float:
    """Return more time than any request needs that works as designed."""
    return config.wait_ms_max + STEPS * config.request_timeout_ms + SPARE_S * 1000


def describe_threads() -> str:
    """Return the stack of every thread, as text.

    Garbage collection is off meanwhile: Python holds a lock while it looks at its threads, and a
    finalizer that lets another thread run which wants that lock would stop the whole process.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        frames = sys._current_frames()
    finally:
        if was_collecting:
            gc.enable()
    stacks = []
    for number, frame in frames.items():
        stack = "".join(traceback.format_stack(frame)[-FRAMES:])
        stacks.append(f"{names.get(number, number)}:\n{stack}")
    return "\n".join(stacks)
