"""The public surface: typed constructors; signature, settings table and help() agree."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import myqueue
from myqueue import errors
from myqueue.settings import (
    ConsumerSettings,
    ProducerSettings,
    SessionSettings,
    Settings,
    addresses,
    rows,
)

ROOT = Path(__file__).parents[2]
CLIENTS: dict[type, tuple[Any, ...]] = {
    myqueue.Admin: (),
    myqueue.Session: (),
    myqueue.Producer: (),
    myqueue.AsyncProducer: (),
    myqueue.Consumer: ("t",),
    myqueue.AsyncConsumer: ("t",),
    myqueue.MyProducer: ("127.0.0.1:1",),
    myqueue.MyConsumer: ("127.0.0.1:1",),
}
TABLES: dict[type, type[Settings]] = {
    myqueue.Session: SessionSettings,
    myqueue.Producer: ProducerSettings,
    myqueue.Consumer: ConsumerSettings,
}
# Each line that ends with a code is an error of that code; no other line is one.
TYPED = """
import myqueue as q

q.Producer("x:1", nonsense=5)  # call-arg
q.AsyncProducer("x:1", nonsense=5)  # call-arg
q.Consumer("x:1", "t", nonsense=5)  # call-arg
q.AsyncConsumer("x:1", "t", nonsense=5)  # call-arg
q.Admin("x:1", nonsense=5)  # call-arg
q.Session("x:1", nonsense=5)  # call-arg
q.MyProducer(["t"], "x:1", nonsense=5)  # call-arg
q.MyConsumer(["t"], "x:1", nonsense=5)  # call-arg
q.Producer("x:1", linger_ms="5")  # arg-type
q.AsyncProducer("x:1", linger_ms="5")  # arg-type
q.Consumer("x:1", "t", fetch_wait_ms="5")  # arg-type
q.AsyncConsumer("x:1", "t", group=5)  # arg-type
q.AsyncConsumer("x:1")  # call-arg
q.Session("x:1", key_file=5)  # arg-type
q.Admin("x:1", timeout="5")  # arg-type
q.Producer(["x:1"], linger_ms=5, name="n", create_topics=True)
q.AsyncProducer(q.Session("x:1", routes_max_age_ms=500), compression="zstd")
q.Consumer("x:1", ["t"], group="g", idle_timeout=5, on_lost=print, max_poll_ms=500)
q.AsyncConsumer("x:1", "t", consumer_id={"t": 7}, start="latest", idle_timeout=0.5)
"""


def test_mypy_refuses_arguments_that_do_not_exist_or_have_another_type(tmp_path: Path) -> None:
    (tmp_path / "myqueue").symlink_to(ROOT / "client")
    (tmp_path / "calls.py").write_text(TYPED)
    # No configuration file: a user of the package has none either.
    command = ["-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "calls.py"]
    run = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = re.findall(r"^calls\.py:(\d+): error: .*\[([a-z-]+)\]$", run.stdout, re.MULTILINE)
    lines = enumerate(TYPED.split("\n"), 1)
    wanted = [(str(at), line.split("# ")[1]) for at, line in lines if "# " in line]
    assert said == wanted, run.stdout + run.stderr


@pytest.mark.parametrize("client", CLIENTS, ids=lambda kind: kind.__name__)
def test_an_unknown_argument_is_refused_with_a_hint(client: Any) -> None:
    first, more = ("127.0.0.1:1" if "cluster" in _parameters(client) else ["t"]), CLIENTS[client]
    with pytest.raises(errors.InvalidSetting, match=rf"^{client.__name__} has no .* nonsense=$"):
        client(first, *more, nonsense=5)
    for name in list(_parameters(client))[1 + len(more) :]:
        with pytest.raises(errors.InvalidSetting) as caught:
            client(first, *more, **{f"{name}s": 5})
        assert f"Did you mean {name}=?" in caught.value.hint


@pytest.mark.parametrize("client", CLIENTS, ids=lambda kind: kind.__name__)
def test_help_shows_each_argument_and_what_it_means(client: type) -> None:
    for name, parameter in _parameters(client).items():
        assert parameter.kind is not parameter.VAR_KEYWORD, name
        assert parameter.annotation is not parameter.empty, name
    shown = pydoc.plain(pydoc.render_doc(client))
    shared = {myqueue.AsyncProducer: myqueue.Producer, myqueue.AsyncConsumer: myqueue.Consumer}
    if client in shared:
        assert _parameters(client) == _parameters(shared[client])
        assert f"`{shared[client].__name__}`" in (client.__doc__ or "")
        return
    prose = (client.__doc__ or "") + (inspect.getdoc(client.__init__) or "")
    for name in _parameters(client):
        assert re.search(rf"\b{name}\b", prose), name
        assert name in shown


@pytest.mark.parametrize("client", TABLES, ids=lambda kind: kind.__name__)
def test_signature_and_help_agree_with_the_table_of_settings(client: type) -> None:
    table, parameters = TABLES[client], _parameters(client)
    for field, row in zip(fields(table), rows(table), strict=True):
        parameter = parameters[field.name]
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert (parameter.default, parameter.annotation) == (field.default, field.type)
        unit = f" {row.unit}" if row.unit and row.default is not None else ""
        described = (client.__doc__ or "").partition(f"    {row.name} = {row.default!r}{unit}\n")[2]
        assert " ".join(described.split()).startswith(row.help)


def test_each_setting_of_a_session_is_used() -> None:
    with myqueue.Session("127.0.0.1:1", routes_max_age_ms=300, connect_timeout_ms=20) as session:
        assert session.settings.routes_max_age_ms == 300
        assert session.settings.connect_timeout_ms == 20
    assert addresses("127.0.0.1:1") == session.manager_addresses


def _parameters(client: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(client).parameters)


@pytest.mark.parametrize("kind", errors.TABLE.values(), ids=lambda kind: kind.__name__)
def test_help_of_an_error_says_what_happened_and_what_to_do(kind: type[Any]) -> None:
    shown = " ".join(pydoc.plain(pydoc.render_doc(kind)).replace("|", " ").split())
    assert kind.meaning.endswith(".") and kind.meaning in shown
    if kind is not errors.MyQueueError:  # its text explains the attributes themselves
        assert f"Code: {kind.code} {kind.name} (HTTP {kind.http_status})." in shown
        assert f"What to do: {kind.hint}" in shown
        assert "Outcome: " in shown and "The same call " in shown
