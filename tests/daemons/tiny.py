"""A program to be supervised. Its words say which one it is, how it behaves, and its folder; or,
if an agent starts it as a daemon, `KIND --config …/DATA/node/x.toml`. Behaviours:

    well      says that it is ready, ends at SIGTERM and writes that down
    deaf      hears no SIGTERM
    dying     ends at once, with exit code 3
    talking   says things of every level, and more than fits into its log
"""

import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType


def say(level: str, event: str, **fields: object) -> None:
    print(json.dumps({"level": level, "event": event, **fields}), file=sys.stderr, flush=True)


def main(kind: str, behaviour: str, folder: str) -> None:
    if behaviour == "--config":
        behaviour, folder = "well", str(Path(folder).parents[1])

    def stop(number: int, frame: FrameType | None) -> None:
        with (Path(folder) / "stopped").open("a") as file:
            file.write(f"{kind}\n")
        sys.exit(0)

    if behaviour == "dying":
        say("error", "no_disk", path="/x")
        sys.exit(3)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "deaf" else stop)
    if behaviour == "talking":
        say("warning", "slow_disk", ms=70)
        say("info", "nothing", x=1)
        trace = "Traceback (most recent call last):\n  File …\nValueError: x"
        print(trace, file=sys.stderr, flush=True)
        for number in range(400):
            say("info", "chatter", number=number, text="x" * 100)
    say("info", "ready")
    while True:
        time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
