"""A process that assigns keys until it is done or killed; it notes each answer before the next.

python key_writer.py <key table> <notes> <seed> <rounds>
"""

from __future__ import annotations

import json
import sys

import numpy as np
import pyarrow as pa

from semistream.relation import MasterTable
from semistream.relation.key_table import assigned


def main(path: str, notes: str, seed: int, rounds: int) -> None:
    """Ask for random keys that are new, or that others ask for at the same time."""
    rng = np.random.default_rng(seed)
    with open(notes, "a", encoding="utf-8") as file:
        for _ in range(rounds):
            sources = [f"s{i}" for i in rng.integers(0, 2, 30)]
            low = MasterTable.latest_version(path) * 10
            products = rng.integers(low, low + 60, 30).tolist()
            keys = [pa.array(sources), pa.array(products)]
            numbers = assigned(path, keys, ["source", "product"], keep=0.0).tolist()
            told = list(zip(sources, products, numbers, strict=True))
            file.write(json.dumps(told) + "\n")
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
