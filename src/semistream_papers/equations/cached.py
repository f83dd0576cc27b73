"""CINLJ, CMESHJOIN and CHYBRIDJOIN: Naeem et al., Information Systems 2017.

The paper has no numbered equations. These put the front stage, as Optimised X-HYBRIDJOIN's
equations describe H_R, before the loops of the others: w_B tuples per iteration miss and are
finished behind it, and of all that arrive p_F hit, w_F = w_B · p_F / (1 − p_F) per iteration.
"""

from __future__ import annotations

from semistream.cost.factors import CostFactors
from semistream.cost.zipf_sums import zipf_share
from semistream_papers.equations.hybridjoin import hybridjoin_eq3_loop
from semistream_papers.equations.meshjoin import meshjoin_eq2_loop
from semistream_papers.equations.oxhybridjoin import oxhybridjoin_eq6_w_N_of_w_S


def cached_p_F(h_R: float, R_t: int, e: float = 1.0) -> float:
    """The share of the stream that the h_R most frequent keys answer."""
    return zipf_share(h_R, R_t, e)


def cached_w_F(p_F: float, w_B: float) -> float:
    """Hits per iteration in which w_B tuples miss."""
    return oxhybridjoin_eq6_w_N_of_w_S(p_F, w_B)


def cached_front(w_F: float, w_B: float, c: CostFactors) -> float:
    """Seconds of the front stage per iteration: all are looked up, hits are read and put out."""
    return (w_F + w_B) * c.front_probe + w_F * (c.stream_read + c.output)


def cmeshjoin_loop(
    p_F: float,
    b: float,
    w: float,
    v_P: float,
    v_R: float,
    sigma: float,
    c_IO: float,
    c: CostFactors,
) -> float:
    """Seconds of an iteration of CMESHJOIN that takes w misses in."""
    front = cached_front(cached_w_F(p_F, w), w, c)
    return front + meshjoin_eq2_loop(b, w, v_P, v_R, sigma, c_IO, c)


def chybridjoin_loop(
    p_F: float, w: float, v_P: float, v_R: float, c_IO: float, c: CostFactors
) -> float:
    """Seconds of an iteration of CHYBRIDJOIN that finishes w misses."""
    return cached_front(cached_w_F(p_F, w), w, c) + hybridjoin_eq3_loop(w, v_P, v_R, c_IO, c)


def cinlj_tuple(p_F: float, c_IO: float, c: CostFactors) -> float:
    """Seconds of a tuple of CINLJ: a page is read for each that misses."""
    missed = (1 - p_F) * (c_IO + c.probe)
    return c.front_probe + c.stream_read + missed + c.output


def cached_rate(p_F: float, w_B: float, c_loop: float) -> float:
    """μ of a join behind a front stage."""
    return (cached_w_F(p_F, w_B) + w_B) / c_loop
