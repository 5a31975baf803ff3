"""Find the cluster that a command talks to.

The first of these that names one counts: `--cluster`, `--data` (the cluster that `myq up` runs
there), `MYQ_CLUSTER`, the context in use, and the cluster that runs in ./myq-data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from myqueue.daemons.agent.cluster_folder import ClusterFolder
from myqueue.errors import InvalidSetting, Unreachable

DATA = "myq-data"

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

data_option = click.option(
    "--data",
    metavar="DIR",
    help=f"Data folder of a cluster that 'myq up' runs here. [default: ./{DATA}]",
)


def options(function: AnyFunction) -> AnyFunction:
    """Give a command the options `--cluster` and `--data`, as arguments `cluster` and `data`."""
    option = click.option(
        "--cluster",
        metavar="ADDRESS",
        help="tcp://host:port[,…] of managers; used before --data, MYQ_CLUSTER and the context.",
    )
    return option(data_option(function))


def find(cluster: str | None, data: str | None) -> str:
    """Return the address of the cluster that these options, or the environment, name."""
    if cluster:
        return cluster
    if data:
        return _running(data) or _nothing(f"no cluster is running on {data}", f" --data {data}")
    named = os.environ.get("MYQ_CLUSTER") or Contexts().address()
    if named:
        return named
    return _running(DATA) or _nothing(f"no cluster is running on ./{DATA}, and none is named", "")


def find_gateway(data: str | None) -> str:
    """Return the gateway's address of a running 'myq up'."""
    folder = ClusterFolder(data or DATA)
    found = folder.load() if folder.holder() else None
    if found is None or found.gateway is None:
        hint = "Name one with --gateway http://host:port, or start a cluster with 'myq up'."
        raise Unreachable(f"no gateway is running on {data or DATA}", hint=hint)
    return found.gateway


def _running(data: str) -> str | None:
    folder = ClusterFolder(data)
    found = folder.load() if folder.holder() else None
    return found.address if found else None


def _nothing(what: str, words: str) -> str:
    hint = f"Start one with 'myq up{words}', or name one with --cluster."
    raise Unreachable(what, hint=hint)


class Contexts:
    """Names for clusters, kept in the user's folder for configuration."""

    def __init__(self) -> None:
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(Path.home(), ".config")
        self.path = Path(home) / "myqueue" / "contexts.json"
        self.current: str | None = None
        self.clusters: dict[str, str] = {}
        try:
            found = json.loads(self.path.read_text("utf-8"))
            self.current, self.clusters = found["current"], dict(found["clusters"])
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidSetting(
                f"{self.path} is damaged: {error!r}", hint="Remove it, and add the contexts again."
            ) from None

    def address(self) -> str | None:
        """Return the cluster of the context in use."""
        return self.clusters.get(self.current) if self.current else None

    def save(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        value = {"current": self.current, "clusters": self.clusters}
        new.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        new.replace(self.path)
