"""The floor of this machine for messages: a bare ZeroMQ round trip and stream over loopback.

No broker on the same sockets can be faster. Two threads would share an interpreter, so the echo
side is a process of its own.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import zmq

from myqueue.cli.bench.parts import payload, percentiles, timed
from myqueue.errors import TimedOut

FRAME_BYTES = 64 << 10
WAIT_MS = 10_000


def _echo(pipe: Any) -> None:
    """Answer every short message; count long ones, and send their number on "stop"."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    pipe.send(socket.bind_to_random_port("tcp://127.0.0.1"))
    count, begin = 0, 0.0
    while True:
        identity, message = socket.recv_multipart()
        if message == b"stop":
            break
        if len(message) == FRAME_BYTES:
            begin = begin or time.monotonic()
            count += 1
        else:
            socket.send_multipart([identity, message])
    pipe.send((count, time.monotonic() - begin))
    context.destroy(0)


def zeromq(size: int, seconds: float = 2.0) -> dict[str, Any]:
    """Measure round trips of messages of `size` bytes, then a stream of 64 KiB frames."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=_echo, args=(theirs,), daemon=True)
    child.start()
    if not ours.poll(20):
        raise TimedOut("the other side of the floor's measurement did not start")
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.SNDTIMEO, WAIT_MS)
    socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
    socket.connect(f"tcp://127.0.0.1:{ours.recv()}")
    message, frame = payload(size), b"x" * FRAME_BYTES
    try:

        def call() -> None:
            socket.send(message)
            socket.recv()

        out = percentiles(timed(call, 5000, 5.0), "zeromq")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            socket.send(frame)
        socket.send(b"stop")
        if ours.poll(20):
            count, took = ours.recv()
            out["zeromq_mb_s"] = round(count * FRAME_BYTES / took / 1e6)
    finally:
        context.destroy(0)
        child.join(5)
        if child.is_alive():
            child.kill()
    return out
