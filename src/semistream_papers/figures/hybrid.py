"""Figures of Naeem et al., IJDWM 2011: HYBRIDJOIN."""

from __future__ import annotations

from typing import Final

from semistream_papers.figures.figure import Figure, Variant
from semistream_papers.runs.setting import Setting

__all__ = ["BASE", "EXPONENTS", "HYBRID", "MEMORIES", "RELATIONS"]

_PAPER = "Naeem et al. 2011 (HYBRIDJOIN)"
BASE: Final = Setting(
    "hybridjoin", rows=2_000_000, memory=50_000_000, partition_rows=500, scan_rows=6_000
)
"""R in order of frequency, partitions as in the authors' prototypes."""
RELATIONS: Final = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
MEMORIES: Final = (50e6, 100e6, 150e6, 200e6, 250e6)
EXPONENTS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_TWO: Final = (Variant("hybridjoin"), Variant("meshjoin"))
_THREE: Final = (*_TWO, Variant("inlj"))

HYBRID: Final = (
    Figure(
        "hybridjoin-3",
        _PAPER,
        "How often pages of R are used",
        "The use of a page falls towards the end of R, which is in order of frequency.",
        "page of R",
        "stream tuples per page, of a million",
        drawing="page use",
        log_x=True,
        log_y=True,
    ),
    Figure(
        "hybridjoin-6",
        _PAPER,
        "Tuning of the disk buffer",
        "The rate rises with the disk buffer, has a maximum, and falls.",
        "disk buffer (rows)",
        "service rate (tuples/s)",
        base=BASE.with_(page_bytes=8192),
        varies="partition_rows",
        values=(66, 133, 266, 532, 1_064, 2_128, 4_256, 8_512, 17_024),
        smoke=(66, 532, 8_512),
        series=(Variant("hybridjoin"),),
        log_x=True,
    ),
    Figure(
        "hybridjoin-7a",
        _PAPER,
        "Processing time against the size of R",
        "A tuple spends much less time in HYBRIDJOIN than in MESHJOIN.",
        "rows of R (million)",
        "processing time (s)",
        base=BASE,
        varies="rows",
        values=RELATIONS,
        smoke=(500_000, 2_000_000, 8_000_000),
        series=_TWO,
        quantity="processing",
        x_unit=1e6,
        log_x=True,
        log_y=True,
    ),
    Figure(
        "hybridjoin-7b",
        _PAPER,
        "Waiting time of a slow stream",
        "A tuple waits longer for MESHJOIN than for HYBRIDJOIN; below 150 tuples/s it waits least "
        "for INLJ.",
        "arrivals (tuples/s)",
        "waiting time (s)",
        base=BASE.with_(rows=500_000),
        varies="arrival_rate",
        values=(125, 250, 500, 1_000, 2_000),
        smoke=(125, 1_000),
        series=(*_THREE, Variant("meshjoin", "MESHJOIN, w/λ", quantity="chunk_wait")),
        quantity="waiting",
        log_x=True,
        log_y=True,
        notes=(
            "MESHJOIN here takes what has arrived and never waits for w tuples; the paper's "
            "waiting time, w/λ, is drawn beside it.",
        ),
    ),
    Figure(
        "hybridjoin-7c",
        _PAPER,
        "Rate against the size of R",
        "HYBRIDJOIN is above MESHJOIN and INLJ for every size of R.",
        "rows of R (million)",
        "service rate (tuples/s)",
        base=BASE,
        varies="rows",
        values=RELATIONS,
        smoke=(500_000, 2_000_000, 8_000_000),
        series=_THREE,
        x_unit=1e6,
        log_x=True,
    ),
    Figure(
        "hybridjoin-7d",
        _PAPER,
        "Rate against memory",
        "HYBRIDJOIN is above MESHJOIN and INLJ for every memory.",
        "memory (MB)",
        "service rate (tuples/s)",
        base=BASE,
        varies="memory",
        values=MEMORIES,
        smoke=(50e6, 250e6),
        series=_THREE,
        x_unit=1e6,
    ),
    Figure(
        "hybridjoin-7e",
        _PAPER,
        "Rate against skew",
        "HYBRIDJOIN is above the others for every exponent but 0, where it is below MESHJOIN by a "
        "factor of less than 2.",
        "exponent",
        "service rate (tuples/s)",
        base=BASE,
        varies="exponent",
        values=EXPONENTS,
        smoke=(0.0, 0.5, 1.0),
        series=(
            *_THREE,
            Variant("hybridjoin", "HYBRIDJOIN, authors' size", (("stream_slots", 512_567),)),
            Variant("meshjoin", "MESHJOIN, authors' size", (("stream_slots", 4_835 * 330),)),
        ),
        notes=(
            "Two series have the table sizes of authors' prototypes: MESHJOIN's 330 chunks of "
            "4,835, and for HYBRIDJOIN, whose size for this R is not known, X-HYBRIDJOIN's "
            "512,567.",
        ),
    ),
    *(
        Figure(
            f"hybridjoin-8{letter}",
            _PAPER,
            f"Cost model against the run: {title}",
            "The cost that the model predicts is close to the measured one.",
            "memory (MB)",
            "seconds per iteration",
            base=BASE,
            varies="memory",
            values=MEMORIES,
            smoke=(50e6, 250e6),
            series=(Variant(algorithm),),
            quantity="loop_seconds" if algorithm != "inlj" else "tuple_seconds",
            predicted=True,
            x_unit=1e6,
        )
        for letter, algorithm, title in (
            ("a", "hybridjoin", "HYBRIDJOIN"),
            ("b", "meshjoin", "MESHJOIN"),
            ("c", "inlj", "INLJ"),
        )
    ),
    Figure(
        "hybridjoin-10",
        _PAPER,
        "A skewed stream, exponent 1",
        "A fifth of the products makes four fifths of the sales.",
        "product, by rank",
        "sales, of a million",
        drawing="zipf",
        log_x=True,
        log_y=True,
    ),
    Figure(
        "hybridjoin-11",
        _PAPER,
        "A bursty, self-similar stream",
        "The flow of transactions varies on every time scale.",
        "step of time",
        "tuples per step",
        drawing="bursty",
    ),
)
"""In the order of the paper."""
