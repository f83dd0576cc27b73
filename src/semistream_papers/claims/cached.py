"""Claims of the paper of 2017."""

from __future__ import annotations

from typing import Final

from semistream_papers.claims.cached_reasons import (
    AS_FOR_5A,
    LEARNS_LATE,
    MANY_ROWS_PER_KEY,
    MODERATE_SKEW,
    MORE_THAN_IO,
    REPLACED_AT_ONCE,
    SAME_FOR_EVERY_KEY,
    SAME_FRONT_STAGE,
    SHEDDING_COSTS_CPU,
    SMALL_CACHE,
    SMALLER_SCALE,
)
from semistream_papers.claims.claim import Claim, Figures
from semistream_papers.claims.curve_readings import (
    at,
    best_x,
    deviation,
    everywhere,
    falls,
    grows,
    interior,
    ratio,
)

__all__ = ["CACHED_CLAIMS"]

_MESH: Final = ("CMESHJOIN", "MESHJOIN")
_HYBRID: Final = ("CHYBRIDJOIN", "HYBRIDJOIN")
"""The labels of a join behind a front stage and of the plain one."""


def _gain(
    name: str,
    pair: tuple[str, str],
    x: float,
    paper: float,
    says: str,
    reason: str = SMALLER_SCALE,
    in_smoke: bool = True,
) -> Claim:
    """How many times as fast as the plain join the one behind a front stage is, at x."""
    cached, plain = pair
    return Claim(
        f"{name}-{cached.lower()}-{x:g}",
        (name,),
        f"2017, Figure {name.rsplit('-', 1)[1]}",
        f"{cached} is {paper:g} times as fast as {plain} {says}",
        paper,
        ratio(name, cached, plain, x),
        reason=reason,
        in_smoke=in_smoke,
    )


def _hits(figures: Figures) -> float:
    lines = figures["skewed-9d"].lines
    return lines["through the front stage"][-1][1] / lines["all"][-1][1]


def _after_growth(figures: Figures) -> float:
    """The rate on the doubled R, once settled, as a share of that with this R from the start."""
    rates = [rate for _, rate in figures["skewed-9e"].lines["after R has doubled"]]
    settled = rates[-len(rates) // 3 :]
    return sum(settled) / len(settled) / at(figures, "skewed-5b", "CMESHJOIN", 100)


CACHED_CLAIMS: Final = (
    _gain("skewed-5a", _MESH, 0.10, 6.5, "with 10 % of R", MORE_THAN_IO),
    _gain("skewed-5a", _HYBRID, 0.10, 2.8, "with 10 % of R"),
    _gain("skewed-5a", _MESH, 0.01, 4.0, "with 1 % of R", AS_FOR_5A),
    _gain("skewed-5a", _HYBRID, 0.01, 2.4, "with 1 % of R"),
    _gain("skewed-5b", _MESH, 20, 4.7, "for R of 20 million", AS_FOR_5A),
    _gain("skewed-5b", _HYBRID, 20, 3.0, "for R of 20 million"),
    _gain("skewed-5c", ("CINLJ", "INLJ"), 100, 2.5, ""),
    _gain("skewed-5e", _MESH, 0.01, 3.7, "on TPC-H", AS_FOR_5A),
    _gain("skewed-5e", _HYBRID, 0.01, 2.5, "on TPC-H"),
    _gain("skewed-5g", _MESH, 1, 6.5, "with locality, N = 1", LEARNS_LATE),
    _gain("skewed-5g", _MESH, 20, 10.0, "with locality, N = 20", LEARNS_LATE, in_smoke=False),
    *(
        Claim(
            f"skewed-weather-{cached.lower()}",
            ("skewed-5f",),
            "2017, Figure 5(f)",
            f"{cached} is above {plain} on weather reports, for every memory (the least ratio)",
            None,
            everywhere("skewed-5f", cached, plain),
            in_smoke=False,
            reason=MANY_ROWS_PER_KEY,
        )
        for cached, plain in (_MESH, _HYBRID)
    ),
    *(
        Claim(
            f"skewed-uniform-{cached.lower()}",
            ("skewed-5d",),
            "2017, §5.2.1",
            f"On a uniform stream {cached} is a little below {plain}",
            None,
            ratio("skewed-5d", cached, plain, 0.0),
            above=False,
            in_smoke=cached == "CMESHJOIN",
            reason="A front stage whose hits do not pay for its memory gives it to the waiting "
            "tuples here; on a uniform stream all of it, within a few turns.",
        )
        for cached, plain in (_MESH, _HYBRID)
    ),
    Claim(
        "skewed-moderate",
        ("skewed-5d",),
        "2017, §5.2.1",
        "CMESHJOIN is above MESHJOIN for moderately skewed streams too, from exponent 0.25 on (the "
        "least ratio)",
        None,
        everywhere("skewed-5d", "CMESHJOIN", "MESHJOIN", 0.2),
        reason=MODERATE_SKEW,
        in_smoke=False,
    ),
    Claim(
        "skewed-gain-grows-with-r",
        ("skewed-5b",),
        "2017, Figure 5(b)",
        "CMESHJOIN's gain over MESHJOIN grows from 4.7 at 20 million rows to 6.5 at 100 million",
        6.5 / 4.7,
        grows("skewed-5b", "CMESHJOIN", "MESHJOIN"),
        tolerance=0.1,
        reason=SAME_FRONT_STAGE,
        in_smoke=False,
    ),
    Claim(
        "skewed-meshjoin-falls",
        ("skewed-5d",),
        "2017, §5.2.1",
        "MESHJOIN's own rate falls slightly with skew",
        None,
        falls("skewed-5d", "MESHJOIN"),
        neutral=0.999,
        above=False,
        unit="of the rate at 0",
        reason=SAME_FOR_EVERY_KEY,
        in_smoke=False,
    ),
    *(
        Claim(
            f"skewed-processing-{cached.lower()}",
            ("skewed-6",),
            "2017, Figure 6",
            f"A tuple spends less time in {cached} than in {plain} (the least ratio)",
            None,
            everywhere("skewed-6", plain, cached),
        )
        for cached, plain in (_MESH, _HYBRID)
    ),
    Claim(
        "skewed-hits",
        ("skewed-9d",),
        "2017, Figure 9(d)",
        "About 51 % of the stream goes through the front stage",
        0.51,
        _hits,
        neutral=None,
        unit="of the stream",
        reason=SMALL_CACHE,
    ),
    Claim(
        "skewed-front-size",
        ("skewed-9a",),
        "2017, Figure 9(a)",
        "The front stage is best near 15 % of the memory",
        15.0,
        best_x("skewed-9a", "CMESHJOIN"),
        neutral=2.0,
        tolerance=0.67,
        unit="% of memory",
    ),
    Claim(
        "skewed-front-75",
        ("skewed-9a",),
        "2017, §5.4",
        "With 75 % of the memory for the front stage the rate is above that without one",
        None,
        ratio("skewed-9a", "CMESHJOIN", "no front stage", 75),
        in_smoke=False,
        reason="A quarter of the window and the same scan: the rate behind the front stage is a "
        "quarter, and hits must make up for it; they do where the front stage answers three "
        "quarters of the stream.",
    ),
    Claim(
        "skewed-threshold",
        ("skewed-9b",),
        "2017, Figure 9(b)",
        "The rate through the front stage is lower with a threshold of 10 than with 1",
        None,
        falls("skewed-9b", "CMESHJOIN"),
        above=False,
        unit="of the rate at 1",
        in_smoke=False,
        reason=REPLACED_AT_ONCE,
    ),
    Claim(
        "skewed-disk-buffer",
        ("skewed-9c",),
        "2017, Figure 9(c)",
        "Behind the front stage the rate has its maximum between small and large disk buffers",
        None,
        interior("skewed-9c", "CMESHJOIN"),
        neutral=0.5,
        unit="(1 if it does)",
    ),
    Claim(
        "skewed-position",
        ("skewed-7",),
        "2017, Figure 7",
        "While shedding, the look-up element is best at 15 % of the queue",
        0.15,
        best_x("skewed-7", "CHYBRIDJOIN"),
        neutral=0.5,
        above=False,
        tolerance=0.67,
        unit="of the queue",
        reason=SHEDDING_COSTS_CPU,
        in_smoke=False,
    ),
    Claim(
        "skewed-tuned",
        ("skewed-8",),
        "2017, §5.3.2",
        "Tuned shedding is 33 % above untuned shedding",
        1.33,
        ratio("skewed-8", "tuned", "untuned", 20),
        tolerance=0.1,
        reason=SHEDDING_COSTS_CPU,
        in_smoke=False,
    ),
    Claim(
        "skewed-keep",
        ("skewed-8",),
        "2017, §5.3.2",
        "Tuned shedding is 3.1 times as fast as shedding upfront",
        3.1,
        ratio("skewed-8", "tuned", "as MESHJOIN sheds (keep)", 20),
        reason=SHEDDING_COSTS_CPU,
    ),
    Claim(
        "skewed-growth",
        ("skewed-9e", "skewed-5b"),
        "2017, Figure 9(e)",
        "When R doubles, no more is lost than what the larger R costs, once the front stage is "
        "filled again (as a share of the rate with that R from the start)",
        1.0,
        _after_growth,
        neutral=None,
        tolerance=0.1,
        unit="×",
        in_smoke=False,
    ),
    Claim(
        "skewed-model",
        ("skewed-9f",),
        "2017, Figure 9(f)",
        "Calculated and measured costs are close",
        None,
        deviation("skewed-9f"),
        neutral=25.0,
        above=False,
        unit="% apart",
        in_smoke=False,
        reason="Behind a front stage Eq. 2's constant k does not hold, and the front stage keeps "
        "not quite the most frequent keys.",
    ),
)
"""In the order of the paper."""
