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

# For each layer what it may import besides the standard library. The first row that fits a path
# counts. A name stands for itself and all below it; `fits` says what <client> and <public> mean.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("wal/", ("lmdb", "myqueue.errors", "myqueue.wal")),
    ("daemons/raft/", ("myqueue.daemons.raft",)),
    ("daemons/", ("zmq", "click", "<client>", "myqueue.wal", "myqueue.daemons")),
    # The one part that all programs share: how settings are put together.
    ("gateway/settings.py", ("myqueue.errors", "myqueue.wire.program_settings")),
    (
        "gateway/",
        ("flask", "prometheus_client", "click", "<public>", "myqueue.gateway"),
    ),
    (
        "analytics/",
        (
            *("pyspark", "pyarrow", "click", "myqueue.errors"),
            *("myqueue.wal.format", "myqueue.wal.read.reader", "myqueue.analytics"),
        ),
    ),
    # A command's file is loaded when the command is called, so it may import what it works with;
    # these three are loaded with every command.
    ("client/cli/__init__.py", ("click", "<client>", "myqueue.cli")),
    ("client/cli/lazy.py", ("click", "<client>", "myqueue.cli")),
    ("client/cli/shared/output.py", ("click", "<client>", "myqueue.cli")),
    ("client/cli/bench/floor.py", ("zmq", "myqueue.cli", "myqueue.errors")),
    ("client/cli/", ("click", "myqueue")),
    ("client/", ("zmq", "msgpack", "<client>")),
)
# Inside of a function any part of myqueue may be imported here, because only some calls need it.
LAZY_IMPORTS_IN = "client/cli/"
# What the gateway, a user of the client like any other, may take from it.
PUBLIC_MODULES = ("errors", "testing")

ONE_IMPORTER: dict[str, tuple[str, ...]] = {
    # The third one measures bare ZeroMQ, for comparison.
    "zmq": (
        "daemons/network/sockets.py",
        "client/cluster/connection.py",
        "client/cli/bench/floor.py",
    ),
    "msgpack": ("client/wire/protocol.py", "client/wire/batch.py"),
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


RULES: tuple[Rule, ...] = (layer, one_importer, absolute_imports)
