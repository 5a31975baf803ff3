"""Pages that pages and docstrings name exist: a link, or a path such as daemons/DESIGN.md."""

import re
from pathlib import PurePath

from tidy.tree import ROOT, files, read

LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
PAGE = re.compile(r"(?<![\w/.<{])(?:\.\./)*(?:[\w.]+/)+[A-Z_]+\.md\b")
PARENTS_MAX = 2  # a docstring may name a page from its folder or from the package above


def named_pages(name: str, text: str) -> set[str]:
    """Relative paths that a page or a docstring names."""
    links = {link for link in LINK.findall(text) if "://" not in link} if ".md" in name else set()
    return links | set(PAGE.findall(text))


def broken(name: str, text: str) -> list[str]:
    folders = [ROOT, *(ROOT / folder for folder in list(PurePath(name).parents)[:PARENTS_MAX])]
    return [
        f"{name}: {page} does not exist"
        for page in sorted(named_pages(name, text))
        if not any((folder / page).exists() for folder in folders)
    ]


def test_named_pages_exist() -> None:
    texts = [name for name in files() if name.endswith((".md", ".py"))]
    pages = [name for name in texts if not name.startswith("tests/tidy/")]
    assert [problem for name in pages for problem in broken(name, read(name))] == []


def test_a_broken_link_is_found() -> None:
    text = "[a](GUARANTEES.md) [b](NOTHING.md#x) [c](https://a.b/C.md) `../wal/DESIGN.md` wal/NO.md"
    assert broken("daemons/DESIGN.md", text) == [
        "daemons/DESIGN.md: NOTHING.md does not exist",
        "daemons/DESIGN.md: wal/NO.md does not exist",
    ]
    assert broken("daemons/raft/a.py", '"""`raft/DESIGN.md`, `raft/NO.md`, see `X.md`."""') == [
        "daemons/raft/a.py: raft/NO.md does not exist"
    ]
