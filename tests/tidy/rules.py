"""Rules about how the code is written: size, calls that are banned, words that are banned.

A rule takes a source and yields one line for each place that breaks it: where, what, and what to
do instead. `RULES` names them all; `test_rules.py` shows that each can fail.
"""

import ast
import re
from collections.abc import Callable, Iterator

from tidy.tree import Source

FILE_LINES_MAX, FUNCTION_LINES_MAX, LINE_CHARS_MAX = 600, 70, 100

Rule = Callable[[Source], Iterator[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef

CLOCK = "take the time as an argument; processes get it from daemons/clock.py"
SEEDED = "take a random.Random(seed) as an argument, so that a run can be repeated"
OWN_SYNC = "go through wal/files.py, the only place that syncs"
DECODE = "use the codec in client/wire/protocol.py; this one runs what it reads"
BANNED_CALLS = {
    "time.time": CLOCK,
    "time.time_ns": CLOCK,
    "datetime.datetime.now": CLOCK,
    "datetime.datetime.utcnow": CLOCK,
    "datetime.datetime.today": CLOCK,
    "datetime.date.today": CLOCK,
    "os.fsync": OWN_SYNC,
    "os.fdatasync": OWN_SYNC,
    "os.sync": OWN_SYNC,
    "print": "log in daemons, raise in libraries, click.echo in commands",
    "eval": "write the code, or parse the value",
    "exec": "write the code, or import it",
}
# Who may, because it is their job: a file, or a folder with its slash.
EXCUSED = {
    CLOCK: ("daemons/clock.py", "client/cli/"),
    OWN_SYNC: ("wal/files.py",),
}
# These hold in tests as well; all others are about the product only.
BANNED_EVERYWHERE = ("eval", "exec")
BANNED_MODULES = dict.fromkeys(("pickle", "marshal", "shelve", "dill"), DECODE)


# On public indexes this name is a project of other people.
BARE_INSTALL = re.compile(r"pip3? install[\s'\"`]+myqueue|\bmyqueue\[\w")
HOW_TO_INSTALL = (
    "name the folder: client/cli/shared/install_hint.py knows it, '.[extra]' is always right"
)


def file_length(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX:
        most = f"{FILE_LINES_MAX} at most"
        yield f"{source.path}: {lines} lines; split it where the idea splits ({most})"


def function_length(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, Function) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield (
                    f"{at(source, node)}: {node.name} has {lines} lines; "
                    f"move its leaves into functions ({FUNCTION_LINES_MAX} at most)"
                )


def line_length(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if len(line) > LINE_CHARS_MAX:
            yield f"{source.path}:{number}: {len(line)} characters ({LINE_CHARS_MAX} at most)"


def module_docstring(source: Source) -> Iterator[str]:
    if source.text.strip() and not ast.get_docstring(source.tree):
        yield f"{source.path}: open the file with a docstring that says what it is for"


def banned_calls(source: Source) -> Iterator[str]:
    """Uses, not only calls: `default_factory=time.time` is one as well."""
    for node, name in used_names(source):
        advice = BANNED_CALLS.get(name)
        if advice is None and re.fullmatch(r"random\.(?!Random$|SystemRandom$)\w+", name):
            yield f"{at(source, node)}: {name}: {SEEDED}"
        if advice is None or not (source.is_product or name in BANNED_EVERYWHERE):
            continue
        if not source.path.startswith(EXCUSED.get(advice, ())):
            yield f"{at(source, node)}: {name}: {advice}"


def banned_modules(source: Source) -> Iterator[str]:
    for node, name in imports(source):
        advice = BANNED_MODULES.get(name.partition(".")[0])
        if advice:
            yield f"{at(source, node)}: {name}: {advice}"


def bare_except(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{at(source, node)}: bare except catches Ctrl-C too: name the errors"


def assert_in_product(source: Source) -> Iterator[str]:
    for node in source.nodes if source.is_product else ():
        if isinstance(node, ast.Assert):
            yield (
                f"{at(source, node)}: assert vanishes under -O and says nothing to users: "
                "raise an error of myqueue.errors, or a ValueError"
            )


def bare_install(source: Source) -> Iterator[str]:
    """No hint may install what the index has under our name."""
    yield from bare_installs(source.path, source.text)


def bare_installs(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if BARE_INSTALL.search(line):
            yield f"{path}:{number}: {line.strip()}: {HOW_TO_INSTALL}"


def at(source: Source, node: ast.AST) -> str:
    return f"{source.path}:{getattr(node, 'lineno', 0)}"


def imports(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Every imported name in full: `from a import b` is "a.b"."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            yield from ((node, f"{dots}{node.module or ''}.{alias.name}") for alias in node.names)


def used_names(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Every name and attribute that is read, under the full name it was imported by."""
    full = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                full[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                full[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in source.nodes:
        dotted = dotted_name(node)
        if dotted and not isinstance(getattr(node, "ctx", None), ast.Store):
            first, dot, rest = dotted.partition(".")
            yield node, full.get(first, first if not dot else f"?{first}") + dot + rest


def dotted_name(node: ast.AST) -> str | None:
    """`a.b.c` for names and attributes of names, None for all else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            before = dotted_name(value)
            return f"{before}.{attribute}" if before else None
    return None


RULES: tuple[Rule, ...] = (
    file_length,
    function_length,
    line_length,
    module_docstring,
    banned_calls,
    banned_modules,
    bare_except,
    assert_in_product,
    bare_install,
)
