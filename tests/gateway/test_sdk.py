"""What the gateway's client of the cluster makes of managers that lag behind."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from myqueue import errors
from myqueue.gateway import cluster_client
from myqueue.gateway.settings import GatewayConfig


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
    monkeypatch.setattr(cluster_client, "ASK_AGAIN_S", 0.001)
    monkeypatch.setattr(cluster_client, "ROUTES_S", 0.05)
    routes = Routes(grows_at)
    one = cluster_client.ClusterClient(GatewayConfig(cluster="127.0.0.1:1"))
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
            one.check_partition("orders", 2)
            assert routes.asked == grows_at
        else:
            with pytest.raises(errors.NotReady, match="orders/2") as refused:
                one.check_partition("orders", 2)
            assert refused.value.retriable and refused.value.outcome == errors.NONE
        assert routes.listeners == []
    finally:
        session.close()
