"""The process's one client of the cluster, shared by all requests (Z10: one process, one context).

A request finds it as `flask.current_app.extensions["myqueue"]`. All it keeps is either on its way
to the cluster, or a copy of something that the cluster knows; it may be lost at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

from myqueue import Admin, Producer, Session
from myqueue.errors import Closed, Fenced, MyQueueError, OutOfSequence
from myqueue.gateway.config import GatewayConfig

BUFFER_BYTES: Final = 64 << 20


class Sdk:
    """One session, and what works over it."""

    def __init__(self, config: GatewayConfig, name: str = "gateway") -> None:
        self.timeout_ms = config.request_timeout_ms
        self.session = Session(config.cluster, name=name, request_timeout_ms=self.timeout_ms)
        self.admin = Admin(self.session, timeout=self.timeout_ms / 1000)
        self._producer: Producer | None = None
        self._making = threading.Lock()

    # -- metadata ---------------------------------------------------------------------------------

    def read(self, query: str, **arguments: Any) -> dict[str, Any]:
        """From any manager, in turn (R1); never older than what this gateway has changed."""
        found: dict[str, Any] = self.session.wait(self.session.read(query, arguments))
        return found

    def newest(self, query: str, **arguments: Any) -> dict[str, Any]:
        """From the managers' leader, after it heard a majority."""
        asked = self.session.read(query, arguments, linearizable=True)
        found: dict[str, Any] = self.session.wait(asked)
        return found

    def update(
        self, operation: str, arguments: Mapping[str, Any], key: bytes | None = None
    ) -> dict[str, Any]:
        """By the managers' leader (C7). The same key again gets the first answer."""
        asked = self.session.update(operation, dict(arguments), key=key)
        found: dict[str, Any] = self.session.wait(asked)
        return found

    # -- messages ---------------------------------------------------------------------------------

    @property
    def producer(self) -> Producer:
        """All requests send by this one, so that those of a moment share a batch."""
        found = self._producer
        return found if found is not None else self._make_producer(None)

    def _make_producer(self, before: Producer | None) -> Producer:
        with self._making:
            if self._producer is before:
                if self.session.closed:
                    raise Closed("this gateway is about to end")
                self._producer = Producer(
                    self.session, linger_ms=1, max_buffered_bytes=BUFFER_BYTES, max_block_ms=1_000,
                    delivery_timeout_ms=self.timeout_ms,
                    request_timeout_ms=max(1_000, self.timeout_ms // 2),
                )  # fmt: skip
            found = self._producer
        if found is None:
            raise Closed("this gateway is about to end")
        return found

    def replace_after(self, error: MyQueueError, producer: Producer) -> None:
        """A producer that was fenced, or lost its place, stops for good: the next one is new."""
        if isinstance(error, Fenced | OutOfSequence | Closed):
            self._make_producer(producer)

    # -- names and the end ------------------------------------------------------------------------

    def name_of(self, address: str) -> str:
        """ "tcp://127.0.0.1:9093" is "manager 2 at 127.0.0.1:9093", once it was heard of."""
        return self.session.name_of(address)

    def close(self) -> None:
        producer = self._producer
        if producer is not None:
            producer.close(1.0)
        self.session.close(1_000)
