"""What checks of pages cost: what stands in for them, and the interval of the ratios."""

from __future__ import annotations

import inspect

import pytest

from checks import WITHOUT, paired


def test_what_stands_in_for_a_check_is_called_alike() -> None:
    for check, other in WITHOUT.items():
        names = [[*inspect.signature(one.py_func).parameters] for one in (check, other)]
        assert names[0] == names[1]


def test_neighbours_are_compared() -> None:
    # The machine becomes slower and slower; the checks always cost a tenth.
    without = [float(2**i) for i in range(9)]
    low, middle, high = paired([1.1 * one for one in without], without)
    assert (low, middle, high) == pytest.approx((1.1, 1.1, 1.1))


def test_the_interval_is_that_of_the_sign_test() -> None:
    # Of 31 ratios the tenth and the last but nine, by any table of it.
    low, middle, high = paired([float(i) for i in range(1, 32)], [1.0] * 31)
    assert (low, middle, high) == (10.0, 16.0, 22.0)
