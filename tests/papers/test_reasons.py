"""The numbers in reasons are those that their experiments gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semistream_papers.claims import cached_reasons as reasons

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "reasons.jsonl"


def found(experiment: str, value: str, **setting: Any) -> float:
    lines = [json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()]
    (line,) = (
        line
        for line in lines
        if line["experiment"] == experiment
        and all(line[name] == wanted for name, wanted in setting.items())
    )
    return float(line[value])


def test_the_expiry_explains_the_gain() -> None:
    def output(exponent: float, front: int = 0) -> float:
        return found("expiry", "output", exponent=exponent, front=front)

    skewed, behind = output(1.0), output(1.0, front=1232)
    hits = found("expiry", "hits", front=1232)
    assert f"only {skewed:.0%}".replace("%", " %") in reasons.MORE_THAN_IO
    assert f"{behind:.0%}".replace("%", " %") in reasons.MORE_THAN_IO
    more, kept = 1 / (1 - hits), behind / skewed
    assert f"{more:.1f} × {kept:.1f} = {more * kept:.1f}" in reasons.MORE_THAN_IO
    for exponent in (0.0, 0.5, 1.0):
        assert f"{output(exponent):.0%}".replace("%", " %") in reasons.SAME_FOR_EVERY_KEY


@pytest.mark.parametrize("cycles", [0.1, 1, 10])
def test_a_front_stage_learns_in_some_cycles(cycles: float) -> None:
    share = found("learning", "hit_share", algorithm="cmeshjoin", cycles=cycles)
    shown = f"{100 * share:.1f} %" if share < 0.01 else f"{100 * share:.0f} %"
    assert shown in reasons.LEARNS_LATE


def test_keys_replaced_at_once_push_out_the_hot_ones() -> None:
    for places, way, digits in (
        *((60, "at once", 1), (60, "one by one", 0)),
        *((300, "at once", 0), (300, "one by one", 0)),
    ):
        share = 100 * found("replacing", "hit_share", places=places, way=way)
        assert f"{share:.{digits}f} %" in reasons.REPLACED_AT_ONCE


def test_considering_arrivals_costs_processor_time() -> None:
    def gain(prices: str, arrivals: float) -> float:
        both = [
            found("shedding", "rate", shedding=name, prices=prices, arrivals=arrivals)
            for name in ("considering", "keep")
        ]
        return both[0] / both[1]

    text = reasons.SHEDDING_COSTS_CPU
    assert f"is {gain('all', 20_000):.2f} times" in text
    assert f"{gain('all', 60_000):.2f} times with 60,000" in text
    assert f"{gain('I/O', 60_000):.1f} times as fast with 60,000" in text
    assert f"{gain('I/O', 200_000):.1f} times with 200,000" in text
    for algorithm in ("chybridjoin", "hybridjoin"):
        rates = [
            found("positions", "rate", algorithm=algorithm, position=position)
            for position in (0.0, 0.15, 0.6, 1.0)
        ]
        assert f"of {100 * (max(rates) / min(rates) - 1):.0f} %" in text
