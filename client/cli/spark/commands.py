"""The group `myq spark`, and what its commands (`verify`, `stats`, `export`) share.

It finds the logs, starts the Spark session, and turns Spark's errors into one line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from myqueue.cli.lazy import LazyGroup
from myqueue.errors import InvalidRequest, MyQueueError, UnknownTopic, Unreachable

COMMANDS = {
    "verify": ("myqueue.cli.spark.verify:verify", "Check logs, replicas, stores and a ledger."),
    "stats": ("myqueue.cli.spark.stats:stats", "Count messages and sizes; with plots."),
    "export": ("myqueue.cli.spark.export:export", "Export messages as Parquet."),
}
DATA = "myq-data"


@click.group(cls=LazyGroup, lazy=COMMANDS)
def spark() -> None:
    """Verify, count and export write-ahead logs with Spark.

    PATHS are daemons' folders, a cluster's data folder, or archives made by 'myq wal archive', as
    paths or as URIs (s3://, gs://, hdfs://, file://); ./myq-data if none is given. The daemons
    may be running.

    Spark needs Java 17 or newer. MYQ_JAVA_HOME, JAVA_HOME, java on the PATH and the extra [jdk] are
    tried in this order.
    """


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--conf", "conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; repeatable."
        ),
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            metavar="URL",
            help="Spark master: local[N], spark://HOST:PORT, yarn, k8s://…",
        ),
        click.argument("paths", nargs=-1),
    ):
        function = option(function)
    return function


skip_unknown_option = click.option(
    "--skip-unknown",
    is_flag=True,
    help="Leave out partitions whose committed end cannot be determined from the logs. Without it, "
    "they are an error.",
)


def given(paths: tuple[str, ...]) -> list[str]:
    if not paths and not os.path.isdir(DATA):
        raise Unreachable(
            f"no logs were named, and there is no ./{DATA}", hint="Name folders with logs."
        )
    return list(paths) or [DATA]


@contextmanager
def session_on(
    master: str, conf: tuple[str, ...], name: str, *, quick: bool = False
) -> Iterator[Any]:
    """Open a Spark session for the block; an error that prevents the work is exit code 3."""
    from myqueue.analytics.spark.session import make_session

    settings = {}
    for setting in conf:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--conf {setting!r}: write KEY=VALUE.")
        settings[key] = value
    with told():
        session = make_session(master, name=name, conf=settings, quick=quick)
    try:
        with told():
            yield session
    finally:
        session.stop()


@contextmanager
def told() -> Iterator[None]:
    """Reduce an executor's error, which has a Java and a Python trace, to its one useful line.

    Logs that could not be read were not checked, so all of these errors become `Unreachable`.
    """
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, UnknownTopic):
        raise
    except MyQueueError as error:
        raise Unreachable(str(error), component=error.component, hint=error.hint) from error
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise Unreachable(what, hint="Check the path and its permissions.") from error
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        raise Unreachable(_line(str(error)), hint="--debug shows all of it.") from error


def _line(text: str) -> str:
    """Return the last line that names one of our errors, else the first line."""
    others = re.findall(r"^(?:myqueue\.errors\S*|OSError|FileNotFoundError)?: (.+)$", text, re.M)
    ours = re.findall(r"^myqueue\.\S+: (.+)$", text, re.M)
    messages = ours or others
    return str(messages[-1]) if messages else text.strip().splitlines()[0]


def write_html(path: str | None, page: str) -> None:
    if path is None:
        return
    target = Path(path)
    if target.parent and not target.parent.is_dir():
        raise InvalidRequest(f"{target.parent} is not a folder")
    target.write_text(page, encoding="utf-8")
    click.echo(f"The report is in {target}.", err=True)
