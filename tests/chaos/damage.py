"""Damaged files of a master table: bits flipped, bytes changed, ends cut, pieces swapped."""

from __future__ import annotations

import random
from pathlib import Path

from semistream.testing import rows_of
from tests.chaos import scene
from tests.chaos.attack import Attack, Verdict, differs


def harm(rng: random.Random, data: bytearray) -> str:
    """Damage some bytes in one way. Returns which."""
    way = rng.choice(["bit", "bytes", "cut", "grown", "zeros"])
    at = rng.randrange(max(len(data), 1))
    if way == "bit" and data:
        data[at] ^= 1 << rng.randrange(8)
    elif way == "bytes":
        data[at : at + 9] = rng.randbytes(len(data[at : at + 9]))
    elif way == "cut":
        del data[at:]
    elif way == "grown":
        data[at:at] = rng.randbytes(rng.randint(1, 20))
    else:
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    return f"{way} at {at}"


def _case(rng: random.Random, folder: Path) -> Verdict:
    model = scene.build(rng, folder / "r")
    files = sorted((folder / "r").rglob("*.*"))
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    note = f"{path.name}: {harm(rng, data)}"
    path.write_bytes(data)
    return Verdict(differs(rows_of(scene.ask(rng, folder / "r")), [*model.values()]), note)


ATTACK = Attack("damaged master", _case, per_child=50)
