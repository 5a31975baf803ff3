"""Rules about who may import what: the layers of the design, and one importer for each library.

The tables are the rules; reading them is reading the architecture. A rule takes a source and
yields one line for each import that breaks it. `RULES` names them all; `test_layers.py` shows that
each can fail.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tidy.rules import at, imports
from tidy.tree import PRODUCT, Source

Rule = Callable[[Source], Iterator[str]]

# What several rows have in common.
LOG = (
    *("myqueue.checksum", "myqueue.errors", "myqueue.wal.config", "myqueue.wal.files"),
    "myqueue.wal.fork_guard",
    *("myqueue.wal.format", "myqueue.wal.footer_rows", "myqueue.wal.groups"),
    "myqueue.wal.identity",
)
DAEMON = (
    *("myqueue.__version__", "myqueue.errors", "myqueue.wire", "myqueue.daemons.clock"),
    *("myqueue.daemons.config", "myqueue.daemons.error_details", "myqueue.daemons.event_log"),
    *("myqueue.daemons.interfaces", "myqueue.daemons.metrics"),
    *("myqueue.daemons.repeated_warnings", "myqueue.daemons.state_machine"),
)
MACHINE = (
    *("myqueue.errors", "myqueue.wire", "myqueue.daemons.state_machine"),
    "myqueue.daemons.raft.types",
)
CLIENT = (
    *("myqueue.errors", "myqueue.settings", "myqueue.arguments", "myqueue.wire"),
    *("myqueue.constructors", "myqueue.finalizers"),
)
JUDGES = ("myqueue.errors", "myqueue.wal.format", "myqueue.analytics.log")

# For each package what it may import besides the standard library. The first row that fits a path
# counts. A name stands for itself and all below it; `fits` says what <client> and <public> mean.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # -- the log: tools look at it and never write to it, so no journal, recovery or reclaim there
    ("wal/read/", (*LOG, "myqueue.wal.read", "myqueue.wal.store.index")),
    ("wal/check/", (*LOG, "myqueue.wal.check", "myqueue.wal.read.scan")),
    ("wal/store/", ("lmdb", *LOG, "myqueue.wal.store")),
    (
        "wal/recover/",
        (*LOG, "myqueue.wal.recover", "myqueue.wal.check", "myqueue.wal.read.scan"),
    ),
    (
        "wal/append/",
        (
            *(*LOG, "myqueue.wal.append", "myqueue.wal.check.segments"),
            "myqueue.wal.recover.recovery",
        ),
    ),
    (
        "wal/space/",
        (
            *(*LOG, "myqueue.wal.space", "myqueue.wal.append", "myqueue.wal.check"),
            *("myqueue.wal.read", "myqueue.wal.store.index"),
        ),
    ),
    (
        "wal/tools/",
        (
            *(*LOG, "myqueue.wal.tools", "myqueue.wal.check", "myqueue.wal.read.scan"),
            "myqueue.wal.store",
        ),
    ),
    ("wal/", ("myqueue.checksum", "myqueue.errors", "myqueue.wal")),
    # -- daemons: broker and manager do not know each other; four packages compute and no more
    ("daemons/raft/", ("myqueue.checksum", "myqueue.daemons.raft")),
    ("daemons/partition/", (*MACHINE, "myqueue.daemons.partition")),
    ("daemons/metadata/", (*MACHINE, "myqueue.daemons.metadata")),
    (
        "daemons/manager/balancer/",
        (
            *("myqueue.daemons.manager.balancer", "myqueue.daemons.manager.cluster_view"),
            *("myqueue.daemons.metadata", "myqueue.daemons.raft.quorum"),
        ),
    ),
    (
        "daemons/manager/",
        (
            *(*DAEMON, "myqueue.daemons.manager", "myqueue.daemons.metadata"),
            *("myqueue.daemons.raft", "myqueue.daemons.replication"),
            "myqueue.daemons.read_rounds",
        ),
    ),
    (
        "daemons/broker/",
        (
            *(*DAEMON, "myqueue.daemons.broker", "myqueue.daemons.partition"),
            *("myqueue.daemons.raft", "myqueue.daemons.replication", "myqueue.wal.groups"),
            "myqueue.daemons.read_rounds",
        ),
    ),
    (
        "daemons/network/loop.py",
        (
            *(*DAEMON, "myqueue.daemons.network", "myqueue.daemons.raft.types"),
            "myqueue.daemons.replication.engine",
        ),
    ),
    ("daemons/network/", ("zmq", *DAEMON, "myqueue.daemons.network")),
    (
        "daemons/replication/",
        (
            *(*DAEMON, "myqueue.daemons.replication", "myqueue.daemons.repair"),
            *("myqueue.daemons.raft", "myqueue.wal"),
        ),
    ),
    (
        "daemons/repair/",
        (
            *("myqueue.errors", "myqueue.wire", "myqueue.daemons.repair", "myqueue.wal"),
            *("myqueue.daemons.raft", "myqueue.daemons.replication.engine"),
            "myqueue.daemons.replication.replica",
        ),
    ),
    (
        "daemons/agent/",
        (
            *("click", "myqueue.errors", "myqueue.admin.local_agent", "myqueue.wal.files"),
            "myqueue.daemons.agent",
        ),
    ),
    ("daemons/", ("click", *DAEMON, "myqueue.wal", "myqueue.daemons")),
    # -- the gateway: a user of the client like any other
    # The one part that all programs share: how settings are put together.
    ("gateway/settings.py", ("myqueue.errors", "myqueue.wire.program_settings")),
    (
        "gateway/http/",
        (
            *("<public>", "myqueue.gateway.settings", "myqueue.gateway.thread_stacks"),
            *("myqueue.gateway.drop_reasons", "myqueue.gateway.http"),
        ),
    ),
    (
        "gateway/dispatch/",
        (
            *("flask", "werkzeug", "<public>", "myqueue.gateway.settings", "myqueue.gateway.api"),
            *("myqueue.gateway.http.answer", "myqueue.gateway.http.request_head"),
            "myqueue.gateway.dispatch",
        ),
    ),
    (
        "gateway/api/",
        (
            *("flask", "<public>", "myqueue.gateway.settings", "myqueue.gateway.cluster_client"),
            *("myqueue.admin.broker_moves", "myqueue.gateway.broker_processes"),
            "myqueue.wire.metadata_settings",
            *("myqueue.gateway.cluster_snapshot", "myqueue.gateway.api"),
        ),
    ),
    (
        "gateway/metrics/",
        (
            *("flask", "prometheus_client", "<public>", "myqueue.gateway.cluster_snapshot"),
            *("myqueue.gateway.drop_reasons", "myqueue.gateway.metrics"),
        ),
    ),
    (
        "gateway/console/view/",
        ("myqueue.errors", "myqueue.wire.metadata_settings", "myqueue.gateway.console.view"),
    ),
    (
        "gateway/console/live/",
        (
            *("<public>", "myqueue.gateway.cluster_snapshot", "myqueue.gateway.api.failures"),
            *("myqueue.gateway.console.view", "myqueue.gateway.console.live"),
        ),
    ),
    (
        "gateway/console/",
        (
            *("flask", "<public>", "myqueue.gateway.cluster_snapshot", "myqueue.gateway.api.auth"),
            *("myqueue.admin.broker_moves", "myqueue.gateway.api.failures"),
            *("myqueue.gateway.broker_processes", "myqueue.gateway.console"),
        ),
    ),
    (
        "gateway/",
        ("flask", "click", "<public>", "myqueue.admin.broker_moves", "myqueue.gateway"),
    ),
    # -- analytics: of all the rest it sees the format
    ("analytics/log/", ("pyarrow", *JUDGES)),
    (
        "analytics/source/",
        (
            *("pyspark", "pyarrow", *JUDGES, "myqueue.analytics.source"),
            "myqueue.analytics.verify.commit_point",
        ),
    ),
    (
        "analytics/verify/",
        (
            *(*JUDGES, "myqueue.analytics.html", "myqueue.analytics.spread"),
            "myqueue.analytics.verify",
        ),
    ),
    (
        "analytics/stats/",
        (
            *("pyarrow", *JUDGES, "myqueue.analytics.source", "myqueue.analytics.verify"),
            *("myqueue.analytics.html", "myqueue.analytics.spread"),
            "myqueue.analytics.stats",
        ),
    ),
    (
        "analytics/spark/",
        (
            *("pyspark", "myqueue.errors", "myqueue.analytics.source.datasource"),
            *("myqueue.analytics.spread", "myqueue.analytics.spark"),
        ),
    ),
    ("analytics/html/", ("myqueue.analytics.html",)),
    ("analytics/", ("pyspark", *JUDGES, "myqueue.analytics")),
    # -- the command line
    # A command's file is loaded when the command is called, so it may import what it works with;
    # these five are loaded with every command.
    ("client/cli/__init__.py", ("click", "<client>", "myqueue.cli")),
    ("client/cli/lazy.py", ("click",)),
    ("client/cli/shared/output.py", ("click", "<client>", "myqueue.cli.shared")),
    ("client/cli/shared/streams.py", ("click", "<client>", "myqueue.cli.shared")),
    ("client/cli/shared/install_hint.py", ("click", "<client>", "myqueue.cli.shared")),
    (
        "client/cli/shared/",
        ("click", "<client>", "myqueue.cli.shared", "myqueue.daemons.agent.cluster_folder"),
    ),
    ("client/cli/bench/floor.py", ("zmq", "myqueue.cli", "myqueue.errors")),
    ("client/cli/", ("click", "myqueue")),
    # -- the client
    ("client/errors/", ("myqueue.errors",)),
    ("client/checksum.py", ("isal",)),
    (
        "client/wire/",
        (
            *("msgpack", "myqueue.PROTOCOL_VERSION", "myqueue.checksum", "myqueue.errors"),
            "myqueue.wire",
        ),
    ),
    ("client/cluster/", ("zmq", *CLIENT, "myqueue.cluster")),
    ("client/producer/", (*CLIENT, "myqueue.cluster", "myqueue.producer")),
    ("client/consumer/", (*CLIENT, "myqueue.cluster", "myqueue.consumer")),
    (
        "client/taker/",
        (
            *(*CLIENT, "myqueue.cluster", "myqueue.taker"),
            *("myqueue.consumer.message", "myqueue.consumer.partition_state"),
        ),
    ),
    (
        "client/admin/",
        (*CLIENT, "myqueue.cluster", "myqueue.consumer.message", "myqueue.admin"),
    ),
    ("client/", ("<client>",)),
)
# Inside of a function any part of myqueue may be imported here, because only some calls need it.
LAZY_IMPORTS_IN = "client/cli/"
# What the gateway, a user of the client like any other, may take from it.
PUBLIC_MODULES = ("errors", "problems", "testing")

# These packages compute and no more: no clock, no file, no socket, no thread.
PURE = ("daemons/raft/", "daemons/partition/", "daemons/metadata/", "daemons/manager/balancer/")
IMPURE = (
    *("asyncio", "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "select", "shutil"),
    *("signal", "socket", "subprocess", "tempfile", "threading", "time"),
)

ONE_IMPORTER: dict[str, tuple[str, ...]] = {
    # The third one measures bare ZeroMQ, for comparison.
    "zmq": (
        "daemons/network/sockets.py",
        "client/cluster/connection.py",
        "client/cli/bench/floor.py",
    ),
    "msgpack": ("client/wire/protocol.py", "client/wire/batch.py"),
    "isal": ("client/checksum.py",),
    "lmdb": ("wal/store/store.py",),
    "flask": ("gateway/",),
    "prometheus_client": ("gateway/",),
    "pyspark": ("analytics/",),
    "pyarrow": ("analytics/",),
    "click": (
        "client/cli/",
        *("daemons/main.py", "daemons/agent/agent.py", "gateway/main.py", "analytics/main.py"),
    ),
}


def layer(source: Source) -> Iterator[str]:
    """An import that the layer's row in `LAYERS` does not name."""
    row = next((row for row in LAYERS if source.path.startswith(row[0])), None)
    if row is None:
        return
    prefix, allowed = row
    lazy = set(lazily_imported(source)) if prefix.startswith(LAZY_IMPORTS_IN) else set()
    for node, name in imports(source):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or any(fits(name, pattern) for pattern in allowed):
            continue
        if top == "myqueue" and node in lazy:
            continue
        yield f"{at(source, node)}: {prefix} may import only {', '.join(allowed)}; not {name}"


def fits(name: str, pattern: str) -> bool:
    """Is this full name one that the pattern of a layer means?"""
    package, _, inside = name.partition(".")
    first = inside.partition(".")[0]
    if pattern == "<client>":  # the client library and the errors, but not the other folders
        return package == "myqueue" and first not in (*PRODUCT, "cli")
    if pattern == "<public>":  # classes and functions that `myqueue` exports; not its modules
        exported = first[:1].isupper() or first.startswith("__") or first in PUBLIC_MODULES
        return package == "myqueue" and (not first or exported)
    return f"{name}.".startswith(f"{pattern}.")


def lazily_imported(source: Source) -> Iterator[ast.AST]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom))


def pure(source: Source) -> Iterator[str]:
    """A package that only computes takes time, bytes and chance as arguments."""
    for node, name in imports(source) if source.path.startswith(PURE) else ():
        if name.partition(".")[0] in IMPURE:
            yield f"{at(source, node)}: this package only computes; take from {name} by argument"


def one_importer(source: Source) -> Iterator[str]:
    """A library imported in another place than the one that hides it from all others."""
    if not source.is_product:
        return
    for node, name in imports(source):
        library = name.partition(".")[0]
        places = ONE_IMPORTER.get(library)
        if places and not source.path.startswith(places):
            yield f"{at(source, node)}: {library} is imported only in {', '.join(places)}"


def absolute_imports(source: Source) -> Iterator[str]:
    """Relative imports, and folders of the root taken for import names."""
    for node, name in imports(source):
        if name.startswith("."):
            yield f"{at(source, node)}: say 'from myqueue.… import', in full"
        elif name.partition(".")[0] in PRODUCT and not helps_tests(source, name):
            yield f"{at(source, node)}: {name} is a folder; its import name begins with myqueue"


def helps_tests(source: Source, name: str) -> bool:
    """Tests import what they share by its path below tests/: `wal.tool_logs`, for example."""
    path = Path(__file__).parents[1].joinpath(*name.split("."))
    return source.path.startswith("tests/") and (
        path.with_suffix(".py").exists() or path.parent.with_suffix(".py").exists()
    )


def shadowing_file(path: str) -> str | None:
    """A file of the client with the name of another folder would hide that folder's package."""
    parts = path.split("/")
    if parts[0] == "client" and len(parts) > 1 and parts[1].removesuffix(".py") in PRODUCT:
        return f"{path}: hides the package of the folder {parts[1].removesuffix('.py')}/; rename it"
    return None


RULES: tuple[Rule, ...] = (layer, pure, one_importer, absolute_imports)
