"""What is installed is what stands in the folders, and importing it stays cheap."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tidy.tree import PRODUCT, ROOT, files, package_folders, setup_cfg

import myqueue

# Not part of the base installation, or too slow to be paid by everybody who imports us.
EXTRAS = ["flask", "prometheus_client", "pyspark", "pyarrow", "lmdb"]
HEAVY = [*EXTRAS, "zmq", "msgpack", "click", "asyncio"]


def product_files() -> list[str]:
    return [name for name in files() if name.startswith(tuple(f"{p}/" for p in PRODUCT))]


def test_setup_cfg_lists_exactly_the_packages_there_are() -> None:
    folders = {str(Path(name).parent) for name in product_files() if name.endswith(".py")}
    assert set(package_folders().values()) == folders
    assert {f"{folder}/__init__.py" for folder in folders} <= set(files())


def test_version_has_one_source() -> None:
    assert setup_cfg()["metadata"]["version"] == "attr: myqueue.__version__"
    assert myqueue.__version__.count(".") == 2


def test_a_wheel_holds_exactly_the_files_of_the_folders(tmp_path: Path) -> None:
    # A copy, so that what other builds left in the tree cannot slip into the wheel.
    for name in files():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "tree" / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(tmp_path), str(tmp_path / "tree")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("myqueue-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == {installed_path(name) for name in product_files()}


def installed_path(name: str) -> str:
    """client/cli/wal/commands.py -> myqueue/cli/wal/commands.py; every other folder goes below
    myqueue/. Only what Spark looks for by its name stands beside it.
    """
    if name.startswith("analytics/pyspark_myqueue/"):
        return name.removeprefix("analytics/")
    return f"myqueue/{name.removeprefix('client/')}"


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after this statement."""
    code = f"{statement}\nimport sys\nsys.__stdout__.write('\\n' + ' '.join(sys.modules))"
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n")[-1].split())


def test_import_myqueue_loads_nothing_heavy() -> None:
    loaded = loaded_by("import myqueue")
    assert "myqueue.errors" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("words", [["--help"], ["version"]])
def test_light_commands_load_click_and_nothing_else(words: list[str]) -> None:
    loaded = loaded_by(f"from myqueue.cli import main\nmain({words!r})")
    assert loaded & set(HEAVY) == {"click"}


def test_the_client_needs_no_extra() -> None:
    names = [name for name in product_files() if name.startswith("client/")]
    modules = [
        installed_path(name).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in names
        if name.endswith(".py") and not name.endswith("__main__.py")
    ]
    blocked = f"import sys\nfor name in {EXTRAS}: sys.modules[name] = None\n"
    loaded = loaded_by(blocked + "\n".join(f"import {module}" for module in modules))
    assert set(modules) <= loaded
