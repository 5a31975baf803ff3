"""A request that should long have been answered: how long that is, and what the log says of it.

All that requests wait for has a deadline of its own, so this never happens, unless there is a
mistake in this program. Then its client must not wait for ever, and whoever looks for the mistake
wants to know where every thread stood.
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from typing import Final

from myqueue.gateway.settings import GatewayConfig

SPARE_S: Final = 60.0
STEPS: Final = 10  # of the cluster, that one request may consist of, each with its own time-out
FRAMES: Final = 12  # of a thread, the newest


def request_limit_ms(config: GatewayConfig) -> float:
    """Longer than anything takes that is well."""
    return config.wait_ms_max + STEPS * config.request_timeout_ms + SPARE_S * 1000


def describe_threads() -> str:
    """Where each of them stands.

    No garbage may be collected while Python looks at its threads: it holds a lock then, and a
    finalizer that lets another thread run, which wants that lock, stops the whole process.
    """
    names = {one.ident: one.name for one in threading.enumerate()}
    collects = gc.isenabled()
    gc.disable()
    try:
        frames = sys._current_frames()
    finally:
        if collects:
            gc.enable()
    out = []
    for number, frame in frames.items():
        stack = "".join(traceback.format_stack(frame)[-FRAMES:])
        out.append(f"{names.get(number, number)}:\n{stack}")
    return "\n".join(out)
