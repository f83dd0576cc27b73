"""What terms cost: the same stream joined plainly, in stream order, with a condition, semi, anti.

    python benchmarks/terms.py --master folder [--tuples 300000] [--memory 32MB] [--repetitions 5]

The master is one that exists, with an integer key. The stream has Zipf-distributed keys and is made
beforehand, in batches of 10,000. A plain left join is the measure: each way is run beside it, in
turns, with warm engines. CPU time of the process is reported, since it says more on a machine that
has other work; medians of the ratios of neighbouring runs. `--shares` also tries other shares of
the memory for a round, by how `round_memory` divides it.

Writes one JSON line per way to benchmarks/results/terms.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import semistream as ss
from results import machine, write_results
from semistream.matching import round_memory
from semistream.workload.zipf import ZipfKeys

RESULTS = Path(__file__).parent / "results"
WAYS: dict[str, dict[str, Any]] = {
    "left": {"how": "left"},
    "left, in stream order": {"how": "left", "preserve_order": True},
    "left, where": {"how": "left", "where": "quantity >= 50"},
    "inner, where": {"how": "inner", "where": "quantity >= 50"},
    "semi": {"how": "semi"},
    "anti": {"how": "anti"},
}
