"""Candidates for a front stage that compiled steps note: those without room are the least."""

from __future__ import annotations

import numpy as np

from semistream.kernels import CANDIDATE
from semistream.kernels.step_probe import least_first, room_among


def test_the_least_frequent_candidates_make_room() -> None:
    candidates = np.zeros(4, CANDIDATE)
    candidates["frequency"] = [5, 3, 9, 3]
    candidates["first"] = [0, 1, 2, 3]
    least_first(candidates)
    assert candidates["first"][0] in (1, 3)
    assert sorted(candidates["first"]) == [0, 1, 2, 3]
    assert room_among(candidates, 3) == 4
    assert room_among(candidates, 4) == 2
    assert sorted(candidates["first"][:2]) == [0, 2]
