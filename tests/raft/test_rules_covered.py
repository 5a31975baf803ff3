"""Every rule of the Raft checklist, R1 to R32, is named by a test that proves it.

A rule counts as named by the name or docstring of a test, by the prose of a golden script, or by a
docstring of the simulator, whose runs prove what no single case can. What each rule demands is in
`daemons/raft/DESIGN.md`. R27 and R32 are about state machines, which the
core never looks into; the simulator proves them.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
RULES = [f"R{number}" for number in range(1, 33)]
RULE = re.compile(r"(?i)\bR\d{1,2}(?=\b|_)|(?<=_)r\d{1,2}(?=_)")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def rules_in(text: str) -> set[str]:
    return {found.upper() for found in RULE.findall(text)}


def of_tests(path: Path) -> dict[str, set[str]]:
    """Test -> the rules that its name or docstring names."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            text = f"{node.name} {ast.get_docstring(node) or ''}"
            found[f"{path.name}::{node.name}"] = rules_in(text)
    return found


def of_script(path: Path) -> set[str]:
    prose = [line for line in path.read_text().splitlines() if line.startswith("#")]
    return rules_in(" ".join(prose))


def of_simulator(path: Path) -> set[str]:
    nodes = [one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, DOCUMENTED)]
    return rules_in(" ".join(ast.get_docstring(node) or "" for node in nodes))


@cache
def proofs() -> dict[str, list[str]]:
    """Rule -> what names it."""
    named: dict[str, set[str]] = {}
    for path in sorted((TESTS / "raft").glob("test_*.py")):
        if path != Path(__file__):
            named |= of_tests(path)
    for path in sorted((TESTS / "raft/scripts").glob("*.txt")):
        named[path.stem] = of_script(path)
    for path in sorted((TESTS / "sim").glob("*.py")):
        named[f"sim/{path.name}"] = of_simulator(path)
    return {rule: [test for test, rules in named.items() if rule in rules] for rule in RULES}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_named_by_its_proof(rule: str) -> None:
    assert proofs()[rule], f"no test names {rule}"


def test_names_and_prose_are_read(tmp_path: Path) -> None:
    """A broken search would find everything, or nothing."""
    path = tmp_path / "test_a.py"
    path.write_text('def test_r5_x():\n    """And R14."""\n    # R20\n\ndef other():\n    "R3"\n')
    assert of_tests(path) == {"test_a.py::test_r5_x": {"R5", "R14"}}
    path.write_text("# R6; R7.\n> propose 1 R8\n  1 writes R9\n")
    assert of_script(path) == {"R6", "R7"}
    path.write_text('"""R1."""\nclass A:\n    "R2"\n    # R3\n')
    assert of_simulator(path) == {"R1", "R2"}
