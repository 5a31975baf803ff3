"""The rules of `rules` and `layers`, applied to every Python file; and what the tree may hold."""

import re
from collections.abc import Callable, Iterator

import pytest
from tidy import layers, rules
from tidy.tree import Source, files, git_files, read, sources

ROOT_NAMES = {
    *("README.md", "CHANGELOG.md", "LICENSE", "setup.cfg", "pyproject.toml", ".gitignore", ".ci"),
    *("client", "daemons", "wal", "gateway", "analytics", "tests", "bin"),
}
# Spelled so that this file does not hold them.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


@pytest.mark.parametrize("rule", [*rules.RULES, *layers.RULES], ids=lambda rule: rule.__name__)
def test_every_source_keeps(rule: Callable[[Source], Iterator[str]]) -> None:
    problems = [problem for source in sources() for problem in rule(source)]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_client_hides_no_other_package() -> None:
    assert [problem for name in files() if (problem := layers.shadowing_file(name))] == []


def unfinished(name: str, text: str) -> list[str]:
    return [
        f"{name}:{number}: finish it, or write down in the docs that it is missing"
        for number, line in enumerate(text.splitlines(), 1)
        if UNFINISHED.search(line)
    ]


def test_nothing_is_marked_as_unfinished() -> None:
    texts = [name for name in files() if not name.endswith((".png", ".ico", ".bin", ".wal", ".xz"))]
    assert [problem for name in texts for problem in unfinished(name, read(name))] == []
    assert unfinished("a", "one\n# XX" + "X later") == [
        "a:2: finish it, or write down in the docs that it is missing"
    ]


def unexpected_at_root(names: list[str]) -> set[str]:
    return {name.partition("/")[0] for name in names} - ROOT_NAMES


def test_root_holds_only_what_the_design_names() -> None:
    assert unexpected_at_root(git_files() or []) == set()
    assert unexpected_at_root(["wal/a.py", "notes.txt", "docs/a.md"]) == {"notes.txt", "docs"}


def test_sources_are_found() -> None:
    """A broken search would make every rule above pass."""
    found = {source.path for source in sources()}
    assert {"client/__init__.py", "client/cli/shared/output.py", "tests/tidy/rules.py"} <= found
