"""How long an answer may take: to be made, and to be taken by its client.

All other deadlines of a connection are settings. The package's docstring lists them together.
Settings are milliseconds; everything else in this package is seconds.
"""

from __future__ import annotations

from typing import Final

from myqueue.gateway.http import pace
from myqueue.gateway.settings import GatewayConfig

SEND_TIMEOUT_S: Final = 30.0  # to take an answer that is small, or anything of a large one
LINGER_S: Final = 2.0  # from the end of the last answer until the client closes
SPARE_S: Final = 60.0  # added to the longest time of a request
CLUSTER_REQUESTS_MAX: Final = 10  # that one HTTP request may need


def making_s_max(config: GatewayConfig) -> float:
    """Return more time than making any answer takes that works as designed.

    Everything that a request waits for has a deadline of its own, so a request exceeds this limit
    only because of a defect in this program. Then its client must not wait forever, and the log
    needs the stack of every thread to find the defect (`thread_stacks.py`).
    """
    requests_ms = CLUSTER_REQUESTS_MAX * config.request_timeout_ms
    return (config.wait_ms_max + requests_ms) / 1000 + SPARE_S


def sending_s_max(answer_bytes: int) -> float:
    """Return how long a client may take for its answer. It is one deadline for the whole answer, or
    a client that takes a byte now and then could hold it forever.
    """
    return SEND_TIMEOUT_S + answer_bytes / pace.SLOW_BYTES_PER_S
