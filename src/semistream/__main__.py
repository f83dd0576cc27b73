"""`python -m semistream`: the command line."""

from semistream.cli import app

if __name__ == "__main__":
    app()
