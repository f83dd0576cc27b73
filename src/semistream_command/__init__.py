"""Where the command `semistream` begins.

Importing the library takes a moment, in which somebody may press Ctrl-C. So this is a package of
its own, which imports it inside the function.
"""

import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command; Ctrl-C ends it with one line, at any time."""
    try:
        from semistream.cli import app

        app()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        raise SystemExit(_INTERRUPTED) from None
