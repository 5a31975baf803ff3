"""Failures of the HTTP gateway (126x); the table of all is `errors`."""

from __future__ import annotations

from myqueue.errors.base import NONE, MisuseError, TroubleError


class NotFound(MisuseError):
    """There is no such path."""

    code, name, http_status = 1260, "NOT_FOUND", 404
    hint = "GET /openapi.json lists all paths."


class MethodNotAllowed(MisuseError):
    """The path is known, but not with this method."""

    code, name, http_status = 1261, "METHOD_NOT_ALLOWED", 405
    hint = "The header Allow names the methods of this path."


class BodyTooLarge(MisuseError):
    """The body of the request is larger than this gateway takes."""

    code, name, http_status = 1262, "BODY_TOO_LARGE", 413
    hint = "Send several requests, or raise body_bytes_max of the gateway."


class Malformed(MisuseError):
    """What came is not HTTP, or more than the limits allow."""

    code, name, http_status = 1263, "MALFORMED", 400
    hint = "Look at what the client sends."


class Unauthorized(MisuseError):
    """No token, or one that is not known here."""

    code, name, http_status = 1264, "UNAUTHORIZED", 401
    hint = "Send the header 'Authorization: Bearer TOKEN'."


class Forbidden(MisuseError):
    """This token may not do that."""

    code, name, http_status = 1265, "FORBIDDEN", 403
    hint = "Ask for a token with the role that the message names."


class TooManyWaiting(TroubleError):
    """As many long polls and streams as may be are waiting here already."""

    code, name, retriable, outcome, http_status = 1266, "TOO_MANY_WAITING", True, NONE, 429
    hint = "Repeat it in a moment, at another gateway, or without waiting."


class Stopping(TroubleError):
    """This gateway is about to end."""

    code, name, retriable, outcome, http_status = 1267, "STOPPING", True, NONE, 503
    hint = "Repeat it at another gateway."
