"""Send a consumer's requests in the I/O thread and take over the answers; commit positions.

The pure `Subscription` decides what to request and what an answer means; the fetcher gives it a
lock, a session and the time. Each answer, change of routes, call of the application and timer ends
in `_pump`, which sends all requests that are due. So buffers fill while the application works.

`changed` is the lock of everything in the subscription. It is a condition, notified when there may
be something new to hand out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from threading import Condition
from typing import TYPE_CHECKING, Any, Final

from myqueue.consumer.fetch_plan import BrokerRequest, OffsetsRequest
from myqueue.consumer.subscription import CommitRequest, PartitionRoute, Subscription
from myqueue.errors import (
    Busy,
    Closed,
    MyQueueError,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    error_of,
)
from myqueue.wire import protocol as words

if TYPE_CHECKING:
    from myqueue.cluster.session import SessionCore
    from myqueue.cluster.waiters import Answer

log = logging.getLogger("myqueue.client")

# Failures of a partition in a row after which a line is logged (about five seconds).
LOGGED_FAILURES = 10
# If an answer is later than this, ask the managers for the leader: the connection to a frozen
# broker looks healthy for seconds.
OVERDUE_MS = 500
# Refusals of a broker that still leads the partition and will answer soon.
STILL_LEADS = (NotReady.code, Busy.code)
KEPT_BYTES: Final = words.FRAME_BYTES_MAX + (64 << 10)  # every frame is smaller


@cache
def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed frames for the next ones; once in a process.

    By default glibc returns large blocks to the kernel, and each new frame costs a page fault for
    every 4 KiB. It learns from a large block that is freed: blocks up to this size then come from
    the heap, which keeps up to twice as much. This block is never touched, so it costs no memory. A
    process that has set these limits itself keeps its own.
    """
    bytes(KEPT_BYTES)


class Fetcher:
    """Connects one consumer's subscription with its session. Runs in the I/O thread.

    The application's thread calls `start`, `close`, `nudge` and `commit`.
    """

    def __init__(
        self, session: SessionCore, subscription: Subscription, request_timeout_ms: int
    ) -> None:
        keep_freed_memory()
        self.changed = Condition()
        self.listeners: list[Callable[[], object]] = []  # called with `changed` held: no waiting
        self._session, self._subscription = session, subscription
        self._request_timeout_ms = request_timeout_ms
        self._closed = self._nudged = False
        self._timer_at: int | None = None
        self._due_at: dict[BrokerRequest, int] = {}  # ms; an answer is late after this

    def _notify(self) -> None:
        """Wake waiting threads and call listeners; the caller holds the lock."""
        self.changed.notify_all()
        for listener in self.listeners:
            listener()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call it in the I/O thread whenever there may be something to hand out; and now."""
        self.listeners.append(listener)
        listener()

    def start(self) -> None:
        """Begin to fetch. Partitions whose routes are known are added before it returns."""
        self._take_routes()
        self._session.on_routes(self.take_routes)
        self._session.on_io(self.take_routes)
        self._watch_overdue()

    def close(self) -> None:
        """Stop fetching; drop answers that arrive later."""
        self._closed = True
        self._session.off_routes(self.take_routes)
        with self.changed:
            self._notify()

    def nudge(self) -> None:
        """Have the I/O thread send what is due; from any thread."""
        if not (self._nudged or self._closed):
            self._nudged = True
            self._session.on_io(self._pump)

    # -- the I/O thread ---------------------------------------------------------------------------

    def take_routes(self) -> None:
        """Add and remove partitions, after new routes or a new assignment."""
        self._take_routes()
        self._pump()

    def _take_routes(self) -> None:
        routes, now = self._session.routes, self._session.now_ms()
        with self.changed:
            for name in self._subscription.topics:
                topic = routes.topic(name)
                if topic is not None:
                    partitions = [
                        PartitionRoute(p.number, p.group, routes.leader(p.group, now) or "")
                        for p in topic.partitions
                    ]
                    self._subscription.set_routes(name, now, partitions, topic.uid)
                elif routes.is_unknown(name):
                    self._subscription.mark_deleted(name)
            if self._subscription.has_news:
                self._notify()

    def _pump(self) -> None:
        """Send all requests that are due, and set a timer for the next ones."""
        self._nudged = False
        if self._closed or self._session.closed:
            return
        now, plan = self._session.now_ms(), self._subscription.fetch_plan
        with self.changed:
            self._look_for_leaders(now)
            requests = plan.requests(now)
            refresh, plan.routes_wanted = plan.routes_wanted, False
            retry = plan.next_retry(now)
            log_lines, plan.log_lines = plan.log_lines, []
        for line in log_lines:
            log.warning("%s", line)
        if refresh:
            self._session.refresh(self._subscription.topics)
        if retry is not None and (self._timer_at is None or retry < self._timer_at):
            self._timer_at = retry
            self._session.after(retry - now, partial(self._on_timer, retry))
        for request in requests:
            self._send(request)

    def _on_timer(self, at: int) -> None:
        if self._timer_at == at:
            self._timer_at = None
        self._pump()

    def _look_for_leaders(self, now: int) -> None:
        """Look up leaders again: hints and time change routes without an answer of the managers."""
        routes, plan = self._session.routes, self._subscription.fetch_plan
        for partition in self._subscription.partitions.values():
            if partition.failure_count or not partition.leader:
                plan.set_leader(partition, routes.leader(partition.group, now) or "", now)
                if partition.failure_count == LOGGED_FAILURES:
                    partition.failure_count += 1  # logged once, until a request succeeds
                    log.warning("%s can't be read: no leader answers", partition.name)

    def _watch_overdue(self) -> None:
        if self._closed or self._session.closed:
            return
        now = self._session.now_ms()
        if any(due < now for due in tuple(self._due_at.values())):
            self._session.refresh(self._subscription.topics)
        self._session.after(OVERDUE_MS, self._watch_overdue)

    def _send(self, request: BrokerRequest) -> None:
        self._due_at[request] = self._session.now_ms() + request.wait_ms + OVERDUE_MS
        limit_ms = request.wait_ms + self._request_timeout_ms
        future = self._session.call(
            request.address, request.kind, request.fields, timeout_ms=limit_ms
        )
        future.add_done_callback(partial(self._on_answer, request))

    def _on_answer(self, request: BrokerRequest, future: Future[Answer]) -> None:
        error = future.exception()
        self._due_at.pop(request, None)
        if error is None and future.result().envelope[words.KIND] == request.answer_kind:
            self._take_over(request, future.result())
        elif not (self._closed or isinstance(error, Closed)):
            if not isinstance(error, MyQueueError):
                error = OutcomeUnknown(f"{request.address} gave no answer of a known kind: {error}")
            for partition in request.partitions:
                self._note_leader(request.address, partition.group, error.code, None)
            with self.changed:
                self._subscription.fetch_plan.on_failure(request, error, self._session.now_ms())
                self._notify()
        self._pump()

    def _take_over(self, request: BrokerRequest, answer: Answer) -> None:
        parts, now = answer.envelope[words.FIELDS], self._session.now_ms()
        for row in parts:
            details = row[-1] if request.answer_has_details else None
            self._note_leader(request.address, row[0], row[1], details)
        with self.changed:
            self._subscription.fetch_plan.on_answer(request, parts, answer.frames, now)
            if self._subscription.has_news or isinstance(request, OffsetsRequest):
                self._notify()  # after OFFSETS a call may wait for a position

    def _note_leader(
        self, address: str, group: int, code: int, details: dict[str, Any] | None
    ) -> None:
        """Note in the routes that this broker does not lead the partition, if its error says so."""
        routes = self._session.routes
        if not code or not error_of(code).retriable or code in STILL_LEADS:
            return
        routes.fail(group, address, self._session.now_ms())
        if details:
            routes.hint(group, details)

    # -- positions --------------------------------------------------------------------------------

    def commit(
        self, commits: list[CommitRequest], timeout_ms: int
    ) -> list[Future[MyQueueError | None]]:
        """Send these commits; each future's result is None, or the error."""
        futures = []
        for commit in commits:
            result: Future[MyQueueError | None] = Future()
            futures.append(result)
            if not commit.address:
                name = commit.partitions[0].name
                result.set_result(NotLeader(f"no leader of {name} is known, or not as ours so far"))
                self._session.refresh(self._subscription.topics)
                continue
            future = self._session.call(
                commit.address,
                words.COMMIT,
                (commit.committer, commit.parts),
                timeout_ms=timeout_ms,
            )
            future.add_done_callback(partial(self._on_committed, commit, result))
        return futures

    def _on_committed(
        self, commit: CommitRequest, result: Future[MyQueueError | None], future: Future[Answer]
    ) -> None:
        error = future.exception()
        if error is None and future.result().envelope[words.KIND] == words.COMMITTED:
            parts = future.result().envelope[words.FIELDS]
            for group, code, _, details in parts:
                self._note_leader(commit.address, group, code, details)
            with self.changed:
                error = self._subscription.on_committed(commit, parts)
        elif isinstance(error, MyQueueError):
            for partition in commit.partitions:
                self._note_leader(commit.address, partition.group, error.code, None)
        else:
            error = OutcomeUnknown(f"{commit.address} gave no answer of a known kind: {error}")
        try:
            if error is not None and not self._session.closed:
                self._session.refresh(self._subscription.topics)
                self.take_routes()
        finally:  # a caller waits for this result even if the session ends now
            result.set_result(error)
