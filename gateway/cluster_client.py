"""The process's one client of the cluster, shared by all requests.

A request finds it as `flask.current_app.extensions["myqueue"]`. All that it holds is either under
way to the cluster, or a copy of something in the cluster that never changes. So it may be lost at
any time, and another gateway continues.

Reads go to all managers in turn, updates to their leader. A manager may lag behind: a read waits
until the manager has applied what this gateway changed, and "there is no such id" is believed only
of the leader, because another gateway may have registered the id a moment ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from myqueue import Admin, Agent, Session, Taker
from myqueue.errors import UnknownClient, UnknownPartition, UnknownTopic
from myqueue.gateway.api.failures import GATEWAY
from myqueue.gateway.api.wait_slots import WaitSlots
from myqueue.gateway.registrations import Registrations
from myqueue.gateway.settings import GatewayConfig
from myqueue.gateway.shared_producer import SPARE_MS, SharedProducer


class ClusterClient:
    """One session with the cluster, and the admin, producer and taker that use it."""

    def __init__(self, config: GatewayConfig, name: str = "gateway") -> None:
        self.timeout_ms = config.request_timeout_ms
        self.session = Session(
            config.cluster, name=name, request_timeout_ms=self.timeout_ms, key_file=config.key
        )
        self.admin = Admin(self.session, timeout=self.timeout_ms / 1000)
        self.producer = SharedProducer(self.session, self.timeout_ms)
        self.taker = Taker(self.session)
        self.registrations = Registrations(self)
        # The agent of this machine, if the settings name one; whether it runs is checked when it is
        # used.
        self.agent = Agent(config.agent) if config.agent else None
        self.wait_slots = WaitSlots(config.waiting_max, config.wait_ms_max)
        self.empty_status = config.empty
        self._listens_at = config.listen

    def wait(self, pending: Future[Any]) -> Any:
        """Wait for a result. Requests have deadlines of their own; the one here is for a defect in
        those.
        """
        return self.session.wait(pending, self.timeout_ms + SPARE_MS)

    # -- metadata ---------------------------------------------------------------------------------

    def read(self, query: str, **arguments: Any) -> dict[str, Any]:
        """Ask any manager, in turn; the answer is never older than this gateway's changes."""
        reply: dict[str, Any] = self.wait(self.session.read(query, arguments))
        return reply

    def newest(self, query: str, **arguments: Any) -> dict[str, Any]:
        """Ask the managers' leader, after a majority confirmed it."""
        reply: dict[str, Any] = self.wait(self.session.read(query, arguments, linearizable=True))
        return reply

    def update(
        self, operation: str, arguments: Mapping[str, Any], key: bytes | None = None
    ) -> dict[str, Any]:
        """Have the managers' leader change metadata. The same key again gets the first answer."""
        reply: dict[str, Any] = self.wait(self.session.update(operation, dict(arguments), key=key))
        return reply

    def client(self, kind: str, number: int) -> dict[str, Any]:
        """Return all facts about a producer or a consumer."""
        arguments = {f"{kind}_id": number}
        try:
            return self.read(kind, **arguments)
        except UnknownClient:
            return self.newest(kind, **arguments)

    def topic(self, topic: str) -> dict[str, Any]:
        """Return all facts about a topic. Only the leader may know one that another gateway just
        created.
        """
        try:
            return self.read("topic", topic=topic)
        except UnknownTopic:
            return self.newest("topic", topic=topic)

    def newest_partition(self, topic: str, partition: int) -> dict[str, Any]:
        """Return all facts about a partition; raise UnknownPartition if the topic has none of this
        number.
        """
        partitions = self.topic(topic)["partitions"]
        if partition >= len(partitions):
            partitions = self.newest("topic", topic=topic)["partitions"]
        if partition >= len(partitions):
            error = UnknownPartition(
                f"{topic} has partitions 0 to {len(partitions) - 1}, not {partition}"
            )
            error.retriable = False
            raise error
        row: dict[str, Any] = partitions[partition]
        return row

    # -- names and the end ------------------------------------------------------------------------

    def name_of(self, component: str) -> str:
        """Name a component: "tcp://127.0.0.1:9093" and "manager 2" both become "manager 2 at
        127.0.0.1:9093" once that manager is known; "gateway" is this one.
        """
        if component == GATEWAY:
            return f"{GATEWAY} at {self._listens_at}"
        return self.session.name_of(component)

    def close(self) -> None:
        self.producer.close()
        self.session.close(1_000)
