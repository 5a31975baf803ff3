"""What all errors have in common; the table of them is `errors`."""

from __future__ import annotations

NONE, UNKNOWN = "none", "unknown"


class MyQueueError(Exception):
    """Base of all errors of this package; `code` is stable, the text is for people."""

    code = 1000
    name = "ERROR"
    retriable = False
    outcome = UNKNOWN
    http_status = 500
    hint = "Run the command again with --debug and read the trace."

    def __init__(self, message: str = "", *, component: str = "", hint: str | None = None) -> None:
        super().__init__(message or self.name)
        self.component = component
        if hint is not None:
            self.hint = hint

    @property
    def own_hint(self) -> str:
        """One for this case alone; "" where that of all errors of this class is meant."""
        return str(self.__dict__.get("hint", ""))


class MisuseError(MyQueueError):
    """The call was wrong; repeating it cannot help."""

    code, name, outcome, http_status = 1001, "MISUSE", NONE, 400
    hint = "Correct the call; the message names what is wrong."


class TroubleError(MyQueueError):
    """The call was right, something else failed."""

    code, name = 1002, "TROUBLE"
