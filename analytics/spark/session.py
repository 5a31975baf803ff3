"""A SparkSession on any master, with the reading side shipped to the executors.

Shipped is a zip of plain Python: this package, the log's format and the errors. Neither ZeroMQ nor
LMDB nor a compiled module is in it; executors need only Python and pyarrow.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from myqueue.analytics.spark.java import find_java
from myqueue.errors import InvalidRequest

CACHE = Path(tempfile.gettempdir()) / f"myqueue-spark-{os.getuid()}"
ROOMS = ("html", "log", "source", "spark", "stats", "verify")
# The packages that executors import, and which of their modules.
SHIPPED = (
    ("myqueue", "__init__.py"),
    ("myqueue", "checksum.py"),
    ("myqueue.errors", "*.py"),
    ("myqueue.wal", "__init__.py"),
    ("myqueue.wal", "format.py"),
    ("myqueue.analytics", "*.py"),
    *((f"myqueue.analytics.{room}", "*.py") for room in ROOMS),
    ("pyspark_myqueue", "*.py"),
)


def is_local(master: str) -> bool:
    return master.startswith("local")


def make_session(
    master: str = "local[*]",
    *,
    name: str = "myqueue",
    conf: Mapping[str, str] | None = None,
    quick: bool = False,
) -> Any:
    """Make a session on `master`; InvalidRequest if it can't be reached, NoJava without Java.

    `quick` is for work that is done in Python: the driver's JVM starts faster, and uses no cores to
    optimize its own code. `conf` overrides our settings.
    """
    home = find_java(os.environ, CACHE)
    if home is not None:
        os.environ["JAVA_HOME"] = home
    # Workers start what PYSPARK_PYTHON names, else the PATH's python3, which lacks this package.
    if is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    quiet = _quiet_logging(CACHE)
    for key, value in {**settings(master, quick, quiet), **(conf or {})}.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise InvalidRequest(
            f"no Spark session on {master}: {str(error).splitlines()[0]}",
            hint="Check --master and that it can be reached from here.",
        ) from error
    if not is_local(master):
        session.sparkContext.addPyFile(str(package(CACHE)))
    register(session)
    return session


def settings(master: str, quick: bool, java_options: str = "") -> dict[str, str]:
    """The settings of a session, unless `--conf` says otherwise."""
    out = {
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        # An export keeps a file open for each partition that a task meets, up to this many, and so
        # need not sort. What open files buffer is bounded by a share of the heap.
        "spark.sql.maxConcurrentOutputFileWriters": "16",
        "spark.hadoop.parquet.memory.pool.ratio": "0.3",
    }
    if is_local(master):
        out["spark.driver.host"] = out["spark.driver.bindAddress"] = "127.0.0.1"
        # Enough for the JVM: files of this machine are cached by the operating system.
        out["spark.driver.memory"] = "1g"
    if quick:
        java_options += " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    out["spark.driver.extraJavaOptions"] = java_options
    return out


_LOGGING = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
"""


def _quiet_logging(folder: Path) -> str:
    """Write a configuration that logs errors only; return the JVM option that names it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = folder / "log4j2.properties"
    part = folder / f"log4j2.{os.getpid()}"
    part.write_text(_LOGGING)
    part.replace(target)
    return f"-Dlog4j2.configurationFile={target.as_uri()}"


def register(session: Any) -> None:
    """Make the format `myqueue` known to the session."""
    from myqueue.analytics.source.datasource import MyQueueSource

    session.dataSource.register(MyQueueSource)


def package(folder: Path) -> Path:
    """Make the zip for executors, each time again: it is small, and never of another version."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"myqueue-{os.getpid()}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        for package_name, names in SHIPPED:
            for file in sorted(_folder_of(package_name).glob(names)):
                out.write(file, f"{package_name.replace('.', '/')}/{file.name}")
    return target


def _folder_of(module: str) -> Path:
    import importlib

    return Path(str(importlib.import_module(module).__file__)).parent
