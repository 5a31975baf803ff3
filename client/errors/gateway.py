"""Errors 126x of the HTTP gateway; `errors.table` has the table of all errors."""

from __future__ import annotations

from myqueue.errors.base import NONE, MisuseError, TroubleError


class NotFound(MisuseError):
    """The gateway has no such path."""

    code, name, http_status = 1260, "NOT_FOUND", 404
    hint = "GET /openapi.json lists all paths."


class MethodNotAllowed(MisuseError):
    """The path exists, but not with this method."""

    code, name, http_status = 1261, "METHOD_NOT_ALLOWED", 405
    hint = "The header Allow names the methods of this path."


class BodyTooLarge(MisuseError):
    """The body of the request is larger than this gateway accepts."""

    code, name, http_status = 1262, "BODY_TOO_LARGE", 413
    hint = "Send several requests, or raise body_bytes_max of the gateway."


class Malformed(MisuseError):
    """The request is not valid HTTP, or its head exceeds the limits."""

    code, name, http_status = 1263, "MALFORMED", 400
    hint = "Correct what the client sends."


class Unauthorized(MisuseError):
    """The request has no token, or the gateway does not know it."""

    code, name, http_status = 1264, "UNAUTHORIZED", 401
    hint = "Send the header 'Authorization: Bearer TOKEN'."


class Forbidden(MisuseError):
    """The role of this token does not allow the request."""

    code, name, http_status = 1265, "FORBIDDEN", 403
    hint = "Ask for a token with the role that the message names."


class TooManyWaiting(TroubleError):
    """The gateway already serves its maximum of long polls and streams."""

    code, name, retriable, outcome, http_status = 1266, "TOO_MANY_WAITING", True, NONE, 429
    hint = "Repeat it in a moment, at another gateway, or without waiting."


class Stopping(TroubleError):
    """The gateway is shutting down."""

    code, name, retriable, outcome, http_status = 1267, "STOPPING", True, NONE, 503
    hint = "Repeat it at another gateway."
