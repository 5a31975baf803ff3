"""The stacks of all threads, for the report about a request that took too long."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from typing import Final

FRAMES_SHOWN: Final = 12  # the newest stack frames of each thread


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
