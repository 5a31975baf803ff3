"""Guard the process's stdin, stdout and stderr: closed, full, or a pipe whose reader has stopped.

`prepare` runs before a command does anything. File descriptors 0 to 2 are never left free: the next
socket would get one of them, and printed text would go to a daemon.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

import click

from myqueue.errors import TroubleError

_MODES = {0: os.O_RDONLY, 1: os.O_WRONLY, 2: os.O_WRONLY}


def prepare() -> None:
    """Raise TroubleError if nothing can be printed; make every text printable."""
    for number, mode in _MODES.items():
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, mode), number)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # tests put simpler streams here
            with contextlib.suppress(OSError, ValueError):
                reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        raise TroubleError(
            "standard output is closed, so nothing was done",
            hint="Leave it open, or send it to a file or to /dev/null.",
        )


def give_up_output() -> None:
    """Discard buffered output; otherwise the interpreter prints an error when it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def quiet_pipe() -> Iterator[None]:
    """End quietly if the reader of our output stops (`| head`): that is no failure."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_output()


class Input(click.File):
    """A file to read bytes from, or "-" for standard input."""

    def __init__(self) -> None:
        super().__init__("rb")

    def convert(
        self,
        value: str | os.PathLike[str] | IO[Any],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> IO[Any]:
        if value == "-" and sys.stdin is None:
            self.fail("standard input is closed. Name a file, or pipe lines in.", param, ctx)
        return super().convert(value, param, ctx)


def unwritable(error: OSError) -> str | None:
    """Return the message for an error of our own output; None for any other error."""
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
        reason = os.strerror(error.errno)
        return f"could not write the output: {reason}. Make room where it goes, or choose another."
    return None


def printable(text: str, kept: str = "") -> str:
    """Escape characters that control a terminal, in names and messages that users sent.

    >>> printable("3 apples\\x1b[2J")
    '3 apples\\\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        each
        if each.isprintable() or each in kept
        else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
