"""Each rule of `rules` fails on code that breaks it, and passes code that only looks like it."""

import pytest
from tidy import rules, tree
from tidy.tree import Source


def problems(rule: rules.Rule, text: str, path: str = "daemons/x.py") -> list[str]:
    return list(rule(Source(path, text)))


NAME = "myqueue"
LONG_FUNCTION = "def f():\n" + "    pass\n" * 70

BAD = [
    (rules.file_length, "\n" * 601),
    (rules.function_length, LONG_FUNCTION),
    (rules.function_length, "async " + LONG_FUNCTION),
    (rules.line_length, "#" + "x" * 100),
    (rules.module_docstring, "x = 1\n"),
    (rules.banned_calls, "import time\nnow = time.time()"),
    (rules.banned_calls, "import time as t\nnow = t.time_ns()"),
    (rules.banned_calls, "from time import time\nnow = time()"),
    (rules.banned_calls, "import time\nfield(default_factory=time.time)"),
    (rules.banned_calls, "from datetime import datetime\ndatetime.now()"),
    (rules.banned_calls, "import datetime\ndatetime.datetime.utcnow()"),
    (rules.banned_calls, "import os\nos.fsync(3)"),
    (rules.banned_calls, "from os import fdatasync\nfdatasync(3)"),
    (rules.banned_calls, "import random\nrandom.random()"),
    (rules.banned_calls, "from random import choice\nchoice([1])"),
    (rules.banned_calls, "print('x')"),
    (rules.banned_calls, "eval('1')"),
    (rules.banned_calls, "exec('1')"),
    (rules.banned_modules, "import pickle"),
    (rules.banned_modules, "from pickle import loads"),
    (rules.banned_modules, "def f():\n    import marshal"),
    (rules.bare_except, "try:\n    f()\nexcept:\n    pass"),
    (rules.assert_in_product, "assert x"),
    (rules.bare_install, f"how = 'pip install {NAME}'"),
    (rules.bare_install, f"how = 'pip install \"{NAME}[server]\"'"),
    (rules.bare_install, f"how = 'with the extra {NAME}[jdk]'"),
]

GOOD = [
    (rules.file_length, "\n" * 600),
    (rules.function_length, LONG_FUNCTION.replace("    pass\n", "", 1)),
    (rules.line_length, "#" + "x" * 99),
    (rules.module_docstring, '"""What it is for."""\nx = 1\n'),
    (rules.module_docstring, ""),
    (rules.banned_calls, "import time\ntime.monotonic()\nself.time.time()"),
    (rules.banned_calls, "import random\nrandom.Random(7).random()"),
    (rules.banned_calls, "def now(time): return time.time"),
    (rules.banned_calls, "re.compile('x'); model.eval(); self.print('x')"),
    (rules.banned_modules, "import json"),
    (rules.bare_except, "try:\n    f()\nexcept OSError:\n    pass"),
    (rules.bare_install, "how = 'pip install .[jdk] in the folder of myqueue'"),
]


@pytest.mark.parametrize(("rule", "text"), BAD)
def test_it_finds(rule: rules.Rule, text: str) -> None:
    assert len(problems(rule, text)) == 1


@pytest.mark.parametrize(("rule", "text"), GOOD)
def test_it_lets_pass(rule: rules.Rule, text: str) -> None:
    assert problems(rule, text) == []


def test_every_rule_is_shown_to_fail() -> None:
    assert {rule for rule, _ in BAD} == set(rules.RULES)


def test_documents_do_not_name_it_either() -> None:
    texts = [name for name in tree.files() if name.endswith((".md", ".html", ".toml", ".sh"))]
    found = [row for name in texts for row in rules.bare_installs(name, tree.read(name))]
    assert found == []


def test_a_problem_says_where_and_what_instead() -> None:
    [problem] = problems(rules.banned_calls, "import time\n\nnow = time.time()")
    assert problem.startswith("daemons/x.py:3: time.time: take the time as an argument")


def test_places_whose_job_it_is_are_excused() -> None:
    clock, sync = "import time\ntime.time()", "import os\nos.fdatasync(3)"
    assert problems(rules.banned_calls, clock, "daemons/clock.py") == []
    assert problems(rules.banned_calls, sync, "wal/files.py") == []
    assert problems(rules.banned_calls, clock, "wal/files.py") != []


def test_tests_may_assert_and_print_but_are_seeded() -> None:
    path = "tests/wal/test_x.py"
    assert problems(rules.assert_in_product, "assert x", path) == []
    assert problems(rules.banned_calls, "print(1)", path) == []
    assert problems(rules.banned_calls, "import random\nrandom.seed(1)", path) != []
    assert problems(rules.banned_calls, "eval('1')", path) != []
