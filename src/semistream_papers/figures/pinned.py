"""Figures of Naeem et al., KAIS 2013 (X-HYBRIDJOIN) and ADC 2012 (Optimised X-HYBRIDJOIN)."""

from __future__ import annotations

from typing import Final

from semistream_papers.figures.figure import Figure, Variant
from semistream_papers.figures.hybrid import BASE, EXPONENTS, MEMORIES, RELATIONS

__all__ = ["OPTIMISED", "PINNED"]

_PINNED_PAPER = "Naeem et al. 2013 (X-HYBRIDJOIN)"
_OPTIMISED_PAPER = "Naeem et al. 2012 (Optimised X-HYBRIDJOIN)"
_EQUAL: Final = (("pinned_rows", 500),)
"""Untuned: both parts of the disk buffer as large as HYBRIDJOIN's."""
_TUNED: Final = (("pinned_rows", 1_500), ("partition_rows", 950))
"""The sizes in the authors' prototype, for R of 2 million rows and 50 MB."""
_LARGE_H_R: Final = (("pinned_rows", 4_000),)
_X: Final = Variant("xhybridjoin", "", _EQUAL)
_FOUR: Final = (Variant("meshjoin"), Variant("rmeshjoin"), Variant("hybridjoin"), _X)
_FIVE: Final = (*_FOUR, Variant("oxhybridjoin", "", _LARGE_H_R))
_SMALL_PAGES: Final = BASE.with_(page_bytes=8192)
_SMOKE_R: Final = (500_000, 2_000_000, 8_000_000)
_RATE = "service rate (tuples/s)"

PINNED: Final = (
    Figure(
        "xhybridjoin-3a",
        _PINNED_PAPER,
        "Rate against memory",
        "X-HYBRIDJOIN is well above the others for every memory; HYBRIDJOIN is slightly above "
        "MESHJOIN and R-MESHJOIN.",
        "memory (MB)",
        _RATE,
        base=BASE,
        varies="memory",
        values=MEMORIES,
        smoke=(50e6, 250e6),
        series=_FOUR,
        x_unit=1e6,
    ),
    Figure(
        "xhybridjoin-3b",
        _PINNED_PAPER,
        "Rate against the size of R",
        "X-HYBRIDJOIN is above the others for every size; HYBRIDJOIN has 70 % of its rate for 0.5 "
        "million rows and 50 % for 8 million.",
        "rows of R (million)",
        _RATE,
        base=BASE,
        varies="rows",
        values=RELATIONS,
        smoke=_SMOKE_R,
        series=_FOUR,
        x_unit=1e6,
        log_x=True,
    ),
    Figure(
        "xhybridjoin-3c",
        _PINNED_PAPER,
        "Rate against skew",
        "X-HYBRIDJOIN is above the others for every exponent but 0, where it is below MESHJOIN.",
        "exponent",
        _RATE,
        base=BASE,
        varies="exponent",
        values=EXPONENTS,
        smoke=(0.0, 0.5, 1.0),
        series=_FOUR,
    ),
    Figure(
        "xhybridjoin-3d",
        _PINNED_PAPER,
        "Tuples finished by the non-swappable part, in 4,000 iterations",
        "0.4 million with 50 MB, more than 2 million with 250 MB.",
        "memory (MB)",
        "stream tuples (million)",
        base=BASE,
        varies="memory",
        values=MEMORIES,
        smoke=(50e6, 250e6),
        series=(_X,),
        quantity="pinned_million",
        x_unit=1e6,
    ),
    Figure(
        "xhybridjoin-4",
        _PINNED_PAPER,
        "Tuning by trial: swappable and non-swappable part",
        "The rate rises fast with the non-swappable part, has a maximum, and falls slowly; so it "
        "does with the swappable part.",
        "non-swappable part (rows)",
        _RATE,
        base=_SMALL_PAGES,
        varies="pinned_rows",
        values=(266, 532, 1_064, 2_128, 4_256, 8_512, 17_024, 34_048),
        smoke=(532, 2_128, 34_048),
        series=tuple(
            Variant("xhybridjoin", f"swappable {d:,} rows", (("partition_rows", d),))
            for d in (266, 532, 1_064, 2_128)
        ),
        log_x=True,
        notes=("The non-swappable part is a whole number of partitions, at least one.",),
    ),
    Figure(
        "xhybridjoin-6a",
        _PINNED_PAPER,
        "Swappable part: run against model",
        "Measured and calculated rates differ by 0.5 %.",
        "swappable part (rows)",
        _RATE,
        base=_SMALL_PAGES.with_(pinned_rows=1_500),
        varies="partition_rows",
        values=(133, 266, 532, 1_064, 2_128, 4_256),
        smoke=(266, 1_064, 4_256),
        series=(Variant("xhybridjoin"),),
        predicted=True,
        log_x=True,
    ),
    Figure(
        "xhybridjoin-6b",
        _PINNED_PAPER,
        "Non-swappable part: run against model",
        "Measured and calculated rates differ by 0.6 %.",
        "non-swappable part (rows)",
        _RATE,
        base=_SMALL_PAGES.with_(partition_rows=532),
        varies="pinned_rows",
        values=(532, 1_064, 2_128, 4_256, 8_512, 17_024, 34_048),
        smoke=(532, 2_128, 34_048),
        series=(Variant("xhybridjoin"),),
        predicted=True,
        log_x=True,
    ),
    *(
        Figure(
            f"xhybridjoin-7{letter}",
            _PINNED_PAPER,
            f"Tuned and untuned, against {what}",
            "Tuned X-HYBRIDJOIN is well above the untuned one everywhere.",
            axis,
            _RATE,
            base=_SMALL_PAGES,
            varies=varies,
            values=values,
            smoke=smoke,
            series=(
                Variant("xhybridjoin", "X-HYBRIDJOIN, tuned", _TUNED),
                Variant("xhybridjoin", "X-HYBRIDJOIN", _EQUAL),
            ),
            x_unit=1e6,
            log_x=varies == "rows",
        )
        for letter, what, axis, varies, values, smoke in (
            ("a", "the size of R", "rows of R (million)", "rows", RELATIONS, _SMOKE_R),
            ("b", "memory", "memory (MB)", "memory", MEMORIES, (50e6, 250e6)),
        )
    ),
    Figure(
        "xhybridjoin-8",
        _PINNED_PAPER,
        "Cost model against the run",
        "The calculated cost is close to the measured one.",
        "memory (MB)",
        "seconds per iteration",
        base=BASE,
        varies="memory",
        values=MEMORIES,
        smoke=(50e6, 250e6),
        series=(_X,),
        quantity="loop_seconds",
        predicted=True,
        x_unit=1e6,
    ),
)
"""In the order of the paper."""

OPTIMISED: Final = (
    Figure(
        "oxhybridjoin-4",
        _OPTIMISED_PAPER,
        "Tuning by trial: disk buffer and H_R",
        "The rate rises fast with H_R, has a maximum, and falls; so it does with the disk buffer.",
        "H_R (rows)",
        _RATE,
        base=_SMALL_PAGES,
        varies="pinned_rows",
        values=(266, 1_064, 4_256, 17_024, 68_096, 136_192),
        smoke=(1_064, 17_024, 136_192),
        series=tuple(
            Variant("oxhybridjoin", f"disk buffer {d:,} rows", (("partition_rows", d),))
            for d in (266, 532, 1_064, 2_128)
        ),
        log_x=True,
    ),
    *(
        Figure(
            f"oxhybridjoin-5{letter}",
            _OPTIMISED_PAPER,
            f"{what}: run against model",
            f"Measured and calculated rates differ by {deviation} %.",
            axis,
            _RATE,
            base=_SMALL_PAGES.with_(pinned_rows=4_000, partition_rows=532),
            varies=varies,
            values=values,
            smoke=values[1::2],
            series=(Variant("oxhybridjoin"),),
            predicted=True,
            log_x=True,
        )
        for letter, what, deviation, axis, varies, values in (
            (
                "a",
                "Disk buffer",
                0.38,
                "disk buffer (rows)",
                "partition_rows",
                (133, 266, 532, 1_064, 2_128, 4_256),
            ),
            (
                "b",
                "Hash table H_R",
                0.33,
                "H_R (rows)",
                "pinned_rows",
                (1_064, 4_256, 17_024, 68_096, 136_192),
            ),
        )
    ),
    *(
        Figure(
            f"oxhybridjoin-6{letter}",
            _OPTIMISED_PAPER,
            f"Rate against {what}",
            "Optimised X-HYBRIDJOIN is well above all others everywhere.",
            axis,
            _RATE,
            base=BASE,
            varies=varies,
            values=values,
            smoke=smoke,
            series=_FIVE,
            x_unit=1e6,
            log_x=varies == "rows",
        )
        for letter, what, axis, varies, values, smoke in (
            ("a", "the size of R", "rows of R (million)", "rows", RELATIONS, _SMOKE_R),
            ("b", "memory", "memory (MB)", "memory", MEMORIES, (50e6, 250e6)),
        )
    ),
    Figure(
        "oxhybridjoin-7",
        _OPTIMISED_PAPER,
        "Cost model against the run",
        "The predicted cost is close to the measured one.",
        "memory (MB)",
        "seconds per iteration",
        base=BASE.with_(pinned_rows=4_000),
        varies="memory",
        values=MEMORIES,
        smoke=(50e6, 250e6),
        series=(Variant("oxhybridjoin"),),
        quantity="loop_seconds",
        predicted=True,
        x_unit=1e6,
    ),
)
"""In the order of the paper."""
