"""Benchmarks are scripts, run with their own folder on the path: their tests need it there too."""

import sys
from pathlib import Path

# Last, so that a script named like an installed package ("build") does not hide it.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
