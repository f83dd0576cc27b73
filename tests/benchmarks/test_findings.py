"""The table of targets: ratios from medians, and the turns in which ways are measured."""

from __future__ import annotations

from functools import partial

import pytest

from measures.findings import Finding, print_table
from semistream_bench.turns import in_turns

SECONDS = {"ours": [[1.0, 2.0, 3.0], [2.0, 2.0]], "other": [[4.0], [3.0, 3.0, 9.0]]}


def finding(bound: float, other: str | None = "other", inverse: bool = False) -> Finding:
    return Finding(3, "a measure", bound, SECONDS, "ours", other, 10, inverse=inverse)


def test_a_ratio_of_rates_is_the_other_median_over_ours() -> None:
    # Medians: 2 of ours, 3.5 of the other; by round 4 / 2 and 3 / 2.
    found = finding(1.75)
    assert (found.measured, found.by_round, found.met) == (1.75, (1.5, 2.0), True)
    assert not finding(1.76).met


def test_a_ratio_of_times_is_to_be_small() -> None:
    found = finding(0.58, inverse=True)
    assert found.measured == pytest.approx(2 / 3.5)
    assert found.met
    assert not finding(0.57, inverse=True).met


def test_milliseconds_stand_alone() -> None:
    found = finding(2_000, other=None)
    assert (found.measured, found.by_round, found.met) == (2_000, (2_000, 2_000), True)
    assert not finding(1_999, other=None).met


def test_the_table_is_aligned_and_says_what_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([finding(9.0), finding(2_000, other=None)])
    header, first, second, _, met = capsys.readouterr().out.splitlines()
    assert first.split() == ["3", "a", "measure", "0", "0", "≥", "9", "1.75", "1.50–2.00", "missed"]
    assert second.split()[-4:] == ["2000.0", "ms", "2000.0–2000.0", "met"]
    assert met == "1 of 2 met"
    assert header.index("by round") + len("by round") == first.index("2.00") + len("2.00")


def test_ways_take_turns_and_the_first_round_does_not_count() -> None:
    called = []

    def way(name: str, number: int) -> list[float]:
        called.append((number, name))
        return [float(number)]

    seconds = in_turns({name: partial(way, name) for name in "ab"}, 2, print)
    assert called == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]
    assert seconds == {"a": [[1.0], [2.0]], "b": [[1.0], [2.0]]}
