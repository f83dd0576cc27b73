"""The page of claims is what the committed results say."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from semistream.cost.model import CostModel
from semistream.cost.skew import Skew
from semistream.parts.join_shape import JoinShape
from semistream_papers.claims.table import our_numbers
from semistream_papers.figures.catalogue import FIGURES
from semistream_papers.figures.reproduction import Reproduction
from semistream_papers.report.claims_page import page_text
from semistream_papers.runs.inputs import master_of, tuples_of
from semistream_papers.runs.setting import Setting
from semistream_papers.runs.sized_engine import sized_engine

ROOT = Path(__file__).parents[2]


def test_the_page_follows_from_the_committed_results():
    results = ROOT / "benchmarks" / "results"
    reproduction = Reproduction(results, "priced", "laptop")
    figures = FIGURES.values()
    assert not reproduction.missing(figures), "run what the page's first lines say"
    measured = our_numbers(Reproduction(results, "measured", "laptop").complete(figures))
    page = page_text([reproduction.drawn(figure) for figure in figures], reproduction, measured)
    assert (ROOT / "docs" / "reproduction.md").read_text("utf-8") == page


def own_model(setting: Setting) -> float:
    """The rate of a priced run by the model of this engine, at the paper's prices."""
    master, sample = master_of(setting), tuples_of(setting).batch(64)
    shape = JoinShape(sample.schema, master, "key", "inner", None)
    skew = Skew(setting.exponent, "scattered" if setting.scatter else "frequency")
    prices = setting.priced_by.prices(setting.algorithm)
    plan = sized_engine(setting, master, lambda: 0.0).planned(sample)
    return CostModel(master, shape, sample, skew, prices).predict(plan).rate


@pytest.mark.parametrize(
    "name",
    [
        *("xhybridjoin-6a", "xhybridjoin-6b", "xhybridjoin-8"),
        *("oxhybridjoin-5a", "oxhybridjoin-5b", "oxhybridjoin-7"),
    ],
)
def test_the_model_of_this_engine_explains_what_the_papers_equations_miss(name):
    reproduction = Reproduction(ROOT / "benchmarks" / "results", "priced", "laptop")
    off = []
    for point in FIGURES[name].points("laptop"):
        result = reproduction.results.find(point.setting.key("priced"))
        assert result is not None
        off.append(abs(own_model(point.setting) / result["rate"] - 1))
    assert mean(off) < 0.025
