"""The longest time that a request may take, and the text of a report about one that took longer.

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
CLUSTER_REQUESTS_MAX: Final = 10  # that one HTTP request may need
FRAMES_SHOWN: Final = 12  # the newest stack frames of each thread


def request_limit_ms(config: GatewayConfig) -> float:
    """Return more time than any request needs that works as designed."""
    return config.wait_ms_max + CLUSTER_REQUESTS_MAX * config.request_timeout_ms + SPARE_S * 1000


def describe_threads() -> str:
    """Return the stack of every thread, as text.

    Garbage collection is off while the stacks are read. Python holds a lock then; a finalizer could
    let another thread run that wants this lock, and the whole process would stop.
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
    for thread_id, frame in frames.items():
        stack = "".join(traceback.format_stack(frame)[-FRAMES_SHOWN:])
        stacks.append(f"{names.get(thread_id, thread_id)}:\n{stack}")
    return "\n".join(stacks)
