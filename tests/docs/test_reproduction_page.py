"""The page of claims is what the committed results say."""

from __future__ import annotations

from pathlib import Path

from semistream.experiments.catalogue import FIGURES
from semistream.experiments.claims import numbers
from semistream.experiments.page import page_text
from semistream.experiments.reproduce import Reproduction

ROOT = Path(__file__).parents[2]


def test_the_page_follows_from_the_committed_results():
    results = ROOT / "benchmarks" / "results"
    reproduction = Reproduction(results, "priced", "laptop")
    figures = FIGURES.values()
    assert not reproduction.missing(figures), "run what the page's first lines say"
    measured = numbers(Reproduction(results, "measured", "laptop").complete(figures))
    page = page_text([reproduction.drawn(figure) for figure in figures], reproduction, measured)
    assert (ROOT / "docs" / "reproduction.md").read_text("utf-8") == page
