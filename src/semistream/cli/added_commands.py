"""Commands that other packages add to `semistream`.

An entry point of the group "semistream.commands" has the command's name and names a `typer.Typer`
that runs it. It is loaded when that command is called, or when help lists all commands.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from semistream.cli.report import INTERRUPTED, reported, side
from semistream.errors import OptionError

__all__ = ["GROUP", "ExtensibleGroup"]

GROUP: Final = "semistream.commands"


class ExtensibleGroup(TyperGroup):
    """The library's own commands, then those that entry points add. Ctrl-C is one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            side().print("Interrupted.")
            raise typer.Exit(INTERRUPTED) from None

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, for help."""
        own = super().list_commands(ctx)
        return [*own, *sorted(entry_points(group=GROUP).names - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None."""
        own = super().get_command(ctx, cmd_name)
        return _added(cmd_name) if own is None else own


def _added(name: str) -> Any:
    for entry_point in entry_points(group=GROUP, name=name):
        try:
            return get_command(entry_point.load())
        except ImportError as error:
            return _unavailable(name, f"{entry_point.value} cannot be imported: {error}")
    return None


def _unavailable(name: str, reason: str) -> Any:
    """A command that says why it cannot run, so that help and all others still do."""
    app = typer.Typer(add_completion=False)
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name, help=f"Not available: {reason}", context_settings=anything)
    def fail() -> None:
        with reported(side()):
            raise OptionError(f"semistream {name} is not available: {reason}. Install it again.")

    return get_command(app)
