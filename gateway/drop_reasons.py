"""Why the server drops a connection or a body: the labels of a metric, and the text in the log."""

from __future__ import annotations

from typing import Final

PLACES, BYTES, ANSWERS, REFUSED = "places", "bytes", "answers", "refused"
REASONS: Final = {
    PLACES: "unfinished or idle connections were closed for new ones: connections_max is reached",
    BYTES: "unfinished bodies were dropped for others: bodies_bytes_max is reached",
    ANSWERS: "connections were closed because their clients did not take the answers",
    REFUSED: "new connections were closed: connections_max is reached, and all of them are busy",
}
