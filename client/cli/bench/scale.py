"""`myq bench scale`: how costs grow with the number of partitions, and of clients.

For each size it creates topics of its own, or registers clients, measures, and deletes them again.
Seconds alone say little on a busy machine, so each step also counts the CPU seconds of all daemons
together. Steps that hurt a cluster, a killed broker and a restart of all daemons, happen only on a
cluster of this machine, and only if the user agreed.

A partition counts as led when it has taken a message: that is what clients wait for.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from myqueue.admin.client import Admin
from myqueue.cli.bench.faults import send_signal
from myqueue.cli.bench.parts import Used, used
from myqueue.cluster.session import Session
from myqueue.daemons.agent.cluster_folder import BROKER, MANAGER, ClusterFolder
from myqueue.errors import MyQueueError, TimedOut
from myqueue.producer.producer import Producer

IDLE_S = 5.0  # how long quiet daemons are watched
SETTLE_S = 3.0  # before: what the steps started has ended
CALL_S = 120.0  # at most for one call
UNDER_WAY = 100  # registrations
COUNTERS = ("beat_bytes_total", "orders_bytes_total", "wal_bytes_total")
Row = dict[str, Any]


class Plan(NamedTuple):
    """The sizes to measure, and how."""

    partitions: tuple[int, ...]
    clients: tuple[int, ...]
    per_topic: int
    replication: int
    seconds: float  # for everything; what does not fit is left out
    victim: ClusterFolder | None  # may be hurt
    folder: ClusterFolder | None  # of a cluster on this machine


class _Meter:
    """Measures steps of one row: seconds, and CPU seconds of all daemons."""

    def __init__(self, session: Session, row: Row, end: float) -> None:
        self._session, self.row, self._end = session, row, end

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step; one that has no time left is an error."""
        if self.left_s <= 0:
            raise TimedOut("no time was left")
        before, begin = used(self._session), time.monotonic()
        yield
        self.row[f"{name}_s"] = round(time.monotonic() - begin, 2)
        self.row[f"{name}_cpu_s"] = round(used(self._session).cpu_s - before.cpu_s, 2)

    def idle(self) -> None:
        """Watch daemons that have nothing to do, but for what was created."""
        time.sleep(SETTLE_S)
        before, counted, begin = used(self._session), self._count(), time.monotonic()
        time.sleep(IDLE_S)
        after, passed = used(self._session), time.monotonic() - begin
        counts = {name: n - counted[name] for name, n in self._count().items()}
        self.row["idle_cpu_percent"] = round(100 * (after.cpu_s - before.cpu_s) / passed, 1)
        self.row["heartbeat_bytes_s"] = round(
            (counts["beat_bytes_total"] + counts["orders_bytes_total"]) / passed
        )
        self.row.update(_memory(after))

    def _count(self) -> dict[str, int]:
        with Admin(self._session, timeout=CALL_S) as admin:
            rows = [row.get("counters", {}) for row in admin.stats()]
        return {name: sum(row.get(name, 0) for row in rows) for name in COUNTERS}


def _memory(found: Used) -> Row:
    mib = 1 << 20
    return {
        "resident_mib": round(found.resident_bytes / mib, 1),
        "biggest_daemon_mib": round(found.biggest_bytes / mib, 1),
    }


def measure(session: Session, cluster: str, plan: Plan) -> Row:
    """Measure all sizes; the first row of each list is the cluster as it was found."""
    end = time.monotonic() + plan.seconds
    facts: Row = {"replication": plan.replication, "per_topic": plan.per_topic, "skipped": []}
    facts["partitions"] = [_row(session, 0, end, lambda meter: meter.idle())]
    facts["clients"] = []
    for kind, sizes, one in (
        ("partitions", plan.partitions, _partitions),
        ("clients", plan.clients, _clients),
    ):
        for size in sizes:
            if time.monotonic() >= end:
                facts["skipped"].append(f"{size} {kind}: no time was left")
                continue
            steps = _steps(one, session, cluster, plan, size)
            facts[kind].append(_row(session, size, end, steps))
    return facts


def _steps(
    one: Callable[..., None], session: Session, cluster: str, plan: Plan, size: int
) -> Callable[[_Meter], None]:
    return lambda meter: one(meter, session, cluster, plan, size)


def _row(session: Session, size: int, end: float, steps: Callable[[_Meter], None]) -> Row:
    row: Row = {"size": size}
    try:
        steps(_Meter(session, row, end))
    except MyQueueError as error:  # what was measured until then counts
        row["error"] = f"{error.name}: {error}"
    return row


# -- partitions -----------------------------------------------------------------------------------


def _partitions(meter: _Meter, session: Session, cluster: str, plan: Plan, size: int) -> None:
    prefix = f"bench-scale-{secrets.token_hex(4)}"
    per_topic = min(plan.per_topic, size)
    names = [f"{prefix}-{number:05}" for number in range(max(1, size // per_topic))]
    meter.row["topics"] = len(names)
    places = [(name, number) for name in names for number in range(per_topic)]
    with Admin(session, timeout=CALL_S) as admin:
        try:
            with meter.step("create"):
                _check(
                    admin.create_topics(names, partitions=per_topic, replication=plan.replication)
                )
            with meter.step("first"):
                _send_each(cluster, places, meter.left_s)
            with meter.step("next"):
                _send_each(cluster, places, meter.left_s)
            meter.idle()
            if plan.folder is not None:
                meter.row["manager_store_bytes"] = _store_bytes(plan.folder)
            if plan.victim is not None:
                _hurt(meter, cluster, plan.victim, places)
        finally:
            _delete(meter, admin, names)


def _check(rows: list[Row]) -> None:
    for row in rows:
        if "error" in row:
            raise TimedOut(f"{row['topic']}: {row['error']}")


def _send_each(cluster: str, places: list[tuple[str, int]], left_s: float) -> None:
    """Send a message to each partition, and wait until all are stored."""
    limit_ms = max(1, round(1000 * left_s))
    with Producer(
        cluster, name="bench-scale", max_block_ms=limit_ms, delivery_timeout_ms=limit_ms
    ) as producer:
        sent = [producer.send(topic, b"m", partition=number) for topic, number in places]
        for delivery in sent:
            delivery.result(max(0.1, left_s))


def _delete(meter: _Meter, admin: Admin, names: list[str]) -> None:
    """Delete the topics, whatever went wrong before, and wait until no broker holds them."""
    begin, before = time.monotonic(), used(admin._session)
    rows = admin.delete_topics(names)
    refused = [row for row in rows if row.get("code", "UNKNOWN_TOPIC") != "UNKNOWN_TOPIC"]
    if refused:
        meter.row["kept_topics"] = len(refused)
    while admin.cluster().get("groups_to_remove") and time.monotonic() - begin < CALL_S:
        time.sleep(0.1)
    meter.row["delete_s"] = round(time.monotonic() - begin, 2)
    meter.row["delete_cpu_s"] = round(used(admin._session).cpu_s - before.cpu_s, 2)


def _store_bytes(folder: ClusterFolder) -> int:
    """Bytes of the biggest manager's store on its disk: the state of the managers."""
    sizes = [0]
    for store in folder.data.glob(f"{MANAGER}-*/store*/*.mdb"):
        with suppress(OSError):
            sizes.append(store.stat().st_blocks * 512)
    return max(sizes)


def _hurt(
    meter: _Meter, cluster: str, folder: ClusterFolder, places: list[tuple[str, int]]
) -> None:
    """Kill one broker, then end all daemons; each time until every partition took a message."""
    for name, number, kinds, most in (
        ("failover", signal.SIGKILL, [BROKER], 1),
        ("restart", signal.SIGTERM, [MANAGER, BROKER], None),
    ):
        time.sleep(SETTLE_S)
        begin = time.monotonic()
        _signal(folder, number, kinds, most)
        _send_each(cluster, places, meter.left_s)
        meter.row[f"{name}_s"] = round(time.monotonic() - begin, 2)


def _signal(
    folder: ClusterFolder, number: signal.Signals, kinds: list[str], most: int | None = None
) -> None:
    found = folder.load()
    daemons = [one for one in found.daemons if one.kind in kinds] if found is not None else []
    for daemon in daemons[:most]:
        send_signal(daemon, (found and found.pid) or 0, number)


# -- clients --------------------------------------------------------------------------------------


def _clients(meter: _Meter, session: Session, cluster: str, plan: Plan, size: int) -> None:
    topic = f"bench-scale-{secrets.token_hex(4)}"
    with Admin(session, timeout=CALL_S) as admin:
        admin.create_topic(topic, replication=plan.replication)
        try:
            with meter.step("register"):
                ids = _register(session, topic, size)
            for at, number in enumerate(ids):
                session.report_alive(**{("producer", "consumer")[at % 2]: number})
            meter.idle()
            if plan.folder is not None:
                meter.row["manager_store_bytes"] = _store_bytes(plan.folder)
        finally:
            begin = time.monotonic()
            admin.delete_topic(topic)  # and with it its clients
            meter.row["delete_s"] = round(time.monotonic() - begin, 2)


def _register(session: Session, topic: str, size: int) -> list[int]:
    """Register producers and consumers in turn; return their ids."""
    ids: list[int] = []
    under_way: list[tuple[str, Future[Row]]] = []
    for number in range(size):
        kind = ("producer", "consumer")[number % 2]
        under_way.append((kind, session.update(f"register_{kind}", {"topic": topic})))
        if len(under_way) == UNDER_WAY or number == size - 1:
            ids += [int(future.result(CALL_S)[f"{kind}_id"]) for kind, future in under_way]
            under_way.clear()
    return ids
