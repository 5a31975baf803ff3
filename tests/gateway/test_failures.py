"""Every failure as an answer: its status, its form, and who says so (B1, C1, H5)."""

from __future__ import annotations

import pytest

from myqueue import errors
from myqueue.gateway.api.failures import describe, status_of
from myqueue.gateway.console.page import with_hint


def at(address: str) -> str:
    known = {"tcp://h:1": "manager 2 at h:1", "manager 2": "manager 2 at h:1"}
    known["gateway"] = "gateway at h:8080"
    return known.get(address, address.removeprefix("tcp://"))


@pytest.mark.parametrize("kind", errors.TABLE.values(), ids=lambda kind: kind.name)
def test_every_error_of_the_table_has_its_answer(kind: type[errors.MyQueueError]) -> None:
    status, body, headers = describe(kind("why"), at)
    assert set(body) == {
        "status",
        "message",
        "code",
        "name",
        "retriable",
        "outcome",
        "component",
        "hint",
    }
    assert body["status"] == "failure" and body["hint"] and body["message"] == "why"
    assert 400 <= status < 600
    assert ("Retry-After" in headers) == (status in (429, 503))
    # Without an answer that nobody may read as "it was not done" (C1).
    if body["outcome"] == errors.UNKNOWN:
        assert status in (500, 504)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequest(), 400),
        (errors.InvalidName(), 400),
        (errors.UnknownTopic(), 404),
        (errors.UnknownPartition(), 404),
        (errors.UnknownClient(), 404),
        (errors.TopicExists(), 409),
        (errors.WrongTopic(), 409),
        (errors.KeyReused(), 409),
        (errors.MessageTooLarge(), 413),
        (errors.BodyTooLarge(), 413),
        (errors.Busy(), 429),
        (errors.BufferFull(), 429),
        (errors.TooManyWaiting(), 429),
        (errors.NoQuorum(), 503),
        (errors.NotLeader(), 503),
        (errors.Unreachable(), 503),
        (errors.Stopping(), 503),
        (errors.OutcomeUnknown(), 504),
        (errors.TimedOut(), 504),
        (errors.Unauthorized(), 401),
        (errors.Forbidden(), 403),
        (errors.NotFound(), 404),
        (errors.MethodNotAllowed(), 405),
        (errors.BrokerInUse(), 409),
        (errors.GroupInUse(), 409),
        (errors.TooFewBrokers(), 409),
        (errors.UnknownBroker(), 404),
        (errors.UnknownGroup(), 404),
        (errors.Closed(), 503),
        (errors.Internal(), 500),
    ],
)
def test_status_codes_of_the_contract(error: errors.MyQueueError, status: int) -> None:
    assert status_of(error) == status


def test_a_deadline_with_nothing_done_is_no_unknown_outcome() -> None:
    error = errors.TimedOut("nobody was asked")
    error.outcome = errors.NONE
    assert status_of(error) == 503


def test_components_are_named() -> None:
    """B1: which manager, which broker."""
    _, body, _ = describe(
        errors.TimedOut("tcp://h:1: no answer within 500 ms; tcp://x:2: down"), at
    )
    assert body["message"] == "manager 2 at h:1: no answer within 500 ms; x:2: down"
    assert body["component"] == "manager 2 at h:1"
    _, body, _ = describe(errors.Busy("full", component="tcp://h:1"), at)
    assert body["component"] == "manager 2 at h:1"
    for said, told in (("manager 2", "manager 2 at h:1"), ("orders/0", "orders/0")):
        assert describe(errors.Busy("full", component=said), at)[1]["component"] == told
    assert describe(errors.Closed(), at)[1]["component"] == "gateway at h:8080"
    assert describe(errors.Unauthorized(), at)[2]["WWW-Authenticate"] == "Bearer"


def test_advice_is_for_who_asks_by_http() -> None:
    """B1: no flag of the command line, unless somebody said it for this very case."""
    for kind in errors.TABLE.values():
        if kind in (errors.BrokerInUse, errors.GroupInUse, errors.OffsetOutOfRange):
            hint = describe(kind(), at)[1]["hint"]
            assert "--" not in hint and "on_out_of_range" not in hint and hint != kind.hint
            assert describe(kind(hint="Wait."), at)[1]["hint"] == "Wait."
            assert with_hint(kind("why")).endswith(f"({kind.name} {kind.code}).")
        else:
            assert describe(kind(), at)[1]["hint"] == kind.hint
            assert with_hint(kind("why")).endswith(kind.hint)
