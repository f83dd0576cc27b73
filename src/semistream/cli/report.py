"""How a command ends: with its results on standard output, or with one line on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer
from rich.console import Console
from rich.text import Text

from semistream.errors import SemistreamError

__all__ = ["INTERRUPTED", "MIB", "complain", "output", "reported", "side"]

INTERRUPTED: Final = 130
"""What a shell reports for a command that Ctrl-C ended."""
MIB: Final = 1 << 20


def output() -> Console:
    """Where results go."""
    return Console(highlight=False)


def side() -> Console:
    """Where progress and errors go."""
    return Console(stderr=True, highlight=False)


@contextmanager
def reported(console: Console) -> Iterator[None]:
    """Errors that a user can mend, and Ctrl-C, end with one line and no traceback."""
    try:
        yield
    except SemistreamError as error:
        complain(console, str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("Interrupted.")
        raise typer.Exit(INTERRUPTED) from None


def complain(console: Console, message: str) -> None:
    """Print an error as one red line."""
    console.print(Text(" ".join(message.split()), style="red"), soft_wrap=True)
