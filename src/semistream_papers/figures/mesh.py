"""Figures of Polyzotis et al., ICDE 2007: MESHJOIN and Indexed Nested Loops."""

from __future__ import annotations

from typing import Final

from semistream_papers.figures.figure import Figure, Variant
from semistream_papers.runs.setting import Setting

__all__ = ["MESH"]

_PAPER = "Polyzotis et al. 2007 (MESHJOIN)"
_BASE: Final = Setting(
    "meshjoin",
    rows=3_500_000,
    memory=21_000_000,
    platform="raw disk",
    exponent=0.5,
    scatter=True,
    page_bytes=16384,
)
_WEATHER: Final = _BASE.with_(rows=10_000_000, stream="weather", row_bytes=32, tuple_bytes=32)
_BOTH: Final = (Variant("meshjoin"), Variant("inlj", "INL"))
_NO_POOL: Final = (
    "INL here has no buffer pool: its rate does not depend on the memory, where Berkeley DB's "
    "pool of the same size absorbs some look-ups.",
)

MESH: Final = (
    Figure(
        "meshjoin-5a",
        _PAPER,
        "Memory that a given rate takes",
        "For a fixed rate, memory has a minimum in the size b of the disk buffer.",
        "disk buffer b (KB)",
        "memory (MB)",
        drawing="meshjoin memory",
        log_x=True,
    ),
    Figure(
        "meshjoin-5b",
        _PAPER,
        "Rate that a given memory allows",
        "For a fixed memory, the rate rises with b to a maximum and then falls sharply.",
        "disk buffer b (KB)",
        "service rate (tuples/s)",
        drawing="meshjoin rate",
        log_x=True,
    ),
    Figure(
        "meshjoin-6a",
        _PAPER,
        "Cost model against the run, 21 MB",
        "The model follows the measured rate; it is high for small b and falls as b grows.",
        "disk buffer b (rows)",
        "service rate (tuples/s)",
        base=_BASE,
        varies="partition_rows",
        values=(200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 40_000, 65_000),
        smoke=(500, 5_000, 65_000),
        series=(Variant("meshjoin"),),
        predicted=True,
        log_x=True,
    ),
    Figure(
        "meshjoin-6b",
        _PAPER,
        "Rate against memory",
        "MESHJOIN is about ten times as fast as INL from 0.1 % to 10 % of R: 3,500 tuples/s with "
        "2 MB, over 6,000 with 4 MB, 26,000 with 40 MB; INL does 274 with 2 MB.",
        "memory (MB)",
        "service rate (tuples/s)",
        base=_BASE,
        varies="memory",
        values=(450_000, 1_000_000, 2_000_000, 4_000_000, 10_000_000, 20_000_000, 40_000_000),
        smoke=(450_000, 4_000_000, 40_000_000),
        series=_BOTH,
        x_unit=1e6,
        log_x=True,
        log_y=True,
        notes=_NO_POOL,
    ),
    Figure(
        "meshjoin-6c",
        _PAPER,
        "Rate against skew in R, 20 MB",
        "Both rates fall as the join attribute of R gets skewed; MESHJOIN stays above 9,000.",
        "skew z_R",
        "service rate (tuples/s)",
        base=_BASE.with_(memory=20_000_000, scatter=False),
        varies="relation_exponent",
        values=(0.1, 0.25, 0.5, 0.75, 1.0),
        smoke=(0.1, 1.0),
        series=_BOTH,
        log_y=True,
        notes=(
            "Hot values of R and of S are the same ones, which is the case in which skew hurts.",
            "The fewer values the domain has, the fewer results a hot tuple gives: below the "
            "paper's scale the rate falls less.",
        ),
    ),
    Figure(
        "meshjoin-6d",
        _PAPER,
        "Rate on weather reports",
        "As on synthetic data: MESHJOIN is far above INL for all memories.",
        "memory (MB)",
        "service rate (tuples/s)",
        base=_WEATHER,
        varies="memory",
        values=(3_200_000, 8_000_000, 16_000_000, 32_000_000),
        smoke=(3_200_000, 16_000_000),
        series=_BOTH,
        x_unit=1e6,
        log_y=True,
        notes=("Made-up reports; 278 results for each stream tuple, as R and domain imply.",),
    ),
)
"""In the order of the paper."""
