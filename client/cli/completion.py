"""`myq completion`: the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

HOW = {
    "bash": 'eval "$(myq completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(myq completion zsh)"    # in ~/.zshrc',
    "fish": "myq completion fish | source    # in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\n" + "\n".join(HOW.values()))
@click.argument("shell", type=click.Choice(list(HOW)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes myq's commands and options."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"no completion for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "myq", "_MYQ_COMPLETE").source())
