"""What an attack is: a name, and a function that makes one seeded case and judges it.

To add one: write a module with an `ATTACK`, and put it into `registry.py`. A case runs in a child
process, so it may crash. It gets a random generator, which is all that its outcome may depend on,
and an empty folder.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FINE: Final = "fine"
LOST, TWICE, WRONG, CRASHED, UNCLEAR = "lost", "twice", "wrong", "crashed", "unclear"
FAULTS: Final = (LOST, TWICE, WRONG, CRASHED, UNCLEAR)
"""Rows that are missing, doubled or different; a dead process; an error that is not ours."""


@dataclass(frozen=True)
class Verdict:
    """How a case went; `note` tells what was done, to find it again."""

    kind: str = FINE
    note: str = ""
    struck: int = 1
    """How many kills, faults, files or joins the case had."""


@dataclass(frozen=True)
class Attack:
    """One kind of case."""

    name: str
    case: Callable[[random.Random, Path], Verdict]
    per_child: int = 25
    """Cases that one child process runs."""
    quick: bool = True
    """Whether it takes turns in a run of a few minutes; others run only when they are named."""


def case_random(seed: int, attack: str, number: int) -> random.Random:
    """The generator of a case; the same again for the same numbers."""
    return random.Random(f"{seed}/{attack}/{number}")


def differs(found: list[tuple[object, ...]], wanted: list[tuple[object, ...]]) -> str:
    """The verdict on rows, in any order, against those that were expected."""
    if sorted(map(repr, found)) == sorted(map(repr, wanted)):
        return FINE
    missing = {*map(repr, wanted)} - {*map(repr, found)}
    strange = {*map(repr, found)} - {*map(repr, wanted)}
    return WRONG if strange else LOST if missing else TWICE
