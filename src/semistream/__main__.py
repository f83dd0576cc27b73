"""`python -m semistream`: the command line."""

from semistream.cli import app

app()
