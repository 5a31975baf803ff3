"""The consumer's half in the I/O thread: routes in, requests out, answers into the subscription.

What to ask and what an answer means is decided by the pure `Subscription`; here it is given a
lock, a session, and the time. Everything ends in `_pump`: after each answer, each piece of news
about routes, each nudge of the application and each timer, whatever is to be asked now is asked.
So buffers are filled while the application works on what it has.

`changed` is the lock of everything in the subscription, and a condition that is notified when
there may be something new to hand out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Condition
from typing import TYPE_CHECKING, Any

from myqueue.consumer.fetch_plan import BrokerRequest, FenceRequest, FetchRequest, OffsetsRequest
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
    from myqueue.cluster.session import Answer, SessionCore

log = logging.getLogger("myqueue.client")

# So many failures of a partition in a row are worth a line in the log (some five seconds).
LOGGED_FAILURES = 10
# A long poll that is so much late is a reason to ask managers who leads now: a frozen broker's
# connection looks well for seconds.
OVERDUE_MS = 500
# Who says so leads, and will answer in a moment.
STILL_LEADS = (NotReady.code, Busy.code)


class Fetcher:
    """See the chapter's head."""

    def __init__(
        self, session: SessionCore, subscription: Subscription, request_timeout_ms: int
    ) -> None:
        self.changed = Condition()
        self.listeners: list[Callable[[], object]] = []  # called with `changed` held: no waiting
        self._session, self._subscription = session, subscription
        self._request_timeout_ms = request_timeout_ms
        self._closed = self._nudged = False
        self._timer_at: int | None = None
        self._due_at: dict[BrokerRequest, int] = {}  # when an answer should have come

    def _notify(self) -> None:
        """Under the lock: wake who waits."""
        self.changed.notify_all()
        for listener in self.listeners:
            listener()

    def start(self) -> None:
        """Partitions that are known already are there when it returns."""
        self._take_routes()
        self._session.on_routes(self._on_routes)
        self._session.on_io(self._on_routes)
        self._watch_overdue()

    def close(self) -> None:
        """Answers that still come are dropped."""
        self._closed = True
        self._session.off_routes(self._on_routes)
        with self.changed:
            self._notify()

    def nudge(self) -> None:
        """From any thread: there may be something to ask."""
        if not (self._nudged or self._closed):
            self._nudged = True
            self._session.on_io(self._pump)

    def take_routes(self) -> None:
        """In the I/O thread: other partitions are to be read."""
        self._on_routes()

    # -- the I/O thread ---------------------------------------------------------------------------

    def _on_routes(self) -> None:
        self._take_routes()
        self._pump()

    def _take_routes(self) -> None:
        routes, now = self._session.routes, self._session.now_ms()
        with self.changed:
            for name in self._subscription.topics:
                topic = routes.topic(name)
                if topic is not None:
                    places = [
                        PartitionRoute(p.number, p.group, routes.leader(p.group, now) or "")
                        for p in topic.partitions
                    ]
                    self._subscription.set_routes(name, now, places, topic.uid)
                elif routes.is_unknown(name):
                    self._subscription.mark_deleted(name)
            if self._subscription.has_news:
                self._notify()

    def _pump(self) -> None:
        """Ask what is to be asked now, and see when that has to be looked at again."""
        self._nudged = False
        if self._closed or self._session.closed:
            return
        now, prefetch = self._session.now_ms(), self._subscription.fetch_plan
        with self.changed:
            self._look_for_leaders(now)
            requests = prefetch.requests(now)
            refresh, prefetch.routes_wanted = prefetch.routes_wanted, False
            retry = prefetch.next_retry(now)
            notes, prefetch.log_lines = prefetch.log_lines, []
        for note in notes:
            log.warning("%s", note)
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
        """Hints and elapsed time change routes without news of managers."""
        routes, prefetch = self._session.routes, self._subscription.fetch_plan
        for partition in self._subscription.partitions.values():
            if partition.failure_count or not partition.leader:
                prefetch.set_leader(partition, routes.leader(partition.group, now) or "", now)
                if partition.failure_count == LOGGED_FAILURES:
                    partition.failure_count += 1  # said once, until it succeeds
                    log.warning("%s can't be read: no leader answers", partition.name)

    def _watch_overdue(self) -> None:
        if self._closed or self._session.closed:
            return
        now = self._session.now_ms()
        if any(due < now for due in tuple(self._due_at.values())):
            self._session.refresh(self._subscription.topics)
        self._session.after(OVERDUE_MS, self._watch_overdue)

    def _send(self, request: BrokerRequest) -> None:
        if isinstance(request, FetchRequest):
            kind, wait_ms, done = words.FETCH, request.wait_ms, self._on_fetched
        elif isinstance(request, FenceRequest):
            kind, wait_ms, done = words.COMMIT, 0, self._on_fenced
        else:
            kind, wait_ms, done = words.OFFSETS, 0, self._on_offsets
        self._due_at[request] = self._session.now_ms() + wait_ms + OVERDUE_MS
        future = self._session.call(
            request.address, kind, request.fields, timeout_ms=wait_ms + self._request_timeout_ms
        )
        future.add_done_callback(partial(done, request))

    def _on_fetched(self, request: BrokerRequest, future: Future[Answer]) -> None:
        answer = self._answer(request, future, words.FETCHED)
        if answer is not None and isinstance(request, FetchRequest):
            parts, now = answer.envelope[words.FIELDS], self._session.now_ms()
            for group, code, _, _, _, details in parts:
                self._note_leader(request.address, group, code, details)
            with self.changed:
                self._subscription.fetch_plan.on_fetched(request, parts, answer.frames, now)
                if self._subscription.has_news:
                    self._notify()
        self._pump()

    def _on_fenced(self, request: BrokerRequest, future: Future[Answer]) -> None:
        answer = self._answer(request, future, words.COMMITTED)
        if answer is not None and isinstance(request, FenceRequest):
            parts, now = answer.envelope[words.FIELDS], self._session.now_ms()
            for group, code, _, details in parts:
                self._note_leader(request.address, group, code, details)
            with self.changed:
                self._subscription.fetch_plan.on_fenced(request, parts, now)
        self._pump()

    def _on_offsets(self, request: BrokerRequest, future: Future[Answer]) -> None:
        answer = self._answer(request, future, words.POSITIONS)
        if answer is not None and isinstance(request, OffsetsRequest):
            parts, now = answer.envelope[words.FIELDS], self._session.now_ms()
            for row in parts:
                self._note_leader(request.address, row[0], row[1], None)
            with self.changed:
                self._subscription.fetch_plan.on_offsets(request, parts, now)
                self._notify()  # somebody may wait for a position
        self._pump()

    def _answer(self, request: BrokerRequest, future: Future[Answer], kind: int) -> Answer | None:
        """The answer, if it is one; else the request has failed."""
        error = future.exception()
        self._due_at.pop(request, None)
        if error is None and future.result().envelope[words.KIND] == kind:
            return future.result()
        if not isinstance(error, MyQueueError):
            error = OutcomeUnknown(f"{request.address} gave no answer of a known kind: {error}")
        if self._closed or isinstance(error, Closed):
            return None
        for partition in request.partitions:
            self._note_leader(request.address, partition.group, error.code, None)
        with self.changed:
            self._subscription.fetch_plan.on_failure(request, error, self._session.now_ms())
            self._notify()
        return None

    def _note_leader(
        self, address: str, group: int, code: int, details: dict[str, Any] | None
    ) -> None:
        """What the answer for a partition says of its leader."""
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
        """Sends them; each future ends with None, or with what went wrong."""
        futures = []
        for commit in commits:
            result: Future[MyQueueError | None] = Future()
            futures.append(result)
            if not commit.address:
                name = commit.partitions[0].name
                result.set_result(NotLeader(f"no leader of {name} is known, or not as ours so far"))
                self._session.refresh(self._subscription.topics)
                continue
            asked = self._session.call(
                commit.address,
                words.COMMIT,
                (commit.committer, commit.parts),
                timeout_ms=timeout_ms,
            )
            asked.add_done_callback(partial(self._on_committed, commit, result))
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
                self._on_routes()
        finally:  # somebody waits for it, whatever ends meanwhile
            result.set_result(error)
