"""The reference of the command line, as Markdown, from the commands themselves.

Typer brings a Click of its own, so extensions that look for Click's classes do not see them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from semistream.cli import app

__all__ = ["command_pages"]


def command_pages() -> str:
    """All commands, each under a heading of its own."""
    return "\n".join(_lines(get_command(app), "semistream", None))


def _lines(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    names = command.list_commands(context) if hasattr(command, "list_commands") else []
    if parent is not None:
        usage = " ".join(command.collect_usage_pieces(context))
        path = context.command_path
        yield from (f"## {path}", "", _text(command), "", f"```text\n{path} {usage}\n```", "")
        yield from _options(command, context)
    for one in names:
        yield from _lines(command.get_command(context, one), one, context)


def _text(command: Any) -> str:
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    return text.replace("\b\n", "")


def _options(command: Any, context: Any) -> Iterator[str]:
    records = (one.get_help_record(context) for one in command.get_params(context))
    for names, text in filter(None, records):
        if "--help" not in names:
            yield from (f"`{names}`", f": {text or '…'}", "")
