"""The base class of all errors, and the classes of its two halves: misuse and trouble.

Each class is one row of the table `errors.TABLE`. Its docstring says what happened; the rest of
`help()` (code, repeat, outcome, what to do) is appended from the class attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

NONE, UNKNOWN = "none", "unknown"
OUTCOMES: Final = {
    NONE: "certainly nothing was done",
    UNKNOWN: "it may have been done",
}


class MyQueueError(Exception):
    """Base class of all errors of this package.

    Each error carries:

    - `code` (a number) and `name`: stable, for programs. The text of the exception is for people.
    - `retriable`: True if the same call may succeed later without a change by the caller.
    - `outcome`: "none" if certainly nothing was done, "unknown" if it may have been done.
    - `hint`: what to do about it. `component`: the daemon or address it is about, or "".
    - `details`: facts that a daemon sent with it, by name.
    - `http_status`: the status with which the HTTP gateway reports it.

    >>> from myqueue import errors
    >>> try:
    ...     raise errors.UnknownTopic("there is no topic 'orders'", component="127.0.0.1:9092")
    ... except errors.MyQueueError as error:
    ...     print(error, error.code, error.retriable, error.outcome)
    there is no topic 'orders' 1210 False none
    """

    code = 1000
    name = "ERROR"
    retriable = False
    outcome = UNKNOWN
    http_status = 500
    hint = "Run the command again with --debug and read the trace."
    details: Mapping[str, Any] = MappingProxyType({})
    meaning: ClassVar[str] = "Base class of all errors of this package."

    def __init_subclass__(cls) -> None:
        """Complete the docstring of each class with its code, outcome and hint."""
        super().__init_subclass__()
        doc = (cls.__doc__ or "").rstrip()
        cls.meaning = " ".join(doc.partition("\n\n")[0].split())
        if doc:  # python -OO drops docstrings
            cls.__doc__ = "\n\n".join((doc, "\n".join(f"    {line}" for line in cls.explained())))

    @classmethod
    def explained(cls) -> list[str]:
        """Say in sentences what a caller may conclude from this error and do about it."""
        again = "may succeed later" if cls.retriable else "fails again until something is changed"
        return [
            f"Code: {cls.code} {cls.name} (HTTP {cls.http_status}).",
            f"Outcome: {OUTCOMES[cls.outcome]}.",
            f"The same call {again}.",
            f"What to do: {cls.hint}",
        ]

    def __init__(self, message: str = "", *, component: str = "", hint: str | None = None) -> None:
        super().__init__(message or self.name)
        self.component = component
        if hint is not None:
            self.hint = hint

    @property
    def own_hint(self) -> str:
        """The hint of this error alone; "" if it has only the hint of its class."""
        return str(self.__dict__.get("hint", ""))


class MisuseError(MyQueueError):
    """The call was wrong. Repeating it cannot help; change the call."""

    code, name, outcome, http_status = 1001, "MISUSE", NONE, 400
    hint = "Correct the call; the message names what is wrong."


class TroubleError(MyQueueError):
    """The call was right, but a daemon, disk or network failed."""

    code, name = 1002, "TROUBLE"
