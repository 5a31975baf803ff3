"""The files of the project, each read and parsed once.

A file counts if git knows it or would take it, so that a rule speaks before the commit. Without
git (an unpacked archive) all files of the project's folders count.
"""

import ast
import configparser
import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("client", "daemons", "wal", "gateway", "analytics")
FOLDERS = (*PRODUCT, "tests", "bin", ".ci")


@dataclass(frozen=True)
class Source:
    """A Python file: its path below the root, its text and its syntax tree."""

    path: str
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def folder(self) -> str:
        return self.path.partition("/")[0]

    @property
    def is_product(self) -> bool:
        return self.folder in PRODUCT


def git_files(*options: str) -> list[str] | None:
    """What `git ls-files` says, or None where there is no repository."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    if done.returncode != 0 or not done.stdout:
        return None
    return sorted({name for name in done.stdout.split("\0") if (ROOT / name).is_file()})


@functools.cache
def files() -> list[str]:
    """Paths below the root of every file of the project."""
    known = git_files("--cached", "--others", "--exclude-standard")
    if known is not None:
        return known
    found = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.is_file()]
    found += [p for p in ROOT.iterdir() if p.is_file()]
    return sorted(str(p.relative_to(ROOT)) for p in found if "__pycache__" not in p.parts)


@functools.cache
def sources() -> list[Source]:
    """Every Python file."""
    return [Source(name, read(name)) for name in files() if name.endswith(".py")]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@functools.cache
def setup_cfg() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read_string(read("setup.cfg"))
    return config


def package_folders() -> dict[str, str]:
    """The packages that setup.cfg lists, each with its folder: {"myqueue.cli": "client/cli"}."""
    options = setup_cfg()["options"]
    pairs = [line.split("=") for line in options["package_dir"].split("\n") if line.strip()]
    roots = {name.strip(): folder.strip() for name, folder in pairs}
    folders = {}
    for package in options["packages"].split():
        root = max((name for name in roots if f"{package}.".startswith(f"{name}.")), key=len)
        folders[package] = roots[root] + package.removeprefix(root).replace(".", "/")
    return folders
