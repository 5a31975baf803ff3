"""A package is a room: a few files of one matter, and a docstring that shows a newcomer round."""

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tidy.tree import PRODUCT, Source, files, sources

FILES_MAX = 15  # `__init__` and `__main__` aside
DOC_LINES_MIN = 5  # what it is, what comes in and goes out, who may import it


def crowded(names: Iterable[str]) -> list[str]:
    """Packages of the product with too many files."""
    paths = [Path(name) for name in names if name.startswith(tuple(f"{p}/" for p in PRODUCT))]
    counts = Counter(p.parent for p in paths if p.suffix == ".py" and not p.stem.startswith("__"))
    return [
        f"{folder}/: {count} files; find what belongs together ({FILES_MAX} at most)"
        for folder, count in sorted(counts.items())
        if count > FILES_MAX
    ]


def undescribed(source: Source) -> list[str]:
    """A package that does not say what it is for."""
    if not source.is_product or not source.path.endswith("/__init__.py"):
        return []
    doc = ast.get_docstring(source.tree) or ""
    if len(doc.splitlines()) >= DOC_LINES_MIN:
        return []
    return [f"{source.path}: say what the package is, what comes in, what goes out, who imports it"]


def test_no_package_is_crowded() -> None:
    assert crowded(files()) == []


def test_every_package_is_described() -> None:
    assert [problem for source in sources() for problem in undescribed(source)] == []


def test_a_crowded_package_is_found() -> None:
    names = [f"wal/tools/x{number}.py" for number in range(FILES_MAX)]
    besides = ["wal/tools/__init__.py", "wal/tools/A.md", *(f"tests/x{n}.py" for n in range(20))]
    assert crowded([*names, *besides]) == []
    [problem] = crowded([*names, "wal/tools/one_more.py"])
    assert problem.startswith("wal/tools/: 16 files;")


def test_a_package_without_description_is_found() -> None:
    assert len(undescribed(Source("wal/tools/__init__.py", '"""Tools."""\n'))) == 1
    assert undescribed(Source("wal/tools/__init__.py", '"""Tools.\n\nA\nb\nc\n"""\n')) == []
    assert undescribed(Source("wal/tools/verify.py", '"""Tools."""\n')) == []
