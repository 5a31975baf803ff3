"""Each rule of `layers` fails on an import that breaks it, and passes those that the design has."""

import pytest
from tidy import layers
from tidy.tree import Source

BAD = [
    (layers.layer, "wal/x.py", "from myqueue.daemons.network import loop"),
    (layers.layer, "wal/x.py", "import myqueue"),
    (layers.layer, "wal/x.py", "from myqueue.wire import protocol"),
    (layers.layer, "wal/x.py", "def f():\n    from myqueue.cli.shared import output"),
    (layers.layer, "wal/x.py", "import requests"),
    (layers.layer, "daemons/raft/node.py", "from myqueue.wal import format"),
    (layers.layer, "daemons/raft/node.py", "from myqueue import errors"),
    (layers.layer, "daemons/network/loop.py", "from myqueue.gateway import app"),
    (layers.layer, "daemons/network/loop.py", "from myqueue import cli"),
    (layers.layer, "gateway/app.py", "from myqueue.daemons.broker import broker"),
    (layers.layer, "gateway/app.py", "from myqueue.cluster.connection import Connection"),
    (layers.layer, "gateway/app.py", "from myqueue.wire import protocol"),
    (layers.layer, "gateway/settings.py", "from myqueue import Producer"),
    (layers.layer, "analytics/source/rows.py", "from myqueue.wal.append.journal import Journal"),
    (layers.layer, "analytics/source/rows.py", "from myqueue.wal.append import journal"),
    (layers.layer, "analytics/source/rows.py", "import myqueue"),
    (layers.layer, "client/producer/producer.py", "from myqueue.daemons.network import loop"),
    (layers.layer, "client/producer/producer.py", "from myqueue import wal"),
    (layers.layer, "client/producer/producer.py", "def f():\n    import myqueue.wal.format"),
    (layers.layer, "client/producer/producer.py", "from myqueue.cli.shared import output"),
    (layers.layer, "client/cli/__init__.py", "from myqueue.wal import format"),
    (layers.layer, "client/cli/shared/output.py", "import rich"),
    (layers.layer, "client/cli/bench/floor.py", "from myqueue.producer import producer"),
    (layers.one_importer, "client/producer/producer.py", "import zmq"),
    (layers.one_importer, "client/cluster/connection.py", "import msgpack"),
    (layers.one_importer, "wal/store/index.py", "import lmdb"),
    (layers.one_importer, "daemons/main.py", "from flask import Flask"),
    (layers.one_importer, "wal/read/reader.py", "def f():\n    import pyarrow.parquet"),
    (layers.one_importer, "wal/tools/dump.py", "import click"),
    (layers.absolute_imports, "client/producer/producer.py", "from . import errors"),
    (layers.absolute_imports, "client/producer/producer.py", "from .errors import MyQueueError"),
    (layers.absolute_imports, "tests/wal/test_x.py", "from wal import format"),
    (layers.absolute_imports, "tests/wal/test_x.py", "import client.errors"),
]

GOOD = [
    (layers.layer, "wal/store/store.py", "import lmdb, os\nfrom myqueue.errors import DiskFull"),
    (layers.layer, "wal/x.py", "from myqueue import errors\nfrom myqueue.wal.files import Files"),
    (layers.layer, "daemons/raft/node.py", "from myqueue.daemons.raft.types import Role"),
    (
        layers.layer,
        "daemons/network/loop.py",
        "from myqueue.wire import protocol\nfrom myqueue.wal import x",
    ),
    (layers.layer, "gateway/app.py", "import flask\nfrom myqueue import Producer, errors"),
    (
        layers.layer,
        "gateway/app.py",
        "import myqueue\nfrom myqueue.gateway.api.endpoints.topics import topics",
    ),
    (layers.layer, "gateway/settings.py", "from myqueue.wire.program_settings import typed"),
    (
        layers.layer,
        "analytics/source/rows.py",
        "from myqueue.wal import format; from myqueue.wal.read import reader\nimport pyspark",
    ),
    (
        layers.layer,
        "client/producer/producer.py",
        "from myqueue.cluster.routing import Routes\nimport zmq",
    ),
    (layers.layer, "client/cli/__init__.py", "def f():\n    from myqueue.wal import format"),
    (
        layers.layer,
        "client/cli/wal/commands.py",
        "from myqueue.wal.tools import dump\nimport click",
    ),
    (layers.layer, "tests/wal/test_x.py", "import requests"),
    (layers.one_importer, "wal/store/store.py", "import lmdb"),
    (layers.one_importer, "gateway/api/endpoints/topics.py", "import flask"),
    (layers.one_importer, "client/cli/wal/commands.py", "import click"),
    (layers.one_importer, "tests/wal/test_x.py", "import lmdb"),
    (layers.absolute_imports, "client/producer/producer.py", "from myqueue import errors"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_it_finds(rule: layers.Rule, path: str, text: str) -> None:
    assert len(list(rule(Source(path, text)))) == 1


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_it_lets_pass(rule: layers.Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text))) == []


def test_every_rule_is_shown_to_fail() -> None:
    assert {rule for rule, _, _ in BAD} == set(layers.RULES)


def test_every_layer_is_shown_to_fail() -> None:
    shown = [path for rule, path, _ in BAD if rule is layers.layer]
    for prefix, _ in layers.LAYERS:
        if prefix not in ("client/cli/", "client/cli/lazy.py"):  # free, and like its neighbours
            assert any(path.startswith(prefix) for path in shown), prefix


@pytest.mark.parametrize("name", ["wal.py", "daemons/__init__.py", "gateway.py", "analytics.py"])
def test_a_file_of_the_client_may_not_hide_a_folder(name: str) -> None:
    assert layers.shadowing_file(f"client/{name}")
    assert layers.shadowing_file(f"client/cli/{name}") is None
