"""The papers' cost models: what their equations predict for a run.

The equations get the sizes of the run and the prices of the paper's machine.
"""

from __future__ import annotations

from typing import NamedTuple

from semistream.cost.factors import CostFactors
from semistream_papers.equations.cached import (
    cached_p_F,
    cached_rate,
    cached_w_F,
    chybridjoin_loop,
    cmeshjoin_loop,
)
from semistream_papers.equations.hybridjoin import hybridjoin_eq2_w, hybridjoin_eq3_loop
from semistream_papers.equations.meshjoin import meshjoin_eq2_loop
from semistream_papers.equations.oxhybridjoin import (
    oxhybridjoin_eq2_loop,
    oxhybridjoin_eq4_p_N,
    oxhybridjoin_eq6_w_N_of_w_S,
    oxhybridjoin_eq7_p_S,
)
from semistream_papers.equations.xhybridjoin import (
    xhybridjoin_eq5_loop,
    xhybridjoin_eq7_p_old,
    xhybridjoin_eq8_p_new,
    xhybridjoin_eq9_w,
)
from semistream_papers.figures.quantities import partition_rows_of, pinned_rows_of
from semistream_papers.runs.runner import Result
from semistream_papers.runs.setting import Setting

__all__ = ["paper_model"]


class _Sizes(NamedTuple):
    """The sizes of a run: h_S, d, d_N, h_R, R_t, e and v_R of the papers."""

    waiting: float
    d: float
    pinned: float
    kept: float
    relation: int
    e: float
    row_bytes: float
    w: float
    """MESHJOIN's tuples per iteration."""
    c: CostFactors
    scan: float
    """Seconds to read the partition after the one that was read last."""
    seek: float
    """Seconds to read a partition anywhere in R."""


def paper_model(quantity: str, setting: Setting, result: Result) -> float | None:
    """The quantity that a figure draws, by the paper's equations; None without equations."""
    s = _sizes(setting, result)
    if setting.algorithm == "inlj":
        seconds = setting.priced_by.look_up + s.c.probe + s.c.output + s.c.stream_read
        return seconds if quantity in ("tuple_seconds", "loop_seconds") else 1 / seconds
    found = _LOOPS.get(setting.algorithm)
    if found is None:
        return None
    finished, loop = found(s)
    return loop if quantity == "loop_seconds" else finished / loop


def _sizes(setting: Setting, result: Result) -> _Sizes:
    sizes, c = result["sizes"], setting.priced_by.prices(setting.algorithm)
    d = partition_rows_of(setting, result)
    rows = d * setting.row_bytes * c.byte_read
    sequential = c.partition_read if c.sequential_read is None else c.sequential_read
    return _Sizes(
        waiting=sizes["stream_slots"],
        d=d,
        pinned=pinned_rows_of(setting, result),
        kept=sizes["front_rows"],
        relation=setting.run_rows,
        e=setting.exponent,
        row_bytes=setting.row_bytes,
        w=sizes["stream_slots"] * d / setting.run_rows,
        c=c,
        scan=sequential + rows,
        seek=c.partition_read + rows,
    )


def _meshjoin(s: _Sizes) -> tuple[float, float]:
    # Each stream tuple has a match, so that w tuples are output per iteration.
    return s.w, meshjoin_eq2_loop(1, s.w, s.d * s.row_bytes, s.row_bytes, s.w / s.d, s.scan, s.c)


def _hybridjoin(s: _Sizes) -> tuple[float, float]:
    w = hybridjoin_eq2_w(s.waiting, s.d, s.relation)
    return w, hybridjoin_eq3_loop(w, s.d * s.row_bytes, s.row_bytes, s.seek, s.c)


def _xhybridjoin(s: _Sizes) -> tuple[float, float]:
    old = xhybridjoin_eq7_p_old(s.pinned, s.d, s.relation)
    w = xhybridjoin_eq9_w(s.waiting, old, xhybridjoin_eq8_p_new(s.pinned, s.d, s.relation, s.e))
    return w, xhybridjoin_eq5_loop(w, s.pinned, s.d, s.seek, s.c)


def _oxhybridjoin(s: _Sizes) -> tuple[float, float]:
    w_S = oxhybridjoin_eq7_p_S(s.d, s.kept, s.relation, s.e) * s.waiting
    w_N = oxhybridjoin_eq6_w_N_of_w_S(oxhybridjoin_eq4_p_N(s.kept, s.relation, s.e), w_S)
    return w_N + w_S, oxhybridjoin_eq2_loop(w_N, w_S, s.d, s.seek, s.c)


def _cmeshjoin(s: _Sizes) -> tuple[float, float]:
    hits = cached_p_F(s.kept, s.relation, s.e)
    loop = cmeshjoin_loop(hits, 1, s.w, s.d * s.row_bytes, s.row_bytes, s.w / s.d, s.scan, s.c)
    return cached_rate(hits, s.w, loop) * loop, loop


def _chybridjoin(s: _Sizes) -> tuple[float, float]:
    hits = cached_p_F(s.kept, s.relation, s.e)
    w = hybridjoin_eq2_w(s.waiting, s.d, s.relation)
    return w + cached_w_F(hits, w), chybridjoin_loop(
        hits, w, s.d * s.row_bytes, s.row_bytes, s.seek, s.c
    )


_LOOPS = {
    "meshjoin": _meshjoin,
    "rmeshjoin": _meshjoin,
    "hybridjoin": _hybridjoin,
    "xhybridjoin": _xhybridjoin,
    "oxhybridjoin": _oxhybridjoin,
    "cmeshjoin": _cmeshjoin,
    "chybridjoin": _chybridjoin,
}
