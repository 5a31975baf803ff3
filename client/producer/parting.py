"""`ProducerParting`: the end of a producer that the application dropped without `close`."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from myqueue.finalizers import DELIVER_S, SessionParting, unclosed
from myqueue.producer.accumulator import Accumulator
from myqueue.producer.batch import Batch
from myqueue.producer.failures import Failures
from myqueue.producer.sender import Sender

if TYPE_CHECKING:
    from myqueue.cluster.session import Session

log = logging.getLogger("myqueue.client")


class ProducerParting(SessionParting):
    """Deliver accepted messages for DELIVER_S; log how many were not delivered."""

    def __init__(
        self,
        session: Session,
        owns_session: bool,
        sender: Sender,
        accumulator: Accumulator,
        lock: threading.Lock,
        failures: Failures,
    ) -> None:
        super().__init__("Producer", session, owns_session)
        self._sender, self._accumulator = sender, accumulator
        self._lock, self._failures = lock, failures
        self._left = 0

    @property
    def waiting(self) -> int:
        return sum(batch.count for batch in self._accumulator.unsettled())

    def start(self) -> None:
        with self._lock:
            batches = self._accumulator.seal_all()
        self._left = len(batches)
        if not batches or self._core.closed:
            self.end()
            return
        self._core.after(round(DELIVER_S * 1000), self.end)
        for batch in batches:
            batch.listen(self._settled)
        self._sender.kick()

    def _settled(self, batch: Batch) -> None:
        self._left -= 1
        if not self._left and not self._has_ended:
            self._core.after(0, self.end)  # not while an answer is handled

    def last(self) -> None:
        if not self._core.closed:
            self._sender.stop()
        failed, error = self._failures.take_unlogged()
        if failed:
            text = "%s: %d messages were not delivered; first: %s"
            log.error(text, unclosed(self.kind, self.verb), failed, error)
