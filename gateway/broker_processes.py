"""Processes of brokers: wait for what the cluster does about one, and stop it when it may go.

Used by the API and by the console. The agent (`myqueue.Agent`) starts and stops processes on this
machine, where the settings name one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from myqueue.admin.broker_moves import HOW_TO_START, partitions_counting
from myqueue.errors import MyQueueError

if TYPE_CHECKING:
    from myqueue.gateway.cluster_client import ClusterClient

T = TypeVar("T")
log = logging.getLogger("myqueue.gateway")
LOOK_S: Final = 0.1
LET_GO_MS: Final = 10_000  # a removal waits so long for the groups to change their members
ELSEWHERE: Final = (
    f"Start one yourself: {HOW_TO_START} Or give the gateway --agent DIR, the folder of a 'myq up'"
    " on its machine."
)


def wait_for(sdk: ClusterClient, wait_ms: int, look: Callable[[], T | None]) -> T | None:
    """Call `look` until it returns a value, and return that; None when the time is over. Changes in
    other processes cause no event here, so this polls.
    """
    end, stopping = monotonic() + wait_ms / 1000, sdk.wait_slots.stopping
    while True:
        value = look()
        left_s = end - monotonic()
        if value is not None or left_s <= 0 or stopping.wait(min(LOOK_S, left_s)):
            return value


def stop_when_unused(
    sdk: ClusterClient, node: int, known: dict[str, Any] | None, stranded: int
) -> tuple[int, bool]:
    """Wait until no partition counts on a removed broker, then stop its process if the agent runs
    it.

    Return how many partitions still count on it, and whether it was stopped. Stopped before they
    removed it from their members, it could leave them without a majority. `known` is its row before
    the removal; None for a repeat, and then the cluster is asked.
    """
    counting = 1
    if known is not None:
        counting = known["replicas"] + known["leaving"] if known["alive"] else 0  # at most

    def is_let_go() -> bool | None:
        nonlocal counting
        left = partitions_counting(sdk.admin, node, stranded)
        counting = counting if left is None else left
        return counting == 0 or None

    try:
        if counting:
            with sdk.wait_slots.hold_for(LET_GO_MS) as may_wait_ms:
                wait_for(sdk, may_wait_ms, is_let_go)
        address = known["address"] if known is not None else ""
        agent = sdk.agent
        if counting or agent is None or not agent.is_running:
            return counting, False
        return 0, agent.drop_broker(node, address)
    except MyQueueError as error:
        log.warning("broker %d was removed, and not stopped: %s", node, error)
        return counting, False
