"""How commands report: results on standard output, errors as one line on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer
from rich.console import Console
from rich.text import Text

from semistream.errors import SemistreamError

__all__ = ["INTERRUPTED", "MIB", "complain", "output", "reported", "side", "size_text"]

INTERRUPTED: Final = 130
"""The exit code of a command that was ended by Ctrl-C."""
MIB: Final = 1 << 20


def size_text(size: int) -> str:
    """Bytes for people to read.

    >>> size_text(3 << 20), size_text(5000)
    ('3.0 MiB', '4.9 KiB')
    """
    return f"{size / MIB:,.1f} MiB" if size >= MIB // 10 else f"{size / 1024:,.1f} KiB"


def output() -> Console:
    """The console for results: standard output."""
    return Console(highlight=False)


def side() -> Console:
    """The console for progress and errors: standard error."""
    return Console(stderr=True, highlight=False)


@contextmanager
def reported(console: Console) -> Iterator[None]:
    """End with one line and no traceback on an error of semistream or Ctrl-C."""
    try:
        yield
    except SemistreamError as error:
        complain(console, str(error))
        raise typer.Exit(1) from None
    except OSError as error:
        complain(console, str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("Interrupted.")
        raise typer.Exit(INTERRUPTED) from None


def complain(console: Console, message: str) -> None:
    """Print an error as one red line."""
    console.print(Text(" ".join(message.split()), style="red"), soft_wrap=True)
