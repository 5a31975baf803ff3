"""Decorators for the constructors of public clients: arguments by name, and help that lists them.

Each constructor names all its arguments, with types and defaults. The defaults of settings come
from the tables in `settings`: `linger_ms: int = ProducerSettings.linger_ms`. So a type checker
refuses a wrong name, `help()` shows each argument, and no default is written twice. Comes in: a
constructor or a class. Goes out: the same one, which refuses an unknown name with `InvalidSetting`
and a hint, or whose docstring ends with its table of settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature
from textwrap import wrap
from typing import Any, Concatenate, ParamSpec, TypeVar

from myqueue.errors import InvalidSetting
from myqueue.settings import Settings, rows

P = ParamSpec("P")
Class = TypeVar("Class", bound=type)
WIDTH = 92  # of a docstring's line: help() indents it


def named_arguments(constructor: Callable[P, None]) -> Callable[P, None]:
    """Refuse an argument that this constructor does not know with InvalidSetting."""
    names = list(signature(constructor).parameters)[1:]

    @wraps(constructor)
    def checked(*arguments: P.args, **named: P.kwargs) -> None:
        _refuse_unknown(type(arguments[0]).__name__, named, names)
        constructor(*arguments, **named)

    return checked


def arguments_of(
    client: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the arguments of another class, for type checkers and for help()."""
    shown = signature(client)

    def typed(constructor: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        @wraps(constructor)
        def checked(*arguments: Any, **named: Any) -> None:
            _refuse_unknown(type(arguments[0]).__name__, named, list(shown.parameters))
            constructor(*arguments, **named)

        this = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        checked.__signature__ = shown.replace(  # type: ignore[attr-defined]
            parameters=[this, *shown.parameters.values()], return_annotation=None
        )
        return checked

    return typed


def _refuse_unknown(owner: str, named: Iterable[str], names: list[str]) -> None:
    for name in named:
        if name not in names:
            from difflib import get_close_matches

            similar = get_close_matches(name, names, 1)
            question = f"Did you mean {similar[0]}=? " if similar else ""
            raise InvalidSetting(
                f"{owner} has no argument {name}=",
                hint=f"{question}It has {', '.join(names)}.",
            )


def lists_settings(settings: type[Settings]) -> Callable[[Class], Class]:
    """Append the table of these settings to the docstring of a class."""

    def documented(client: Class) -> Class:
        if client.__doc__ is not None:  # python -OO drops docstrings
            client.__doc__ = f"{client.__doc__.rstrip()}\n\n{settings_text(settings)}"
        return client

    return documented


def settings_text(settings: type[Settings]) -> str:
    """One paragraph for each setting: name, default, unit, meaning."""
    lines = ["    Settings, each with its default:", ""]
    for row in rows(settings):
        unit = f" {row.unit}" if row.unit and row.default is not None else ""
        lines.append(f"    {row.name} = {row.default!r}{unit}")
        lines += wrap(row.help, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines) + "\n    "
