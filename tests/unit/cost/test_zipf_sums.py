"""Sums and shares of Zipf's law against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from semistream.cost.zipf_sums import EULER, zipf_share, zipf_shares, zipf_sum
from semistream.errors import OptionError


def test_zipf_sums_are_those_of_the_definition() -> None:
    for exponent in (0.0, 0.5, 1.0, 1.0 + 1e-12, 1.3, 2.0):
        terms = np.arange(1, 20_001) ** -exponent
        for n in (1, 5, 64, 65, 1000, 20_000):
            assert zipf_sum(n, exponent) == pytest.approx(terms[:n].sum(), rel=1e-9)


def test_exponent_one_gives_the_logarithms_of_the_papers() -> None:
    n = 2_000_000
    assert zipf_sum(n) == pytest.approx(math.log(n) + EULER + 1 / (2 * n), rel=1e-9)
    share = zipf_share(10_000, n, 1.0)
    assert share == pytest.approx((math.log(10_000) + EULER) / (math.log(n) + EULER), rel=1e-4)


def test_a_uniform_stream_has_equal_shares() -> None:
    assert zipf_shares(np.array([0.0, 25.0, 70.0, 100.0]), 100, 0.0) == pytest.approx(
        [0.0, 0.25, 0.7, 1.0]
    )


def test_a_negative_exponent_is_refused() -> None:
    with pytest.raises(OptionError, match="at least 0"):
        zipf_sum(10, -0.5)
