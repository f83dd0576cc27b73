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

SAMPLES = 132
COLLIDING = 44


def test_every_algorithm_gives_what_the_oracle_gives(
    setting: Any, random_join: Any, seed: int, tmp_path: Path
) -> None:
    random_join(setting, seed).check(ss.ALGORITHMS, tmp_path)


test_every_algorithm_gives_what_the_oracle_gives.settings_count = SAMPLES  # type: ignore[attr-defined]


def test_colliding_hashes_do_not_join(
    setting: Any,
    random_join: Any,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With eight codes for all keys almost every pair of equal codes has different keys."""
    monkeypatch.setattr(keys, "_HASH_MASK", 0x7)
    random_join(setting, seed).check(ss.ALGORITHMS, tmp_path)


test_colliding_hashes_do_not_join.settings_count = COLLIDING  # type: ignore[attr-defined]
