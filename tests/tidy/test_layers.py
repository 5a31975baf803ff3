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
    (layers.layer, "wal/append/x.py", "from myqueue.wal.tools import verify"),
    (layers.layer, "wal/recover/x.py", "from myqueue.wal.append.journal import Journal"),
    (layers.layer, "wal/read/x.py", "from myqueue.wal.store.store import Store"),
    (layers.layer, "wal/store/x.py", "from myqueue.wal.append.journal import Journal"),
    (layers.layer, "wal/space/x.py", "from myqueue.wal.recover.recovery import recover"),
    (layers.layer, "wal/space/x.py", "from myqueue.wal.tools.verify import verify"),
    (layers.layer, "wal/check/x.py", "from myqueue.wal.recover.recovery import recover"),
    (layers.layer, "wal/tools/x.py", "from myqueue.wal.append.journal import Journal"),
    (layers.layer, "wal/tools/x.py", "from myqueue.wal.append.writer import Writer"),
    (layers.layer, "wal/tools/x.py", "from myqueue.wal.space import reclaim"),
    (layers.layer, "daemons/raft/node.py", "from myqueue.wal import format"),
    (layers.layer, "daemons/raft/node.py", "from myqueue import errors"),
    (layers.layer, "daemons/partition/x.py", "from myqueue.daemons.clock import RealClock"),
    (layers.layer, "daemons/partition/x.py", "from myqueue.daemons.broker import produce"),
    (layers.layer, "daemons/metadata/x.py", "from myqueue.daemons.manager import queries"),
    (layers.layer, "daemons/metadata/x.py", "from myqueue.wal.log import Log"),
    (layers.layer, "daemons/manager/balancer/x.py", "from myqueue.daemons.manager import queries"),
    (layers.layer, "daemons/manager/x.py", "from myqueue.daemons.broker import produce"),
    (layers.layer, "daemons/manager/x.py", "from myqueue.daemons.partition import machine"),
    (layers.layer, "daemons/manager/x.py", "from myqueue.daemons.network import sockets"),
    (layers.layer, "daemons/broker/x.py", "from myqueue.daemons.manager.manager import Manager"),
    (layers.layer, "daemons/broker/x.py", "from myqueue.daemons.metadata import tables"),
    (layers.layer, "daemons/network/loop.py", "from myqueue.daemons.broker import produce"),
    (layers.layer, "daemons/network/x.py", "from myqueue.daemons.replication import engine"),
    (layers.layer, "daemons/replication/x.py", "from myqueue.daemons.broker import broker"),
    (layers.layer, "daemons/repair/x.py", "from myqueue.daemons.network import sockets"),
    (layers.layer, "daemons/agent/x.py", "from myqueue.daemons.manager import manager"),
    (layers.layer, "daemons/x.py", "from myqueue.gateway import app"),
    (layers.layer, "daemons/x.py", "from myqueue import cli"),
    (layers.layer, "gateway/app.py", "from myqueue.daemons.broker import broker"),
    (layers.layer, "gateway/app.py", "from myqueue.cluster.connection import Connection"),
    (layers.layer, "gateway/app.py", "from myqueue.wire import protocol"),
    (layers.layer, "gateway/settings.py", "from myqueue import Producer"),
    (layers.layer, "gateway/http/x.py", "from myqueue.gateway.dispatch import routes"),
    (layers.layer, "gateway/http/x.py", "import flask"),
    (layers.layer, "gateway/dispatch/x.py", "from myqueue.gateway.http import server"),
    (layers.layer, "gateway/dispatch/x.py", "from myqueue.gateway.console import page"),
    (layers.layer, "gateway/api/x.py", "from myqueue.gateway.http import server"),
    (layers.layer, "gateway/metrics/x.py", "from myqueue.gateway.api import operations"),
    (layers.layer, "gateway/console/view/x.py", "import flask"),
    (layers.layer, "gateway/console/live/x.py", "from myqueue.gateway.console import page"),
    (layers.layer, "gateway/console/x.py", "from myqueue.gateway.http import server"),
    (layers.layer, "analytics/x.py", "from myqueue.wal.append.journal import Journal"),
    (layers.layer, "analytics/x.py", "from myqueue.wal.append import journal"),
    (layers.layer, "analytics/x.py", "import myqueue"),
    (layers.layer, "analytics/log/x.py", "import pyspark"),
    (layers.layer, "analytics/source/x.py", "from myqueue.wal.read import reader"),
    (layers.layer, "analytics/verify/x.py", "from myqueue.daemons.partition import machine"),
    (layers.layer, "analytics/verify/x.py", "import pyspark"),
    (layers.layer, "analytics/stats/x.py", "from myqueue.analytics.spark import job"),
    (layers.layer, "analytics/spark/x.py", "from myqueue.analytics.verify import verify"),
    (layers.layer, "analytics/html/x.py", "from myqueue.analytics.stats import stats"),
    (layers.layer, "client/x.py", "from myqueue.daemons.network import loop"),
    (layers.layer, "client/x.py", "from myqueue import wal"),
    (layers.layer, "client/x.py", "def f():\n    import myqueue.wal.format"),
    (layers.layer, "client/x.py", "from myqueue.cli.shared import output"),
    (layers.layer, "client/errors/x.py", "from myqueue.wire import protocol"),
    (layers.layer, "client/wire/x.py", "from myqueue.cluster import session"),
    (layers.layer, "client/checksum.py", "from myqueue.wire import batch"),
    (layers.layer, "client/cluster/x.py", "from myqueue.producer import sender"),
    (layers.layer, "client/producer/x.py", "from myqueue.consumer import fetcher"),
    (layers.layer, "client/consumer/x.py", "from myqueue.producer import sender"),
    (layers.layer, "client/taker/x.py", "from myqueue.consumer import fetcher"),
    (layers.layer, "client/admin/x.py", "from myqueue.producer import producer"),
    (layers.layer, "client/cli/__init__.py", "from myqueue.wal import format"),
    (layers.layer, "client/cli/shared/output.py", "import rich"),
    (layers.layer, "client/cli/shared/x.py", "from myqueue.cli.wal import commands"),
    (layers.layer, "client/cli/bench/floor.py", "from myqueue.producer import producer"),
    (layers.pure, "daemons/raft/x.py", "import time"),
    (layers.pure, "daemons/partition/x.py", "from pathlib import Path"),
    (layers.pure, "daemons/metadata/x.py", "def f():\n    import os.path"),
    (layers.pure, "daemons/manager/balancer/x.py", "import socket"),
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

# Free, or like a neighbour that is shown.
FREE = (
    *("client/cli/", "client/cli/lazy.py", "client/cli/shared/streams.py"),
    "client/cli/shared/install_hint.py",
)

GOOD = [
    (layers.layer, "wal/store/store.py", "import lmdb, os\nfrom myqueue.errors import DiskFull"),
    (layers.layer, "wal/x.py", "from myqueue import errors\nfrom myqueue.wal.files import Files"),
    (layers.layer, "wal/tools/x.py", "from myqueue.wal.read import scan"),
    (layers.layer, "daemons/raft/node.py", "from myqueue.daemons.raft.types import Role"),
    (layers.layer, "daemons/main.py", "from myqueue.wire import protocol\nimport myqueue.wal.log"),
    (layers.layer, "daemons/broker/x.py", "from myqueue.daemons.interfaces import Client"),
    (layers.layer, "gateway/app.py", "import flask\nfrom myqueue import Producer, errors"),
    (layers.layer, "gateway/app.py", "import myqueue\nfrom myqueue.gateway.api import operations"),
    (layers.layer, "gateway/settings.py", "from myqueue.wire.program_settings import typed"),
    (layers.layer, "analytics/source/x.py", "from myqueue.wal import format\nimport pyspark"),
    (layers.layer, "client/cluster/x.py", "from myqueue.cluster.routing import Routes\nimport zmq"),
    (layers.layer, "client/cli/__init__.py", "def f():\n    from myqueue.wal import format"),
    (layers.layer, "client/cli/wal/x.py", "from myqueue.wal.tools import dump\nimport click"),
    (layers.layer, "tests/wal/test_x.py", "import requests"),
    (layers.pure, "daemons/raft/x.py", "import struct\nfrom myqueue.daemons.raft import types"),
    (layers.pure, "daemons/broker/x.py", "import time"),
    (layers.one_importer, "wal/store/store.py", "import lmdb"),
    (layers.one_importer, "gateway/api/endpoints/topics.py", "import flask"),
    (layers.one_importer, "client/cli/wal/x.py", "import click"),
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
        if prefix not in FREE:
            assert any(path.startswith(prefix) for path in shown), prefix


@pytest.mark.parametrize("name", ["wal.py", "daemons/__init__.py", "gateway.py", "analytics.py"])
def test_a_file_of_the_client_may_not_hide_a_folder(name: str) -> None:
    assert layers.shadowing_file(f"client/{name}")
    assert layers.shadowing_file(f"client/cli/{name}") is None
