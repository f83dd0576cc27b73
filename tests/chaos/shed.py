"""A folder of shed tuples after a kill, then damaged: whole batches come back, each once."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.parts.shed_file import ShedFile
from tests.chaos.attack import LOST, TWICE, WRONG, Attack, Verdict

ROWS = 50


def _case(rng: random.Random, folder: Path) -> Verdict:
    file = ShedFile.recover(folder / "shed")
    ends = []
    for number in range(rng.randint(2, 12)):
        sales = np.arange(ROWS * number, ROWS * number + ROWS)
        file.append(0.0, pa.record_batch({"sale": sales}))
        ends.append(file.bytes)
    file.sync()
    shutil.copytree(folder / "shed", folder / "killed")
    file.close()
    (path,) = (folder / "killed").glob("shed-*")
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    cut = rng.random() < 0.3
    if cut:
        del data[at:]
    else:
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    begins = [0, *ends[:-1]]
    touched = {n for n in range(len(ends)) if (at < ends[n] if cut else begins[n] <= at < ends[n])}
    sure = [n for n in range(ROWS * len(ends)) if n // ROWS not in touched]
    if not cut and touched == {0}:
        # The schema stands before the first batch: without it nothing can be read.
        sure = []
    found = ShedFile.recover(folder / "killed")
    # As a run does. A bit of the schema may be another now, which nothing else can show.
    found.expect(pa.schema([("sale", pa.int64())]))
    back = [n for piece in found.take(len(found)) for n in piece.batch["sale"].to_pylist()]
    found.close()
    note = f"{'cut' if cut else 'bit'} at {at} of {len(data)}"
    if len(set(back)) < len(back):
        return Verdict(TWICE, note)
    if not {*back} <= {*range(ROWS * len(ends))} or back != sorted(back):
        return Verdict(WRONG, note)
    return Verdict(LOST, note) if not {*sure} <= {*back} else Verdict(note=note)


ATTACK = Attack("damaged shed folder", _case)
