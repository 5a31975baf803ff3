"""`tests/RULES.md` and the tests agree: what is cited is defined, what is defined is proved.

Codes of rules belong to tests and to `daemons/raft`; all other code says the sentence. A test cites
a rule in its name or docstring, or in the docstring of its file; a golden script cites it anywhere.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import NamedTuple

import pytest
from tidy.tree import ROOT, files, read, sources

PAGE = "tests/RULES.md"
CORE = "daemons/raft/"
NUMBER = r"[1-9]|[12]\d|3[0-2]"
CODE = re.compile(rf"(?<![\w%])([BCDHKLMPQRSWZ])({NUMBER})(?:(?: to |-|–)\1({NUMBER}))?(?!\w)")
CODES_OF_NAME = re.compile(rf"test_((?:[bcdhklmpqrswz](?:{NUMBER})_)+)")


class Rule(NamedTuple):
    """A row of the page: where the rule is kept, and the test that proves it."""

    code: str
    sentence: str
    kept_in: list[str]
    test: str


def rules_of(page: str) -> list[Rule]:
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    return [
        Rule(row[1], row[2], re.findall(r"`([^`]+)`", row[3]), row[4].strip("`"))
        for row in rows
        if len(row) == 6 and re.fullmatch(rf"[A-Z](?:{NUMBER})", row[1])
    ]


def codes_in(text: str) -> set[str]:
    """Codes of a text; "R3 to R8" and "M1-M5" are ranges."""
    codes = set()
    for letter, first, last in CODE.findall(text):
        codes |= {f"{letter}{number}" for number in range(int(first), int(last or first) + 1)}
    return codes


def codes_of_name(name: str) -> set[str]:
    prefix = CODES_OF_NAME.match(name)
    return {code.upper() for code in prefix[1].split("_") if code} if prefix else set()


def cited_by(text: str) -> dict[str, set[str]]:
    """Each test of a Python file, and "" for the file itself: the codes it cites."""
    tree = ast.parse(text)
    head = codes_in(ast.get_docstring(tree) or "")
    citations = {"": head}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            own = codes_in(ast.get_docstring(node) or "") | codes_of_name(node.name)
            citations[node.name] = own | head
            citations[""] = citations[""] | own
    return citations


def codes_of_file(path: str, text: str) -> set[str]:
    """Every code that a file cites anywhere, in comments and in names of tests as well."""
    names = re.findall(r"def (test_\w+)", text) if path.endswith(".py") else []
    return codes_in(text).union(*map(codes_of_name, names))


def proof_problem(rule: Rule) -> str | None:
    """The reason why the test of a rule proves nothing, if there is one."""
    path, _, name = rule.test.partition("::")
    if not (ROOT / "tests" / path).is_file():
        return f"{rule.code}: tests/{path} does not exist"
    text = read(f"tests/{path}")
    citations = {"": codes_in(text)} if path.endswith(".txt") else cited_by(text)
    if name not in citations:
        return f"{rule.code}: tests/{path} has no test {name}"
    return None if rule.code in citations[name] else f"{rule.code}: {rule.test} does not cite it"


@functools.cache
def rules() -> list[Rule]:
    return rules_of(read(PAGE))


def citing_files() -> list[str]:
    """The files that may cite: tests, except these, and the core."""
    return [
        path
        for path in files()
        if path.endswith((".py", ".txt", ".md"))
        and path.startswith(("tests/", CORE))
        and not path.startswith(("tests/tidy/", PAGE))
    ]


def coded_lines(path: str, text: str, codes: set[str]) -> list[str]:
    """Lines of the product that cite a code instead of saying what it means."""
    return [
        f"{path}:{number}: write the sentence instead of {', '.join(sorted(cited))}"
        for number, line in enumerate(text.splitlines(), 1)
        if (cited := codes_in(line) & codes)
    ]


def test_every_rule_stands_once_and_has_a_sentence() -> None:
    codes = [rule.code for rule in rules()]
    assert len(codes) > 140 and len(set(codes)) == len(codes)
    assert {f"R{number}" for number in range(1, 33)} <= set(codes), "Raft's checklist is whole"
    assert all(rule.sentence.endswith(".") and rule.kept_in for rule in rules())


def test_what_is_cited_is_defined() -> None:
    codes = {rule.code for rule in rules()}
    unknown = {path: codes_of_file(path, read(path)) - codes for path in citing_files()}
    assert {path: cited for path, cited in unknown.items() if cited} == {}


def test_each_rule_names_a_test_that_cites_it() -> None:
    assert [problem for rule in rules() if (problem := proof_problem(rule))] == []


def test_each_rule_names_modules_that_exist() -> None:
    kept = {(rule.code, path) for rule in rules() for path in rule.kept_in}
    assert [row for row in sorted(kept) if not (ROOT / row[1]).exists()] == []


def test_the_product_says_sentences() -> None:
    codes = {rule.code for rule in rules()}
    product = [source.path for source in sources() if source.is_product]
    product += [path for path in files() if path.endswith(".md") and not path.startswith("tests/")]
    outside = [path for path in product if not path.startswith(CORE)]
    assert [line for path in outside for line in coded_lines(path, read(path), codes)] == []


def test_citations_are_read() -> None:
    assert codes_in("W1, R3 to R5; (M1-M2), Z85 %C3 H100 XR2 R2x") == {
        *("W1", "R3", "R4", "R5", "M1", "M2"),
    }
    assert codes_of_name("test_p4_r18_a_replica_joins") == {"P4", "R18"}
    assert codes_of_name("test_of_r18_x") == codes_of_name("test_z85_x") == set()
    text = '"""R1."""\ndef test_w2_x():\n    """R5."""\n    # R7\ndef other():\n    "R8"\n'
    assert cited_by(text) == {"": {"R1", "W2", "R5"}, "test_w2_x": {"R1", "W2", "R5"}}
    assert codes_of_file("a.py", text) == {"R1", "W2", "R5", "R7", "R8"}
    [line] = coded_lines("wal/a.py", "# as always\n# and here: W5\n", {"W5"})
    assert line.startswith("wal/a.py:2:") and "W5" in line
    assert coded_lines("wal/a.py", "# S3 and GCS\n", {"W5"}) == []


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("wal/test_nothing.py", "does not exist"),
        ("wal/test_journal.py::test_nothing", "has no test"),
        ("wal/test_journal.py::test_a_gap_is_refused", "does not cite it"),
        ("raft/scripts/a_leader_hands_over.txt", "does not cite it"),
    ],
)
def test_a_proof_that_is_none_is_found(test: str, problem: str) -> None:
    assert problem in (proof_problem(Rule("Z9", "It holds.", ["wal"], test)) or "")


def test_a_row_is_read() -> None:
    page = "| Rule | | Kept in | Proved by |\n|---|---|---|---|\n| W1 | It. | `wal`, `a` | `t.py` |"
    assert rules_of(page) == [Rule("W1", "It.", ["wal", "a"], "t.py")]
