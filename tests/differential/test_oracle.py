"""Every algorithm against the oracle, on joins drawn from a grid of settings.

The grid is seeds × Zipf exponent × batch size × page size × budget (from the least that works)
× key type × layout × duplicates × kind of join × strings or not. It is sampled so that every
value comes equally often; `--seed` draws another sample and other data. One join runs through
all algorithms: the same input must give the same rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import semistream as ss
from semistream import keys

SAMPLES = 72
COLLIDING = 24


@pytest.mark.parametrize("number", range(SAMPLES))
def test_every_algorithm_gives_what_the_oracle_gives(
    number: int, draw: Any, tmp_path: Path
) -> None:
    draw(number, SAMPLES).check(ss.ALGORITHMS, tmp_path)


@pytest.mark.parametrize("number", range(COLLIDING))
def test_colliding_hashes_do_not_join(
    number: int, draw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With eight codes for all keys almost every pair of equal codes has different keys."""
    monkeypatch.setattr(keys, "_HASH_MASK", 0x7)
    draw(number, COLLIDING, hashed_keys=True, small=True).check(ss.ALGORITHMS, tmp_path)
