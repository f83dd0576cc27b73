"""Popularity: chances of keys and of partitions, against exact laws and bounds."""

from __future__ import annotations

from math import exp, lgamma, log

import numpy as np
import pytest

import semistream as ss
from semistream.cost import Skew
from semistream.cost.popularity import Popularity, _at_least


def exactly(number: int, expected: float) -> float:
    """Poisson's law, term by term."""
    return 1 - sum(exp(k * log(expected) - expected - lgamma(k + 1)) for k in range(number))


@pytest.mark.parametrize("number", [1, 2, 3, 10, 200])
def test_how_likely_a_key_comes_so_often(number: int) -> None:
    for expected in np.geomspace(number / 20, number * 10, 30):
        found = _at_least(number, np.array([expected])).item()
        assert found == pytest.approx(exactly(number, expected), abs=0.02)


@pytest.mark.parametrize("turn", [1e2, 1e4, 1e6, 1e10])
def test_a_front_stage_considers_some_of_the_keys_however_long_a_turn_is(
    masters: dict[str, ss.MasterTable], turn: float
) -> None:
    """A frequent key may come a million times within a turn."""
    rows = masters["key"].row_count
    for exponent in (0.0, 1.0, 1.5):
        some = Popularity(masters["key"], Skew(exponent))
        assert 0 <= some.considered(500, turn) <= rows - 500
        assert some.considered(rows, turn) == 0


def test_the_first_partitions_have_their_share_each(masters: dict[str, ss.MasterTable]) -> None:
    some = Popularity(masters["given"], Skew(1.0))
    each = some.leading(3, 2)
    assert (np.diff(each) < 0).all()
    assert each.sum() == pytest.approx(some.first(3, 2))
    assert len(some.leading(0, 2)) == 0
    # All of them have all of the stream.
    assert some.first(masters["given"].page_count, 1) == pytest.approx(1.0)
