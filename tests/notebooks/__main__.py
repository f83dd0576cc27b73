"""Runs notebooks, and writes their new outputs into them if it is told to.

python -m tests.notebooks NAME…            fails if a cell does
python -m tests.notebooks --write NAME…    and these outputs are what readers see
"""

from __future__ import annotations

import argparse
import sys

import nbformat
from nbclient.exceptions import CellExecutionError

from tests.notebooks.running import FOLDER, run, tidy


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.notebooks", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("names", nargs="+")
    asked = parser.parse_args()
    for name in asked.names:
        path = FOLDER / f"{name}.ipynb"
        try:
            notebook = tidy(run(path))
        except CellExecutionError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            return 1
        if asked.write:
            nbformat.write(notebook, path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
