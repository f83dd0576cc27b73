"""X-HYBRIDJOIN's revised equations: Naeem et al., KAIS 2013, §6.

| symbol | meaning |
| --- | --- |
| k, l, v_P | pages of the swappable and of the non-swappable part; bytes of a page |
| d_S, d_N | their master rows |
| α, h_S, R_t, w | as in HYBRIDJOIN |
| n | swappable partitions: (R_t − d_N) / d_S |
| e | the Zipf exponent; the paper's is 1 |
"""

from __future__ import annotations

from typing import NamedTuple

from semistream.cost.factors import CostFactors
from semistream.cost.zipf_sums import zipf_share


class XHybridJoinMemory(NamedTuple):
    """Bytes by part."""

    swappable: float
    non_swappable: float
    hash_table: float
    queue: float


def xhybridjoin_eq4_memory(
    M: float, k: float, l: float, v_P: float, alpha: float
) -> XHybridJoinMemory:
    """Eq. 4: how M is divided; the parts add up to M."""
    rest = M - (k + l) * v_P
    return XHybridJoinMemory(k * v_P, l * v_P, alpha * rest, (1 - alpha) * rest)


def xhybridjoin_eq5_loop(w: float, d_N: float, d_S: float, c_IO: float, c: CostFactors) -> float:
    """Eq. 5: seconds of an iteration."""
    return c_IO + (d_N + d_S) * c.probe + w * (c.output + c.delete + c.stream_read + c.append)


def xhybridjoin_eq6_rate(w: float, c_loop: float) -> float:
    """Eq. 6: μ."""
    return w / c_loop


def xhybridjoin_eq7_p_old(d_N: float, d_S: float, R_t: float) -> float:
    """Eq. 7: the probability that a tuple left over matches the swapped partition, 1 / n."""
    return d_S / (R_t - d_N)


def xhybridjoin_eq8_p_N(d_N: float, R_t: int, e: float = 1.0) -> float:
    """The part of Eq. 8 that says how many new tuples match the non-swappable part."""
    return zipf_share(d_N, R_t, e)


def xhybridjoin_eq8_p_S(d_N: float, R_t: int, e: float = 1.0) -> float:
    """The part of Eq. 8 that says how many new tuples match what is swapped."""
    return 1 - zipf_share(d_N, R_t, e)


def xhybridjoin_eq8_p_new(d_N: float, d_S: float, R_t: int, e: float = 1.0) -> float:
    """Eq. 8: the probability that a new tuple matches one of the two parts in memory."""
    swapped = xhybridjoin_eq8_p_S(d_N, R_t, e) * xhybridjoin_eq7_p_old(d_N, d_S, R_t)
    return xhybridjoin_eq8_p_N(d_N, R_t, e) + swapped


def xhybridjoin_eq9_w(h_S: float, p_old: float, p_new: float) -> float:
    """Eq. 9: tuples finished per iteration.

    It multiplies by 1 − p as if a variance were asked for, so that w falls when p_new nears 1.
    """
    old, new = p_old * (1 - p_old), p_new * (1 - p_new)
    return h_S * old / (1 + old - new)


def xhybridjoin_eq9_w_expected(h_S: float, p_old: float, p_new: float) -> float:
    """Eq. 9 with expectations instead: w = (h_S − w) p_old + w p_new."""
    return h_S * p_old / (1 + p_old - p_new)
