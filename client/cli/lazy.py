"""A click group that knows its sub-commands by name, and imports one when it is called.

So `myq --help` takes no longer than click itself, and a command whose extra is not installed fails
only when it is called. The table gives names and help lines for the group's help and completion.
"""

import importlib
from typing import Any

import click


class LazyGroup(click.Group):
    """A click group; `lazy` maps a name to ("module:attribute", one line of help)."""

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]] | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a stand-in with name and help, for lists; `resolve_command` loads the command."""
        if cmd_name in self.lazy:
            return click.Command(cmd_name, short_help=self.lazy[cmd_name][1])
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in self.lazy:
            command = load(self.lazy[name][0])
        return name, command, rest


def load(target: str) -> click.Command:
    """Import and return the command at "module:attribute"; TypeError if it is not one."""
    module, _, attribute = target.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{target} is a {type(command).__name__}, not a click command")
    return command
