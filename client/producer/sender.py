"""The producer's half in the I/O thread: its id and epoch, sending, and the meaning of answers.

A turn gives up late batches, takes from each ready lane the batches for the lane's leader, and
sends all batches for one broker in one message. It runs after each change: new messages, an answer,
a route or connection that changed, a timer.

The answer decides about its batch:

- stored: done, whichever attempt it answers.
- retriable, or unknown (the connection broke, the leader failed): this batch and all after it are
  sent again, in order. The sequences make that safe; no message is stored twice.
- OUT_OF_SEQUENCE: if an earlier batch of the lane is also unanswered, this batch and all after it
  are sent again, behind that one. After a gap of our own the batch is parked, or fails if an
  earlier attempt may have stored it. Otherwise an acknowledged batch is missing, and this producer
  stops permanently.
- no answer: after SILENT_MS the producer asks for routes; if another broker leads now, the batch
  goes there. A broker that hangs breaks no connection, so waiting alone would take too long.
- FENCED: another session of this producer took over; this one stops permanently.
- any other refusal (damaged, too large, topic deleted): this batch fails.

A batch with a sequence that fails leaves a gap. Then no new batch is sent; once every batch that
was sent is decided, the producer opens a new epoch and continues. So no batch that may still be
stored ever gets a new sequence. Without idempotence the producer has the id 0: brokers check no
sequences, so a gap stops nothing, and a repeat may store a message twice.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from myqueue.cluster.connection import Connection
from myqueue.cluster.io_thread import Timer
from myqueue.cluster.leader_request import note_refusal
from myqueue.cluster.repeats import LEADER, LEADERS, MANAGERS, Pauses, is_repeated
from myqueue.cluster.session import SessionCore
from myqueue.cluster.silent_brokers import silence_at
from myqueue.errors import (
    NONE,
    Closed,
    Fenced,
    Internal,
    MyQueueError,
    OutcomeUnknown,
    OutOfSequence,
    TimedOut,
)
from myqueue.producer.accumulator import Accumulator
from myqueue.producer.batch import Batch
from myqueue.producer.lane import Lane
from myqueue.producer.send_attempt import Attempt
from myqueue.settings import ProducerSettings
from myqueue.wire import protocol as words
from myqueue.wire.batch import CODECS, Buffer

log = logging.getLogger("myqueue.client")

PRODUCE_BYTES_MAX: Final = 8 << 20  # of all batches in one PRODUCE
PRODUCE_BATCHES_MAX: Final = 1024
SILENT_MS: Final = 250  # a broker silent for this time may not lead any more


class Sender:
    """Sends batches and handles answers. `lock` is the producer's; it guards the accumulator."""

    def __init__(
        self,
        session: SessionCore,
        accumulator: Accumulator,
        lock: threading.Condition,
        settings: ProducerSettings,
        on_failed: Callable[[Batch], None],
        on_fatal: Callable[[MyQueueError], None],
    ) -> None:
        self._session, self._accumulator, self._lock = session, accumulator, lock
        self._settings, self._on_failed, self._on_fatal = settings, on_failed, on_fatal
        self._codec = CODECS[settings.compression]
        self.producer_id = self.epoch = 0
        self._ended: MyQueueError | None = None  # why nothing is sent any more
        self._may_send_new = not settings.idempotent  # batches without a sequence, not only repeats
        self._opening = self._kicked = False
        self.last_problem = ""  # why nothing could be sent; empty once something is stored
        self._no_leader_pauses, self._leader_wait_ends = Pauses(LEADERS), 0
        self._opening_pauses = Pauses(MANAGERS)
        self._sent: deque[tuple[int, list[Attempt]]] = deque()  # (when, of one PRODUCE)
        self._next_refresh_at = 0  # when a silent broker may make us ask for routes again
        self._timer: Timer | None = None
        self._has_news = False  # of routes
        session.on_routes(self._routes_changed)
        session.on_shut(self._shut)

    # -- the turn ---------------------------------------------------------------------------------

    def kick(self) -> None:
        """Ask for a turn soon, from any thread. Many kicks are one turn."""
        if not self._kicked and not self._session.closed:
            self._kicked = True
            self._session.on_io(self._turn)

    def _routes_changed(self) -> None:
        self._has_news = True
        self.kick()

    def _turn(self) -> None:
        self._kicked = False
        if self._ended is not None:
            return
        now = self._session.now_ms()
        with self._lock:
            late = self._accumulator.tick(now)
        for batch in late:
            self._give_up([batch], self._too_late(batch))
        self._fail_overdue_attempts(now)
        if self._has_news:
            self._has_news, routes = False, self._session.routes
            with self._lock:
                self._accumulator.resend_to_new_leaders(
                    lambda group: routes.leader(group, now), now, self._settings.idempotent
                )
        self._open_producer_if_needed()
        loads, pause_ends = self._collect(now)
        for connection, load in loads.items():
            self._send(connection, load, now)
        self._set_timer(now, pause_ends)

    def _collect(self, now: int) -> tuple[dict[Connection, list[Batch]], int | None]:
        """Take the batches to send, by connection; and when the first pause of a lane ends."""
        loads: dict[Connection, list[Batch]] = {}
        with self._lock:
            accumulator = self._accumulator
            lanes, pause_ends = accumulator.take_ready(now)
            for lane in lanes:
                connection = self._leader(lane, now)
                if connection is None:
                    accumulator.note_without_leader(lane, now)
                    continue
                lane.note_sendable(connection.address)
                taken = accumulator.take(lane, now, only_repeats=not self._may_send_new)
                if taken:
                    loads.setdefault(connection, []).extend(taken)
        return loads, pause_ends

    def _leader(self, lane: Lane, now: int) -> Connection | None:
        address = self._session.routes.leader(lane.group, now)
        if address is None:
            self.last_problem = f"no leader of {lane.topic}/{lane.partition} is known"
            return None
        connection = self._session.connection(address)
        if connection.is_ready:
            return connection
        connection.open()
        if connection.error is not None:
            self.last_problem = str(connection.error)
            self._session.routes.unreachable(lane.group, address)
        return None

    def _set_timer(self, now: int, pause_ends: int | None) -> None:
        """Set the timer of the next turn, if no event comes before."""
        moments = [] if pause_ends is None else [pause_ends]
        if self._accumulator.lacks_leader:
            self._session.refresh()
            if now >= self._leader_wait_ends:  # else another partition's event began this turn
                self._leader_wait_ends = now + self._no_leader_pauses.next_ms()
            moments.append(self._leader_wait_ends)
        else:
            self._no_leader_pauses.reset()
            self._leader_wait_ends = 0
        with self._lock:
            tick = self._accumulator.next_tick()
        if tick is not None:
            moments.append(tick)
        if self._sent:
            sent_at, _ = self._sent[0]
            moments.append(sent_at + self._settings.request_timeout_ms)
            moments.append(max(sent_at + SILENT_MS, self._next_refresh_at))
        if not moments:
            return
        at = max(now + 1, min(moments))
        if self._timer is not None:
            if now < self._timer.at <= at and self._timer.job is not None:
                return  # an earlier turn is fine; it sets the next timer
            self._timer.cancel()
        self._timer = self._session.after(at - now, self.kick)

    # -- sending ----------------------------------------------------------------------------------

    def _send(self, connection: Connection, load: Sequence[Batch], now: int) -> None:
        """Send batches to one broker, in several messages if one would be too large."""
        message: list[Batch] = []
        size = 0
        for batch in load:
            batch_size = len(batch.pack(self.producer_id, self.epoch, self._codec))
            is_full = size + batch_size > PRODUCE_BYTES_MAX or len(message) == PRODUCE_BATCHES_MAX
            if message and is_full:
                self._produce(connection, message, now)
                message, size = [], 0
            message.append(batch)
            size += batch_size
        self._produce(connection, message, now)

    def _produce(self, connection: Connection, batches: Sequence[Batch], now: int) -> None:
        """Send packed batches in one message, with an attempt for each."""
        attempts = [Attempt(self, batch, connection) for batch in batches]
        groups = [batch.lane.group for batch in batches]
        frames: list[Buffer] = [batch.data for batch in batches]
        first = connection.produce(words.PRODUCE, (groups,), frames, list(attempts))
        for number, attempt in enumerate(attempts, first):
            attempt.request_number, attempt.siblings = number, attempts
        self._sent.append((now, attempts))

    def _fail_overdue_attempts(self, now: int) -> None:
        """Fail attempts whose answer is overdue; break a connection on which nothing came."""
        limit_ms = self._settings.request_timeout_ms
        while self._sent:
            sent_at, attempts = self._sent[0]
            waiting = [attempt for attempt in attempts if attempt.is_awaited]
            if waiting and sent_at + limit_ms > now:
                if sent_at + SILENT_MS <= now and self._next_refresh_at <= now:
                    self._next_refresh_at = now + SILENT_MS
                    self._session.refresh()
                return
            self._sent.popleft()
            for attempt in waiting:
                connection = attempt.connection
                why = f"no answer within {limit_ms} ms"
                if connection.is_ready and connection.silent_since(sent_at):
                    connection.broke(why)  # it fails all its attempts
                else:
                    self.attempt_failed(attempt, OutcomeUnknown(f"{connection.address}: {why}"))

    # -- answers ----------------------------------------------------------------------------------

    def stored(self, batch: Batch, offset: int, time_ms: int) -> None:
        with self._lock:
            is_news = self._accumulator.stored(batch, offset, time_ms)
            self._lock.notify_all()  # there is room in the buffer
            needs_turn = self._accumulator.has_ready or not self._may_send_new
        if not self._accumulator.lacks_leader:  # another partition's problem lasts
            self.last_problem = ""
        if is_news:
            batch.call_listeners()
        if needs_turn:
            self.kick()

    def attempt_failed(self, attempt: Attempt, error: MyQueueError) -> None:
        """Handle a refusal, a lost connection or a silence: outcome "none" is certain."""
        batch, now = attempt.batch, self._session.now_ms()
        if error.outcome == NONE:
            with self._lock:
                self._accumulator.attempt_not_stored(batch)
        if not attempt.is_awaited:
            return
        batch.last_error = error
        if self._ended is not None:
            return
        if isinstance(error, Fenced):
            self._die(error)
        elif isinstance(error, OutOfSequence):
            self._out_of_sequence(batch, error, now)
        elif is_repeated(LEADER, error):
            self._repeat(attempt, error, now)
        else:
            self._give_up([batch], error)
        self.kick()

    def _repeat(self, attempt: Attempt, error: MyQueueError, now: int) -> None:
        lane = attempt.batch.lane
        hinted = note_refusal(self._session, lane.topic, lane.group, attempt.connection, error)
        with self._lock:
            self._accumulator.rewind(attempt.batch, now, error, at_once=hinted)
        text = str(error)
        self.last_problem = text if error.name in text else f"{error.name}: {text}"

    def _out_of_sequence(self, batch: Batch, error: MyQueueError, now: int) -> None:
        lane = batch.lane
        if 0 <= lane.gap < batch.sequence:
            if not batch.attempts_in_doubt:
                with self._lock:
                    self._accumulator.park(batch)
                return
            text = (
                f"{lane.topic}/{lane.partition}: refused, because an earlier batch of this"
                " partition was given up; an earlier attempt may have stored it"
            )
            hint = "Check whether these messages are stored before you send them again."
            self._give_up([batch], OutcomeUnknown(text, component=error.component, hint=hint))
        elif self._accumulator.is_first(batch):
            self._die(error)
        else:
            with self._lock:
                self._accumulator.rewind(batch, now, error)

    def _too_late(self, batch: Batch) -> MyQueueError:
        limit_ms, last = self._settings.delivery_timeout_ms, batch.last_error
        why = silence_at(self._session, self._session.routes.partition(batch.lane.group), last)
        reason = why.text
        if last is None and why.hint is None:
            reason = f"last: {self.last_problem or 'never sent'}"
        text = f"not delivered to {batch.lane.topic}/{batch.lane.partition} within {limit_ms} ms"
        return TimedOut(f"{text}; {reason}", component=why.component, hint=why.hint)

    def _give_up(self, batches: Sequence[Batch], error: MyQueueError) -> None:
        """Let batches fail, each with a copy of the error that has its outcome."""
        with self._lock:
            failed = [batch for batch in batches if self._accumulator.give_up(batch, error)]
            for batch in failed:
                self._on_failed(batch)  # under the lock: `flush` sees the batch or its failure
            self._lock.notify_all()
        for batch in failed:
            batch.call_listeners()

    # -- producer id and epoch --------------------------------------------------------------------

    def _open_producer_if_needed(self) -> None:
        """Open the producer at the beginning, and after a gap once every batch is decided."""
        if not self._settings.idempotent or self._ended is not None or self._opening:
            return
        with self._lock:
            if self._may_send_new and self._accumulator.has_gap:
                self._may_send_new = False
                log.warning(
                    "a batch was given up: a new epoch follows when all sent batches are decided"
                )
            is_needed = (
                not self._may_send_new
                and self._accumulator.may_restart
                and self._accumulator.buffered
            )
        if is_needed:
            self._opening = True
            arguments = {"producer_id": self.producer_id, "name": self._settings.name}
            self._session.update("open_producer", arguments).add_done_callback(self._opened)

    def _opened(self, future: Future[dict[str, Any]]) -> None:
        self._opening = False
        error = future.exception()
        if self._ended is not None:
            return
        if error is not None:
            if not isinstance(error, MyQueueError):
                self._die(Internal(f"no producer id: {error!r}"))
            elif error.retriable:
                self.last_problem = f"no producer id so far: {error}"
                self._opening_pauses.advise(error)
                self._session.after(self._opening_pauses.next_ms(), self.kick)
            else:
                self._die(error)
            return
        self._opening_pauses.reset()
        result = future.result()
        if self.producer_id != result["producer_id"]:
            self.producer_id = result["producer_id"]
            self._session.keep_alive(producer=self.producer_id)
        self.epoch = result["epoch"]
        with self._lock:
            self._accumulator.restart()
            self._may_send_new = True
        self.last_problem = ""
        self.kick()

    def _die(self, error: MyQueueError) -> None:
        """Stop permanently: this producer can send no more, and all its batches fail."""
        if self._ended is None:
            log.error("producer %d can't go on: %s", self.producer_id, error)
            self._end(error, error)

    def _end(self, refusal: MyQueueError, error: MyQueueError) -> None:
        """Refuse new messages with `refusal`, and let all unsettled batches fail with `error`."""
        if self._ended is None:
            self._ended = refusal
            self._on_fatal(refusal)
            self.abandon(error)

    def abandon(self, error: MyQueueError, lanes: Sequence[Lane] | None = None) -> None:
        """Give up all batches, or those of some lanes, which are removed."""
        with self._lock:
            accumulator = self._accumulator
            batches = accumulator.unsettled() if lanes is None else accumulator.remove_lanes(lanes)
        self._give_up(batches, error)

    def _shut(self) -> None:
        """Fail all batches, because the owner of the session closed it."""
        self._end(
            Closed("the session was closed"),
            Closed("the session was closed before this was delivered"),
        )

    def stop(self) -> None:
        """Stop permanently; unsettled batches fail. In the I/O thread."""
        self._session.off_routes(self._routes_changed)
        self._session.off_shut(self._shut)
        self._end(
            Closed("this producer was closed"),
            Closed("the producer was closed before this was delivered"),
        )
        if self._timer is not None:
            self._timer.cancel()
        if self.producer_id:
            self._session.let_die(producer=self.producer_id)
