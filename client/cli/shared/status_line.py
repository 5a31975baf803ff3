"""Show on the terminal what a command waits for. Without a terminal, show nothing."""

from __future__ import annotations

import shutil
import sys

import click


class Line:
    """One line of stderr that is overwritten by each new text."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = ""

    def show(self, text: str) -> None:
        if self._terminal and text != self._shown:
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"\r\x1b[K{text[:width]}", nl=False, err=True)
            self._shown = text

    def clear(self) -> None:
        if self._terminal and self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._shown = ""
