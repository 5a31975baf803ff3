"""The page of limits in `gateway/http` has every setting that is one, with its true default."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

from myqueue.gateway import http
from myqueue.gateway.http import deadlines
from myqueue.gateway.settings import DEFAULTS, SETTINGS

PAGE = http.__doc__ or ""
FOLDER = Path(http.__file__).parent
COMPUTED = {"waiting_max": "a third", "making_s_max": f"{deadlines.making_s_max(DEFAULTS):g} s"}


def rows() -> list[list[str]]:
    lines = (re.split(" {2,}", line.strip()) for line in PAGE.splitlines())
    found = [row for row in lines if len(row) == 5 and row[1] != "ulimit -n"]
    assert found[0] == ["limit", "name", "default", "module", "over it"]
    return found[1:]


def test_every_limit_is_listed_once_with_its_default() -> None:
    listed = {row[1]: row[2] for row in rows()}
    missing = [s.name for s in SETTINGS if type(s.default) is int and s.name not in PAGE]
    assert len(listed) == len(rows()) == 24 and missing == []
    true = {name: COMPUTED.get(name) or shown(name, value_of(name)) for name in listed}
    assert listed == true


def test_every_limit_is_applied_in_its_module() -> None:
    for _, name, _, module, _ in rows():
        source = Path(named(module).__file__ or "").read_text()
        assert re.search(rf"\b{name}\b", source), (name, module)
        if name.isupper():
            assert re.search(rf"^{name}: Final = ", source, re.M), (name, module)


def test_the_overview_names_all_modules() -> None:
    overview = PAGE.partition("Every limit")[0]
    modules = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert {name for name in modules if f"`{name}`" not in overview} == set()


def named(module: str) -> ModuleType:
    """The module of this package, or of another one of the gateway."""
    package = "http." if (FOLDER / f"{module}.py").exists() else ""
    return importlib.import_module(f"myqueue.gateway.{package}{module}")


def value_of(name: str) -> float:
    """The value of a setting, or of the constant with this name."""
    if name.islower():
        return float(getattr(DEFAULTS, name))
    (module,) = [row[3] for row in rows() if row[1] == name]
    return float(getattr(named(module), name))


def shown(name: str, value: float) -> str:
    if name.endswith(("_ms", "_S")) or name == "wait_ms_max":
        return f"{value / (1000 if name.islower() else 1):g} s"
    if "BYTES" not in name.upper():
        return f"{value:,.0f}"
    return f"{value / (1 << 20):g} MiB" if value >= 1 << 20 else f"{value / 1024:g} KiB"
