"""The topic and partition of a producer or consumer, by its id.

The managers keep them with the id, and they never change, so a copy here may be believed and may be
lost at any time. A manager may lag behind: "there is no such id, topic or partition" is believed
only of the leader, because another gateway may have added it a moment ago.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from myqueue.errors import NotReady, UnknownClient, UnknownPartition, WrongTopic
from myqueue.gateway.api.failures import GATEWAY

if TYPE_CHECKING:
    from myqueue.gateway.cluster_client import ClusterClient

KNOWN_MAX: Final = 100_000
ROUTES_S: Final = 2.0  # wait so long for the routes of a topic known to have changed
ASK_AGAIN_S: Final = 0.05  # between two requests for them, at first


class Registration(NamedTuple):
    """What an id was registered for."""

    uid: int  # of the topic
    topic: str
    partition: int | None  # used by requests that name none


class Registrations:
    """Registers producers and consumers, and finds what an id was registered for."""

    def __init__(self, sdk: ClusterClient) -> None:
        self._sdk = sdk
        self._known: dict[tuple[str, int], Registration] = {}  # by ("producer", id)

    def register(
        self, kind: str, topic: str, partition: int | None, key: bytes | None
    ) -> dict[str, Any]:
        """Register a producer or consumer; return its new id. A partition must exist, and is stored
        with the id.
        """
        own = {} if partition is None else {"partition": partition}
        try:
            reply = self._sdk.update(f"register_{kind}", {"topic": topic, **own}, key)
        except UnknownPartition as error:
            error.retriable = False
            raise
        registration = Registration(reply["topic_uid"], topic, partition)
        self._remember(kind, reply[f"{kind}_id"], registration)
        return reply

    def report_alive(self, kind: str, number: int) -> None:
        self._sdk.session.report_alive(**{kind: number})

    def find(
        self, kind: str, number: int, topic: str | None, partition: int | None
    ) -> tuple[str, int | None] | None:
        """Return what `check` returns; None if the cluster has to be asked. Never waits."""
        registration = self._known.get((kind, number))
        if registration is None:
            return None
        if topic is None:
            topic = registration.topic
        routes = self._sdk.session.routes.topic(topic)
        if routes is None or registration.uid != routes.uid:
            return None
        if partition is None:
            partition = registration.partition
        if partition is not None and partition >= len(routes.partitions):
            return None
        self.report_alive(kind, number)
        return topic, partition

    def check(
        self, kind: str, number: int, topic: str | None, partition: int | None
    ) -> tuple[str, int | None]:
        """Return the topic and partition that a request of this id is about; raise what is wrong
        with them. It counts as a heartbeat of this client.
        """
        if topic is None:
            topic = self._topic_of(kind, number)
        routes = self._sdk.session.routes.topic(topic)
        if routes is None:
            (routes,) = self._sdk.wait(self._sdk.session.ensure_topics([topic]))
        registration = self._known.get((kind, number))
        if registration is None or registration.uid != routes.uid:
            registration = self._look_up(kind, number, topic)
        self.report_alive(kind, number)
        if partition is None:
            partition = registration.partition
        if partition is not None:
            self.check_partition(topic, partition)
        return topic, partition

    def _topic_of(self, kind: str, number: int) -> str:
        registration = self._known.get((kind, number))
        if registration is not None:
            return registration.topic
        topic = self._sdk.client(kind, number)["topic"]
        if not topic:
            raise UnknownClient(f"{kind} {number} is not registered for any topic that exists")
        return str(topic)

    def _look_up(self, kind: str, number: int, topic: str) -> Registration:
        client = self._sdk.client(kind, number)
        uid, name = client["topic_uid"], client["topic"]
        if not uid:
            raise UnknownClient(f"{kind} {number} was not registered for any topic")
        if name != topic:
            of = f"the topic {name!r}" if name else "a topic that was deleted"
            raise WrongTopic(f"{kind} {number} is registered for {of}, not for {topic!r}")
        # Older managers report no partition.
        registration = Registration(uid, topic, client.get("partition"))
        self._remember(kind, number, registration)
        routes = self._sdk.session.routes
        self._await_routes(topic, lambda: (at := routes.topic(topic)) is not None and at.uid == uid)
        return registration

    def _remember(self, kind: str, number: int, registration: Registration) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[kind, number] = registration

    def check_partition(self, topic: str, partition: int) -> None:
        """Wait until the routes have this partition, which may have been added a moment ago."""
        routes = self._sdk.session.routes

        def is_there() -> bool:
            route = routes.topic(topic)
            return route is not None and partition < len(route.partitions)

        if is_there():
            return
        self._sdk.newest_partition(topic, partition)
        self._await_routes(topic, is_there)
        if not is_there():
            raise NotReady(
                f"{topic}/{partition} was added a moment ago; where it is is not known here yet",
                component=GATEWAY,
            )

    def _await_routes(self, topic: str, are_new: Callable[[], bool]) -> None:
        """Wait for routes: what a manager has answered, they will show soon."""
        if are_new():
            return
        session, news = self._sdk.session, threading.Event()

        def look() -> None:
            if are_new():
                news.set()

        session.on_routes(look)
        pause_s, waited_s = ASK_AGAIN_S, 0.0
        try:
            while waited_s < ROUTES_S:  # the manager that is asked may lag behind
                session.refresh((topic,))
                if news.wait(pause_s):
                    return
                waited_s, pause_s = waited_s + pause_s, pause_s * 2
        finally:
            session.off_routes(look)
