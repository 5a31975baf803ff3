"""A package is a room: a few files of one matter, and a docstring that shows a newcomer round.

A class name means one thing within a top folder.
"""

import ast
from collections import Counter, defaultdict
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


def doubled(all_sources: Iterable[Source]) -> list[str]:
    """Class names that mean two things within one top folder."""
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for source in all_sources:
        for node in source.nodes if source.is_product else ():
            if isinstance(node, ast.ClassDef):
                places[source.folder, node.name].append(f"{source.path}:{node.lineno}")
    return [
        f"{' and '.join(at)}: two classes {name}; give each the name of what it is"
        for (_, name), at in sorted(places.items())
        if len(at) > 1
    ]


def test_a_class_name_means_one_thing_in_a_top_folder() -> None:
    assert doubled(sources()) == []


def test_a_doubled_class_name_is_found() -> None:
    one, two = "class Run: ...\n", "def f():\n    class Run: ...\n"
    pair = [Source("wal/log.py", one), Source("wal/read/walk.py", two)]
    [problem] = doubled(pair)
    assert problem.startswith("wal/log.py:1 and wal/read/walk.py:2: two classes Run;")
    elsewhere = [Source("client/walk.py", one), Source("tests/walk.py", two)]
    assert doubled([pair[0], *elsewhere]) == []
