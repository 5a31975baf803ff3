"""The gateway's client of the cluster: managers that lag behind, and a producer that was fenced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_cluster.peer import EchoCluster

from myqueue import errors
from myqueue.gateway import cluster_client, registrations
from myqueue.gateway.settings import DEFAULTS


class Routes:
    """A topic that has one partition, and three from the `grows_at`-th answer on."""

    def __init__(self, grows_at: int) -> None:
        self.grows_at, self.asked = grows_at, 0
        self.listeners: list[Callable[[], None]] = []

    def topic(self, name: str) -> Any:
        count = 3 if self.asked >= self.grows_at else 1
        return SimpleNamespace(name=name, partitions=(None,) * count, uid=7)

    def refresh(self, names: tuple[str, ...]) -> None:
        self.asked += 1
        for listener in tuple(self.listeners):
            listener()


@pytest.mark.parametrize("grows_at", [0, 1, 3, 99])
def test_a_new_partition_is_asked_for_until_a_manager_knows_it(
    monkeypatch: pytest.MonkeyPatch, grows_at: int
) -> None:
    """The leader has said that it is there; a manager that lags behind may be asked for routes."""
    monkeypatch.setattr(registrations, "ASK_AGAIN_S", 0.001)
    monkeypatch.setattr(registrations, "ROUTES_S", 0.05)
    routes = Routes(grows_at)
    one = cluster_client.ClusterClient(replace(DEFAULTS, cluster="127.0.0.1:1"))
    session, one.session = (
        one.session,
        SimpleNamespace(  # type: ignore[assignment]
            routes=routes,
            refresh=routes.refresh,
            on_routes=routes.listeners.append,
            off_routes=routes.listeners.remove,
        ),
    )
    monkeypatch.setattr(one, "newest_partition", lambda topic, partition: {})
    try:
        if grows_at < 99:
            one.registrations.check_partition("orders", 2)
            assert routes.asked == grows_at
        else:
            with pytest.raises(errors.NotReady, match="orders/2") as refused:
                one.registrations.check_partition("orders", 2)
            assert refused.value.retriable and refused.value.outcome == errors.NONE
        assert routes.listeners == []
    finally:
        session.close()


@pytest.mark.parametrize("as_list", [False, True])
def test_a_fenced_producer_is_replaced_by_the_next_request(as_list: bool) -> None:
    """Each request that only begins a message must notice it, or all of them fail from then on."""
    with EchoCluster(1) as cluster:
        (log,) = cluster.topic("t")
        sdk = cluster_client.ClusterClient(replace(DEFAULTS, cluster=cluster.address))
        try:
            assert sdk.producer.store("t", b"a", None, 0) == (0, 0)
            (number,) = log.producers
            log.producers[number][0] += 1  # as if a newer session of it took over
            refused = sdk.producer.begin("t", b"b", None, 0, None).exception(5)
            assert isinstance(refused, errors.Fenced) and sdk.producer.has_room()
            if as_list:
                keys = [b"k", b"k"]
                stored = sdk.producer.store_list("t", [b"c", b"d"], [*keys], 0, None)
                assert stored == [(0, 1), (0, 2)]
            else:
                assert sdk.producer.begin("t", b"c", None, 0, None).result(5).offset == 1
        finally:
            sdk.close()


def test_a_gateway_stops_in_order_after_a_message_failed() -> None:
    """The request had the error; closing must not raise it once more."""
    with EchoCluster(1) as cluster:
        (log,) = cluster.topic("t")
        sdk = cluster_client.ClusterClient(replace(DEFAULTS, cluster=cluster.address))
        sdk.producer.store("t", b"a", None, 0)
        (number,) = log.producers
        log.producers[number][0] += 1
        with pytest.raises(errors.Fenced):
            sdk.producer.store("t", b"b", None, 0)
        sdk.close()
        assert sdk.session.closed
